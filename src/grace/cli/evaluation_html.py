"""The page of ``grace evaluate --html``: accuracies, confusions, and the worst mistakes."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path

from grace.base.atomic import write_bytes
from grace.base.errors import GraceError
from grace.base.words import element, escape, join, printable
from grace.cli.evaluation_page import calibration, cells, in_words
from grace.data.decoding import decode, naming
from grace.learner.evaluated import Evaluated, ImageResult

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 62em; padding: 0 1em;
  color: #1b2430; background: #fff }
table { border-collapse: collapse; margin: 1em 0 } td, th { padding: .2em .8em; text-align: left;
  border-bottom: 1px solid #d8dde3 } td.n, th.n { text-align: right }
.mistakes { display: grid; grid-template-columns: repeat(auto-fill, minmax(11em, 1fr)); gap: 1em }
figure { margin: 0 } img { width: 128px; height: 128px; object-fit: contain; background: #eef1f4 }
figcaption { font-size: 13px; overflow-wrap: anywhere } .path { color: #667 }
"""


def write_page(found: Evaluated, path: Path, most: int = 48) -> None:
    """Write the page: one file that needs no other, at most some 400 kB of pictures.

    Args:
        found: the results.
        path: file to write; an existing one is replaced.
        most: number of mistakes to show.
    """
    title = f"{found.model.resolve().name}: version {found.version} on {found.images}"
    shown = found.mistakes[:most]
    pairs = [(pair.class_name, pair.predicted, str(pair.num)) for pair in found.confusions[:20]]
    body = join(
        element("h1", escape(printable(title))),
        element("p", escape(f"Accuracy {in_words(found.overall)} images.")),
        element("p", escape(f"Calibration {calibration(found)}.")),
        element("h2", f"The worst mistakes ({len(shown)} of {len(found.mistakes)})"),
        element("p", "Wrong predictions, the most confident first."),
        element("div", *(_figure(result) for result in shown), class_="mistakes"),
        element("h2", "Most confused"),
        _table(("class", "taken for", "images"), pairs, numbers=1),
        element("h2", "Classes"),
        _table(
            ("class", "accuracy", "95 % interval", "images"),
            [(own.name, *cells(own)) for own in found.classes],
            numbers=3,
        ),
    )
    head = join(
        '<meta charset="utf-8">',
        # No script and nothing from elsewhere, whatever a file is called.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">",
        element("title", escape(printable(title))),
        element("style", STYLE),
    )
    html = element("html", element("head", head), element("body", body), lang="en")
    write_bytes(path, f"<!doctype html>\n{html}\n".encode())


def _figure(result: ImageResult) -> str:
    return element(
        "figure",
        _picture(result.path),
        element(
            "figcaption",
            element("b", escape(printable(result.class_name))),
            escape(f" taken for {printable(result.predicted)}, {100 * result.probability:.1f} %"),
            element("div", escape(printable(str(result.path))), class_="path"),
        ),
    )


def _picture(path: Path, side: int = 128) -> str:
    """Return a thumbnail inside the page; empty if the file has changed and cannot be read."""
    try:
        with naming(path):
            image, _ = decode(path, 3)
    except GraceError:
        return ""
    image.thumbnail((side, side))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    data = base64.b64encode(out.getvalue()).decode()
    return f'<img src="data:image/jpeg;base64,{data}" alt="">'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: int) -> str:
    """Return a table whose last ``numbers`` columns are aligned to the right."""

    def line(tag: str, cells_: Sequence[str]) -> str:
        first = len(cells_) - numbers
        return element(
            "tr",
            *(
                element(tag, escape(printable(cell)), class_="n" if place >= first else "t")
                for place, cell in enumerate(cells_)
            ),
        )

    return element("table", line("th", head), *(line("td", row) for row in rows))
