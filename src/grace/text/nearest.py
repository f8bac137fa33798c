"""Find the name that someone probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice most similar to ``word``; ``None``: no choice is similar."""
    by_folded = {choice.casefold(): choice for choice in choices}
    found = get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the most similar choice, or an empty text."""
    found = nearest(word, choices)
    return f"; did you mean '{found}'?" if found else ""
