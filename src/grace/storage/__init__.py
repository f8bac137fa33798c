"""Storage: files are written whole, and checked when they are read."""
