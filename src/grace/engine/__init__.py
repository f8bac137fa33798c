"""Phases and sweeps, and the trainer that carries them out."""
