"""From a network, a loss and prepared cases to weights on disk, and from those to label maps.

`metrics` says how good a segmentation is, `checkpoint` keeps a run's state so that a crash loses nothing.
"""
