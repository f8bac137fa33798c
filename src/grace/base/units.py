"""Format numbers for people; numbers are rounded only here."""

from collections.abc import Sequence


def in_percent(value: float | None, digits: int = 2) -> str:
    """Return percent with a fixed number of decimals, or "–"."""
    return "–" if value is None else f"{value:.{digits}f}"


def in_interval(ends: tuple[float, float]) -> str:
    """Return an interval of shares in whole percent: "68 – 91 %"."""
    low, high = ends
    return f"{100 * low:.0f} – {100 * high:.0f} %"


def in_bytes(value: float) -> str:
    """Return bytes in the decimal unit that leaves one to three digits: "6.4 kB"."""
    if value < 1000:
        return f"{value:.0f} B"
    units = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
    unit = next((unit for unit, size in units.items() if value / size < 999.5), "GB")
    shown = value / units[unit]
    return f"{shown:.0f} {unit}" if shown >= 99.95 else f"{shown:.1f} {unit}"


def in_count(value: float) -> str:
    """Return a count in thousands or millions, in at most six characters: "0.27 M"."""
    if value < 1e5:
        return f"{value / 1e3:.1f} k"
    digits = 2 if value < 9.995e6 else 1 if value < 99.95e6 else 0
    return f"{value / 1e6:.{digits}f} M"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: "1 image", "2 images".

    Args:
        number: how many.
        one: the noun for one.
        many: the noun for several; empty: ``one`` with an s.
    """
    return f"{number} {one if number == 1 else many or one + 's'}"


def named_versions(numbers: Sequence[int]) -> str:
    """Return versions by their numbers: "version 3", "versions 1, 2"."""
    return f"version{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def in_seconds(value: float) -> str:
    """Return a duration: "4.2 s", "3:05 min", "2:10 h"."""
    if value < 100:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 100:
        return f"{minutes}:{seconds:02d} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d} h"
