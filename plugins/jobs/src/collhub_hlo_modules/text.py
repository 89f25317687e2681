"""Split HLO text into statements, and statements into shape, opcode, operands and attributes.

The grammar is that of openxla/xla `hlo_lexer.cc` and `hlo_parser.cc`. Quoted strings and
`metadata={...}` contain braces and opcodes, so text is tokenized and never searched for words.
A statement is held in memory, the file is not. Nested brackets are counted, without recursion.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from hub_core.model import InputError, Location

MAX_STATEMENT_CHARACTERS = 16 << 20
_MAX_DIMENSIONS = 64
_MAX_SIZE = 1 << 62
_QUOTED = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_STRING = re.compile(_QUOTED)
_TOKEN = re.compile(_QUOTED + r"|[()\[\]{},]")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_NAME = r"%?([\w.\-$:/@]+)"
_COMPUTATION = re.compile(rf"(ENTRY\s+)?{_NAME}\s*[({{]")
_ASSIGNMENT = re.compile(rf"(ROOT\s+)?{_NAME}\s*=\s*")
_ARRAY_SHAPE = re.compile(r"[a-z]\w*\[[^\]]*\](?:\{[^{}]*\})?")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_OPERAND = re.compile(rf"(?:.*\s)?{_NAME}\s*\Z", re.DOTALL)
_LEAF = re.compile(r"\b([a-z]\w*)\[([^\]]*)\]")
_TILE = re.compile(r":[^}]*T\(")
_ORDER = re.compile(r"\]\{([\d,\s]*)")
_ATTRIBUTE = re.compile(r"\s*([A-Za-z_][\w.\-]*)\s*=\s*")
# Tables of newer modules between the header and the computations; they contain paths.
_TABLES = re.compile(r"FileNames|FunctionNames|FileLocations|StackFrames|\d")
ELEMENT_BITS = {
    "pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128,
    "f8e5m2": 8, "f8e4m3": 8, "f8e4m3fn": 8, "f8e4m3b11fnuz": 8, "f8e5m2fnuz": 8,
    "f8e4m3fnuz": 8, "f8e3m4": 8, "f8e8m0fnu": 8, "f6e2m3fn": 6, "f6e3m2fn": 6, "f4e2m1fn": 4,
    "bf16": 16, "f16": 16, "f32": 32, "f64": 64,
    "s1": 1, "s2": 2, "s4": 4, "s8": 8, "s16": 16, "s32": 32, "s64": 64,
    "u1": 1, "u2": 2, "u4": 4, "u8": 8, "u16": 16, "u32": 32, "u64": 64,
}  # fmt: skip
_NO_ATTRIBUTES: Mapping[str, str] = {}
# Attributes that the reader uses; the others are dropped as they are parsed.
_USED_ATTRIBUTES = frozenset((
    "backend_config", "body", "branch_computations", "called_computations", "calls",
    "channel_id", "condition", "custom_call_target", "device_ids", "dim_labels", "dimensions",
    "direction", "false_computation", "feature_group_count", "frontend_attributes", "index",
    "is_host_transfer", "lhs_contracting_dims", "replica_groups", "sharding",
    "source_target_pairs", "to_apply", "true_computation", "use_global_device_ids",
))  # fmt: skip
# Attributes that only the conversion to a program uses.
_PROGRAM_ATTRIBUTES = frozenset((
    "iota_dimension", "lhs_batch_dims", "rhs_batch_dims", "rhs_contracting_dims", "slice",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """Arrays of a shape: element type and dimensions; several, or none, for a tuple.

    `order`: dimensions of the array in memory from the slowest to the fastest; () for row-major
    order, None for tiles and for tuples with another order.
    """

    leaves: tuple[tuple[str, tuple[int, ...]], ...]
    is_tuple: bool = False
    order: tuple[int, ...] | None = field(default=(), compare=False)

    @property
    def elements(self) -> int:
        """Number of elements of all arrays."""
        return sum(math.prod(dimensions) for _, dimensions in self.leaves)

    @property
    def bytes(self) -> int:
        """Bytes of all arrays, without padding of tiles.

        Elements smaller than a byte are packed; each array is rounded up to a byte.
        """
        bits = [ELEMENT_BITS[dtype] * math.prod(dimensions) for dtype, dimensions in self.leaves]
        return sum(-(-size // 8) for size in bits)

    @property
    def dtype(self) -> str:
        """Element types, without repetition."""
        return "+".join(dict.fromkeys(dtype for dtype, _ in self.leaves))


@dataclass(frozen=True, slots=True)
class HloInstruction:
    """One instruction. `operands`: names; `literal`: text of a constant or parameter number."""

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...]
    attributes: Mapping[str, str]
    literal: str
    line: int
    is_root: bool


def invalid(message: str, file: str, line: int, cure: str, code: str = "hlo") -> InputError:
    """Return the error for an invalid module, located at a line."""
    return InputError(message, location=Location(file, line=line), cure=cure, code=code)


@dataclass(frozen=True, slots=True)
class Statement:
    """A header (`HloModule ...`), the opening or end of a computation, or an instruction."""

    kind: str
    text: str
    line: int


class StatementReader:
    """Iterator over the statements of a file."""

    def __init__(self, stream: BinaryIO, file: str) -> None:
        self.file = file
        self._stream = stream
        self._line = 0
        self._next: str | None = None

    def __iter__(self) -> Iterator[Statement]:
        """Yield the statements in the order of the text, each joined to one line (`_join`).

        A statement has the number of its first line, from 1. The start of a line, without
        surrounding space, decides. The first rule that applies counts:

        1. Empty lines and `//` are skipped. Outside of computations, so are lines that begin with
           a digit, `FileNames`, `FunctionNames`, `FileLocations` or `StackFrames` (tables).
        2. `HloModule` outside of a computation: `module`.
        3. `}` within a computation: `end`, with the entire line as text.
        4. `NAME (` or `NAME {` outside of a computation, also after `ENTRY`: `computation`, i.e.
           its head up to `{`.
        5. `NAME =` within a computation, also after `ROOT`: `instruction`.
        6. Any other line raises `InputError` (`hlo`). A text that ends too early raises `cut`.
        """
        is_inside = False
        while (text := self._take_line()) is not None:
            line = self._line
            is_table = not is_inside and _TABLES.match(text)
            if not text or text.startswith("//") or is_table:
                continue
            if text.startswith("HloModule") and not is_inside:
                yield Statement("module", self._join(text, ""), line)
            elif text.startswith("}") and is_inside:
                is_inside = False
                yield Statement("end", text, line)
            elif not is_inside and _COMPUTATION.match(text):
                is_inside = True
                yield Statement("computation", self._join(text, "{"), line)
            elif is_inside and _ASSIGNMENT.match(text):
                yield Statement("instruction", self._join(text, ""), line)
            else:
                message = f"this is no statement of HLO text: {text[:60]!r}"
                raise invalid(message, self.file, line, "dump the module again as text")
        if is_inside:
            message = "the file ends within a computation"
            raise invalid(message, self.file, self._line, "copy or dump the file again", "cut")

    def _take_line(self) -> str | None:
        """Return the next line without surrounding space, and count it; None at the end.

        An empty line is `""`. A line that `_is_complete` has read in advance comes first. Bytes
        that are not UTF-8 are replaced by U+FFFD. Raises `InputError` (`too-large`) for a line
        of 2^24 bytes or more, including its line break.
        """
        if self._next is not None:
            text, self._next = self._next, None
            self._line += 1
            return text
        raw = self._stream.readline(MAX_STATEMENT_CHARACTERS)
        if not raw:
            return None
        self._line += 1
        if len(raw) >= MAX_STATEMENT_CHARACTERS:
            raise self._too_long(self._line)
        return raw.decode("utf-8", "replace").strip()

    def _join(self, text: str, end: str) -> str:
        """Append following lines to `text` until the statement is complete; return it as one line.

        `end` is `{` for the head of a computation, otherwise `""`. Brackets in strings do not
        count. A head is complete if its last line ends with `{` and no other bracket is open.
        Another statement is complete if no bracket is open and its last line does not end with `,`
        or `=`. For an instruction (not `HloModule`), the next line must also be missing, empty, an
        assignment, or begin with `}` or `/`. Lines are joined by one space; comments `/* */` are
        removed.

        `self` then stands at the next line. Raises `InputError` at the first line of the statement:
        `cut` if the file ends before, `hlo` if a line that begins with `}` follows a head without
        `{` or more brackets are closed than opened, `too-large` for more than 2^24 characters.
        """
        start, parts, size, depth = self._line, [text], len(text), _count_open(text)
        while depth > len(end) or not self._is_complete(parts, end):
            following = self._take_line()
            if following is None:
                message = "the file ends within the statement that begins here"
                raise invalid(message, self.file, start, "copy or dump the file again", "cut")
            if end and following.startswith("}"):
                message = "the computation that begins here has no '{'"
                raise invalid(message, self.file, start, "dump the module again as text")
            parts.append(following)
            size += len(following)
            depth += _count_open(following)
            if size > MAX_STATEMENT_CHARACTERS:
                raise self._too_long(start)
        if depth < len(end):
            message = "a bracket is closed that was not opened"
            raise invalid(message, self.file, start, "dump the module again as text")
        joined = " ".join(parts)
        return _COMMENT.sub("", joined) if "/*" in joined else joined

    def _is_complete(self, parts: list[str], end: str) -> bool:
        """Check whether a statement with balanced brackets is complete.

        `parts`: its lines so far; `end`: required end of the last line, `""` for none. With an
        `end`, only this text decides. Otherwise the first rule that applies decides:

        - The last line ends with `,` or `=`: the statement continues.
        - The statement is the head of a module: it is complete.
        - An instruction is complete at the end of the file, and if the next line is empty, begins
          another instruction or a comment, or closes the computation. The next line is read for
          this rule; the next call of `_take_line` returns it again.

        Raises `InputError` if the next line is too long.
        """
        if end:
            return parts[-1].endswith(end)
        if parts[-1].endswith((",", "=")):
            return False
        if parts[0].startswith("HloModule"):
            return True
        following = self._take_line()
        if following is None:
            return True
        self._next = following
        self._line -= 1
        # A line break within an instruction: the next line begins no other statement.
        return not following or following[0] in "}/" or bool(_ASSIGNMENT.match(following))

    def _too_long(self, line: int) -> InputError:
        message = f"a statement has more than {MAX_STATEMENT_CHARACTERS} characters"
        cure = "dump the module without large constants"
        return invalid(message, self.file, line, cure, "too-large")


def parse_computation_name(statement: Statement) -> tuple[str, bool]:
    """Return the name of a computation and whether it is the entry, from its head.

    `statement` must be of the kind `computation`.
    """
    match = _COMPUTATION.match(statement.text)
    assert match
    return match[2], match[1] is not None


def parse_attributes(text: str, start: int) -> dict[str, str]:
    """Parse the `key=value` pairs of a text from position `start` on: value text by key.

    Commas separate pairs, except in brackets and strings. Values are stripped; of equal keys the
    last one counts; pieces of other form are ignored. Nothing is raised: an open bracket extends
    the value to the end of the text, and an open quote is an ordinary character.
    """
    attributes: dict[str, str] = {}
    for piece in _split(text, start, len(text)):
        match = _ATTRIBUTE.match(piece)
        if match:
            attributes[match[1]] = piece[match.end() :].strip()
    return attributes


class InstructionParser:
    """Parser of instructions; equal shapes and dropped attributes are stored once.

    `is_complete`: keep also the attributes that only programs need.
    """

    def __init__(self, file: str, *, is_complete: bool = False) -> None:
        self._file = file
        self._used = _USED_ATTRIBUTES | (_PROGRAM_ATTRIBUTES if is_complete else frozenset())
        self._shapes: dict[str, Shape] = {}

    def parse(self, statement: Statement) -> HloInstruction:
        """Parse an instruction. Raises `InputError` with its line for damaged text."""
        try:
            return self._parse(statement)
        except ValueError as error:
            message = f"this instruction cannot be read: {error}"
            cure = "dump the module again as text"
            raise invalid(message, self._file, statement.line, cure) from None

    def _parse(self, statement: Statement) -> HloInstruction:
        text = statement.text
        head = _ASSIGNMENT.match(text)
        assert head
        position = head.end()
        if text.startswith("(", position):
            end = _find_close(text, position)
        else:
            match = _ARRAY_SHAPE.match(text, position)
            if not match:
                raise ValueError(f"no shape follows '=': {text[position : position + 40]!r}")
            end = match.end()
        opcode = _OPCODE.match(text, end)
        if not opcode:
            raise ValueError(f"no operation follows its shape: {text[end : end + 40]!r}")
        close = _find_close(text, opcode.end() - 1)
        literal, operands = "", tuple[str, ...]()
        if opcode[1] in ("parameter", "constant", "iota"):
            literal = text[opcode.end() : min(close - 1, opcode.end() + 64)].strip()
        else:
            operands = tuple(
                _operand_name(operand) for operand in _split(text, opcode.end(), close - 1)
            )
        attributes = {
            key: value for key, value in parse_attributes(text, close).items() if key in self._used
        }
        shape_text = text[position:end]
        shape = self._shapes.get(shape_text)
        if shape is None:
            shape = parse_shape(shape_text)
            if len(self._shapes) < 1 << 16:
                self._shapes[shape_text] = shape
        return HloInstruction(
            head[2], sys.intern(opcode[1]), shape, operands,
            attributes or _NO_ATTRIBUTES,
            literal, statement.line, head[1] is not None,
        )  # fmt: skip


def parse_shape(text: str) -> Shape:
    """Parse an HLO shape: element types, dimensions, and the order of dimensions.

    The arrays are all parts like `f32[2,3]` in the order of the text; nested tuples are
    flattened, and other text is ignored. It is a tuple if the text begins with `(`. `()`
    and text without an array have no arrays.

    The order (`Shape.order`) lists the dimensions from the slowest to the fastest in
    memory: (1, 0) for `f32[2,3]{0,1}`. It is () for the default order, also if no order is
    given. It is None with tiles (`T(...)`), and for several arrays of which one has another
    order. Memory spaces (`S(1)`) are ignored.

    Raises `ValueError` for unknown element types and invalid dimensions.
    """
    leaves = []
    for dtype, inside in _LEAF.findall(text):
        if dtype not in ELEMENT_BITS:
            raise ValueError(f"the element type {dtype!r} is unknown")
        dimensions = parse_dimensions(inside)
        leaves.append((dtype, dimensions))
    orders = [parse_integers(order)[::-1] for order in _ORDER.findall(text)]
    order: tuple[int, ...] | None = ()
    if any(one != tuple(sorted(one)) for one in orders):
        order = orders[0] if len(leaves) == 1 else None
    return Shape(tuple(leaves), text.startswith("("), None if _TILE.search(text) else order)


def parse_integers(text: str) -> tuple[int, ...]:
    """Parse integers separated by commas; braces, brackets and parentheses around them are dropped.

    () for empty text, also within brackets. Raises `ValueError` for other text, and for
    integers of more than 18 digits.
    """
    inside = text.strip().strip("{}[]() ")
    return tuple(to_integer(integer) for integer in inside.split(",")) if inside else ()


def to_integer(text: str) -> int:
    """Convert decimal text, possibly in quotes and with a minus sign, to an integer.

    White space around the text is ignored, then all single and double quotes at both ends. Raises
    `ValueError` for other text, a plus sign, and more than 18 digits.
    """
    digits = text.strip().strip("'\"")
    if not re.fullmatch(r"-?[0-9]{1,18}", digits):
        raise ValueError(f"{digits[:24]!r} is no integer of at most 18 digits")
    return int(digits)


def parse_dimensions(inside: str) -> tuple[int, ...]:
    """Parse dimensions separated by commas; () for empty text.

    The bound of a dynamic dimension (`<=8`) counts as its size. Raises `ValueError` for a size that
    is no integer of at most 18 digits, for negative sizes, for more than 64 dimensions, and for
    more than 2^54 elements.
    """
    if not inside.strip():
        return ()
    sizes = tuple(to_integer(size.strip().removeprefix("<=")) for size in inside.split(","))
    if min(sizes) < 0 or len(sizes) > _MAX_DIMENSIONS or math.prod(sizes) > _MAX_SIZE >> 8:
        raise ValueError(f"no array has the dimensions [{inside[:60]}]")
    return sizes


def _operand_name(text: str) -> str:
    """Return the name of an operand; its shape may precede the name.

    Raises `ValueError` for text without a name.
    """
    match = _OPERAND.match(text)
    if not match:
        raise ValueError(f"{text.strip()[:40]!r} names no operand")
    return match[1]


def _count_open(text: str) -> int:
    """Return the number of opening minus closing brackets of a text: round, square and curly ones.

    Brackets in double-quoted strings are ignored. The kinds of brackets are counted together;
    the result is negative if more are closed than opened.
    """
    if '"' in text:
        text = _STRING.sub("", text)
    opened = text.count("(") + text.count("{") + text.count("[")
    return opened - text.count(")") - text.count("}") - text.count("]")


def _find_close(text: str, start: int) -> int:
    """Return the position after the bracket that closes the first one at or after `start`.

    Round, square and curly brackets count as the same kind. Brackets in double-quoted
    strings are ignored. Raises `ValueError` if no bracket is opened, or if it is not
    closed.
    """
    depth = 0
    for token in _TOKEN.finditer(text, start):
        if token[0] in "([{":
            depth += 1
        elif token[0] in ")]}":
            depth -= 1
            if not depth:
                return token.end()
    raise ValueError("a bracket is not closed")


def _split(text: str, start: int, end: int) -> list[str]:
    """Split `text[start:end]` at commas outside of brackets and strings.

    Pieces keep surrounding spaces. Pieces that are empty or have only spaces are dropped. All
    kinds of brackets count equally: `(`, `[` and `{` open a level, `)`, `]` and `}` close
    one. Commas after a closing bracket too many do not split until the levels are balanced
    again.
    """
    pieces, depth, first = [], 0, start
    for token in _TOKEN.finditer(text, start, end):
        if token[0] in "([{":
            depth += 1
        elif token[0] in ")]}":
            depth -= 1
        elif token[0] == "," and not depth:
            pieces.append(text[first : token.start()])
            first = token.end()
    pieces.append(text[first:end])
    return [piece for piece in pieces if piece.strip()]
