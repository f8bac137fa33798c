"""Saturation of a backbone, the decision to grow or compress, and merge weights: pure functions."""
