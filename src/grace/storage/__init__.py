"""Storage: files written whole and read with suspicion."""
