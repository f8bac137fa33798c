"""Data: sources, scenario, exemplar memory, augmentation, batches."""
