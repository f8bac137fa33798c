"""Predictions as rows of a table, CSV or JSON lines, as UTF-8 on every terminal.

A file name that is not UTF-8 keeps its bytes in CSV; JSON escapes them as half surrogates.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

from rich.cells import cell_len, set_cell_size

from grace.base.words import printable

if TYPE_CHECKING:
    from grace.learner.prediction import Prediction


Form = Literal["table", "csv", "json"]


@final
@dataclass(frozen=True)
class Rows:
    """Writes predictions in one form.

    Args:
        form: "table" for people, its paths last, so that they are never cut; "csv", one row an
            image, the columns of later guesses with a number; "json", one object a line.
        class_names: all classes that the learner can predict.
        top: number of guesses for an image.
        has_unknown: mark unknown images; CSV and JSON also say how familiar each image looks.
    """

    form: Form
    class_names: Sequence[str]
    top: int
    has_unknown: bool

    def head(self) -> bytes:
        """Return the heading, which may be empty."""
        if self.form == "json":
            return b""
        if self.form == "table":
            return self._aligned([("class", "%")] * self.top, "unknown", "image")
        names = ["class", "probability", "index"]
        further = [f"{name}_{rank}" for rank in range(2, self.top + 1) for name in names]
        return _csv(["image", *names, *["unknown", "familiarity"] * self.has_unknown, *further])

    def row(self, told: "Prediction") -> bytes:
        """Return the row of one image, with its line break."""
        if self.form == "json":
            return self._json(told)
        if self.form == "csv":
            return self._csv(told)
        cells = [(own.class_name, f"{100 * own.probability:.1f}") for own in told.guesses]
        cells += [("–", "–")] * (self.top - len(cells))
        mark = "unknown" if told.is_unknown else ""
        return self._aligned(cells, mark, told.problem or str(told.path))

    def _aligned(self, guesses: Sequence[tuple[str, str]], mark: str, last: str) -> bytes:
        width = max(cell_len(printable(name)) for name in [*self.class_names, "class"])
        cells = [f"{set_cell_size(printable(name), width)}  {share:>5}" for name, share in guesses]
        cells += [f"{mark:7}"] * self.has_unknown
        return ("  ".join([*cells, printable(last)]) + "\n").encode()

    def _csv(self, told: "Prediction") -> bytes:
        guesses = [[own.class_name, _digits(own.probability), own.index] for own in told.guesses]
        first, *others = guesses + [["", "", ""]] * (self.top - len(guesses))
        marks = {True: "true", False: "false", None: ""}
        score = "" if told.familiarity is None else _digits(told.familiarity)
        unknown = [marks[told.is_unknown], score] * self.has_unknown
        further = [cell for guess in others for cell in guess]
        return _csv([str(told.path), *first, *unknown, *further], told.problem or "")

    def _json(self, told: "Prediction") -> bytes:
        facts: dict[str, Any] = {"image": str(told.path)}
        if told.problem is not None:
            facts["error"] = told.problem
        else:
            top = [
                {
                    "class": own.class_name,
                    "index": own.index,
                    "probability": float(_digits(own.probability)),
                }
                for own in told.guesses
            ]
            facts |= {**top[0], "top": top}
            if self.has_unknown:
                facts |= {"unknown": told.is_unknown, "familiarity": told.familiarity}
        text = json.dumps(facts, ensure_ascii=False)
        return f"{text if text.isprintable() else json.dumps(facts)}\n".encode()


def _csv(cells: Sequence[Any], error: str = "error") -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([*cells, error])
    return out.getvalue().encode("utf-8", "surrogateescape")


def _digits(probability: float) -> str:
    """Write a float32 with enough digits to read it back exactly."""
    return f"{probability:.9g}"
