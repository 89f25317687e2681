"""Parse a file like the runtimes' hand-written parser, which is not a full XML parser.

Source: `src/graph/xml.cc` of NCCL, copied to all three runtimes. It accepts elements between spaces
and line ends, attributes on one line with one space before each, values in double quotes, and no
entities.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from hub_core.model import InputError, Location

# MAX_ATTR_COUNT and MAX_STR_LEN of `src/graph/xml.h`.
_MAX_ATTRIBUTES = 16
_MAX_NAME_BYTES, _MAX_VALUE_BYTES = 254, 255
_CHILDREN = {"algo": "gpu", "gpu": "tb", "tb": "step"}
_BETWEEN = re.compile(r"(?:[ \n\r]+|<!--.*?-->)*", re.DOTALL)
_OPEN = re.compile(r"<([^\s<>/=\"']+)((?: +[^\s<>/=\"']+=\"[^\"]*\")*) *(/?)>")
_CLOSE = re.compile(r"</([^\s<>/=\"']+) *>")
_ATTRIBUTE = re.compile(r"( +)([^\s<>/=\"']+)=\"([^\"]*)\"")
_MAX_SHOWN_CHARACTERS = 30
_LOOKAHEAD_CHARACTERS = 4096
# Text at a position where an element is expected, diagnostic code, and description.
_REASONS = (
    ("\t", "tab", "a tab between elements; the runtimes' parser accepts only spaces and line ends"),
    ("<?", "xml-declaration", "an XML declaration, which the runtimes' parser does not accept"),
    ("<!--", "truncated", "a comment without end"),
    ("<!", "doctype", "a declaration, which the runtimes' parser does not accept"),
)


@dataclass(slots=True)
class RawElement:
    """An element with the attributes and children that the runtimes' parser keeps."""

    name: str
    line: int
    attributes: Mapping[str, str]
    children: list[RawElement] = field(default_factory=list)


def parse_raw(text: str, file: str) -> RawElement:
    """Parse the first element of the text, named `algo` whatever its tag.

    Elements that the runtimes do not know are dropped with their content, and so are attributes
    beyond the 16th slot; every space between attributes takes a slot. The parser reads to the end
    of the text: after the first element it accepts only comments and further elements, which it
    ignores. Raises `InputError` at the first position where the parser fails.
    """
    parser = _Parser(text, file)
    root = parser.parse_element()
    while not parser.is_at_end():
        parser.parse_element()
    return root


class _Parser:
    """Position and line in the text, and the parsing rules."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._position = 0
        self._line = 1

    def is_at_end(self) -> bool:
        """Skip white space and comments; whether the end of the text is reached."""
        self._skip_between()
        return self._position == len(self._text)

    def parse_element(self) -> RawElement:
        """Parse the next element and its content; the runtimes take the first one for `<algo>`."""
        root, is_closed = self._parse_opening_tag()
        root.name = "algo"
        # Open elements, and whether the runtimes know them at that position.
        stack: list[tuple[RawElement, bool]] = [] if is_closed else [(root, True)]
        while stack:
            parent, is_known = stack[-1]
            self._skip_between()
            if self._skip_closing_tag(parent, is_root=len(stack) == 1):
                stack.pop()
                continue
            element, is_closed = self._parse_opening_tag(inside=parent.name)
            # The content of an unknown element is skipped with it.
            belongs = is_known and element.name == _CHILDREN.get(parent.name)
            if belongs:
                parent.children.append(element)
            if not is_closed:
                stack.append((element, belongs))
        return root

    def _skip_closing_tag(self, element: RawElement, is_root: bool) -> bool:
        """Whether a closing tag follows, which is then skipped.

        Raises `InputError` for a wrong name.
        """
        end = _CLOSE.match(self._text, self._position)
        if end is None:
            return False
        # The first element counts as <algo> with any name, so its closing tag may have any name
        # too.
        if end[1] != element.name and not is_root:
            name, expected = end[1][:_MAX_SHOWN_CHARACTERS], element.name[:_MAX_SHOWN_CHARACTERS]
            message = f"found </{name}>, expected </{expected}>"
            self._fail("misplaced-element", message)
        self._advance(end.end())
        return True

    def _parse_opening_tag(self, inside: str = "") -> tuple[RawElement, bool]:
        """Parse an opening tag; also whether it is self-closing."""
        self._skip_between()
        match = _OPEN.match(self._text, self._position)
        # One pattern matches a complete tag; a mismatch is examined again for the reason.
        if match is None:
            self._refuse(inside)
        line = self._line
        self._advance(match.end())
        element = RawElement(match[1], line, self._parse_attributes(match, line))
        return element, match[3] == "/"

    def _parse_attributes(self, match: re.Match[str], line: int) -> dict[str, str]:
        """Attributes that the parser keeps.

        Raises `InputError` for names and values that overflow its arrays.
        """
        if len(match[1]) > _MAX_NAME_BYTES:
            self._fail("too-long", f"an element name of {len(match[1])} characters", line)
        attributes: dict[str, str] = {}
        slot = 0
        for spaces, name, value in _ATTRIBUTE.findall(match[2]):
            # The parser treats each further space as an attribute without name.
            slot += len(spaces)
            if len(name) > _MAX_NAME_BYTES or len(value) > _MAX_VALUE_BYTES:
                shown = name[:_MAX_SHOWN_CHARACTERS]
                message = f"attribute {shown!r} overruns the {_MAX_VALUE_BYTES} bytes for a value"
                self._fail("too-long", message, line)
            # Of two attributes with one name the parser finds the first.
            if slot <= _MAX_ATTRIBUTES:
                attributes.setdefault(name, value)
        return attributes

    def _skip_between(self) -> None:
        """Skip white space and comments."""
        match = _BETWEEN.match(self._text, self._position)
        assert match is not None, "the pattern matches the empty text"
        self._advance(match.end())

    def _advance(self, position: int) -> None:
        """Move to a position and count the lines passed: linear in the text over all calls."""
        self._line += self._text.count("\n", self._position, position)
        self._position = position

    def _refuse(self, inside: str) -> NoReturn:
        """Raise `InputError` with the reason why no element follows."""
        rest = self._text[self._position : self._position + _LOOKAHEAD_CHARACTERS]
        if not rest:
            where = f"inside <{inside}>" if inside else "before its first element"
            self._fail("truncated", f"the file ends {where}")
        for start, code, description in _REASONS:
            if rest.startswith(start):
                self._fail(code, description)
        if not rest.startswith("<"):
            shown = rest[:_MAX_SHOWN_CHARACTERS]
            message = f"text {shown!r} between elements, which the runtimes' parser does not accept"
            self._fail("not-xml", message)
        self._refuse_tag(rest.partition(">")[0])

    def _refuse_tag(self, tag: str) -> NoReturn:
        """Raise `InputError` with the defect of a tag."""
        if "'" in tag:
            message = "a value in single quotes; the runtimes' parser accepts only double quotes"
            self._fail("single-quote", message)
        if re.search(r"[\t\n\r]", tag):
            where = "a tab or line break between attributes"
            self._fail("line-break", f"{where}; the runtimes' parser accepts only one space")
        message = (
            f"{tag[:_MAX_SHOWN_CHARACTERS]!r} is not an element that the runtimes' parser accepts"
        )
        self._fail("not-xml", message)

    def _fail(
        self,
        code: str,
        message: str,
        line: int | None = None,
    ) -> NoReturn:
        """Raise `InputError` at a line, by default the current one."""
        raise InputError(
            message,
            location=Location(self._file, self._line if line is None else line),
            cure="'collhub convert' rewrites the file",
            code=code,
        )
