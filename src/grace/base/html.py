"""Make HTML: ``escape`` escapes text, ``element`` escapes attribute values."""

import html

from grace.base.escaping import printable


def escape(text: object) -> str:
    """Escape text for HTML, with escapes for characters that are not printable."""
    return html.escape("\n".join(map(printable, str(text).split("\n"))), quote=True)


def join(*parts: str) -> str:
    """Join pieces of HTML, one per line; empty ones are left out."""
    return "\n".join(part for part in parts if part)


def element(tag: str, *children: str, **attributes: str) -> str:
    """Wrap HTML in an element.

    ``children`` are HTML; attribute values are escaped here. In attribute names a trailing
    underscore is removed (``class_``) and inner ones are replaced by hyphens (``data_run``).
    """
    shown = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{shown}>{join(*children)}</{tag}>"
