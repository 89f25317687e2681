"""Scan MSCCL-IR XML into tables, one row an element, with line numbers.

One pass of expat over the file, which of steps that are written alike sees the first alone. Every
element costs a few list operations and no object of its own; distinct attribute values are stored
once, so that a number is parsed once however often it stands in the file. Time and memory are
linear in the file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import count
from typing import NoReturn
from xml.parsers import expat

from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.alike_steps import StepRun, alike_steps
from collhub_msccl.reading.element_rows import ElementRows
from collhub_msccl.reading.element_tables import ScannedXml, Texts
from collhub_msccl.reading.short_form import as_step
from hub_core.model import InputError, Location

MAX_BYTES = 1 << 30
# The file is handed over in pieces that are views of it.
_PIECE_BYTES = 1 << 18
# Attributes of <algo> travel in the header of every trace file.
_LONGEST_HEADER_TEXT = 4096
_LONGEST_SHOWN_NAME = 40
_MOST_SHOWN_NAMES = 5
_PARENT = {"gpu": "algo", "tb": "gpu", "step": "tb"}
_DOCUMENT = "#document"
_IGNORED = ""
_REASONS_AT_END = (
    expat.errors.XML_ERROR_NO_ELEMENTS,
    expat.errors.XML_ERROR_UNCLOSED_TOKEN,
    expat.errors.XML_ERROR_UNCLOSED_CDATA_SECTION,
    expat.errors.XML_ERROR_PARTIAL_CHAR,
)


def scan(
    content: bytes,
    file: str,
    findings: FileFindings,
) -> ScannedXml:
    """Parse `content`; report elements and attributes that it ignores.

    Raises `InputError` for what is not well-formed MSCCL-IR XML.
    """
    if len(content) > MAX_BYTES:
        message = f"the file has {len(content)} bytes, more than {MAX_BYTES}"
        raise InputError(message, location=Location(file), code="too-large")
    scanner = _Scanner(file)
    try:
        _feed(scanner, content)
    except expat.ExpatError as error:
        raise _syntax_error(error, scanner, content, file) from None
    except (LookupError, ValueError):
        # Expat asks Python's codecs for encodings that it does not know itself.
        raise InputError(
            "the XML declaration names an encoding that is not supported",
            location=Location(file, 1),
            cure="write the file in UTF-8",
            code="not-xml",
        ) from None
    return scanner.document(findings)


def _feed(scanner: _Scanner, content: bytes) -> None:
    """Give the file to the parser, which calls the handlers on the way.

    Of steps that are alike it gets the first; where that is one, the others are added at once.
    """
    # Slices of a view are no copies.
    view = memoryview(content)
    position = 0
    for run in alike_steps(content):
        _feed_pieces(scanner.parser, view[position : run.first])
        is_step = scanner.takes_step(view[run.first : run.second])
        position = run.second
        if is_step:
            scanner.add_run(run)
            position = run.end
    _feed_pieces(scanner.parser, view[position:])
    scanner.parser.Parse(b"", True)


def _feed_pieces(parser: expat.XMLParserType, view: memoryview) -> None:
    """Give some of the file to the parser, a piece at a time."""
    for start in range(0, len(view), _PIECE_BYTES):
        parser.Parse(view[start : start + _PIECE_BYTES], False)


def _syntax_error(
    error: expat.ExpatError,
    scanner: _Scanner,
    content: bytes,
    file: str,
) -> InputError:
    """The reason in the user's terms: an empty file, half of one, or no XML."""
    # Expat calls that "no element found", as it does a comment alone.
    if not content.strip(b" \t\r\n\xef\xbb\xbf"):
        return InputError(
            "the file is empty",
            location=Location(file),
            code="empty",
            cure="give an MSCCL-IR XML file",
        )
    place = Location(file, error.lineno + scanner.unseen_lines)
    reason = expat.ErrorString(error.code)
    if reason not in _REASONS_AT_END:
        message = f"this is not well-formed XML: {reason}"
        return InputError(message, location=place, code="not-xml")
    innermost = scanner.innermost
    where = f"inside <{innermost}>" if innermost else "before its first element"
    return InputError(
        f"the file ends {where}",
        location=place,
        code="truncated",
        cure="get the whole file",
    )


class _Scanner:
    """Expat handlers.

    No entity is ever expanded: without a DOCTYPE, which is refused, XML knows none but five
    characters (XML 1.0, section 4.6).
    """

    def __init__(self, file: str) -> None:
        self._file = file
        # A text that was not seen yet gets the next number on look-up.
        self._codes: defaultdict[str | None, int] = defaultdict(count().__next__)
        # Names of the open elements; ignored ones stand there without name.
        self._open = [_DOCUMENT]
        self._ignored: Counter[str] = Counter()
        self._ignored_line = 0
        # Number of the <gpu>, and the attributes, of every <copy> that TACCL writes.
        self._copies: list[tuple[int, dict[str, str], int]] = []
        self._is_short = False
        # Lines of the file that the parser does not get.
        self.unseen_lines = 0
        self._algo: dict[str, str] = {}
        self._algo_line = 0
        self._gpus = ElementRows("gpu", self._codes)
        self._thread_blocks = ElementRows("tb", self._codes)
        self._steps = ElementRows("step", self._codes)
        self.parser = expat.ParserCreate()
        # Lists of names and values in turn: cheaper than a dictionary for each element.
        self.parser.ordered_attributes = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype

    @property
    def innermost(self) -> str:
        """Name of the element that is open now, or nothing."""
        return self._open[-1] if len(self._open) > 1 else ""

    def takes_step(self, element: memoryview) -> bool:
        """Whether a text, given to the parser now, is one step of a thread block."""
        # It may stand in a comment, or where no step belongs.
        rows = len(self._steps.lines)
        self.parser.Parse(element, False)
        return len(self._steps.lines) == rows + 1 and self.innermost == "tb"

    def add_run(self, run: StepRun) -> None:
        """Take the steps of a run after the first, which the parser has seen."""
        self._steps.add_run(run)
        self.unseen_lines += run.lines * (len(run.codes) - 1)

    def document(self, findings: FileFindings) -> ScannedXml:
        """The tables, when the end of the file has been reached."""
        self._report_ignored(findings)
        steps = self._steps.table(0)
        thread_blocks = self._thread_blocks.table(len(steps))
        gpus = self._gpus.table(len(thread_blocks))
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

    def _start(self, name: str, attributes: list[str]) -> None:
        """Handle a start tag. The most frequent element comes first: this is the hot loop."""
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
            self._start_algo(name, attributes, line)
        elif name == "op" and inside == "tb":
            self._is_short = True
            self._steps.add(as_step(attributes, self._file, line), line)
        else:
            if (name, inside) == ("copy", "gpu"):
                stated = dict(zip(attributes[::2], attributes[1::2], strict=True))
                self._copies.append((len(self._gpus.lines) - 1, stated, line))
            name = self._ignore(name, inside, line)
        self._open.append(name)

    def _end(self, _name: str) -> None:
        self._open.pop()

    def _start_algo(
        self,
        name: str,
        attributes: list[str],
        line: int,
    ) -> None:
        """Keep the attributes of <algo>; refuse other roots, and attributes that are too long."""
        if name != "algo":
            message = f"the root element is <{_short(name)}>; MSCCL-IR XML starts with <algo>"
            self._fail("wrong-root", message, line)
        self._algo = dict(zip(attributes[::2], attributes[1::2], strict=True))
        self._algo_line = line
        for key, text in self._algo.items():
            if len(key) + len(text) > _LONGEST_HEADER_TEXT:
                message = f"attribute {_short(key)!r} of <algo> has {len(text)} characters"
                self._fail("too-long", message, line)

    def _ignore(
        self,
        name: str,
        inside: str,
        line: int,
    ) -> str:
        """Skip an unknown element with all that it contains, as the runtimes do.

        A known element in the wrong place is an error: its steps would be lost without a word.
        """
        if inside == _IGNORED:
            return _IGNORED
        if name == "algo" or name in _PARENT:
            parent = _PARENT.get(name, "the file itself")
            message = f"<{name}> stands in <{inside}>; it belongs in {parent}"
            self._fail("misplaced-element", message, line)
        self._ignored[_short(name)] += 1
        # The report names the first of them.
        self._ignored_line = self._ignored_line or line
        return _IGNORED

    def _refuse_doctype(self, *_declaration: object) -> None:
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

    def _report_ignored(self, findings: FileFindings) -> None:
        """Warn of elements and attributes that no runtime reads."""
        if self._ignored:
            most = self._ignored.most_common(_MOST_SHOWN_NAMES)
            names = ", ".join(f"{number} <{name}>" for name, number in most)
            message = f"ignored, as the runtimes do: {names}"
            findings.warn("ignored-elements", message, self._ignored_line)
        for tag, rows in (("gpu", self._gpus), ("tb", self._thread_blocks), ("step", self._steps)):
            if not rows.unknown:
                continue
            most = rows.unknown.most_common(_MOST_SHOWN_NAMES)
            names = ", ".join(f"{number} {_short(name)}" for name, number in most)
            message = f"ignored, as the runtimes do, on <{tag}>: {names}"
            findings.warn("ignored-attributes", message, self._algo_line)


def _short(name: str) -> str:
    """A name that a message can hold."""
    if len(name) <= _LONGEST_SHOWN_NAME:
        return name
    return name[: _LONGEST_SHOWN_NAME - 3] + "..."
