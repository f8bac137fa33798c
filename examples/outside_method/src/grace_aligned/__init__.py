"""Replay with weight alignment: a method for grace in a package of its own."""
