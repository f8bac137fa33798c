"""Data sets and folders of images, the stream of tasks, exemplar memory, augmentation, batches.

Whatever reads an image file lives here. Networks, losses and the order of training do not.
"""
