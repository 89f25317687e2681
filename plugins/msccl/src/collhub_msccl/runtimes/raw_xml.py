"""Parse a file as the runtimes' own hand-written parser does, which is no XML parser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from hub_core.diagnostics import InputError, Location

_MOST_ATTRIBUTES = 16
_LONGEST_NAME, _LONGEST_VALUE = 254, 255
_CHILDREN = {"algo": "gpu", "gpu": "tb", "tb": "step"}
_BETWEEN = re.compile(r"(?:[ \n\r]+|<!--.*?-->)*", re.DOTALL)
_OPEN = re.compile(r"<([^\s<>/=\"']+)((?: +[^\s<>/=\"']+=\"[^\"]*\")*) *(/?)>")
_CLOSE = re.compile(r"</([^\s<>/=\"']+) *>")
_ATTRIBUTE = re.compile(r"( +)([^\s<>/=\"']+)=\"([^\"]*)\"")
_SHOWN = 30


@dataclass(slots=True)
class RawElement:
    """An element with the attributes that the parser keeps, and the children that it looks at."""

    name: str
    line: int
    attributes: Mapping[str, str]
    children: list[RawElement] = field(default_factory=list)


def parse_raw(text: str, file: str) -> RawElement:
    """The first element of the text. Raises `InputError` at the first place where the parser gives up.

    Elements that it does not know are left out with their content, and so are attributes beyond the 16th slot; every
    space between attributes takes one.
    """
    return _Parser(text, file).element()


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._position = 0
        self._line = 1

    def element(self) -> RawElement:
        """The next element, whatever it is; the runtimes take the first one as `<algo>`."""
        root, is_closed = self._start()
        root.name = "algo"
        open_elements: list[tuple[RawElement, bool]] = [] if is_closed else [(root, True)]
        while open_elements:
            parent, is_known = open_elements[-1]
            self._skip_between()
            if end := _CLOSE.match(self._text, self._position):
                self._check_end(end, parent, is_root=len(open_elements) == 1)
                self._advance(end.end())
                open_elements.pop()
                continue
            element, is_closed = self._start(inside=parent.name)
            belongs = is_known and element.name == _CHILDREN.get(parent.name)
            if belongs:
                parent.children.append(element)
            if not is_closed:
                open_elements.append((element, belongs))
        return root

    def _start(self, inside: str = "") -> tuple[RawElement, bool]:
        """An opening tag, and whether it is closed at once."""
        self._skip_between()
        match = _OPEN.match(self._text, self._position)
        if match is None:
            self._refuse(inside)
        line = self._line
        self._advance(match.end())
        return RawElement(match[1], line, self._attributes(match, line)), match[3] == "/"

    def _attributes(self, match: re.Match[str], line: int) -> dict[str, str]:
        if len(match[1]) > _LONGEST_NAME:
            self._fail("too-long", f"an element name of {len(match[1])} characters", line)
        found: dict[str, str] = {}
        slot = 0
        for spaces, name, value in _ATTRIBUTE.findall(match[2]):
            slot += len(spaces)
            if len(name) > _LONGEST_NAME or len(value) > _LONGEST_VALUE:
                self._fail(
                    "too-long",
                    f"attribute {name[:_SHOWN]!r} overruns the {_LONGEST_VALUE} bytes for a value",
                    line,
                )
            # The first of two attributes of one name is the one that is found.
            if slot <= _MOST_ATTRIBUTES:
                found.setdefault(name, value)
        return found

    def _check_end(self, end: re.Match[str], element: RawElement, is_root: bool) -> None:
        if end[1] != element.name and not is_root:
            self._fail(
                "misplaced-element",
                f"</{end[1][:_SHOWN]}> stands where </{element.name[:_SHOWN]}> is expected",
            )

    def _skip_between(self) -> None:
        match = _BETWEEN.match(self._text, self._position)
        assert match is not None, "the pattern matches the empty text"
        self._advance(match.end())

    def _advance(self, position: int) -> None:
        self._line += self._text.count("\n", self._position, position)
        self._position = position

    def _refuse(self, inside: str) -> NoReturn:
        """Say why there is no element here."""
        rest = self._text[self._position : self._position + 4096]
        if not rest:
            where = f"inside <{inside}>" if inside else "before its first element"
            self._fail("truncated", f"the file ends {where}")
        for start, code, what in _REASONS:
            if rest.startswith(start):
                self._fail(code, what)
        if not rest.startswith("<"):
            self._fail(
                "not-xml",
                f"text {rest[:_SHOWN]!r} between elements, where the runtimes' parser takes none",
            )
        tag = rest.partition(">")[0]
        if "'" in tag:
            self._fail(
                "single-quote",
                "a value in single quotes; the runtimes' parser takes double quotes only",
            )
        if re.search(r"[\t\n\r]", tag):
            self._fail(
                "line-break",
                "a tab or line break between attributes; the runtimes' parser takes one space only",
            )
        self._fail("not-xml", f"{tag[:_SHOWN]!r} is no element that the runtimes' parser takes")

    def _fail(self, code: str, message: str, line: int | None = None) -> NoReturn:
        raise InputError(
            message,
            location=Location(self._file, self._line if line is None else line),
            cure="'collhub convert' writes the file anew",
            code=code,
        )


_REASONS = (
    ("\t", "tab", "a tab between elements; the runtimes' parser takes spaces and line ends only"),
    ("<?", "xml-declaration", "an XML declaration, which the runtimes' parser does not take"),
    ("<!--", "truncated", "a comment without end"),
    ("<!", "doctype", "a declaration, which the runtimes' parser does not take"),
)
