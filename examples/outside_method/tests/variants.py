"""A tiny form of the method, which grace's contract suite runs."""

from grace_aligned.settings import AlignedSettings

from grace.settings.recipe import Recipe

_SHORT = Recipe(epochs=1, batch_size=16, lr=0.05)

VARIANTS = {"aligned": AlignedSettings(base=_SHORT, update=_SHORT)}
