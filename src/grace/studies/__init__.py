"""Questions asked of many runs; answered from their records alone, without importing torch."""
