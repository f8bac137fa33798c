"""Near misses: what someone probably meant to write."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice most like ``word``, or none when nothing is close."""
    by_folded = {choice.casefold(): choice for choice in choices}
    found = get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the choice most like ``word``, or nothing."""
    found = nearest(word, choices)
    return f"; did you mean '{found}'?" if found else ""
