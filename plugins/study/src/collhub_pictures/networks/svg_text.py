"""Names as text of an SVG document."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

# What XML 1.0 does not allow, not even escaped (section 2.2, Characters).
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"

LABEL_LENGTH = 24


def svg_text(text: str) -> str:
    """Names are not to be trusted: markup is escaped, and what XML cannot hold is replaced."""
    legal = _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
    return escape(legal)


def label(name: str) -> str:
    """A name that fits into its shape: of a long one, the two ends, which tell most."""
    if len(name) <= LABEL_LENGTH:
        return name
    head = name[: LABEL_LENGTH - 5]
    tail = name[-4:]
    return f"{head}{_ELLIPSIS}{tail}"


def shortened(text: str, length: int) -> str:
    """The beginning of a text that is longer."""
    if len(text) <= length:
        return text
    return f"{text[: length - 1]}{_ELLIPSIS}"
