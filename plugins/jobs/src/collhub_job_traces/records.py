"""Tokens of node records, and encoding of the fields that the model knows.

A record is a sequence of tokens. Fields of the model are named (`id`, `type`, `@comm_size:9` with
the number of the attribute's kind); other fields are preserved in hexadecimal (`=...`). Similar
records have equal tokens, and tokens together with the columns of the model restore the bytes.
Records that protobuf would encode differently are preserved completely (`!...`).

Attributes and tensors without a column of the model are texts in `Workload.extras`. An extra that
begins with `+` adds attributes to the record that the writer creates for a node. Chakra's converter
of PyTorch traces writes tensors as texts of Python lists, one entry per argument of the operator
(`IOInfo` of `et_def.proto`): `[[16, 8], []]` and `['Tensor(float)', 'Scalar']`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hub_core.chakra import AttributeKind, varint

# Fields of the message Node, and their tokens.
ID, NAME, TYPE, CONTROL, DATA, MICROS, ATTRIBUTE = 1, 2, 3, 4, 5, 7, 10
# Further fields, without a column.
START, INPUTS, OUTPUTS = 6, 8, 9
FIELD_TOKENS = {ID: "id", NAME: "name", TYPE: "type", CONTROL: "ctrl", DATA: "data", MICROS: "us"}
_NUMBERS = {"id": ID, "type": TYPE, "us": MICROS}
_LISTS = {"ctrl": CONTROL, "data": DATA}
VARINT, BYTES = 0, 2
_REMEMBERED = 1 << 16
GROUP = "pg_name"
# Attributes with a column: integers.
INTEGER_ATTRIBUTES = (
    *("comm_size", "comm_type", "comm_src", "comm_dst", "comm_tag", "tensor_size", "num_ops"),
    *("is_cpu_op", "duration_ns", "root", "collhub_algorithm", "collhub_counts"),
)
INTEGER_KINDS = frozenset(
    {
        AttributeKind.INT32,
        AttributeKind.INT64,
        AttributeKind.UINT32,
        AttributeKind.UINT64,
        AttributeKind.BOOL,
    }
)
MORE = "+"
"""First token of an extra that adds attributes to a record created by the writer."""
# A complete record, or a token of its parts.
_COMPLETE = re.compile("!(?:[0-9a-fA-F]{2})*")
_PART = re.compile(
    "=(?:[0-9a-fA-F]{2})*"
    f"|{'|'.join(FIELD_TOKENS.values())}"
    f"|@{GROUP}:{int(AttributeKind.STRING)}"
    f"|@(?:{'|'.join(INTEGER_ATTRIBUTES)}):(?:{'|'.join(str(int(kind)) for kind in INTEGER_KINDS)})"
)


def says_more(extra: str) -> bool:
    """Return whether a record has fields without a column, which are tokens with bytes."""
    return any(token.startswith(("=", "!")) for token in extra.split())


def preserved_fields(extra: str) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of the protobuf fields in the tokens of a record, in order.

    They are the fields in `=HEX` and `!HEX`, with values as in `fields`. Other tokens are skipped,
    also those of other formats, and tokens whose HEX is not hexadecimal or no protobuf message.
    """
    for token in extra.split():
        if token[0] not in "=!":
            continue
        try:
            record = list(fields(bytes.fromhex(token[1:])))
        except ValueError:
            continue
        yield from ((number, value) for number, value, _ in record)


@dataclass(frozen=True, slots=True)
class StatedFields:
    """Fields of a record without a column.

    `node_type`: number of the node type, None if the kind determines it. `attributes`: names of all
    attributes. `numbers`: values of integer attributes without a column.
    """

    node_type: int | None
    attributes: frozenset[str]
    numbers: Mapping[str, int]


@lru_cache(maxsize=_REMEMBERED)
def stated_fields(extra: str) -> StatedFields:
    """Return the node type, attribute names and integer attributes in the tokens of a record.

    `extra`: tokens separated by spaces.

    - `@NAME:KIND` gives the attribute name NAME, without a value.
    - `=HEX` and `!HEX` are fields of a node in protobuf. A field for the type gives the node type.
      An attribute gives its name, and if it is an integer its value, as signed 64-bit number.
    - Other tokens are not examined.

    Of repeated values the last one is used. The node type is None if no token contains it. Tokens
    whose HEX is not hexadecimal or not protobuf, and truncated attributes, are ignored. All results
    are empty for extras of other formats (`are_tokens`). The result is cached and shared: do not
    change it.
    """
    node_type, numbers = None, {}
    tokens = extra if are_tokens(extra) else ""
    names = {token[1:].partition(":")[0] for token in tokens.split() if token[0] == "@"}
    for number, value in preserved_fields(tokens):
        if number == TYPE and isinstance(value, int):
            node_type = value
        elif number == ATTRIBUTE and isinstance(value, bytes):
            try:
                read = attribute(value)
            except ValueError:
                continue
            names.add(read.name)
            if isinstance(read.value, int):
                numbers[read.name] = read.number
    return StatedFields(node_type, frozenset(names), numbers)


@lru_cache(maxsize=_REMEMBERED)
def are_tokens(extra: str) -> bool:
    """Return whether an extra consists of valid tokens of a record, separated by spaces.

    It is `!HEX` alone, or `+` (only at the beginning), `=HEX`, names of fields (`id`), and
    `@NAME:KIND` with an integer attribute and an integer kind or the name of a group and the kind
    of a text. HEX are pairs of hexadecimal digits. Then `encode_record` raises no error for the
    values of a node. True for an empty text; False for extras of other formats and damaged ones.
    Cached.
    """
    tokens = extra.removeprefix(MORE + " ").split() if extra != MORE else []
    if len(tokens) == 1 and _COMPLETE.fullmatch(tokens[0]):
        return True
    return all(_PART.fullmatch(token) for token in tokens)


@dataclass(frozen=True, slots=True)
class Attribute:
    """Attribute: name, number of its kind (0: no value), and value.

    `value`: an unsigned 64-bit number, or the bytes of a text, list etc.
    """

    name: str
    kind: int
    value: int | bytes

    @property
    def number(self) -> int:
        """The value as a signed 64-bit integer (two's complement); 0 if the value is bytes."""
        # Varints are unsigned: the highest bit is the sign.
        value = self.value if isinstance(self.value, int) else 0
        return value - (1 << 64) if value >> 63 else value

    @property
    def text(self) -> str:
        """The value as text."""
        # Names of groups are ASCII in all known traces.
        return self.value.decode("utf-8", "replace") if isinstance(self.value, bytes) else ""


def fields(record: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Yield (field number, value, raw bytes) of every field of a protobuf message, in order.

    The value is an unsigned integer for a varint. It is bytes for fields with a length and for
    fixed-size numbers (4 or 8 bytes). The raw bytes include tag and length. Field numbers are not
    checked. An empty record has no fields.

    Raises `ValueError`, after the fields before it, at a field that has a wire type other than 0,
    1, 2 and 5, reaches beyond the end, or has a varint of more than 10 bytes.
    """
    at = 0
    while at < len(record):
        start = at
        tag, at = _varint(record, at)
        wire = tag & 7
        value: int | bytes
        if wire == VARINT:
            value, at = _varint(record, at)
        elif wire == BYTES:
            length, at = _varint(record, at)
            value, at = record[at : at + length], at + length
        elif wire in (1, 5):
            width = 8 if wire == 1 else 4
            value, at = record[at : at + width], at + width
        else:
            raise ValueError(f"byte {start} starts no field")
        if at > len(record):
            raise ValueError("a field reaches beyond the end of its record")
        yield tag >> 3, value, record[start:at]


def varints(packed: bytes) -> list[int]:
    """Decode a packed list of numbers as unsigned integers.

    Raises `ValueError` if the last number is cut, or a number has more than 10 bytes.
    """
    numbers, at = [], 0
    while at < len(packed):
        number, at = _varint(packed, at)
        numbers.append(number)
    return numbers


def attribute(body: bytes) -> Attribute:
    """Decode the protobuf message of an attribute: name, kind and value.

    The last of repeated fields is used. Without a value, the kind is 0 and the value is empty.
    Bytes of the name that are not UTF-8 are replaced. Raises `ValueError` for truncated messages.
    """
    name, kind, value = "", 0, b""
    payload: int | bytes = value
    for number, content, _ in fields(body):
        if number == 1 and isinstance(content, bytes):
            name = content.decode("utf-8", "replace")
        elif number >= AttributeKind.DOUBLE:
            kind, payload = number, content
    return Attribute(name, kind, payload)


def attribute_token(read: Attribute, is_known: bool, raw: bytes) -> str:
    """Return the token of an attribute."""
    return f"@{read.name}:{read.kind}" if is_known else f"={raw.hex()}"


def encode_record(tokens: str, values: Mapping[str, int | list[int] | bytes]) -> bytes:
    """Encode a record from its tokens and the values that they name.

    `tokens` are separated by spaces and encoded in order; no tokens give `b""`:

    - `=HEX` or `!HEX`: these bytes, unchanged.
    - `@NAME:KIND`: the attribute NAME with `values[NAME]`, an integer or bytes. KIND is the number
      of its protobuf field. A list raises `AssertionError`.
    - Any other token: a field of the node with the value of this key. Bytes are always encoded as
      the field `name`, whatever the token. A list of integers fits `ctrl` and `data`, an integer
      `id`, `type` and `us`.

    Raises `KeyError` for a missing value, and for a list or an integer whose token is not among
    these fields. Raises `ValueError` for invalid hexadecimal digits and for a KIND that is no
    integer.
    """
    parts = []
    for token in tokens.split():
        if token[0] in "=!":
            parts.append(bytes.fromhex(token[1:]))
        elif token[0] == "@":
            name, _, kind = token[1:].partition(":")
            value = values[name]
            # Only fields of nodes are lists.
            assert not isinstance(value, list)
            parts.append(attribute_field(name, int(kind), value))
        else:
            parts.append(node_field(token, values[token]))
    return b"".join(parts)


def node_field(token: str, value: int | list[int] | bytes) -> bytes:
    """Encode a field of a node: an integer, a packed list of integers, or the node's name.

    The type of `value` decides; bytes are always encoded as the field `name`, regardless of the
    token. Negative integers are encoded modulo 2^64. Raises `KeyError` for a token that is no
    field of that type.
    """
    if isinstance(value, bytes):
        return varint(NAME << 3 | BYTES) + varint(len(value)) + value
    if isinstance(value, list):
        packed = b"".join(varint(number) for number in value)
        return varint(_LISTS[token] << 3 | BYTES) + varint(len(packed)) + packed
    return varint(_NUMBERS[token] << 3) + varint(value)


@lru_cache(maxsize=_REMEMBERED)
def attribute_field(name: str, kind: int, value: int | bytes) -> bytes:
    """Encode an attribute as the complete protobuf field `attr` of a node, tag and length included.

    `name`: ASCII only. `kind`: number of the field of `AttributeProto` that holds the value. An
    integer is a varint of its value modulo 2^64, so that negative ones have 10 bytes; bytes follow
    their length. Results are cached, because most nodes of a job share attributes.
    """
    content = varint(1 << 3 | BYTES) + varint(len(name)) + name.encode()
    if isinstance(value, bytes):
        content += varint(kind << 3 | BYTES) + varint(len(value)) + value
    else:
        content += varint(kind << 3) + varint(value % (1 << 64))
    return varint(ATTRIBUTE << 3 | BYTES) + varint(len(content)) + content


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(content) or shift > 63:
            raise ValueError("a number is cut short or too long")
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def attributes_extra(attributes: Mapping[str, str]) -> str:
    """Encode texts as the extra of a node, for attributes of kind STRING in its trace.

    The extra is the token `+`, then `=` and the hexadecimal protobuf field of each attribute,
    in the order of the mapping and separated by blanks; without attributes it is `+`. Names
    must be ASCII. Job documents preserve the extra, the writer of traces adds the attributes
    to the node, and the reader of traces restores the extra. `attributes_of_extra` is the
    inverse.
    """
    written = [
        attribute_field(name, AttributeKind.STRING, text.encode())
        for name, text in attributes.items()
    ]
    return " ".join([MORE, *(f"={field.hex()}" for field in written)])


def attributes_of_extra(extra: str) -> dict[str, str]:
    """Return the attributes of kind STRING in the tokens of an extra: text by name.

    The last of repeated names is used. Empty for extras of other formats. Tokens that cannot be
    decoded are ignored.
    """
    texts = {}
    for number, value in preserved_fields(extra):
        if number != ATTRIBUTE or not isinstance(value, bytes):
            continue
        try:
            read = attribute(value)
        except ValueError:
            continue
        if read.kind == AttributeKind.STRING:
            texts[read.name] = read.text
    return texts


INPUTS, OUTPUTS = 8, 9
_VALUES, _SHAPES, _TYPES = 1, 2, 3
# Maximum length of a list of shapes in characters.
_LONGEST = 1 << 16
_ELEMENTS = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "int": "int32",
    "long int": "int64",
    "bool": "bool",
}


@dataclass(frozen=True, slots=True)
class StatedInput:
    """Argument of an operator: shape of a tensor, or a number.

    `element`: numpy name of the element type, empty if unknown to numpy.
    """

    shape: tuple[int, ...] | None
    element: str = ""
    number: float | None = None


def tensors_of_extra(extra: str, number: int = INPUTS) -> tuple[StatedInput, ...]:
    """Return the tensors and numbers among a node's inputs, as recorded in an extra.

    `extra`: words separated by blanks; those that begin with `=` or `!` have a protobuf message in
    hexadecimal digits, other words are skipped. `number`: protobuf field to read, `INPUTS` or
    `OUTPUTS`. Only its first occurrence in all words is read. Its entries are in the order of the
    inputs; other kinds of inputs are left out, so positions are not kept (`_arguments`).

    The result is empty if no word has the field, or if the message in the field cannot be decoded.
    A word that is no message is skipped.
    """
    bodies = (
        body
        for field, body in preserved_fields(extra)
        if field == number and isinstance(body, bytes)
    )
    try:
        return tuple(_arguments(next(bodies, b"")))
    except ValueError:
        return ()


def _arguments(body: bytes) -> list[StatedInput]:
    """Parse the tensors and numbers in an `IOInfo` message, in their order.

    The message has three texts of Python lists: values, shapes and types. Texts that are missing or
    no lists count as empty. Entry i of types is examined for each i:

    1. If it begins with `Tensor(` and shapes has an entry i, it is a tensor. It is left out if its
       shape is no list of integers. Its element type is the hub's name, such as `float32`
       for `Tensor(float)`, else "".
    2. Otherwise, if entry i of values exists and is an integer, float or boolean, it is a number.
       The result has it as float, booleans as 0.0 or 1.0. An integer beyond the range of floats
       is left out.
    3. Otherwise it is left out, so positions are not kept.

    Raises `ValueError` for a message that cannot be decoded.
    """
    texts = {field: value for field, value, _ in fields(body) if isinstance(value, bytes)}
    values, shapes, types = (
        _parse_list(texts.get(number, b"")) for number in (_VALUES, _SHAPES, _TYPES)
    )
    arguments = []
    for position, kind in enumerate(types):
        if str(kind).startswith("Tensor(") and position < len(shapes):
            shape = shapes[position]
            if isinstance(shape, list | tuple) and all(isinstance(size, int) for size in shape):
                element = _ELEMENTS.get(str(kind)[len("Tensor(") : -1], "")
                arguments.append(StatedInput(tuple(shape), element))
        elif position < len(values) and isinstance(values[position], int | float):
            # Integers beyond the range of floats are left out.
            with suppress(OverflowError):
                arguments.append(StatedInput(None, number=float(values[position])))
    return arguments


def _parse_list(text: bytes) -> list[Any]:
    """Parse a list or tuple in Python notation; empty for any other text.

    Empty also for text of more than `_LONGEST` bytes, and for JSON that is no Python, with `null`
    or `true`.
    """
    if len(text) > _LONGEST:
        return []
    try:
        value = ast.literal_eval(text.decode("utf-8", "replace"))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return []
    return list(value) if isinstance(value, list | tuple) else []
