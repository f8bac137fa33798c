"""Phases and sweeps, and the trainer that carries them out: the only epoch loop of the package.

Device, precision, snapshots and several processes live here. What to train is a method's business,
not the engine's.
"""
