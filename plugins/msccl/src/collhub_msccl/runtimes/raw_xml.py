"""Parse a file as the runtimes' own hand-written parser does, which is no XML parser.

`src/graph/xml.cc` of NCCL, which all three runtimes took over: elements between spaces and line
ends, attributes on one line with one space before each, values in double quotes, no entities.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from hub_core.model import InputError, Location

# MAX_ATTR_COUNT and MAX_STR_LEN of `src/graph/xml.h`.
_MOST_ATTRIBUTES = 16
_LONGEST_NAME, _LONGEST_VALUE = 254, 255
_CHILDREN = {"algo": "gpu", "gpu": "tb", "tb": "step"}
_BETWEEN = re.compile(r"(?:[ \n\r]+|<!--.*?-->)*", re.DOTALL)
_OPEN = re.compile(r"<([^\s<>/=\"']+)((?: +[^\s<>/=\"']+=\"[^\"]*\")*) *(/?)>")
_CLOSE = re.compile(r"</([^\s<>/=\"']+) *>")
_ATTRIBUTE = re.compile(r"( +)([^\s<>/=\"']+)=\"([^\"]*)\"")
_SHOWN = 30
_LOOKED_AHEAD = 4096
# How the text begins where an element is expected, and what the user made of it.
_REASONS = (
    ("\t", "tab", "a tab between elements; the runtimes' parser takes spaces and line ends only"),
    ("<?", "xml-declaration", "an XML declaration, which the runtimes' parser does not take"),
    ("<!--", "truncated", "a comment without end"),
    ("<!", "doctype", "a declaration, which the runtimes' parser does not take"),
)


@dataclass(slots=True)
class RawElement:
    """An element with the attributes that the parser keeps, and the children that it looks at."""

    name: str
    line: int
    attributes: Mapping[str, str]
    children: list[RawElement] = field(default_factory=list)


def parse_raw(text: str, file: str) -> RawElement:
    """The first element of the text.

    Elements that the runtimes do not know are left out with their content, and so are attributes
    beyond the 16th slot; every space between attributes takes one. The parser reads on to the end:
    behind the first element it takes comments and further elements only, and looks at none of them.
    Raises `InputError` at the first place where it gives up.
    """
    parser = _Parser(text, file)
    root = parser.element()
    while not parser.is_at_end():
        parser.element()
    return root


class _Parser:
    """A position in the text, and the rules."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._position = 0
        self._line = 1

    def is_at_end(self) -> bool:
        """Whether nothing but white space and comments is left; they are passed."""
        self._skip_between()
        return self._position == len(self._text)

    def element(self) -> RawElement:
        """The next element, whatever it is; the runtimes take the first one as `<algo>`."""
        root, is_closed = self._start()
        root.name = "algo"
        # Open elements, and whether each is one that the runtimes know, in its place.
        stack: list[tuple[RawElement, bool]] = [] if is_closed else [(root, True)]
        while stack:
            parent, is_known = stack[-1]
            self._skip_between()
            if self._ends(parent, is_root=len(stack) == 1):
                stack.pop()
                continue
            element, is_closed = self._start(inside=parent.name)
            # Whatever stands in an unknown element is skipped with it.
            belongs = is_known and element.name == _CHILDREN.get(parent.name)
            if belongs:
                parent.children.append(element)
            if not is_closed:
                stack.append((element, belongs))
        return root

    def _ends(self, element: RawElement, is_root: bool) -> bool:
        """Whether a closing tag stands here; it is passed."""
        end = _CLOSE.match(self._text, self._position)
        if end is None:
            return False
        # The first element counts as <algo> whatever it is called, so its end has any name too.
        if end[1] != element.name and not is_root:
            stands, expected = end[1][:_SHOWN], element.name[:_SHOWN]
            message = f"</{stands}> stands where </{expected}> is expected"
            self._fail("misplaced-element", message)
        self._advance(end.end())
        return True

    def _start(self, inside: str = "") -> tuple[RawElement, bool]:
        """An opening tag, and whether it is closed at once."""
        self._skip_between()
        match = _OPEN.match(self._text, self._position)
        # One pattern for a whole tag: what does not match is looked at again for the reason.
        if match is None:
            self._refuse(inside)
        line = self._line
        self._advance(match.end())
        element = RawElement(match[1], line, self._attributes(match, line))
        return element, match[3] == "/"

    def _attributes(self, match: re.Match[str], line: int) -> dict[str, str]:
        """Attributes that the parser keeps."""
        if len(match[1]) > _LONGEST_NAME:
            self._fail("too-long", f"an element name of {len(match[1])} characters", line)
        found: dict[str, str] = {}
        slot = 0
        for spaces, name, value in _ATTRIBUTE.findall(match[2]):
            # Each space after the first is an attribute without name to this parser.
            slot += len(spaces)
            if len(name) > _LONGEST_NAME or len(value) > _LONGEST_VALUE:
                shown = name[:_SHOWN]
                message = f"attribute {shown!r} overruns the {_LONGEST_VALUE} bytes for a value"
                self._fail("too-long", message, line)
            # The first of two attributes of one name is the one that is found.
            if slot <= _MOST_ATTRIBUTES:
                found.setdefault(name, value)
        return found

    def _skip_between(self) -> None:
        """Pass white space and comments."""
        match = _BETWEEN.match(self._text, self._position)
        assert match is not None, "the pattern matches the empty text"
        self._advance(match.end())

    def _advance(self, position: int) -> None:
        """Move on, counting lines: a count of one stretch is linear in the text over all calls."""
        self._line += self._text.count("\n", self._position, position)
        self._position = position

    def _refuse(self, inside: str) -> NoReturn:
        """Say why there is no element here."""
        rest = self._text[self._position : self._position + _LOOKED_AHEAD]
        if not rest:
            where = f"inside <{inside}>" if inside else "before its first element"
            self._fail("truncated", f"the file ends {where}")
        for start, code, what in _REASONS:
            if rest.startswith(start):
                self._fail(code, what)
        if not rest.startswith("<"):
            shown = rest[:_SHOWN]
            message = f"text {shown!r} between elements, where the runtimes' parser takes none"
            self._fail("not-xml", message)
        self._refuse_tag(rest.partition(">")[0])

    def _refuse_tag(self, tag: str) -> NoReturn:
        """Say what is wrong within a tag."""
        if "'" in tag:
            message = "a value in single quotes; the runtimes' parser takes double quotes only"
            self._fail("single-quote", message)
        if re.search(r"[\t\n\r]", tag):
            where = "a tab or line break between attributes"
            self._fail("line-break", f"{where}; the runtimes' parser takes one space only")
        message = f"{tag[:_SHOWN]!r} is no element that the runtimes' parser takes"
        self._fail("not-xml", message)

    def _fail(
        self,
        code: str,
        message: str,
        line: int | None = None,
    ) -> NoReturn:
        """Raise `InputError` for a line, the current one unless stated."""
        raise InputError(
            message,
            location=Location(self._file, self._line if line is None else line),
            cure="'collhub convert' writes the file anew",
            code=code,
        )
