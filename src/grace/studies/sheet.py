"""A table as it is shown, and its forms: Markdown and LaTeX."""

from dataclasses import dataclass
from typing import Literal, final

from grace.base.words import latex, markdown, printable

Mark = Literal["", "best", "second"]


@final
@dataclass(frozen=True)
class Entry:
    """One cell: a text, and whether it is the best or second best of its column."""

    text: str
    mark: Mark = ""


@final
@dataclass(frozen=True)
class Sheet:
    """A table of texts.

    Args:
        headings: one for each column.
        rows: as many entries in each.
        notes: lines below the table.
        num_names: columns of names, which come first and stand at the left.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()
    num_names: int = 1

    def to_markdown(self) -> str:
        """Return the table as GitHub Markdown; the best are bold, the second underlined."""
        rule = ["---"] * self.num_names + ["---:"] * (len(self.headings) - self.num_names)
        forms = {"": "{}", "best": "**{}**", "second": "<u>{}</u>"}
        rows = [[forms[cell.mark].format(markdown(cell.text)) for cell in r] for r in self.rows]
        lines = [f"| {' | '.join(row)} |" for row in [self.headings, rule, *rows]]
        return "\n".join([*lines, *(f"\n{markdown(note)}" for note in self.notes)]) + "\n"

    def to_latex(self) -> str:
        r"""Return the table as a LaTeX ``tabular`` with booktabs rules; all texts are escaped."""
        forms = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
        shown = [[forms[cell.mark].format(latex(cell.text)) for cell in row] for row in self.rows]
        columns = "l" * self.num_names + "r" * (len(self.headings) - self.num_names)
        lines = [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(map(latex, self.headings)) + r" \\",
            r"\midrule",
            *(" & ".join(row) + r" \\" for row in shown),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        notes = [f"% {printable(' '.join(note.split()))}" for note in self.notes]
        return "\n".join([*notes, r"% needs \usepackage{booktabs}", *lines]) + "\n"
