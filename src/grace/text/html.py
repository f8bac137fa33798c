"""HTML from values: text is escaped where it enters, attributes always."""

import html


def escape(text: object) -> str:
    """Escape text for HTML."""
    return html.escape(str(text), quote=True)


def join(*parts: str) -> str:
    """Put pieces of HTML below each other."""
    return "\n".join(part for part in parts if part)


def element(tag: str, *children: str, **attributes: str) -> str:
    """Wrap HTML in an element.

    ``children`` are HTML already; attribute values are escaped here. A trailing underscore frees a
    name from Python (``class_``), inner ones become hyphens (``data_run``).
    """
    shown = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{shown}>{join(*children)}</{tag}>"
