"""One file per method, each read like its paper's algorithm."""
