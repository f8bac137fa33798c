"""Experiments as data: settings models, their loading and checking, the registry of names.

The packaged experiments live here too. Nothing here trains, reads images or imports torch.
"""
