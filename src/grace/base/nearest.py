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


def did_you_mean_one_of(word: str, choices: Iterable[str], most: int = 12) -> str:
    """Return the same and the choices themselves: ``"; did you mean 'x'? (known: x, y)"``.

    Args:
        word: what someone wrote.
        choices: what would have been right.
        most: choices to list; "…" stands for the others.
    """
    known = list(choices)
    listed = ", ".join([*known[:most], *(["…"] if len(known) > most else [])])
    return did_you_mean(word, known) + (f" (known: {listed})" if known else "")
