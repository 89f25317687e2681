"""Decode node records: columns of the model, and tokens that restore the bytes of a record."""

from __future__ import annotations

from dataclasses import dataclass, field

from collhub_job_traces.records import (
    ATTRIBUTE,
    BYTES,
    CONTROL,
    DATA,
    FIELD_TOKENS,
    GROUP,
    ID,
    INPUTS,
    INTEGER_KINDS,
    MICROS,
    NAME,
    OUTPUTS,
    START,
    TYPE,
    Attribute,
    attribute,
    attribute_field,
    attribute_token,
    fields,
    node_field,
    varints,
)
from hub_core.chakra import AttributeKind, NodeType, RankFile, TraceError, type_name
from hub_core.model import JobCollective, NodeKind

_KINDS = {
    NodeType.MEM_LOAD: NodeKind.LOAD,
    NodeType.MEM_STORE: NodeKind.STORE,
    NodeType.COMP: NodeKind.COMPUTE,
    NodeType.COMM_SEND: NodeKind.SEND,
    NodeType.COMM_RECV: NodeKind.RECV,
    NodeType.COMM_COLL: NodeKind.COLLECTIVE,
}
NODE_TYPES = {kind: node_type for node_type, kind in _KINDS.items()}
_COMMUNICATION = frozenset({NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV})
_MEMORY = frozenset({NodeKind.COMPUTE, NodeKind.LOAD, NodeKind.STORE})
_MAX_INT = 1 << 62
_MAX_INT32 = (1 << 31) - 1
# Integer attributes: column, kinds of nodes, minimum and maximum.
COLUMN_OF = {
    "comm_size": ("bytes", _COMMUNICATION, 0, _MAX_INT),
    "tensor_size": ("bytes", _MEMORY, 0, _MAX_INT),
    "num_ops": ("operations", frozenset({NodeKind.COMPUTE}), 0, _MAX_INT),
    "comm_type": ("collective", frozenset({NodeKind.COLLECTIVE}), 0, int(max(JobCollective))),
    "comm_dst": ("peer", frozenset({NodeKind.SEND}), 0, _MAX_INT32),
    "comm_src": ("peer", frozenset({NodeKind.RECV}), 0, _MAX_INT32),
    "comm_tag": ("tag", frozenset({NodeKind.SEND, NodeKind.RECV}), 0, _MAX_INT32),
    "root": ("root", frozenset({NodeKind.COLLECTIVE}), 0, _MAX_INT32),
    "collhub_algorithm": ("algorithm", frozenset({NodeKind.COLLECTIVE}), 0, _MAX_INT32),
    "collhub_counts": ("counts", frozenset({NodeKind.COLLECTIVE}), 0, _MAX_INT32),
    "duration_ns": ("duration_ns", frozenset(NodeKind), 0, _MAX_INT),
    "is_cpu_op": ("on_host", frozenset(NodeKind), 0, 1),
}
_MAX_DIMENSIONS = 30
_MICROS_LIMIT = _MAX_INT // 1000


@dataclass(slots=True)
class DecodedNode:
    """Decoded node; `data`, `control`: ids of its parents."""

    identity: int = 0
    kind: int = int(NodeKind.MARKER)
    name: str = ""
    group: str = ""
    extra: str = ""
    duration_ns: int = -1
    operations: int = -1
    bytes: int = -1
    collective: int = -1
    root: int = -1
    peer: int = -1
    algorithm: int = -1
    counts: int = -1
    tag: int = 0
    dimensions: int = -1
    on_host: int = 0
    data: list[int] = field(default_factory=list)
    control: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Head:
    """Fields of a record before its attributes. `duration_ns`: from `duration_micros`."""

    identity: int
    name: str
    duration_ns: int
    data: list[int]
    control: list[int]
    tokens: str


class DecodedParts:
    """Cache of decoded parts of records, keyed by their bytes.

    The head (fields before the attributes) and the tail (attributes) of most records occur in other
    records, too: ranks of a group differ in the tail, nodes of a rank in the head. A tail is cached
    with the type of its node, as a node without a head.
    """

    def __init__(self, foreign: frozenset[str] = frozenset()) -> None:
        """Create an empty cache of decoded parts of records, which all files of a job share.

        `foreign`: names of attributes that are preserved in the record but set no column.
        """
        self.foreign = foreign
        self._attributes: dict[bytes, Attribute] = {}
        self._heads: dict[bytes, _Head] = {}
        self._tails: dict[tuple[int, bytes], DecodedNode] = {}
        # Equal texts are stored once.
        self._texts: dict[str, str] = {}

    def node(self, record: bytes) -> DecodedNode | None:
        """Decode a node record in the usual encoding of protobuf; otherwise return None.

        A usual record has first its other fields, then its attributes. None is returned if:

        - the record is cut, has an unknown field, or has another field after the first attribute
        - the fields before the attributes are not strictly ascending, or numbers have more bytes
          than necessary
        - an attribute occurs twice, or a known attribute is not in its shortest form
        - the node type does not follow from the kind (METADATA, INVALID, no type, or a collective
          without comm_type)

        Unknown attributes, and known fields without a column, are kept in `extra` in hexadecimal.
        The duration in ns is the attribute `duration_ns`, else 1000 times the field
        `duration_micros` if that is above 0, else -1. Equal parts of records share one result: do
        not change lists of parents. Raises `ValueError` for malformed attributes and for values
        that are invalid in any node.
        """
        node_type, end = _find_head_end(record)
        if end < 0:
            return None
        head_bytes, tail_key = record[:end], (node_type, record[end:])
        head, tail = self._heads.get(head_bytes), self._tails.get(tail_key)
        if head is None:
            head = _decode_head(head_bytes)
            if head is None:
                return None
            self._heads[head_bytes] = head
        if tail is None:
            tail = self._decode_tail(*tail_key)
            if tail is None:
                return None
            self._tails[tail_key] = tail
        text = f"{head.tokens} {tail.extra}" if tail.extra else head.tokens
        return DecodedNode(
            head.identity,
            tail.kind,
            head.name,
            tail.group,
            self._texts.setdefault(text, text),
            head.duration_ns if tail.duration_ns < 0 else tail.duration_ns,
            tail.operations,
            tail.bytes,
            tail.collective,
            tail.root,
            tail.peer,
            tail.algorithm,
            tail.counts,
            tail.tag,
            tail.dimensions,
            tail.on_host,
            head.data,
            head.control,
        )

    def attribute(self, body: bytes) -> Attribute:
        """Decode an attribute of a node: name, kind and value; the result is cached by its bytes.

        `body`: protobuf message of the attribute. Without a value the kind is 0. Raises
        `ValueError` for a truncated message.
        """
        known = self._attributes.get(body)
        if known is None:
            known = self._attributes[body] = attribute(body)
        return known

    def _decode_tail(self, node_type: int, tail: bytes) -> DecodedNode | None:
        """Decode the attributes of a record as a node without a head.

        The `extra` of the node has only the tokens of the attributes. None if the tail has other
        fields than attributes, or if the columns cannot restore the node type or an attribute.
        Raises `ValueError` for values that are invalid in any node.
        """
        record_fields = list(fields(tail))
        bodies = [value for number, value, _ in record_fields if number == ATTRIBUTE]
        if len(bodies) < len(record_fields):
            return None
        attributes = [self.attribute(body) for body in bodies if isinstance(body, bytes)]
        type_field = (TYPE, node_type, bytes([TYPE << 3, node_type]))
        node = _RecordBuilder([type_field, *record_fields], attributes, self.foreign).node(b"")
        first, _, node.extra = node.extra.partition(" ")
        # Otherwise the kind does not determine the type, or an attribute is not canonical.
        return node if first == FIELD_TOKENS[TYPE] else None


def _decode_head(head: bytes) -> _Head | None:
    """Decode the fields before the attributes of a record; None if the encoding is unusual.

    `head`: the bytes of these fields. The result has ID, name, data and control parents, and the
    duration in ns (1000 times the field; -1 if the field is absent or 0). Absent fields are 0, ""
    or []. Bytes of the name that are not UTF-8 become surrogates. The node type is not returned.

    `tokens` has one token per field, in file order, separated by blanks: `id`, `name`, `type`,
    `ctrl`, `data` or `us`. For other fields it is `=` and the bytes in hexadecimal.

    Returns None if the field numbers do not ascend strictly, if an integer has more bytes than
    necessary or is at least 2^63, if an integer in a list extends beyond the list or the bytes end
    within an integer, or if the duration exceeds 2^62 ns.
    """
    identity, name, duration = 0, "", -1
    lists: dict[int, list[int]] = {}
    tokens: list[str] = []
    at = last = 0
    try:
        while at < len(head):
            start, number, wire = at, head[at] >> 3, head[at] & 7
            if number <= last:
                return None
            last = number
            value, at = _read_canonical_varint(head, at + 1)
            if wire == BYTES:
                at += value
            if number not in FIELD_TOKENS:
                tokens.append(f"={head[start:at].hex()}")
                continue
            tokens.append(FIELD_TOKENS[number])
            if number == NAME:
                name = head[at - value : at].decode("utf-8", "surrogateescape")
            elif wire == BYTES:
                ids = lists[number] = []
                item = at - value
                while item < at:
                    parent, item = _read_canonical_varint(head, item)
                    ids.append(parent)
                if item > at:
                    return None
            elif number == ID:
                identity = value
            elif number == MICROS and value:
                if value > _MICROS_LIMIT:
                    return None
                duration = value * 1000
    except (IndexError, ValueError):
        return None
    return _Head(
        identity, name, duration, lists.get(DATA, []), lists.get(CONTROL, []), " ".join(tokens)
    )


def _read_canonical_varint(content: bytes, at: int) -> tuple[int, int]:
    """Return (number, next offset) of the shortest-form varint at an offset.

    Raises `ValueError` for an encoding that is longer than necessary or has more than 9 bytes
    (numbers from 2**63 on), and `IndexError` if the content ends within the number.
    """
    value = content[at]
    at += 1
    if value < 128:
        return value, at
    value &= 127
    shift = 7
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if not byte or shift > 56:
                raise ValueError("an unusual number")
            return value, at
        shift += 7


# First bytes of the fields allowed before the attributes, and of an attribute.
_NUMBER_TAGS = frozenset(number << 3 for number in (ID, TYPE, START, MICROS))
_BYTES_TAGS = frozenset(number << 3 | BYTES for number in (NAME, CONTROL, DATA, INPUTS, OUTPUTS))
_TYPE_TAG, _ATTRIBUTE_TAG = TYPE << 3, ATTRIBUTE << 3 | BYTES


def _find_head_end(record: bytes) -> tuple[int, int]:
    """Find where the attributes of a node record begin: (node type, offset of the first attribute).

    Only tags and lengths are read, not values. Without an attribute, the offset is the length of
    the record. The node type is 0 if it is absent, and the last one of several. (0, -1) means that
    the complete decoder is needed: unknown fields before the attributes, a field that ends after
    the record, a node type above 127, or a length of more than two bytes.
    """
    at, end, node_type = 0, len(record), 0
    try:
        while at < end:
            tag = record[at]
            if tag in _NUMBER_TAGS:
                at += 1
                if tag == _TYPE_TAG:
                    node_type = record[at]
                    if node_type > 127:
                        return 0, -1
                while record[at] > 127:
                    at += 1
                at += 1
            elif tag in _BYTES_TAGS:
                length = record[at + 1]
                at += 2
                if length > 127:
                    length = (length & 127) | record[at] << 7
                    if record[at] > 127:
                        return 0, -1
                    at += 1
                at += length
            elif tag == _ATTRIBUTE_TAG:
                return node_type, at
            else:
                return 0, -1
    except IndexError:
        return 0, -1
    return (node_type, at) if at == end else (0, -1)


class NodeDecoder:
    """Decode the records of one file."""

    def __init__(self, file: RankFile, parts: DecodedParts) -> None:
        """Prepare to decode the records of `file`; nothing is decoded yet.

        `parts`: cache of decoded parts that all files share.
        """
        self._file = file
        self._parts = parts

    def error(self, index: int, message: str, cure: str = "") -> TraceError:
        """Create (not raise) an error `node` about the record at position `index` of the file.

        The error names the file, the byte at which the record starts, and the rank. `cure`: advice,
        `""` for none.
        """
        byte = int(self._file.starts[index])
        details = {"byte": byte, "rank": self._file.rank}
        return TraceError(message, self._file.name, code="node", cure=cure, **details)

    def whole(self, index: int) -> str:
        """Return the token that preserves the bytes of a record."""
        return f"!{self._record(index).hex()}"

    def _record(self, index: int) -> bytes:
        return self._file.content[int(self._file.starts[index]) : int(self._file.stops[index])]

    def node(self, index: int) -> DecodedNode:
        """Decode record `index` of the file (from 0, in file order) to the columns of a node.

        Records in the usual encoding are decoded from cached parts (`DecodedParts.node`),
        others completely (`_RecordBuilder.node`). The result may share its lists of parents
        with other nodes: do not change them. Raises `TraceError` (`node`) with file, byte and
        rank for a malformed record, an invalid node type, and a value outside the range of its
        column. Raises `IndexError` for an index after the last record.
        """
        record = self._record(index)
        try:
            known = self._parts.node(record)
            if known is not None:
                return known
            record_fields = list(fields(record))
            attributes = [
                self._parts.attribute(value)
                for number, value, _ in record_fields
                if number == ATTRIBUTE and isinstance(value, bytes)
            ]
            return _RecordBuilder(record_fields, attributes, self._parts.foreign).node(record)
        except ValueError as error:
            raise self.error(index, f"a record is malformed: {error}") from None


class _RecordBuilder:
    """Converts the fields of one record to columns and tokens."""

    def __init__(
        self,
        record_fields: list[tuple[int, int | bytes, bytes]],
        attributes: list[Attribute],
        foreign: frozenset[str],
    ) -> None:
        self._record_fields = record_fields
        self._foreign = foreign
        self._attributes = attributes
        self._node = DecodedNode()
        self._values: dict[str, int | list[int] | bytes] = {}

    def node(self, record: bytes) -> DecodedNode:
        """Build the node of a record: its columns, and `extra`, which restores the exact bytes.

        `record`: the bytes from which the fields of this builder were read. Call it once per
        builder.

        - Kind: that of the last field `type` (0 without one). METADATA and INVALID give MARKER. A
          collective without comm_type gives COMPUTE if is_cpu_op is true.
        - Repeated fields: the last one counts; lists of parents are joined.
        - Duration: the attribute `duration_ns`, otherwise the first field in microseconds above 0.
        - Attributes: an attribute sets a column if its name occurs once and is not in `_foreign`,
          this kind has such a column, and the value is an integer (for `pg_name` a text other than
          "" and "0").

        `extra` has one token per field, in file order, separated by blanks. A field with a column
        gives its name (`id`), an attribute with a column its name and kind (`@comm_size:9`). All
        other fields, and a `type` that is not the usual one of the kind, give `=` and their bytes
        in hexadecimal. If two tokens are equal, or columns do not restore the bytes, `extra` is `!`
        and the record in hexadecimal.

        Raises `ValueError` for a type without a kind, a collective with neither comm_type nor a
        true is_cpu_op, a wrong wire type, and a value outside the range of its column.
        """
        node = self._node
        # As in protobuf, the last of several types counts.
        types = [value for number, value, _ in self._record_fields if number == TYPE]
        node_type = types[-1] if types else 0
        kind = self._kind(node_type if isinstance(node_type, int) else 0)
        node.kind = int(kind)
        is_plain = NODE_TYPES.get(kind) == node_type
        names = [attribute.name for attribute in self._attributes]
        tokens, left = [], iter(self._attributes)
        is_same = True
        for number, value, raw in self._record_fields:
            if number == ATTRIBUTE and isinstance(value, bytes):
                attribute = next(left)
                is_known = names.count(attribute.name) == 1 and self._set_attribute(attribute, kind)
                tokens.append(attribute_token(attribute, is_known, raw))
                if is_known:
                    # If columns do not restore its bytes, the complete record is preserved.
                    known = self._values[attribute.name]
                    is_same &= not isinstance(known, list) and raw == attribute_field(
                        attribute.name, attribute.kind, known
                    )
            elif number in FIELD_TOKENS and not (number == TYPE and not is_plain):
                self._set_field(number, value)
                token = FIELD_TOKENS[number]
                tokens.append(token)
                is_same &= node_field(token, self._values[token]) == raw
            else:
                tokens.append(f"={raw.hex()}")
        text = " ".join(tokens)
        is_same &= len(set(tokens)) == len(tokens)
        node.extra = text if is_same else f"!{record.hex()}"
        return node

    def _kind(self, node_type: int) -> NodeKind:
        if node_type in (NodeType.METADATA, NodeType.INVALID):
            return NodeKind.MARKER
        kind = _KINDS.get(NodeType(node_type)) if node_type <= max(NodeType) else None
        if kind is None:
            raise ValueError(f"its type is a {type_name(node_type)}")
        if kind is NodeKind.COLLECTIVE:
            names = {attribute.name: attribute.number for attribute in self._attributes}
            # Converters of profiles write the CPU time of a collective call without comm_type.
            if "comm_type" not in names:
                if not names.get("is_cpu_op"):
                    raise ValueError("a collective without comm_type")
                return NodeKind.COMPUTE
        return kind

    def _set_field(self, number: int, value: int | bytes) -> None:
        node, token = self._node, FIELD_TOKENS[number]
        if number in (CONTROL, DATA):
            # A number is an entry of an unpacked list.
            ids = varints(value) if isinstance(value, bytes) else [value]
            self._values[token] = ids
            (node.data if number == DATA else node.control).extend(ids)
        elif number == NAME and isinstance(value, bytes):
            self._values[token] = value
            node.name = value.decode("utf-8", "surrogateescape")
        elif isinstance(value, int) and number != NAME:
            self._values[token] = value
            is_first_duration = number == MICROS and value != 0 and node.duration_ns < 0
            if is_first_duration and value > _MICROS_LIMIT:
                raise ValueError(f"duration_micros {value} is beyond 146 years")
            if is_first_duration:
                node.duration_ns = value * 1000
            elif number == ID:
                node.identity = value
        else:
            raise ValueError(f"field {number} is of another kind")

    def _set_attribute(self, attribute: Attribute, kind: NodeKind) -> bool:
        """Set the column of an attribute; return whether the column can restore its bytes.

        The first rule that applies:

        1. An attribute in `_foreign` (names that set no column) is not set: False.
        2. The text `pg_name` is the name of a group. `""` and `0`, which mean all ranks, are not
           set: False. Other names are set: True.
        3. The list of booleans `involved_dim` is set: False, as its bytes cannot be restored.
        4. An attribute that has no column for this kind of node, or is no integer, is not set:
           False.
        5. All others are set: True. Raises `ValueError` for a value outside of the range of the
           column; then nothing is set.
        """
        if attribute.name in self._foreign:
            return False
        if attribute.name == GROUP and attribute.kind == AttributeKind.STRING:
            # The empty name and 0 denote all ranks.
            if attribute.text in ("", "0"):
                return False
            self._node.group = attribute.text
            self._values[GROUP] = attribute.text.encode()
            return True
        if attribute.name == "involved_dim" and attribute.kind == AttributeKind.BOOL_LIST:
            self._node.dimensions = _mask(attribute)
            return False
        column, kinds, minimum, maximum = COLUMN_OF.get(attribute.name, ("", frozenset(), 0, 0))
        if kind not in kinds or attribute.kind not in INTEGER_KINDS:
            return False
        if not minimum <= attribute.number <= maximum:
            raise ValueError(f"{attribute.name} {attribute.number} is not in {minimum}..{maximum}")
        setattr(self._node, column, attribute.number)
        self._values[attribute.name] = attribute.number
        return True


def _mask(attribute: Attribute) -> int:
    """Convert `involved_dim`, a list of booleans, to a bit mask; bit d is dimension d.

    Each value other than 0 counts as set; an empty list, or an attribute that is no list, gives 0.
    Raises `ValueError` for more than `_MAX_DIMENSIONS` (30) entries, and for a truncated list.
    """
    body = attribute.value if isinstance(attribute.value, bytes) else b""
    flags = [
        flag
        for number, packed, _ in fields(body)
        if number == 1
        for flag in (varints(packed) if isinstance(packed, bytes) else [packed])
    ]
    if len(flags) > _MAX_DIMENSIONS:
        raise ValueError(f"involved_dim has {len(flags)} entries")
    return sum(1 << index for index, flag in enumerate(flags) if flag)
