"""Node records: which fields stand in them, and how those that the model knows are encoded.

A record is a row of tokens. Fields of the model are named (`id`, `type`, `@comm_size:9` with the
number of the attribute's kind), all others are kept as they are, in hexadecimal (`=...`). Records
of one make thus have the same tokens, and the tokens with the columns of the model give the bytes
back. What protobuf would write otherwise is kept as a whole (`!...`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from hub_core.chakra import Kind, varint

# Fields of the message Node, and how the tokens name them.
ID, NAME, TYPE, CONTROL, DATA, MICROS, ATTRIBUTE = 1, 2, 3, 4, 5, 7, 10
# Further fields, which no column holds.
START, INPUTS, OUTPUTS = 6, 8, 9
FIELD_TOKENS = {ID: "id", NAME: "name", TYPE: "type", CONTROL: "ctrl", DATA: "data", MICROS: "us"}
_NAMES_OF_FIELDS = frozenset(FIELD_TOKENS.values())
_NUMBERS = {"id": ID, "type": TYPE, "us": MICROS}
_LISTS = {"ctrl": CONTROL, "data": DATA}
VARINT, BYTES = 0, 2
_REMEMBERED = 1 << 16
# Attributes that the model knows, by their kinds: whole numbers, and the name of a group.
KNOWN = (
    *("comm_size", "comm_type", "comm_src", "comm_dst", "comm_tag"),
    *("num_ops", "tensor_size", "is_cpu_op", "duration_ns", "root"),
)
GROUP = "pg_name"


def says_more(extra: str) -> bool:
    """Whether the record of these tokens says what no column of the model holds."""
    # Such tokens hold bytes, not names of columns.
    return any(token.startswith(("=", "!")) for token in extra.split())


@dataclass(frozen=True, slots=True)
class StatedFields:
    """What a record states beyond its columns.

    `node_type`: number of the node type, None where a column holds it. `attributes`: names of all
    attributes. `numbers`: values of those with an integer value that no column holds.
    """

    node_type: int | None
    attributes: frozenset[str]
    numbers: Mapping[str, int]


@lru_cache(maxsize=_REMEMBERED)
def stated_fields(extra: str) -> StatedFields:
    """Parse the tokens of a record; empty for extras that hold something else."""
    node_type, names, numbers = None, set(), {}
    for token in extra.split() if are_tokens(extra) else ():
        if token[0] == "@":
            names.add(token[1:].partition(":")[0])
        if token[0] not in "=!":
            continue
        try:
            kept = list(fields(bytes.fromhex(token[1:])))
        except ValueError:
            continue
        for number, value, _ in kept:
            if number == TYPE and isinstance(value, int):
                node_type = value
            elif number == ATTRIBUTE and isinstance(value, bytes):
                read = attribute(value)
                names.add(read.name)
                if isinstance(read.value, int):
                    numbers[read.name] = read.number
    return StatedFields(node_type, frozenset(names), numbers)


@lru_cache(maxsize=_REMEMBERED)
def are_tokens(extra: str) -> bool:
    """Whether an extra of a node is a row of tokens: other formats keep other things there."""
    for token in extra.split():
        if token[0] not in "=!@+" and token not in _NAMES_OF_FIELDS:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute: its name, the number of its kind (0: no value) and its value.

    `value`: a number as 64 bits without sign, or the bytes of a text, list and so on.
    """

    name: str
    kind: int
    value: int | bytes

    @property
    def number(self) -> int:
        """The value with its sign."""
        # Varints are unsigned: the highest bit is the sign.
        value = self.value if isinstance(self.value, int) else 0
        return value - (1 << 64) if value >> 63 else value

    @property
    def text(self) -> str:
        """The value as text."""
        # Names of groups are ASCII in all known traces.
        return self.value.decode("utf-8", "replace") if isinstance(self.value, bytes) else ""


def fields(record: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """(number, value, raw bytes) of every field. Raises `ValueError` for what is no message."""
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
    """The numbers of a packed list."""
    found, at = [], 0
    while at < len(packed):
        number, at = _varint(packed, at)
        found.append(number)
    return found


def attribute(body: bytes) -> Attribute:
    """Decode the message of an attribute; of doubled fields the last counts."""
    name, kind, value = "", 0, b""
    found: int | bytes = value
    for number, content, _ in fields(body):
        if number == 1 and isinstance(content, bytes):
            name = content.decode("utf-8", "replace")
        elif number >= Kind.DOUBLE:
            kind, found = number, content
    return Attribute(name, kind, found)


def attribute_token(read: Attribute, is_known: bool, raw: bytes) -> str:
    """The token of an attribute."""
    return f"@{read.name}:{read.kind}" if is_known else f"={raw.hex()}"


def encoded(tokens: str, values: Mapping[str, int | list[int] | bytes]) -> bytes:
    """The record of tokens, its values by the names in them: columns of the model."""
    parts = []
    for token in tokens.split():
        if token[0] in "=!":
            parts.append(bytes.fromhex(token[1:]))
        elif token[0] == "@":
            name, _, kind = token[1:].partition(":")
            value = values[name]
            # Lists are fields of nodes alone.
            assert not isinstance(value, list)
            parts.append(attribute_field(name, int(kind), value))
        else:
            parts.append(node_field(token, values[token]))
    return b"".join(parts)


def node_field(token: str, value: int | list[int] | bytes) -> bytes:
    """The field of a token; a number, a list of them, or the name."""
    if isinstance(value, bytes):
        return varint(NAME << 3 | BYTES) + varint(len(value)) + value
    if isinstance(value, list):
        packed = b"".join(varint(number) for number in value)
        return varint(_LISTS[token] << 3 | BYTES) + varint(len(packed)) + packed
    return varint(_NUMBERS[token] << 3) + varint(value)


@lru_cache(maxsize=_REMEMBERED)
def attribute_field(name: str, kind: int, value: int | bytes) -> bytes:
    """The field of an attribute; equal ones stand in most nodes of a job."""
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
