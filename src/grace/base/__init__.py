"""What every room stands on: errors, words, files, locks, JSON, tensors, seeds, the machine.

Nothing here knows of learning: no network, no data set, no setting.
"""
