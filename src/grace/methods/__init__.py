"""The methods: one file each, which reads like its paper's algorithm, and the steps they share.

A method says what to train and keep. It does not loop over epochs, save files or measure accuracy.
"""
