"""Parse small XML files into elements that know their lines.

DOCTYPE, entities, and files above the limits are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from hub_core.model import InputError, Location

# The largest known files have a few hundred elements at depth ten; these limits protect the memory
# from hostile files.
MAX_BYTES = 16 << 20
MAX_ELEMENTS = 100_000
MAX_DEPTH = 64
_NUMBER = re.compile(r"\s*(-?0[xX][0-9a-fA-F]{1,16}|-?[0-9]{1,18})\s*\Z")
_REAL = re.compile(r"\s*-?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,2})?\s*\Z")


@dataclass(slots=True)
class Element:
    """An element: attributes as written, line from 1, children in order."""

    name: str
    attributes: dict[str, str]
    file: str
    line: int
    children: list[Element] = field(default_factory=list)

    def named(self, *names: str) -> Iterator[Element]:
        """Iterate the children with these names."""
        return (child for child in self.children if child.name in names)

    def walk(self) -> Iterator[Element]:
        """Yield this element and all descendants in the order of the file."""
        yield self
        for child in self.children:
            yield from child.walk()

    def text(self, name: str, default: str = "") -> str:
        """An attribute as written, or the default."""
        return self.attributes.get(name, default)

    def whole(self, name: str) -> int | None:
        """Integer attribute in C notation (`17`, `0x11`); None if it is missing or empty.

        Raises `InputError` for other texts.
        """
        text = self.text(name)
        if not text:
            return None
        match = _NUMBER.match(text)
        if match is None:
            self.fail_value(name, "a whole number")
        digits = match[1]
        # Python's base 0, which distinguishes the two like C, refuses leading zeros.
        base = 16 if "x" in digits.lower() else 10
        return int(digits, base)

    def real(self, name: str) -> float | None:
        """Attribute as a float; None if it is missing or empty.

        Raises `InputError` for other texts.
        """
        text = self.text(name)
        if not text:
            return None
        if not _REAL.match(text):
            self.fail_value(name, "a number")
        return float(text)

    def fail_value(self, name: str, expected: str) -> NoReturn:
        """Raise `InputError` for the value of an attribute."""
        self.fail(f"<{self.name}>: {name}={self.text(name)!r:.80} is not {expected}")

    def fail(self, message: str, cure: str = "") -> NoReturn:
        """Raise `InputError` at the line of this element."""
        raise InputError(message, location=self.place, cure=cure, code="invalid-nccl-topology")

    @property
    def place(self) -> Location:
        """File and line of the element."""
        return Location(self.file, self.line)


def parse(content: bytes, file: str) -> Element:
    """Root element of a file.

    Raises `InputError` with the line for malformed XML or above a limit.
    """
    if len(content) > MAX_BYTES:
        raise InputError(
            f"the file is larger than {MAX_BYTES >> 20} MiB",
            location=Location(file),
            code="too-large",
        )
    builder = _ElementBuilder(file)
    try:
        builder.parser.Parse(content, True)
    except expat.ExpatError as error:
        raise _not_well_formed(error, file) from None
    # Expat uses Python's codecs for encodings that it does not support.
    except (LookupError, ValueError):
        raise _unknown_encoding(file) from None
    return builder.root.children[0]


def _not_well_formed(error: expat.ExpatError, file: str) -> InputError:
    reason = expat.ErrorString(error.code)
    return InputError(
        f"this is not well-formed XML: {reason}",
        location=Location(file, error.lineno),
        code="not-xml",
    )


def _unknown_encoding(file: str) -> InputError:
    return InputError(
        "the XML declaration names an encoding that is not supported",
        location=Location(file, 1),
        cure="write the file in UTF-8",
        code="not-xml",
    )


class _ElementBuilder:
    """Expat handlers that build the elements.

    Without a DOCTYPE, which is refused, XML has only five predefined entities, so no file grows
    when it is read.
    """

    def __init__(self, file: str) -> None:
        self.root = Element("", {}, file, 0)
        # The open elements, outermost first.
        self._open = [self.root]
        self._count = 0
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        """Add an element to the innermost open one."""
        element = Element(name, attributes, self.root.file, self.parser.CurrentLineNumber)
        self._count += 1
        if self._count > MAX_ELEMENTS or len(self._open) > MAX_DEPTH:
            element.fail(
                f"there are more than {MAX_ELEMENTS} elements, "
                f"or more than {MAX_DEPTH} inside one another"
            )
        self._open[-1].children.append(element)
        self._open.append(element)

    def _end(self, name: str) -> None:
        self._open.pop()

    def _refuse_doctype(
        self, name: str, system: str | None, public: str | None, has_internal: bool
    ) -> None:
        location = Location(self.root.file, self.parser.CurrentLineNumber)
        raise InputError(
            "a DOCTYPE is not accepted",
            location=location,
            cure="remove it",
            code="doctype",
        )
