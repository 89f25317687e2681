"""Split MLIR text into statements, and operations into results, operands, attributes and types.

Both forms of operations are read: the generic one (`"stablehlo.add"(%0, %1) : (...) -> ...`) and
those of the dialects StableHLO, CHLO, Shardy and func (`stablehlo.add %0, %1 : ...`). Sources:
openxla/stablehlo `AssemblyFormat.cpp` and `StablehloOps.td`, the reference of the MLIR language.
MLIR does not depend on line breaks. Here an operation begins on a line of its own, as all printers
write it; it may continue on further lines, and small regions may be on its line. A statement is
held in memory, the file is not: the values of large constants are skipped while they are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from collhub_hlo_modules.text import (
    ELEMENT_BITS,
    MAX_STATEMENT_CHARACTERS,
    Shape,
    invalid,
    parse_dimensions,
)

# A longer line of a constant keeps only its beginning and its end with the type.
_MAX_CONSTANT_CHARACTERS = 1 << 16
_CONSTANT_HEAD = re.compile(rb'\s*%[\w$.\-]+\s*=\s*"?(?:stablehlo|mhlo|arith)\.constant\b')
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|->|[()\[\]{}<>,]')
_TOKEN_OR_COLON = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|->|[()\[\]{}<>:]')
_COMMENT = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")|//.*')
_ALIAS = re.compile(r"([#!][\w$.\-]+)\s*=\s*")
# Operations whose regions follow their types on a further line.
_HAS_TRAILING_REGION = re.compile(
    r'%[^="]*=\s*stablehlo\.(?:while\b(?!.*\bcond\b)|reduce\b(?!.*\b(?:applies|reducer)\b))'
)
_CONTINUED = (",", "=", ":", "->", "(", "[", "<")
_CONTINUES = ("->", ":", ",", "=", "{", "<", "(", ")", "]", "attributes", "cond", "reducer")
_ATTRIBUTE_LINE = re.compile(r'(?:"[^"]*"|[A-Za-z_][\w.$\-]*)\s*(?:=|,|\}|\Z)')
_KEYWORD_OPERATIONS = frozenset(("return", "func.return", "stablehlo.return", "sdy.return"))
_INLINE_REGION = re.compile(r'\(\{\s+(?=\^|%|")')
_LINE_BREAKS = re.compile(
    r'(?<=\()\{\s+(?=[\^%"])|(?<=:)\s+(?=%[\w$.\-]+\s*=|"[a-z_]+\.)'
    r'|\s+(?=%[\w$.\-]+(?::\d+)?\s*=\s*["a-z])|\s+(?="?(?:stablehlo|func|sdy)\.return\b)|\s*(?=\}\))'
)
_VALUE = r"%[\w$.\-]+"
_HEAD = re.compile(
    rf'(?:((?:{_VALUE}(?::\d+)?\s*,\s*)*{_VALUE}(?::\d+)?)\s*=\s*)?(?:"([\w.$\-]+)"|([A-Za-z_][\w.$]*))'
)
_RESULT = re.compile(rf"({_VALUE})(?::(\d+))?")
_OPERAND = re.compile(rf"{_VALUE}(?:#\d+)?")
_ASSIGNED = re.compile(rf"{_VALUE}\s*=\s*({_VALUE}(?:#\d+)?)")
_ARGUMENT = re.compile(rf"\s*({_VALUE})\s*:\s*(.*)\Z", re.DOTALL)
_ATTRIBUTE = re.compile(r'\s*(?:"([^"]*)"|([A-Za-z_][\w.$\-]*))\s*(?:=\s*)?(.*)\Z', re.DOTALL)
_DIMENSIONS = re.compile(r"(?:(?:\d+|\?)\s*x\s*)*")
_BOUNDS = re.compile(r"bounds\s*(?:=\s*\[|<)([^\]>]*)")
_INTEGERS = re.compile(r"([su]?)i(\d{1,3})\b")
_QUANTIZED = re.compile(r"!quant\.\w+<\s*([su]?i\d{1,3}|f8E\w+)")
_OTHER_TYPES = {"index": "s64", "none": "token", "complex<f32>": "c64", "complex<f64>": "c128"}


@dataclass(frozen=True, slots=True)
class MlirStatement:
    """A line of structure. `kind`: operation, open, next, end, block or alias.

    `operation`: an operation without regions, or a declaration. `open`: an operation up to its
    first region. `next`: text between two regions. `end`: text after the last one. `block`: the
    label of a block with its arguments. `alias`: a definition of an attribute or a type.
    """

    kind: str
    text: str
    line: int


@dataclass(slots=True)
class MlirOperation:
    """An operation without its regions.

    `results`: value names with the number of values of each; `operands`: value names with `%`, as
    `%0` or `%0#1`; `head`: text before the types, from the name on; `types`: text of the types.
    """

    name: str
    results: list[tuple[str, int]]
    operands: list[str]
    head: str
    types: str
    line: int

    @property
    def result_count(self) -> int:
        """Number of result values."""
        return sum(count for _, count in self.results)


class MlirReader:
    """Iterator over the statements of a file, which is read line by line.

    `file`: name in errors.
    """

    def __init__(self, stream: BinaryIO, file: str) -> None:
        self.file = file
        self._stream = stream
        self._line = 0
        self._pending: list[tuple[str, int]] = []

    def __iter__(self) -> Iterator[MlirStatement]:
        """Yield the statements in the order of the text, with the numbers of their first lines.

        The lines of a statement are joined with a blank into one; comments are removed. The first
        rule that fits gives the kind:

        - `alias`: begins with `#` or `!` and has `=`, outside of regions: it defines an attribute
          or type
        - `next`: begins with `}` and ends with `{`: closes a region and opens the next one
        - `end`: begins with `}`: closes a region
        - `block`: begins with `^`: a label
        - `open`: ends with `{`: an operation that opens a region
        - `operation`: any other

        Reading stops at the resources (`{-#`). Raises `InputError` with the line for a region that
        is closed but not open, text that ends within a region or statement (`cut`), brackets that
        do not match, and statements or lines that are too long (`too-large`). Statements before it
        are yielded.
        """
        depth = 0
        while (taken := self._take()) is not None:
            text, line = taken
            if text.startswith("{-#"):
                # The values of resources follow.
                break
            if not depth and text[0] in "#!" and _ALIAS.match(text):
                yield MlirStatement("alias", self._join(text, line), line)
                continue
            text = self._join(text, line)
            is_open, is_close = text.endswith("{"), text.startswith("}")
            if is_close and not depth:
                cure = "write the module again as text"
                raise invalid("a region is closed that was not opened", self.file, line, cure)
            depth += is_open - is_close
            if is_close:
                yield MlirStatement("next" if is_open else "end", text, line)
            elif text.startswith("^"):
                yield MlirStatement("block", text, line)
            else:
                yield MlirStatement("open" if is_open else "operation", text, line)
        if depth:
            raise self._cut("the file ends within a region", self._line)

    def _take(self) -> tuple[str, int] | None:
        """Return the next line that has text, with its number from 1; None at the end of the file.

        Blanks at both ends and comments (`//`, not in strings) are removed. Lines without text are
        skipped but counted. Bytes that are not UTF-8 are replaced.

        Above 64 KiB, a line that begins as a constant (`%x = stablehlo.constant`, mhlo or arith)
        loses its values: `%x = stablehlo.constant dense<...> : TYPE>` remains. Any other line of
        `MAX_STATEMENT_CHARACTERS` (2^24) bytes or more raises `InputError` (`too-large`).

        A line with `({` and an operation or label after it is split into one line per operation,
        all with the same number. The first is returned, the others by the next calls.
        """
        if self._pending:
            return self._pending.pop(0)
        while True:
            raw = self._stream.readline(MAX_STATEMENT_CHARACTERS)
            if not raw:
                return None
            self._line += 1
            if len(raw) > _MAX_CONSTANT_CHARACTERS and _CONSTANT_HEAD.match(raw):
                raw = self._skip_values(raw)
            elif len(raw) >= MAX_STATEMENT_CHARACTERS:
                raise self._too_long(self._line)
            text = raw.decode("utf-8", "replace").strip()
            if "//" in text:
                text = _COMMENT.sub(lambda match: match[1] or "", text).strip()
            if not text:
                continue
            if _INLINE_REGION.search(text):
                # One line per operation.
                lines = _LINE_BREAKS.sub(_break_line, text).split("\n")
                first, *following = (part for part in lines if part.strip())
                self._pending.extend((line, self._line) for line in following)
                text = first
            return text, self._line

    def _skip_values(self, raw: bytes) -> bytes:
        """Skip the values of a long constant; return a short line with its name and type.

        `raw`: the line of the constant, or its beginning. The rest of the line is then read from
        the stream in blocks, so that memory stays small. The result is joined from:

        1. The text before the first `dense` within the first 128 bytes, or all 128 bytes.
        2. `dense<...> : `
        3. The type: the text between the last ` : ` and the last `>` within the last 1024 bytes.
           Without ` : ` it begins at the first of these bytes; without `>` it is empty.
        4. `>` and a line feed.
        """
        first, last = raw[:128], raw
        while not last.endswith(b"\n"):
            more = self._stream.readline(MAX_STATEMENT_CHARACTERS)
            if not more:
                break
            last = last[-1024:] + more
        value = first.partition(b"dense")[0]
        types = last[-1024:].rpartition(b">")[0].rpartition(b" : ")[2]
        return value + b"dense<...> : " + types + b">\n"

    def _join(self, text: str, line: int) -> str:
        """Append following lines to `text` until the statement is complete; return it as one line.

        The rules of `_is_continued` decide whether the next line belongs to the statement. Lines
        are joined by single spaces; blank lines and comments are skipped. If no line is added,
        `text` itself is returned. The first line that does not belong to the statement is read
        again by the next call of `_take`. A final `{` or `({` of the result opens a region. `line`:
        number of the first line, for errors.

        Raises `InputError` with this line:

        - The file ends while brackets are open (`cut`).
        - More brackets are closed than opened (`hlo`).
        - The added lines make the statement longer than `MAX_STATEMENT_CHARACTERS` (2^24)
          characters (`too-large`); `_take` raises the same error for a single line.
        """
        parts, size = [text], len(text)
        depth = _count_open(text)
        while True:
            following = self._take()
            if following is None:
                if depth > 0:
                    raise self._cut("the file ends within the statement that begins here", line)
                break
            if not self._is_continued(parts, depth, following[0]):
                self._pending.insert(0, following)
                break
            if parts[-1].endswith("{"):
                # A dictionary of attributes, not a region.
                depth += 2 if parts[-1].endswith("({") else 1
            parts.append(following[0])
            size += len(following[0])
            depth += _count_open(following[0], is_inside=True)
            if size > MAX_STATEMENT_CHARACTERS:
                raise self._too_long(line)
        if depth:
            message = "the brackets of this statement do not match"
            raise invalid(message, self.file, line, "write the module again as text")
        return " ".join(parts) if len(parts) > 1 else text

    def _is_continued(self, parts: list[str], depth: int, following: str) -> bool:
        """Return whether the line `following` belongs to the statement before it.

        `parts`: lines of the statement so far. `depth`: number of open brackets, without a final
        `{`. The first rule that applies decides:

        1. The last line ends with `{`, and `depth` is 0 or less. False if the last line contains
           `cond {` or ends with `do {`, or if `following` is only the name of a return operation.
           Otherwise True if `following` begins with a name or a quoted key, and then `=`, a comma,
           `}` or the end of the line; else False.
        2. `depth` is above 0: True.
        3. The first line begins with `^`: True unless the last line ends with a colon.
        4. The last line ends with `,`, `=`, `:`, `->`, `(`, `[` or `<`: True.
        5. The first line begins with `#` or `!`: False.
        6. The first line is a `stablehlo.while` without `cond`, or a `stablehlo.reduce` without
           `applies` and `reducer`: False if `following` begins with `%`, `"` or `}`, otherwise
           True.
        7. Otherwise True if `following` begins with a sign or word of `_CONTINUES`.
        """
        last = parts[-1]
        if last.endswith("{") and depth <= 0:
            match = _ATTRIBUTE_LINE.match(following)
            is_attribute = match is not None and match[0] not in _KEYWORD_OPERATIONS
            return is_attribute and "cond {" not in last and not last.endswith("do {")
        if depth > 0:
            return True
        if parts[0].startswith("^"):
            return not last.endswith(":")
        if last.endswith(_CONTINUED):
            return True
        if parts[0].startswith(("#", "!")):
            return False
        if _HAS_TRAILING_REGION.match(parts[0]):
            return not following.startswith(("%", '"', "}"))
        return following.startswith(_CONTINUES) and not following.startswith("}")

    def _cut(self, message: str, line: int) -> Exception:
        return invalid(message, self.file, line, "copy or write the file again", "cut")

    def _too_long(self, line: int) -> Exception:
        message = f"a statement has more than {MAX_STATEMENT_CHARACTERS} characters"
        cure = "write the module without its large values"
        return invalid(message, self.file, line, cure, "too-large")


def _break_line(match: re.Match[str]) -> str:
    return "{\n" if match[0].startswith("{") else "\n"


def operation_name(text: str) -> str:
    """Return the name of the operation in a statement, such as `stablehlo.add`.

    The statement may begin with results (`%0 = `); quotes around the name are removed. Only
    this head of the text is checked. Raise `ValueError` if it is no name, for example
    because of a leading blank.
    """
    match = _HEAD.match(text)
    if not match:
        raise ValueError(f"{text[:60]!r} is no operation")
    return match[2] or match[3]


def parse_operation(text: str, line: int) -> MlirOperation:
    """Parse an operation without its regions, in the pretty or the generic form of MLIR.

    Results have their names with `%` and numbers of values: `%0:2 = ...` gives `("%0", 2)`. A
    trailing location is removed. `head` is the text after the name up to the types, `types` the
    text after the colon, empty without types (`_split_types`). `line` is copied to the result.
    Operands are listed in the order of the text, with repetitions:

    - Generic form, with the name in quotes: the values in the first parentheses after the name,
      none without parentheses.
    - `stablehlo.while`: the values after `=` of assignments, as `%0` in `%arg = %0`.
    - `sdy.manual_computation`: the values up to the end of its first parentheses.
    - Other pretty forms: all values in `head` outside of strings.

    Raises `ValueError` for text without the name of an operation, for more than 65536 result
    values, and if the parentheses of operands or of a location are not closed.
    """
    match = _HEAD.match(text)
    if not match:
        raise ValueError(f"{text[:60]!r} is no operation")
    results = [(name, int(count or 1)) for name, count in _RESULT.findall(match[1] or "")]
    name = match[2] or match[3]
    if sum(count for _, count in results) > 1 << 16:
        raise ValueError("an operation has at most 65536 results")
    start = match.end()
    text = _remove_location(text)
    head, types = _split_types(text, start)
    if match[2]:
        opening = head.find("(", start)
        end = find_close(head, opening) if opening >= 0 else start
        operands = _OPERAND.findall(head, start, end)
    elif name == "stablehlo.while":
        operands = _ASSIGNED.findall(head, start)
    elif name == "sdy.manual_computation":
        operands = _OPERAND.findall(head, start, find_close(head, head.find("(", start)))
    else:
        operands = _OPERAND.findall(_STRING.sub("", head[start:]))
    return MlirOperation(name, results, operands, head[start:], types, line)


def parse_arguments(text: str, start: int) -> list[tuple[str, str]]:
    """Parse `(%a: type, %b: type {...})` from the bracket at `start`; [] for `()`.

    Returns pairs of a name with `%`, and the text of its type, which may end with
    attributes. Raise `ValueError` for an entry without a type, and for a bracket that is
    not closed.
    """
    arguments = []
    for piece in split(text[start + 1 : find_close(text, start) - 1]):
        match = _ARGUMENT.match(piece)
        if not match:
            raise ValueError(f"{piece.strip()[:40]!r} is no argument with a type")
        arguments.append((match[1], match[2]))
    return arguments


def parse_dictionaries(text: str) -> dict[str, str]:
    """Return the entries of the dictionaries of an operation: texts of values by key.

    Dictionaries are `{...}` outside of brackets, and `<{...}>`. For example, `{a = 1, "b"} <{c =
    [2, 3]}>` gives `{"a": "1", "b": "", "c": "[2, 3]"}`. Keys lose their quotes, values lose blanks
    at both ends; a key without a value has the value `""`. Dictionaries inside other brackets are
    not parsed; they are part of a value, or ignored. Entries that do not begin with a name or a
    quoted key are ignored, and so is a dictionary that is not closed. Later entries override
    earlier ones with the same key, also in other dictionaries. Without dictionaries the result is
    empty. Raises nothing.
    """
    attributes: dict[str, str] = {}
    depth, opening, level = 0, -1, 0
    for token in _TOKEN.finditer(text):
        character, start = token[0], token.start()
        if character in ("(", "[", "{", "<"):
            is_outer = not depth or (depth == 1 and text[start - 1] == "<")
            if character == "{" and opening < 0 and is_outer:
                opening, level = start, depth
            depth += 1
        elif character in (")", "]", "}", ">"):
            depth -= 1
            if opening < 0 or depth != level:
                continue
            for piece in split(text[opening + 1 : start]):
                if match := _ATTRIBUTE.match(piece):
                    attributes[match[1] or match[2]] = match[3].strip()
            opening = -1
    return attributes


class TypeParser:
    """Parser of types; equal texts are parsed once."""

    def __init__(self) -> None:
        self.aliases: dict[str, str] = {}
        self._results: dict[tuple[str, int], tuple[Shape, ...]] = {}

    def results(self, types: str, count: int) -> tuple[Shape, ...]:
        """Return the shapes of `count` results, from the text of an operation's types; cached.

        They are the last `count` types of the list; of a function type, those of its results.
        Raise `ValueError` for fewer types than results and for unknown types. With `count` 0
        the result is empty, and the text is not parsed.
        """
        if not count:
            return ()
        key = types, count
        if key in self._results:
            return self._results[key]
        text = types.rpartition("->")[2].strip()
        if "->" in types and text.startswith("("):
            text = text[1 : find_close(text, 0) - 1]
        pieces = split(text)
        if len(pieces) < count:
            raise ValueError(f"{count} results, but the types are {types.strip()[:60]!r}")
        shapes = tuple(self.parse(piece) for piece in pieces[len(pieces) - count :])
        if len(self._results) < 1 << 16:
            self._results[key] = shapes
        return shapes

    def parse(self, text: str) -> Shape:
        """Parse one type as a flat list of its leaves: (element type, dimensions).

        A text in `aliases` is replaced by its value first, also within tuples. Element types have
        their HLO names: `tensor<2x3xi32>` gives `("s32", (2, 3))`, `i1` gives `("pred", ())`.
        Tuples, futures and asynchronous bundles are flattened, in the order of the text. `is_tuple`
        of the result is True only if a tuple was among them. Any other type whose text contains
        `token` gives `("token", ())`. Scalars have no dimensions.

        A dynamic dimension `?` has the size of its bound in the encoding of the tensor. Raises
        `ValueError` for an unknown element type, a bracket that is not closed, a dimension without
        size and bound, more than 64 dimensions, and more than 2^54 elements.
        """
        leaves: list[tuple[str, tuple[int, ...]]] = []
        is_tuple = False
        pending = [text]
        while pending:
            piece = pending.pop().strip()
            piece = self.aliases.get(piece, piece)
            opening, inner = piece.find("<"), ""
            if opening >= 0:
                inner = piece[opening + 1 : find_close(piece, opening) - 1].strip()
            if piece.startswith("tensor"):
                leaves.append(_parse_tensor(inner))
            elif piece.startswith(("tuple", "!stablehlo.future", "!mhlo.async_bundle")):
                is_tuple |= piece.startswith("tuple")
                pending.extend(reversed(split(inner)))
            elif "token" in piece:
                leaves.append(("token", ()))
            else:
                leaves.append((_parse_element(piece), ()))
        return Shape(tuple(leaves), is_tuple)


def _parse_tensor(inside: str) -> tuple[str, tuple[int, ...]]:
    body, *encoding = split(inside)
    match = _DIMENSIONS.match(body.strip())
    sizes = match[0].replace(" ", "").split("x")[:-1] if match else []
    if "?" in sizes:
        bounds = _BOUNDS.search(",".join(encoding))
        limits = [bound.strip() for bound in bounds[1].split(",")] if bounds else []
        if len(limits) != len(sizes):
            limits = ["?"] * len(sizes)
        sizes = [limit if size == "?" else size for size, limit in zip(sizes, limits, strict=True)]
    if "?" in sizes:
        message = f"tensor<{inside[:40]}> has a dimension of unknown size; lower static shapes"
        raise ValueError(message)
    element = body.strip()[match.end() :] if match else body
    return _parse_element(element.strip()), parse_dimensions(",".join(sizes))


def _parse_element(text: str) -> str:
    """Return the HLO name of an element type of MLIR.

    `complex<f32>` is `c64`, `complex<f64>` is `c128`. A quantized type counts as its
    storage type. `i1` is `pred`; integers without a sign count as signed (`i32` is `s32`).
    `index` is `s64`, `none` is `token`. Other names are converted to lower case. Raises
    `ValueError` if the result is no known type, and for other complex types, which HLO does not
    have.
    """
    if match := _QUANTIZED.match(text):
        text = match[1]
    name = _OTHER_TYPES.get(text, text.lower())
    if match := _INTEGERS.fullmatch(text):
        name = "pred" if match[2] == "1" else f"{match[1] or 's'}{match[2]}"
    if name in ELEMENT_BITS:
        return name
    raise ValueError(f"the type {text[:40]!r} is unknown")


def split(text: str) -> list[str]:
    """Split text at commas outside of brackets and strings; return the pieces in their order.

    `a, f<b, c>,, "d,e"` gives `["a", " f<b, c>", ' "d,e"']`: pieces of blanks are dropped, other
    pieces keep their blanks. The result is [] for text of blanks.

    - Brackets are `()`, `[]`, `{}` and `<>`; their kinds are not compared. The `>` of `->` is none.
    - Only commas at which as many brackets were opened as closed split the text.
    - Strings are in double quotes, with backslash escapes. A quote without an end is ordinary text.
    """
    if "," not in text:
        return [text] if text.strip() else []
    pieces, depth, first = [], 0, 0
    for token in _TOKEN.finditer(text):
        character = token[0]
        if character in ("(", "[", "{", "<"):
            depth += 1
        elif character in (")", "]", "}", ">"):
            depth -= 1
        elif character == "," and not depth:
            pieces.append(text[first : token.start()])
            first = token.end()
    pieces.append(text[first:])
    return [piece for piece in pieces if piece.strip()]


def find_close(text: str, start: int) -> int:
    """Return the position after the bracket that closes the first one at or after `start`.

    The kinds of brackets are not compared. Brackets in strings and in `->` do not count. If
    the first bracket is a closing one, the position after it is returned. Raise
    `ValueError` if there is no bracket, or it is not closed.
    """
    depth = 0
    for token in _TOKEN.finditer(text, max(start, 0)):
        if token[0] in ("(", "[", "{", "<"):
            depth += 1
        elif token[0] in (")", "]", "}", ">"):
            depth -= 1
            if depth <= 0:
                return token.end()
    raise ValueError("a bracket is not closed")


def _remove_location(text: str) -> str:
    """Return the text of an operation without the final location ` loc(...)`.

    The location begins at the last ` loc(` that is outside of strings and whose parenthesis is
    closed by the last character of the text. The blank before `loc` is removed too. Text without a
    location is returned unchanged.

    Raises `ValueError` if the text ends with `)`, and a bracket after one of the examined ` loc(`
    is not closed. They are examined from the last one backwards, until one is the location.
    """
    if not text.endswith(")"):
        return text
    start = text.rfind(" loc(")
    while start > 0:
        if text.count('"', 0, start) % 2 == 0 and find_close(text, start + 4) == len(text):
            return text[:start]
        start = text.rfind(" loc(", 0, start)
    return text


def _split_types(text: str, start: int) -> tuple[str, str]:
    """Split an operation into the text before the colon of its types, and these types.

    `start`: index in `text`; colons before it are ignored.

    1. If the text ends with `>` or `)` and does not contain ` attributes {`, the last ` : ` is
       used. Without one from `start` on, the result is (`text`, ""). The result is both parts
       without this ` : `, unless the second part contains `}` or unbalanced brackets. In that case,
       and for any other text, rule 2 applies.
    2. The last colon from `start` on that is outside of all brackets is used; blanks around it
       remain. The types end before ` attributes {`. Without such a colon the result is (`text`,
       "").
    """
    depth, last = 0, -1
    if text.endswith((">", ")")) and " attributes {" not in text:
        last = text.rfind(" : ")
        if last < start:
            return text, ""
        types = text[last + 3 :]
        if "}" not in types and not _count_open(types, is_inside=True):
            return text[:last], types
        last = -1
    for token in _TOKEN_OR_COLON.finditer(text, start):
        if token[0] in ("(", "[", "{", "<"):
            depth += 1
        elif token[0] in (")", "]", "}", ">"):
            depth -= 1
        elif token[0] == ":" and not depth:
            last = token.start()
    if last < 0:
        return text, ""
    types = text[last + 1 :].partition(" attributes {")[0]
    return text[:last], types


def _count_open(text: str, *, is_inside: bool = False) -> int:
    """Return the number of opened minus closed brackets of a line, except those of regions.

    Brackets are `()`, `{}`, `[]` and `<>`. The number is negative if more are closed than
    opened. Not counted are:

    - brackets in strings, and the `>` of `->`;
    - `{` or `({` at the end of the line, which opens a region;
    - `}`, `)` or `})` at the beginning of the line, which closes a region. With `is_inside`,
      the line continues a dictionary of several lines, and this bracket is counted.
    """
    if '"' in text:
        text = _STRING.sub("", text)
    text = text.replace("->", "")
    if not is_inside:
        text = text.removeprefix("}").removeprefix(")")
    text = text.removesuffix("{").removesuffix("(") if text.endswith("{") else text
    opened = text.count("(") + text.count("{") + text.count("[") + text.count("<")
    closed = text.count(")") + text.count("}") + text.count("]") + text.count(">")
    return opened - closed
