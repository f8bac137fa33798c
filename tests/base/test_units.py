import pytest

from grace.base.words import counted, in_bytes, in_count, in_percent, in_seconds, named_versions


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 B"), (999, "999 B"), (6400, "6.4 kB"), (1_854_016, "1.9 MB"), (44_706_048, "44.7 MB"),
     (999_600, "1.0 MB"), (123_400_000, "123 MB"), (2_345_000_000, "2.3 GB")],
)  # fmt: skip
def test_bytes(value: int, shown: str) -> None:
    assert in_bytes(value) == shown


def test_others() -> None:
    assert (in_percent(57.386), in_percent(None)) == ("57.39", "–")
    assert (in_count(463_504), in_count(7_850)) == ("0.46 M", "7.8 k")
    assert (in_count(11_168_832), in_count(223_376_640)) == ("11.2 M", "223 M")
    assert [in_seconds(s) for s in (4.21, 185, 7800)] == ["4.2 s", "3:05 min", "2:10 h"]


def test_one_is_singular() -> None:
    assert [counted(n, "image") for n in (0, 1, 2)] == ["0 images", "1 image", "2 images"]
    assert [counted(n, "class", "classes") for n in (1, 2)] == ["1 class", "2 classes"]
    assert [named_versions(own) for own in ([3], [1, 2])] == ["version 3", "versions 1, 2"]
