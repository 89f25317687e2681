"""Scan MSCCL-IR XML into tables, one row per element, with line numbers.

One pass of expat over the file; of a run of steps that differ only in values expat sees only the
first. Every element costs a few list operations and creates no object; distinct attribute values
are stored once, so a number is parsed once for all its occurrences. Time and memory are linear in
the file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import count
from typing import NoReturn
from xml.parsers import expat

from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.alike_steps import StepRun, find_step_runs
from collhub_msccl.reading.element_tables import ElementRows, ScannedXml, Texts, to_step
from hub_core.model import InputError, Location

MAX_BYTES = 1 << 30
# The file is passed to expat in segments, which are views.
_SEGMENT_BYTES = 1 << 18
# Attributes of <algo> are copied to the header of every trace file.
_MAX_HEADER_TEXT = 4096
_MAX_SHOWN_NAME_CHARACTERS = 40
_MAX_SHOWN_NAMES = 5
_PARENT = {"gpu": "algo", "tb": "gpu", "step": "tb"}
_DOCUMENT = "#document"
_IGNORED = ""
# Files of NCCL that have the suffix .xml too.
_CURES_OF_ROOTS = {
    "system": "it is a topology of NCCL: use 'collhub topology show'",
    "graph": "it is a part of a graph file of NCCL: give the file from <graphs> on",
}
_REASONS_AT_END = (
    expat.errors.XML_ERROR_NO_ELEMENTS,
    expat.errors.XML_ERROR_UNCLOSED_TOKEN,
    expat.errors.XML_ERROR_UNCLOSED_CDATA_SECTION,
    expat.errors.XML_ERROR_PARTIAL_CHAR,
)


def scan_xml(
    content: bytes,
    file: str,
    findings: FileFindings,
) -> ScannedXml:
    """Parse the XML text in `content` into tables in document order; warn of ignored parts.

    Elements and attributes that the runtimes ignore are reported as warnings to `findings`. `file`:
    name of the file, for messages. Missing child elements or attributes are no error here.

    Raises `InputError`, with a line except for `too-large` and `empty`:

    - `too-large`: more than 2^30 bytes
    - `empty`, `truncated`, `not-xml`: a syntax error (`_explain_syntax_error`)
    - `not-xml`: an encoding that neither expat nor Python supports
    - `doctype`: a DOCTYPE, also a valid one
    - `wrong-root`: a root element other than `<algo>`
    - `misplaced-element`: a `gpu`, `tb`, `step` or `algo` inside the wrong element
    - `too-long`: an attribute of `<algo>` whose name and value exceed 4 096 characters together
    - `short-form`: an `<op>` of type `cpy` or `re`
    """
    if len(content) > MAX_BYTES:
        message = f"the file has {len(content)} bytes, more than {MAX_BYTES}"
        raise InputError(message, location=Location(file), code="too-large")
    scanner = _Scanner(file)
    try:
        _feed(scanner, content)
    except expat.ExpatError as error:
        raise _explain_syntax_error(error, scanner, content, file) from None
    except (LookupError, ValueError):
        # Expat uses Python's codecs for encodings that it does not support.
        raise InputError(
            "the XML declaration names an encoding that is not supported",
            location=Location(file, 1),
            cure="write the file in UTF-8",
            code="not-xml",
        ) from None
    return scanner.build_document(findings)


def _feed(scanner: _Scanner, content: bytes) -> None:
    """Pass the file to the parser of `scanner`, which calls the handlers, and end the document.

    A run has at least 8 consecutive steps that differ only in attribute values of at most 8 bytes
    (`find_step_runs`); files below 64 KiB have no runs. The parser gets only the first step of a
    run. If the parser accepts this step as one complete step, the other steps are added to the
    table directly, with their lines. Otherwise, such as inside a comment, the parser gets them too.

    Not caught: errors of the parser (`ExpatError`, and `LookupError` or `ValueError` for an
    encoding), and the `InputError` that the handlers raise (see `scan_xml`).
    """
    # Slices of a view are not copies.
    view = memoryview(content)
    position = 0
    for run in find_step_runs(content):
        _feed_segments(scanner.parser, view[position : run.first])
        is_step = scanner.parse_step(view[run.first : run.second])
        position = run.second
        if is_step:
            scanner.add_run(run)
            position = run.end
    _feed_segments(scanner.parser, view[position:])
    scanner.parser.Parse(b"", True)


def _feed_segments(parser: expat.XMLParserType, view: memoryview) -> None:
    """Pass a part of the file to the parser, one segment at a time."""
    for start in range(0, len(view), _SEGMENT_BYTES):
        parser.Parse(view[start : start + _SEGMENT_BYTES], False)


def _explain_syntax_error(
    error: expat.ExpatError,
    scanner: _Scanner,
    content: bytes,
    file: str,
) -> InputError:
    """Return an `InputError` for a syntax error; the caller raises it.

    The first case that applies gives the code:

    1. `empty`: the file has no bytes except white space and those of a byte order mark. The error
       has no line.
    2. `not-xml`: the parser's reason is not the end of the file; the message ends with this reason.
    3. `truncated`: the file ends inside a tag, inside a CDATA section, or before the root element
       is closed. The message names the innermost open element. It says "before its first element"
       if no element is open, and also if the innermost open element is ignored.

    The line is 1-based and counts lines that the parser did not see.
    """
    # Expat reports "no element found" for this, as for a file with only a comment.
    if not content.strip(b" \t\r\n\xef\xbb\xbf"):
        return InputError(
            "the file is empty",
            location=Location(file),
            code="empty",
            cure="give an MSCCL-IR XML file",
        )
    location = Location(file, error.lineno + scanner.unseen_lines)
    reason = expat.ErrorString(error.code)
    if reason not in _REASONS_AT_END:
        message = f"this is not well-formed XML: {reason}"
        return InputError(message, location=location, code="not-xml")
    innermost = scanner.innermost
    where = f"inside <{innermost}>" if innermost else "before its first element"
    return InputError(
        f"the file ends {where}",
        location=location,
        code="truncated",
        cure="get the complete file",
    )


class _Scanner:
    """Expat handlers that collect the elements in tables.

    Entities are never expanded: a DOCTYPE is refused, and without it XML has only five predefined
    character entities (XML 1.0, section 4.6).
    """

    def __init__(self, file: str) -> None:
        self._file = file
        # An unknown text gets the next number on look-up.
        self._codes: defaultdict[str | None, int] = defaultdict(count().__next__)
        # Names of the open elements; ignored elements have an empty name.
        self._open = [_DOCUMENT]
        self._ignored: Counter[str] = Counter()
        self._ignored_line = 0
        # Row of the <gpu>, attributes and line of every <copy> of TACCL.
        self._copies: list[tuple[int, dict[str, str], int]] = []
        self._is_short = False
        # Number of lines that the parser does not see.
        self.unseen_lines = 0
        self._algo: dict[str, str] = {}
        self._algo_line = 0
        self._gpus = ElementRows("gpu", self._codes)
        self._thread_blocks = ElementRows("tb", self._codes)
        self._steps = ElementRows("step", self._codes)
        self.parser = expat.ParserCreate()
        # Lists of alternating names and values: faster than a dictionary per element.
        self.parser.ordered_attributes = True
        self.parser.StartElementHandler = self._handle_start
        self.parser.EndElementHandler = self._handle_end
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype

    @property
    def innermost(self) -> str:
        """Name of the innermost open element; empty at document level and in ignored elements."""
        return self._open[-1] if len(self._open) > 1 else ""

    def parse_step(self, element: memoryview) -> bool:
        """Pass an element to the parser; return whether it was accepted as one complete step.

        False if it is inside a comment, at a position where no step is allowed, or incomplete.
        The parser has read the text in all cases. The parser's errors for invalid XML, and the
        `InputError` of the handlers, pass through.
        """
        # The text may be inside a comment, or at a position where no step is allowed.
        rows = len(self._steps.lines)
        self.parser.Parse(element, False)
        return len(self._steps.lines) == rows + 1 and self.innermost == "tb"

    def add_run(self, run: StepRun) -> None:
        """Add the steps of a run except the first, which the parser has added already.

        The lines of the other steps, which the parser does not see, are counted in `unseen_lines`.
        """
        self._steps.add_run(run)
        self.unseen_lines += run.lines * (len(run.codes) - 1)

    def build_document(self, findings: FileFindings) -> ScannedXml:
        """Build the tables of the scanned file after the parser has reached its end.

        Reports these warnings to `findings`:

        - at most one `ignored-elements`, at the line of the first ignored element
        - at most one `ignored-attributes` for each of `<gpu>`, `<tb>` and `<step>`, in this order,
          if it has unknown attributes; all at the line of `<algo>`

        Each message lists at most 5 names with their numbers, the most frequent first, then in
        order of their first occurrence; further names are omitted. Names above 40 characters are
        shortened. Elements inside ignored elements are not counted. The tables have one row per
        element in document order; a tag without elements has an empty table.
        """
        if self._ignored:
            most_common = self._ignored.most_common(_MAX_SHOWN_NAMES)
            names = ", ".join(f"{number} <{name}>" for name, number in most_common)
            message = f"ignored, as the runtimes do: {names}"
            findings.warn("ignored-elements", message, self._ignored_line)
        for tag, rows in (("gpu", self._gpus), ("tb", self._thread_blocks), ("step", self._steps)):
            if not rows.unknown:
                continue
            most_common = rows.unknown.most_common(_MAX_SHOWN_NAMES)
            names = ", ".join(f"{number} {_shorten(name)}" for name, number in most_common)
            message = f"ignored, as the runtimes do, on <{tag}>: {names}"
            findings.warn("ignored-attributes", message, self._algo_line)
        steps = self._steps.build_table(0)
        thread_blocks = self._thread_blocks.build_table(len(steps))
        gpus = self._gpus.build_table(len(thread_blocks))
        # Insertion order is the order of the codes.
        texts = Texts(list(self._codes))
        return ScannedXml(
            self._algo,
            self._algo_line,
            gpus,
            thread_blocks,
            steps,
            texts,
            self._copies,
            self._is_short,
        )

    def _handle_start(self, name: str, attributes: list[str]) -> None:
        """Handle a start tag: add the element to its table, or ignore it with its contents.

        - `<algo>` as the root element: its attributes and line are stored.
        - `<gpu>` in `<algo>`, `<tb>` in `<gpu>`, `<step>` in `<tb>`: a row of its table. Unknown
          attributes are counted.
        - `<op>` in `<tb>`: converted to a step (`to_step`); it marks the document as short form.
        - Any other element is ignored with its contents, and counted by its name. Elements inside
          an ignored element are not counted and never an error. The attributes of a `<copy>` in
          `<gpu>` are also recorded in `_copies`.

        Raises `InputError`, with the line of the tag: `wrong-root` for another root element,
        `misplaced-element` for `algo`, `gpu`, `tb` or `step` inside another element than above,
        `too-long` for an attribute of `<algo>` whose name and value together exceed 4 096
        characters, and `short-form` for an `<op>` of type `cpy` or `re`.
        """
        inside = self._open[-1]
        line = self.parser.CurrentLineNumber + self.unseen_lines
        if name == "step" and inside == "tb":
            self._steps.add(attributes, line)
        elif name == "tb" and inside == "gpu":
            self._thread_blocks.first_child.append(len(self._steps.lines))
            self._thread_blocks.add(attributes, line)
        elif name == "gpu" and inside == "algo":
            self._gpus.first_child.append(len(self._thread_blocks.lines))
            self._gpus.add(attributes, line)
        elif inside == _DOCUMENT:
            if name != "algo":
                message = f"the root element is <{_shorten(name)}>; MSCCL-IR XML starts with <algo>"
                self._fail("wrong-root", message, line, _CURES_OF_ROOTS.get(name, ""))
            self._algo = dict(zip(attributes[::2], attributes[1::2], strict=True))
            self._algo_line = line
            for key, text in self._algo.items():
                if len(key) + len(text) > _MAX_HEADER_TEXT:
                    message = f"attribute {_shorten(key)!r} of <algo> has {len(text)} characters"
                    self._fail("too-long", message, line)
        elif name == "op" and inside == "tb":
            self._is_short = True
            self._steps.add(to_step(attributes, self._file, line), line)
        else:
            if (name, inside) == ("copy", "gpu"):
                copy = dict(zip(attributes[::2], attributes[1::2], strict=True))
                self._copies.append((len(self._gpus.lines) - 1, copy, line))
            # The element is ignored with its contents, as the runtimes do.
            if inside != _IGNORED:
                if name == "algo" or name in _PARENT:
                    parent = _PARENT.get(name, "the file itself")
                    message = f"<{name}> is inside <{inside}>; it belongs in {parent}"
                    self._fail("misplaced-element", message, line)
                self._ignored[_shorten(name)] += 1
                # The report gives the line of the first one.
                self._ignored_line = self._ignored_line or line
            name = _IGNORED
        self._open.append(name)

    def _handle_end(self, _name: str) -> None:
        """Handle an end tag."""
        self._open.pop()

    def _refuse_doctype(self, *_declaration: object) -> None:
        """Raise `InputError` (`doctype`) at the line of a DOCTYPE.

        The reason is that its entities could be expanded without limit. The arguments of the
        parser's handler are not used.
        """
        line = self.parser.CurrentLineNumber + self.unseen_lines
        message = "a DOCTYPE is not accepted: entities could be expanded without bound"
        self._fail("doctype", message, line, "remove it")

    def _fail(
        self,
        code: str,
        message: str,
        line: int,
        cure: str = "",
    ) -> NoReturn:
        raise InputError(message, location=Location(self._file, line), code=code, cure=cure)


def _shorten(name: str) -> str:
    """Return the name, cut to 40 characters if it is longer.

    The last three characters are then "...".
    """
    if len(name) <= _MAX_SHOWN_NAME_CHARACTERS:
        return name
    return name[: _MAX_SHOWN_NAME_CHARACTERS - 3] + "..."
