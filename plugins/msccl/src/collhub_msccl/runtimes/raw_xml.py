"""Parse a file like the runtimes' hand-written parser, and collect the reasons to refuse it.

It is not a full XML parser. Source: `src/graph/xml.cc` of NCCL, copied to all three runtimes. It
accepts elements between spaces and line ends, attributes on one line with one space before each,
values in double quotes, and no entities.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NoReturn

from collhub_msccl.findings import parse_long
from collhub_msccl.runtimes.known_runtimes import RuntimeRules
from hub_core.model import Diagnostic, InputError, Location, Severity

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
    """Parse the first element of a text as the runtimes do; its name becomes `algo`.

    Elements that the runtimes do not know are dropped with their content. Attributes beyond the
    16th slot are dropped too; every space before an attribute takes a slot. After the first
    element, the text may contain only comments and further elements, which are parsed and dropped.
    Raises `InputError` at the first position where the runtimes' parser fails.
    """
    parser = _Parser(text, file)
    root = parser.parse_element()
    while not parser.is_at_end():
        parser.parse_element()
    return root


class _Parser:
    """Parser with the rules of the runtimes, and the position and line that it has reached."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._position = 0
        self._line = 1

    def is_at_end(self) -> bool:
        """Skip white space and comments, then return whether the end of the text is reached.

        Tabs are not skipped.
        """
        self._skip_between()
        return self._position == len(self._text)

    def parse_element(self) -> RawElement:
        """Parse the next element with its content, and rename it `algo`, whatever its name is.

        White space and comments before and in it are skipped; afterwards the position is after it.
        An element that closes itself (`<a/>`) has no content. The closing tag of the returned
        element may have any name. The nesting is not limited.

        Kept are only children that the runtimes know, in the order of the text: `gpu` in the
        returned element, `tb` in `gpu`, `step` in `tb`. All other elements are dropped with their
        content, but must be well-formed.

        Raises `InputError` at the first position where the runtimes' parser fails:
        `misplaced-element` for a closing tag with a wrong name, `too-long` for names or values
        above its limits, and the codes of `_refuse`.
        """
        root, is_closed = self._parse_opening_tag()
        root.name = "algo"
        # Open elements, and whether the runtimes know them at that position.
        stack: list[tuple[RawElement, bool]] = [] if is_closed else [(root, True)]
        while stack:
            parent, is_known = stack[-1]
            self._skip_between()
            end = _CLOSE.match(self._text, self._position)
            # The first element counts as <algo> with any name, so its closing tag may have any
            # name too.
            if end is not None and end[1] != parent.name and len(stack) > 1:
                name, expected = end[1][:_MAX_SHOWN_CHARACTERS], parent.name[:_MAX_SHOWN_CHARACTERS]
                self._fail("misplaced-element", f"found </{name}>, expected </{expected}>")
            if end is not None:
                self._advance(end.end())
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

    def _parse_opening_tag(self, inside: str = "") -> tuple[RawElement, bool]:
        """Parse an opening tag; return its element and whether the tag closes itself (`/>`).

        White space (except tabs) and comments before it are skipped. The element has the line of
        the tag, no children yet, and the attributes that the runtimes' parser keeps. A tag has 16
        slots for attributes. The slot of an attribute is the number of spaces before it so far: in
        `<a  x="1" y="2">` x has slot 2, y slot 3. Attributes with a slot above 16 are dropped. Of
        several attributes with one name the first one counts.

        `inside`: name of the enclosing element for the message, "" if there is none. Raises
        `InputError`: `truncated` if the text is at its end or in an open comment, `too-long` for a
        name above 254 or a value above 255 characters, also of a dropped attribute, and another
        code for other text, such as `tab` or `not-xml` (`_refuse`).
        """
        self._skip_between()
        match = _OPEN.match(self._text, self._position)
        # One pattern matches a complete tag; a mismatch is examined again for the reason.
        if match is None:
            self._refuse(inside)
        line = self._line
        self._advance(match.end())
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
        return RawElement(match[1], line, attributes), match[3] == "/"

    def _skip_between(self) -> None:
        """Skip spaces, line feeds, carriage returns and complete comments at the current position.

        Stops at anything else, such as a tab or form feed. Updates the position, and adds the
        skipped line feeds to the line number; a carriage return alone does not count as a line.
        If there is nothing to skip, both are unchanged.
        """
        match = _BETWEEN.match(self._text, self._position)
        assert match is not None, "the pattern matches the empty text"
        self._advance(match.end())

    def _advance(self, position: int) -> None:
        """Move to a position of the text and add the line breaks in between to the line number."""
        self._line += self._text.count("\n", self._position, position)
        self._position = position

    def _refuse(self, inside: str) -> NoReturn:
        """Raise `InputError` with the reason why no element begins at the current position.

        Only the next 4096 characters ("rest") are examined. The first reason that applies is
        reported:

        - The rest is empty: `truncated`, with the open element `inside` ("": before the first one).
        - The rest begins with a tab: `tab`; with `<?`: `xml-declaration`; with `<!--`, which is a
          comment without end: `truncated`; with `<!`: `doctype`.
        - The rest does not begin with `<`: `not-xml`, with its first 30 characters.
        - The tag has a single quote: `single-quote`; a tab or line break: `line-break`. The tag is
          the rest up to the first `>`, or all of it without a `>`.
        - Otherwise: `not-xml`, with the first 30 characters of the tag.
        """
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
        tag = rest.partition(">")[0]
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
        """Raise `InputError` at a line, by default the current one.

        It always has the cure that 'collhub convert' rewrites the file.
        """
        raise InputError(
            message,
            location=Location(self._file, self._line if line is None else line),
            cure="'collhub convert' rewrites the file",
            code=code,
        )


_MAX_SHOWN_PER_CODE = 5


class Refusals:
    """Findings of the load check: refusals, and warnings of constructs that load but are harmful.

    Iteration yields the first 5 findings of each code, one per cause, with the number of further
    findings.
    """

    def __init__(self, file: str, runtime: RuntimeRules) -> None:
        self.runtime = runtime
        self.is_any = False
        self._file = file
        # By code and cause: the first finding, and the number of findings.
        self._findings: dict[str, dict[Hashable, tuple[Diagnostic, int]]] = {}
        # Subjects already reported by `refuse_once`.
        self._subjects: set[tuple[str, str]] = set()

    def __iter__(self) -> Iterator[Diagnostic]:
        """Yield the first 5 findings of each code, then a note with the number of hidden ones.

        Findings with the same cause are one, with the number of the others.
        """
        for findings_by_cause in self._findings.values():
            shown = list(findings_by_cause.values())[:_MAX_SHOWN_PER_CODE]
            for first, number_of_findings in shown:
                more = number_of_findings - 1
                words = f" (and {more} more for this reason)" if more else ""
                yield replace(first, message=first.message + words)
            hidden = len(findings_by_cause) - len(shown)
            if hidden > 0:
                more_words = f"and {hidden} more findings of this kind"
                yield Diagnostic(shown[0][0].code, more_words, Severity.NOTE, Location(self._file))

    def refuse(
        self,
        code: str,
        message: str,
        line: int,
        cure: str = "",
        cause: Hashable = None,
    ) -> None:
        """Record a reason for which the runtime refuses the file, and set `is_any`.

        `cause`: findings with the same code and cause are merged: the first one remains, and
        the further ones are counted. With `cause` None, the finding is never merged. `cure`:
        how to fix it, "" if unknown.
        """
        self.is_any = True
        self._add(code, message, line, Severity.ERROR, cure, cause)

    def refuse_once(
        self,
        code: str,
        subject: str,
        message: str,
        line: int,
        cure: str = "",
    ) -> None:
        """Record a refusal unless one with the same code and subject is already recorded.

        This is for defects that many elements share. `subject`: for example the step type. `line`:
        line of this element.
        """
        if (code, subject) in self._subjects:
            return
        self._subjects.add((code, subject))
        self.refuse(code, message, line, cure)

    def warn(
        self,
        code: str,
        message: str,
        line: int,
        cure: str = "",
        cause: Hashable = None,
    ) -> None:
        """Record a construct that the runtime accepts, but with harmful consequences.

        `cause` as in `refuse`.
        """
        self._add(code, message, line, Severity.WARNING, cure, cause)

    def _add(
        self,
        code: str,
        message: str,
        line: int,
        severity: Severity,
        cure: str,
        cause: Hashable,
    ) -> None:
        """Record a finding; if an earlier one has the same code and cause, only count it.

        `cause`: key of the defect. If it is None, the finding is always separate. The first finding
        of a cause keeps its text, line and severity.
        """
        findings_by_cause = self._findings.setdefault(code, {})
        location = Location(self._file, line)
        # Without a cause every finding is separate.
        subject = len(findings_by_cause) if cause is None else cause
        new = Diagnostic(code, message, severity, location, cure)
        first, count = findings_by_cause.get(subject, (new, 0))
        findings_by_cause[subject] = first, count + 1


@lru_cache(maxsize=1 << 14)
def read_number(text: str) -> int:
    """Return the integer at the start of a text, as `parse_long` does; results are cached."""
    return parse_long(text)
