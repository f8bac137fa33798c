"""Predictions as rows of a table, CSV or JSON lines, as UTF-8 on every terminal.

A file name that is not UTF-8 keeps its bytes in CSV; JSON escapes them as half surrogates.
"""

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from grace.base.words import printable
from grace.cli.columns import padded, widest

if TYPE_CHECKING:
    from grace.learner.prediction import Prediction


class Rows(ABC):
    """Writes predictions in one format.

    Args:
        class_names: all classes that the learner can predict.
        top: number of guesses per image.
        has_unknown: mark unknown images; CSV and JSON also say how familiar each image looks.
    """

    def __init__(self, class_names: Sequence[str], top: int, has_unknown: bool) -> None:
        self.class_names = class_names
        self.top = top
        self.has_unknown = has_unknown

    @abstractmethod
    def head(self) -> bytes:
        """Return the heading, which may be empty."""

    @abstractmethod
    def row(self, prediction: "Prediction") -> bytes:
        """Return the row of one image, with its line break."""


@final
class TableRows(Rows):
    """A table for people; paths are the last column, so that they are never cut."""

    @override
    def head(self) -> bytes:
        cells = ["class", "%"] * self.top + (["unknown"] if self.has_unknown else [])
        return self._line(cells, "image")

    @override
    def row(self, prediction: "Prediction") -> bytes:
        cells: list[str] = []
        for guess in prediction.guesses:
            cells += [printable(guess.class_name), f"{100 * guess.probability:.1f}"]
        cells += ["–"] * (2 * self.top - len(cells))
        if self.has_unknown:
            cells.append("unknown" if prediction.is_unknown else "")
        return self._line(cells, prediction.problem or str(prediction.path))

    def _line(self, cells: Sequence[str], last: str) -> bytes:
        width = max(widest(printable(name) for name in self.class_names), len("class"))
        widths = [width, 5] * self.top + [len("unknown")] * self.has_unknown
        shown = [
            padded(cell, own, right=place % 2 == 1)
            for place, (cell, own) in enumerate(zip(cells, widths, strict=True))
        ]
        return ("  ".join([*shown, printable(last)]) + "\n").encode()


@final
class CsvRows(Rows):
    """One CSV row per image; the columns of the second and later guesses carry a number."""

    @override
    def head(self) -> bytes:
        names = ["class", "probability", "index"]
        further = [f"{name}_{rank}" for rank in range(2, self.top + 1) for name in names]
        unknown = ["unknown", "familiarity"] if self.has_unknown else []
        return self._line(["image", *names, *unknown, *further, "error"])

    @override
    def row(self, prediction: "Prediction") -> bytes:
        guesses = [
            [guess.class_name, _digits(guess.probability), guess.index]
            for guess in prediction.guesses
        ]
        guesses += [["", "", ""]] * (self.top - len(guesses))
        marks = {True: "true", False: "false", None: ""}
        score = "" if prediction.familiarity is None else _digits(prediction.familiarity)
        unknown = [marks[prediction.is_unknown], score] if self.has_unknown else []
        further = [cell for guess in guesses[1:] for cell in guess]
        error = "" if prediction.problem is None else prediction.problem
        return self._line([str(prediction.path), *guesses[0], *unknown, *further, error])

    def _line(self, cells: Sequence[Any]) -> bytes:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerow(cells)
        return out.getvalue().encode("utf-8", "surrogateescape")


@final
class JsonRows(Rows):
    """One JSON object per image, each on its own line."""

    @override
    def head(self) -> bytes:
        return b""

    @override
    def row(self, prediction: "Prediction") -> bytes:
        facts: dict[str, Any] = {"image": str(prediction.path)}
        if prediction.problem is not None:
            facts["error"] = prediction.problem
        else:
            top = [
                {
                    "class": guess.class_name,
                    "index": guess.index,
                    "probability": float(_digits(guess.probability)),
                }
                for guess in prediction.guesses
            ]
            facts |= {**top[0], "top": top}
            if self.has_unknown:
                facts["unknown"] = prediction.is_unknown
                facts["familiarity"] = prediction.familiarity
        text = json.dumps(facts, ensure_ascii=False)
        if not text.isprintable():
            text = json.dumps(facts)
        return f"{text}\n".encode()


FORMS: Mapping[str, Callable[[Sequence[str], int, bool], Rows]] = {
    "table": TableRows,
    "csv": CsvRows,
    "jsonl": JsonRows,
}


def _digits(probability: float) -> str:
    """Write a float32 with enough digits to read it back exactly."""
    return f"{probability:.9g}"
