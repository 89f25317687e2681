"""Scan MSCCL-IR XML into tables, one row an element, with line numbers.

One pass of expat over the file. Every element costs a few list operations and no object of its own;
distinct attribute values are stored once, so that a number is parsed once however often it stands
in the file. Time and memory are linear in the file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import NoReturn
from xml.parsers import expat

import numpy as np
import numpy.typing as npt
from collhub_columns import Int64Array

from collhub_msccl.findings import FileFindings
from collhub_msccl.numbers import NumberState, parse_number
from hub_core.model import InputError, Location

MAX_BYTES = 1 << 30
# The file is handed over in pieces that are views of it; texts are encoded in batches, so that few
# Python strings are alive at a time.
_PIECE_BYTES = 1 << 18
_FLUSH_TEXTS = 1 << 13
# Attributes of <algo> travel in the header of every trace file.
_LONGEST_HEADER_TEXT = 4096
_LONGEST_SHOWN_NAME = 40
_MOST_SHOWN_NAMES = 5
_PARENT = {"gpu": "algo", "tb": "gpu", "step": "tb"}
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "gpu": ("id", "i_chunks", "o_chunks", "s_chunks"),
    "tb": ("id", "send", "recv", "chan"),
    "step": ("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"),
}
_DOCUMENT = "#document"
_IGNORED = ""
_REASONS_AT_END = (
    expat.errors.XML_ERROR_NO_ELEMENTS,
    expat.errors.XML_ERROR_UNCLOSED_TOKEN,
    expat.errors.XML_ERROR_UNCLOSED_CDATA_SECTION,
    expat.errors.XML_ERROR_PARTIAL_CHAR,
)


class Texts:
    """The distinct attribute values of a file; None stands for a missing attribute.

    Tables hold indices into it ("codes").
    """

    def __init__(self, texts: Sequence[str | None]) -> None:
        """Keep the texts, each at the index that is its code."""
        self._texts = texts

    def __getitem__(self, code: int) -> str | None:
        """The text of a code, None for that of a missing attribute."""
        return self._texts[code]

    @cached_property
    def missing(self) -> int:
        """Index of None, or -1."""
        if None not in self._texts:
            return -1
        return self._texts.index(None)

    @cached_property
    def numbers(self) -> tuple[Int64Array, npt.NDArray[np.uint8]]:
        """Value and `NumberState` of every text."""
        values: list[int] = []
        states: list[int] = []
        for text in self._texts:
            value, state = (0, NumberState.NO_NUMBER) if text is None else parse_number(text)
            values.append(value)
            states.append(state)
        return np.asarray(values, np.int64), np.asarray(states, np.uint8)

    def positions_in(self, words: Sequence[str]) -> Int64Array:
        """Index in `words` of every text, or -1."""
        known: dict[str | None, int] = {word: index for index, word in enumerate(words)}
        return np.asarray([known.get(text, -1) for text in self._texts], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ElementTable:
    """The elements of one name in document order.

    `codes`: int32[rows, len(attributes)], indices into `Texts`; `line`: int64[rows]; `first_child`:
    int64[rows + 1], rows of the child table.
    """

    attributes: tuple[str, ...]
    codes: npt.NDArray[np.int32]
    line: Int64Array
    first_child: Int64Array

    def __len__(self) -> int:
        return len(self.line)

    def column(self, attribute: str) -> npt.NDArray[np.int32]:
        """Text indices of one attribute."""
        return self.codes[:, self.attributes.index(attribute)]


@dataclass(frozen=True, slots=True)
class ScannedXml:
    """A whole file: attributes of `<algo>` as written, and the tables of its elements."""

    algo: Mapping[str, str]
    algo_line: int
    gpus: ElementTable
    thread_blocks: ElementTable
    steps: ElementTable
    texts: Texts

    def table(self, tag: str) -> ElementTable:
        """The table of one element name."""
        tables = {"gpu": self.gpus, "tb": self.thread_blocks, "step": self.steps}
        return tables[tag]

    def name(self, tag: str, row: int) -> str:
        """Name of a row in messages, from ids as written."""
        if tag != "step":
            code = self.table(tag).column("id")[row]
            return f"<{tag}> with id {self.texts[code]}"
        first_step = self.thread_blocks.first_child
        # The last thread block that begins at or before the step; empty ones share a beginning.
        block = int(np.searchsorted(first_step[:-1], row, "right")) - 1
        code = self.thread_blocks.column("id")[block]
        return f"thread block {self.texts[code]}, step {row - int(first_step[block])}"

    def ranks(self, tag: str) -> Int64Array:
        """Rank of every row of a table; -1 where its id is no number."""
        values, states = self.texts.numbers
        ids = self.gpus.column("id")
        rank = np.where(states[ids] == NumberState.FINE, values[ids], -1)
        # An element has the rank of its parent: a repetition for each floor of the tree.
        if tag in ("tb", "step"):
            rank = np.repeat(rank, np.diff(self.gpus.first_child))
        if tag == "step":
            rank = np.repeat(rank, np.diff(self.thread_blocks.first_child))
        return rank


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
        _feed(scanner.parser, content)
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


def _feed(parser: expat.XMLParserType, content: bytes) -> None:
    """Give the whole file to the parser, which calls the handlers on the way."""
    # Slices of a view are no copies.
    view = memoryview(content)
    for start in range(0, len(content), _PIECE_BYTES):
        piece = view[start : start + _PIECE_BYTES]
        parser.Parse(piece, False)
    parser.Parse(b"", True)


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
    place = Location(file, error.lineno)
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


class _Rows:
    """Collects the elements of one name."""

    def __init__(self, name: str, codes: Mapping[str | None, int]) -> None:
        self.attributes = _ATTRIBUTES[name]
        self.lines: list[int] = []
        self.first_child: list[int] = []
        self.unknown: Counter[str] = Counter()
        self._codes = codes
        self._texts: list[str | None] = []
        self._pieces: list[npt.NDArray[np.int32]] = []
        # Attributes in the order of the last element, and where ours stand there. Elements of one
        # file look alike, so the order is compared once an element and computed once a file; None
        # for elements that have just our attributes in our order.
        self._layout: list[str] = []
        self._order: list[int] | None = None

    def add(self, pairs: list[str], line: int) -> None:
        """Take an element: names and values in turn, as expat gives ordered attributes."""
        names = pairs[::2]
        if names != self._layout:
            self._change_layout(names)
        texts: list[str | None] = pairs[1::2]  # type: ignore[assignment]
        # Rare: most files print just the ten attributes of a step, in one order.
        if self._order is not None:
            texts = [texts[position] if position >= 0 else None for position in self._order]
            self._count_unknown(names)
        self._texts.extend(texts)
        self.lines.append(line)
        if len(self._texts) >= _FLUSH_TEXTS:
            self._flush()

    def table(self, child_rows: int) -> ElementTable:
        """Everything that was added; `child_rows`: length of the child table."""
        self._flush()
        codes = np.concatenate(self._pieces).reshape(-1, len(self.attributes))
        first_child = np.asarray([*self.first_child, child_rows], np.int64)
        lines = np.asarray(self.lines, np.int64)
        return ElementTable(self.attributes, codes, lines, first_child)

    def _change_layout(self, names: list[str]) -> None:
        """Find our attributes among those of an element; a missing one stands at -1."""
        position = {name: index for index, name in enumerate(names)}
        order = [position.get(attribute, -1) for attribute in self.attributes]
        is_ours = order == list(range(len(names)))
        self._layout = names
        self._order = None if is_ours else order

    def _count_unknown(self, names: list[str]) -> None:
        self.unknown.update(name for name in names if name not in self.attributes)

    def _flush(self) -> None:
        """Replace the texts that wait by their codes."""
        codes = map(self._codes.__getitem__, self._texts)
        self._pieces.append(np.fromiter(codes, np.int32, len(self._texts)))
        self._texts.clear()


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
        self._algo: dict[str, str] = {}
        self._algo_line = 0
        self._gpus = _Rows("gpu", self._codes)
        self._thread_blocks = _Rows("tb", self._codes)
        self._steps = _Rows("step", self._codes)
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

    def document(self, findings: FileFindings) -> ScannedXml:
        """The tables, when the end of the file has been reached."""
        self._report_ignored(findings)
        steps = self._steps.table(0)
        thread_blocks = self._thread_blocks.table(len(steps))
        gpus = self._gpus.table(len(thread_blocks))
        # Insertion order is the order of the codes.
        texts = Texts(list(self._codes))
        return ScannedXml(self._algo, self._algo_line, gpus, thread_blocks, steps, texts)

    def _start(self, name: str, attributes: list[str]) -> None:
        """Handle a start tag. The most frequent element comes first: this is the hot loop."""
        inside = self._open[-1]
        line = self.parser.CurrentLineNumber
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
        else:
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
        line = self.parser.CurrentLineNumber
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
