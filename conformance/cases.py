"""Write the conformance files of collective profile v1, and their index.

    python cases.py FOLDER

Every case becomes a folder with the files of one set: `FOLDER/valid/NAME/` or
`FOLDER/invalid/NAME/`, and `FOLDER/index.json` lists them. Valid cases are small algorithms that
use each part of the profile. An invalid case is a valid one with one change that violates one
requirement. The files are the same on every computer: `index.json` beside this program holds their
SHA-256 digests. Only Python's standard library is used, and no code of Collective Hub.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

INPUT, OUTPUT, SCRATCH, UNKNOWN = range(4)
COMP, SEND, RECEIVE = 4, 5, 6
MIB = 1 << 20
KINDS = {"double": 3, "int32": 7, "int64": 9, "int64_list": 10, "uint32": 11, "uint64": 13,
         "sint32": 15, "sint64": 17, "sint64_list": 18, "fixed32": 19, "fixed64": 21,
         "sfixed64": 25, "bool": 27, "string": 29, "string_list": 30}  # fmt: skip

Value = int | float | str | list[int] | None
Attributes = dict[str, tuple[str, Value]]
Region = tuple[int, int, int]


@dataclass
class Node:
    """A node that a case may change before it is encoded. `raw`: bytes instead of the message."""

    type: int
    name: str
    attributes: Attributes
    identifier: int = 0
    control: list[int] = field(default_factory=list)
    data: list[int] = field(default_factory=list)
    micros: int = 0
    extra: bytes = b""
    raw: bytes | None = None

    def encode(self) -> bytes:
        """Encode the node as a protobuf message; a `raw` that is not None is returned instead.

        The fields are, in this order: identifier (1), name (2), type (3), control dependencies (4)
        and data dependencies (5) as packed varints, `micros` (7), one field 10 per attribute in the
        order of the dict, then the bytes `extra` unchanged. An identifier or `micros` of 0 and an
        empty list of dependencies are left out; name and type are always written.
        """
        if self.raw is not None:
            return self.raw
        body = number_field(1, self.identifier) if self.identifier else b""
        body += bytes_field(2, self.name.encode()) + number_field(3, self.type)
        for number, parents in ((4, self.control), (5, self.data)):
            body += bytes_field(number, b"".join(map(varint, parents))) if parents else b""
        body += number_field(7, self.micros) if self.micros else b""
        return body + encode_attributes(10, self.attributes) + self.extra


@dataclass
class RankFile:
    """A file that a case may change before it is encoded."""

    metadata: Attributes
    nodes: list[Node]
    version: str = "0.0.4"
    extra: bytes = b""

    def encode(self) -> bytes:
        """Encode the file: the metadata and then all nodes as records, each preceded by its length.

        The length is a varint, in bytes. The record of the metadata has the version and the
        attributes; `extra` is appended to it unchanged.
        """
        record = bytes_field(1, self.version.encode()) + encode_attributes(2, self.metadata)
        records = [record + self.extra, *(node.encode() for node in self.nodes)]
        return b"".join(varint(len(one)) + one for one in records)

    def set(self, name: str, kind: str, value: Value) -> None:
        """Set a metadata attribute."""
        self.metadata[name] = (kind, value)


Set = list[RankFile]


def varint(value: int) -> bytes:
    """Encode an integer modulo 2^64 as a protobuf varint.

    A byte holds 7 bits, the lowest first; its top bit is set if another byte follows. 0 gives
    one zero byte, and a negative number gives 10 bytes.
    """
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def number_field(number: int, value: int) -> bytes:
    """Encode a field of wire type 0."""
    return varint(number << 3) + varint(value)


def bytes_field(number: int, content: bytes) -> bytes:
    """Encode a field of wire type 2."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def encode_attributes(number: int, attributes: Attributes) -> bytes:
    """Encode each attribute as a protobuf field `number`, in the order of the dict.

    `attributes` maps a name to (kind, value), see `encode_value`. With an empty kind, only the
    name is encoded. A suffix ` again` of a name is removed before encoding, so that one name
    can occur twice. No attributes give empty bytes.

    Raises `KeyError` for an unknown kind, `struct.error` for a value that does not fit a
    fixed-size kind, and `AssertionError` for a float or None of an integer kind.
    """
    encoded = b""
    for name, (kind, value) in attributes.items():
        body = bytes_field(1, name.removesuffix(" again").encode())
        encoded += bytes_field(number, body + (encode_value(kind, value) if kind else b""))
    return encoded


def encode_value(kind: str, value: Value) -> bytes:
    """Encode the value of an attribute as the protobuf field number `KINDS[kind]`, tag included.

    - A number of the kind `double`, `fixed64` or `sfixed64` has 8 bytes, one of `fixed32` has 4,
      all little-endian. Every other number is a varint, zigzag-coded if the kind starts with
      `sint`.
    - A text is encoded as UTF-8; with the kind `string_list`, as a list of this one text.
    - A list of integers becomes a message whose field 1 contains all numbers as packed varints,
      zigzag-coded if the kind is `sint64_list`. An empty list becomes an empty message.

    Raises `KeyError` for an unknown kind, `struct.error` for a value that does not fit a fixed-size
    kind, and `AssertionError` for a float or None of an integer kind.
    """
    number = KINDS[kind]
    if isinstance(value, list):
        zigzag = kind == "sint64_list"
        packed = b"".join(varint(one << 1 ^ one >> 63 if zigzag else one) for one in value)
        return bytes_field(number, bytes_field(1, packed) if packed else b"")
    if isinstance(value, str):
        content = value.encode()
        return bytes_field(number, bytes_field(1, content) if kind == "string_list" else content)
    form = {"double": "<d", "fixed32": "<I", "fixed64": "<Q", "sfixed64": "<q"}.get(kind)
    if form is not None:
        wire = 5 if kind == "fixed32" else 1
        return varint(number << 3 | wire) + struct.pack(form, value)
    assert isinstance(value, int)
    return number_field(number, value << 1 ^ value >> 63 if kind.startswith("sint") else value)


Step = tuple[str, int, Region, Region]
NONE: Region = (UNKNOWN, 0, 0)


def build(collective: str, units: int, steps: Sequence[Sequence[Step]], **metadata: Value) -> Set:
    """Build the files of an algorithm, one `RankFile` per rank, from the steps of every rank.

    `steps[rank]`: the steps in order, (kind, peer, source region, destination region) as in
    `build_nodes`. Each step depends on the preceding one. A region is (buffer, offset, units).
    `units`: units of the collective. The number of ranks is `len(steps)`.

    `metadata` replaces defaults: `root` (left out), `in_place` (0), `out_of_place` (1), `reduce_op`
    ("sum"), `collective_bytes` (1024 per unit), `scratch_units` (0). None leaves the attribute out;
    without `collective_bytes` the messages have no `comm_size`. Other names are ignored. The
    producer is "conformance", and `step_count` is `len(steps[rank])`.

    The messages from one rank to another have the tags 0, 1, ... in the order of its sends, and
    again in the order of the receives at the receiver.
    """
    size = metadata.get("collective_bytes", units * 1024)
    files = []
    for rank, of_rank in enumerate(steps):
        values: Attributes = {
            "schema": ("string", "1.0.2-chakra.0.0.4"),
            "profile": ("string", "collective-algorithm/1"),
            "collective": ("string", collective),
            "num_ranks": ("int32", len(steps)),
            "rank": ("int32", rank),
            "root": ("int32", metadata.get("root")),
            "in_place": ("bool", metadata.get("in_place", 0)),
            "out_of_place": ("bool", metadata.get("out_of_place", 1)),
            "reduce_op": ("string", metadata.get("reduce_op", "sum")),
            "unit_count": ("int64", units),
            "collective_bytes": ("int64", size),
            "step_count": ("int64", len(of_rank)),
            "scratch_units": ("int64", metadata.get("scratch_units", 0)),
            **{name: ("string", "conformance" if name == "producer" else "")
               for name in ("producer", "producer_version", "source_name", "source_sha256")},
        }  # fmt: skip
        present = {name: entry for name, entry in values.items() if entry[1] is not None}
        files.append(RankFile(present, build_nodes(rank, of_rank, units, size)))
    number_tags(files)
    return files


def build_nodes(rank: int, steps: Sequence[Step], units: int, size: Value) -> list[Node]:
    """Build the nodes for the steps of a rank; each depends on the node before it.

    A step is (kind, peer, source region, destination region); a region is (buffer, offset, units).
    The ids are 0, 1, ... in order. By kind:

    - "send", "receive": a message to or from `peer`, with the source or destination region
    - "receive-reduce": a message from `peer` with `is_rrc` and the region (UNKNOWN, 0, units of the
      destination), then a reduction with both regions, which has only a data dependency, on it
    - "copy", "compute": a node with both regions, or with none if the source is `NONE`

    Other dependencies are control dependencies. Without steps, the result is one "compute" node
    without regions.

    `comm_size` of a message is the units of its region times `size` (bytes of the collective)
    divided by `units` (of the collective), rounded up. It is omitted if `size` is no integer. Tag
    and channel are 0.
    """
    nodes: list[Node] = []
    for kind, peer, src, dst in steps or [("compute", -1, NONE, NONE)]:
        control = [len(nodes) - 1] if nodes else []
        if kind in ("send", "receive", "receive-reduce"):
            region = {"send": src, "receive": dst}.get(kind, (UNKNOWN, 0, dst[2]))
            ends = (rank, peer) if kind == "send" else (peer, rank)
            attributes: Attributes = {"is_cpu_op": ("bool", 0)}
            if isinstance(size, int):
                attributes["comm_size"] = ("int64", -(-region[2] * size // units))
            attributes |= {
                "comm_src": ("int32", ends[0]),
                "comm_dst": ("int32", ends[1]),
                "comm_tag": ("int32", 0),
                "msg_chunk_idx": ("int32", 0 if kind == "receive-reduce" else region[1]),
                "msg_chunk_cnt": ("int32", region[2]),
                "total_chunk_cnt": ("int32", units),
                "channel": ("int32", 0),
            }
            if kind == "receive-reduce":
                attributes["is_rrc"] = ("bool", 1)
            attributes["region"] = ("int64_list", list(region))
            node_type, name = (SEND, "SEND") if kind == "send" else (RECEIVE, "RECV")
            nodes.append(Node(node_type, name, attributes, len(nodes), control))
        if kind not in ("send", "receive"):
            comp_kind = {"copy": 1, "compute": 2}.get(kind, 0)
            attributes = {"is_cpu_op": ("bool", 0), "comp_kind": ("int32", comp_kind)}
            if src != NONE:
                attributes["src_region"] = ("int64_list", list(src))
                attributes["dst_region"] = ("int64_list", list(dst))
            is_combining = kind == "receive-reduce"
            data = [len(nodes) - 1] if is_combining else []
            node = Node(COMP, kind.upper(), attributes, len(nodes), [], data)
            node.control = [] if is_combining else control
            nodes.append(node)
    return nodes


def number_tags(files: Set) -> None:
    """Give the messages of every pair of ranks ascending tags, in the order of their steps."""
    for node_type, end in ((SEND, "comm_dst"), (RECEIVE, "comm_src")):
        for file in files:
            counts: dict[Value, int] = {}
            for node in file.nodes:
                if node.type == node_type:
                    peer = node.attributes[end][1]
                    node.attributes["comm_tag"] = ("int32", counts.get(peer, 0))
                    counts[peer] = counts.get(peer, 0) + 1


def direct(collective: str, ranks: int = 2, part: int = 1, root: int = 0, **metadata: Value) -> Set:
    """Build the files of an algorithm whose ranks send data directly to those that need it.

    A block has `part` units. INPUT has a block per target for all-to-all, scatter and
    reduce-scatter. OUTPUT has a block per source for all-to-all, gather and all-gather, that of
    rank r at `part * r`. All other buffers have one block. The collective has `part` units for
    all-reduce, broadcast and reduce, otherwise `part * ranks`. Only broadcast, reduce, gather
    and scatter use `root` and have it as metadata. `metadata`: as in `build`. Steps, in order:

    - a copy of its own block from INPUT to OUTPUT, if the rank sends and receives (with a root:
      only the root)
    - its sends by target; in broadcast and scatter only by the root, in reduce and gather only
      to the root
    - its receives by source, reducing if the name of the collective contains `reduce`
    """
    is_split = collective not in ("all-reduce", "broadcast", "reduce")
    to_root, from_root = collective in ("reduce", "gather"), collective in ("broadcast", "scatter")
    kind = "receive-reduce" if "reduce" in collective else "receive"
    units = part * ranks if is_split else part
    has_big_input = collective in ("all-to-all", "scatter", "reduce-scatter")
    has_big_output = collective in ("all-to-all", "gather", "all-gather")
    steps: list[list[Step]] = []
    for rank in range(ranks):
        of_rank: list[Step] = []
        sends = root == rank if from_root else True
        receives = root == rank if to_root else True
        for target in (rank, *(one for one in range(ranks) if one != rank)):
            src = (INPUT, target * part if has_big_input else 0, part)
            dst = (OUTPUT, rank * part if has_big_output else 0, part)
            if target != rank and sends and (not to_root or target == root):
                of_rank.append(("send", target, src, NONE))
            elif target == rank and sends and receives:
                of_rank.append(("copy", -1, src, dst))
        for source in (one for one in range(ranks) if one != rank):
            if receives and (not from_root or source == root):
                dst = (OUTPUT, source * part if has_big_output else 0, part)
                of_rank.append((kind, source, dst, dst))
        steps.append(of_rank)
    stated = {"root": root} if to_root or from_root else {}
    return build(collective, units, steps, **stated, **metadata)


def uneven(collective: str) -> Set:
    """Build a direct uneven collective (a name that ends in `-v`) of two ranks.

    The part of rank 0 has 1 unit, the part of rank 1 has 2. Every rank has three steps: a copy from
    INPUT to OUTPUT, a send from INPUT to the other rank, and a receive into OUTPUT.

    - all-gather-v (3 units): a rank copies and sends its part, and receives the part of the other.
    - reduce-scatter-v (3 units): a rank copies its part of the input, sends the part of the other
      rank, and receives and reduces into its part.
    - all-to-all-v (6 units): every rank has 1 unit for rank 0 and 2 units for rank 1. It copies the
      units for itself and sends those for the other rank.

    Only the file of rank 0 has the attribute `counts`: [1, 2, 1, 2] for all-to-all-v, else [1, 2].
    """
    kind = "receive-reduce" if "reduce" in collective else "receive"
    steps: list[list[Step]] = []
    for rank in range(2):
        own, other = rank + 1, 2 - rank
        # First unit and number of units: the part of this rank, the part of the other one.
        parts = {"own": (rank, own), "other": (1 - rank, other)}
        if collective == "all-gather-v":
            parts_sent = {"own": (0, own), "other": (0, own)}
            parts_stored = parts
        elif collective == "reduce-scatter-v":
            parts_sent, parts_stored = parts, {"own": (0, own), "other": (0, own)}
        else:
            # Rank 0 keeps 1 unit and sends 2, rank 1 sends 1 and keeps 2.
            parts_sent = {"own": (rank, own), "other": (1 - rank, 2 - rank)}
            parts_stored = {"own": (2 * rank, own), "other": (1 - rank, own)}
        stored = (OUTPUT, *parts_stored["other"])
        steps.append([
            ("copy", -1, (INPUT, *parts_sent["own"]), (OUTPUT, *parts_stored["own"])),
            ("send", 1 - rank, (INPUT, *parts_sent["other"]), NONE),
            (kind, 1 - rank, stored if kind == "receive-reduce" else NONE, stored),
        ])  # fmt: skip
    is_pair = collective == "all-to-all-v"
    files = build(collective, 6 if is_pair else 3, steps)
    files[0].set("counts", "int64_list", [1, 2, 1, 2] if is_pair else [1, 2])
    return files


def custom(**metadata: Value) -> Set:
    """Build a custom collective of two ranks and one unit, without a contract of expected contents.

    Rank 0 sends its INPUT to rank 1, then receives a unit into its OUTPUT. Rank 1 sends its INPUT
    to rank 0, copies its INPUT to its OUTPUT, and adds the received unit there.

    `metadata`: as in `build`; names that `build` does not know are ignored. The attributes
    `input_units`, `output_units` and `input_defined` of both files are always 1.
    """
    steps: list[list[Step]] = [
        [("send", 1, (INPUT, 0, 1), NONE), ("receive", 1, NONE, (OUTPUT, 0, 1))],
        [
            ("send", 0, (INPUT, 0, 1), NONE),
            ("copy", -1, (INPUT, 0, 1), (OUTPUT, 0, 1)),
            ("receive-reduce", 0, (OUTPUT, 0, 1), (OUTPUT, 0, 1)),
        ],
    ]
    files = build("custom", 1, steps, **metadata)
    for file in files:
        for name in ("input_units", "output_units"):
            file.set(name, "int64", 1)
        file.set("input_defined", "bool", 1)
    return files


def contract(files: Set) -> None:
    """Set the expected final contents of a custom collective in the metadata of `files[0]`.

    The four attributes `expected_rank`, `expected_offset`, `expected_source_rank` and
    `expected_source_unit` are lists with one entry per expected unit: offset 0 of rank 0 must
    contain unit 0 of rank 1, and offset 0 of rank 1 the sum of unit 0 over all ranks (source
    rank -1).
    """
    rows = {"rank": [0, 1], "offset": [0, 0], "source_rank": [1, -1], "source_unit": [0, 0]}
    for column, values in rows.items():
        files[0].set(f"expected_{column}", "int64_list", values)


def relay() -> Set:
    """Build a broadcast of two units from rank 0 through SCRATCH of rank 1 to rank 2.

    Returns the files of ranks 0, 1 and 2, each with `scratch_units` 2. Every unit is a
    message of its own. The steps of a rank, each of which waits for the one before it:

    - Rank 0 copies both units from INPUT to OUTPUT in one step, then sends unit 0 and unit
      1.
    - Rank 1 receives unit 0 and unit 1 into SCRATCH, copies both to OUTPUT in one step,
      then sends unit 0 and unit 1 from SCRATCH.
    - Rank 2 receives unit 0 and unit 1 into OUTPUT.
    """
    unit = [(INPUT, 0, 1), (INPUT, 1, 1)]
    steps: list[list[Step]] = [
        [("copy", -1, (INPUT, 0, 2), (OUTPUT, 0, 2)), *(("send", 1, one, NONE) for one in unit)],
        [
            *(("receive", 0, NONE, (SCRATCH, one, 1)) for one in range(2)),
            ("copy", -1, (SCRATCH, 0, 2), (OUTPUT, 0, 2)),
            *(("send", 2, (SCRATCH, one, 1), NONE) for one in range(2)),
        ],
        [("receive", 1, NONE, (OUTPUT, one, 1)) for one in range(2)],
    ]
    return build("broadcast", 2, steps, root=0, scratch_units=2)


def idle() -> Set:
    """Build a custom collective of 3 ranks in which rank 0 sends one unit to rank 1.

    Returns the files of ranks 0, 1 and 2. Rank 0 sends from INPUT, rank 1 receives into
    OUTPUT. Rank 2 is idle: it has `step_count` 0 and one COMP_NODE of kind "compute"
    without regions. The metadata of all files have `input_units` 1, `output_units` 1 and
    `input_defined` 1.
    """
    files = build(
        "custom",
        1,
        [[("send", 1, (INPUT, 0, 1), NONE)], [("receive", 0, NONE, (OUTPUT, 0, 1))], []],
    )
    for file in files:
        for name in ("input_units", "output_units"):
            file.set(name, "int64", 1)
        file.set("input_defined", "bool", 1)
    return files


def messages(files: Set) -> Iterator[Node]:
    """Yield all messages of a set."""
    for file in files:
        yield from (node for node in file.nodes if node.type != COMP)


@dataclass(frozen=True)
class Case:
    """A conformance case. `requirement`: the violated one, empty for valid cases."""

    name: str
    requirement: str
    description: str
    files: dict[str, bytes]

    @property
    def folder(self) -> str:
        """The folder of the files."""
        return f"{'invalid' if self.requirement else 'valid'}/{self.name}"


Change = Callable[[Set], object]


def encode_set(files: Set) -> dict[str, bytes]:
    """Encode all files of a set by name."""
    return {f"trace.{rank}.et": file.encode() for rank, file in enumerate(files)}


def changed(build_set: Callable[[], Set], change: Change) -> dict[str, bytes]:
    """Build a set with `build_set`, apply `change` to it, and return its encoded files.

    The result maps the file names `trace.RANK.et` to their bytes. The result of `change` is
    ignored.
    """
    files = build_set()
    change(files)
    return encode_set(files)


def both(*changes: Change) -> Change:
    """Return a change that applies all `changes` to the same set, in the given order."""

    def change(files: Set) -> None:
        for one in changes:
            one(files)

    return change


def for_all(change: Callable[[RankFile], object]) -> Change:
    """Return the change of every file."""
    return lambda files: [change(file) for file in files]


def with_kind(kind: str, *names: str) -> Change:
    """Return a change: a function that modifies a set of files in place.

    It sets the kind of the attributes `names` of all nodes to `kind` (a key of `KINDS`, or
    "" to encode no value), and keeps their values. It does not add an attribute to a node
    that lacks it, and does not modify metadata. `kind` is checked only when the set is
    encoded.
    """

    def change(files: Set) -> None:
        for file in files:
            for node in file.nodes:
                for name in set(names) & node.attributes.keys():
                    node.attributes[name] = (kind, node.attributes[name][1])

    return change


def without(*names: str) -> Change:
    """Return a change (a function that modifies a set of files in place).

    It removes the attributes `names` from the metadata and the nodes of all files, and
    ignores names that are absent.
    """

    def change(files: Set) -> None:
        for file in files:
            for holder in (file.metadata, *(node.attributes for node in file.nodes)):
                for name in names:
                    holder.pop(name, None)

    return change


def with_metadata(name: str, kind: str, value: Value) -> Change:
    """Return the change that sets a metadata attribute in all files."""
    return for_all(lambda file: file.set(name, kind, value))


def on_node(rank: int, index: int, name: str, kind: str, value: Value) -> Change:
    """Return a change that sets an attribute of one node to (`kind`, `value`).

    The node is entry `index` (not the id) of the nodes of `files[rank]`. A new attribute is
    added after the present ones. The change raises IndexError if there is no such node.
    """

    def change(files: Set) -> None:
        files[rank].nodes[index].attributes[name] = (kind, value)

    return change


def on_rank(rank: int, name: str, kind: str, value: Value) -> Change:
    """Return the change that sets a metadata attribute of one file."""
    return lambda files: files[rank].set(name, kind, value)


def other_ids(files: Set) -> None:
    """Number the nodes of a file 70, 63, 56, ..."""
    for file in files:
        new = {node.identifier: 70 - 7 * node.identifier for node in file.nodes}
        for node in file.nodes:
            node.identifier = new[node.identifier]
            node.control = [new[one] for one in node.control]
            node.data = [new[one] for one in node.data]


def other_order(files: Set) -> None:
    """Write the local steps of a file last, before which their dependants stand."""
    for file in files:
        file.nodes.sort(key=lambda node: node.attributes.get("comp_kind") == ("int32", 1))


def two_channels(files: Set) -> None:
    """Send the second message of a pair on channel 1."""
    for node in messages(files):
        node.attributes["channel"] = ("int32", node.attributes["comm_tag"][1])


def timing_only(files: Set) -> None:
    """Leave out which bytes move."""
    for node in messages(files):
        count = node.attributes["msg_chunk_cnt"][1]
        assert isinstance(count, int)
        node.attributes["region"] = ("int64_list", [UNKNOWN, 0, count])


def unpacked(files: Set) -> None:
    """Write every dependency as a field of its own."""
    for file in files:
        for node in file.nodes:
            for number, parents in ((4, node.control), (5, node.data)):
                node.extra += b"".join(number_field(number, one) for one in parents)
            node.control, node.data = [], []


def flat(files: Set) -> None:
    """Write control dependencies as data dependencies."""
    for file in files:
        for node in file.nodes:
            node.control, node.data = [], [*node.data, *node.control]


def durations(files: Set) -> None:
    """State the time of every step, in one of both forms."""
    for file in files:
        for index, node in enumerate(file.nodes):
            node.micros = 3 + index
            if index % 2:
                node.attributes["duration_ns"] = ("int64", 1000 * index + 1)


def with_tags(new_tag: Callable[[int], int]) -> Change:
    """Return a change (a function that modifies a set of files in place).

    It replaces the attribute `comm_tag` of every send and receive, T, by the int32
    `new_tag(T)`. The change raises `KeyError` for a message without `comm_tag`, and
    `AssertionError` if the tag is not an integer.
    """

    def change(files: Set) -> None:
        for node in messages(files):
            tag = node.attributes["comm_tag"][1]
            assert isinstance(tag, int)
            node.attributes["comm_tag"] = ("int32", new_tag(tag))

    return change


def unsigned_metadata(file: RankFile) -> None:
    """Write numbers of the metadata as uint64."""
    for name in ("num_ranks", "rank", "unit_count", "in_place", "step_count"):
        file.set(name, "uint64", file.metadata[name][1])


def placement(files: Set) -> None:
    """State thread blocks and lines of the source."""
    for file in files:
        for index, node in enumerate(file.nodes):
            if node.data == []:
                node.attributes["lane"] = ("int32", index % 2)
                node.attributes["source_line"] = ("int32", index + 1)


def costs(files: Set) -> None:
    """State the operations and bytes of computations."""
    for file in files:
        for node in file.nodes:
            if node.type == COMP:
                node.attributes["num_ops"] = ("int64", 256)
                node.attributes["tensor_size"] = ("uint64", 1024)


def unknown_attributes(files: Set) -> None:
    """Add attributes that the profile does not have."""
    for file in files:
        file.set("vendor_note", "string", "kept")
        file.set("vendor_numbers", "int64_list", [1, 2])
        for node in file.nodes:
            node.attributes["vendor_weight"] = ("double", 0.5)


def many_bytes(files: Set) -> None:
    """Change a set of direct messages, in place, from one unit to 2^33 units of one byte each.

    Sets `unit_count` and `collective_bytes` of all files to 2^33, and `comm_size` of all
    messages to 1. The regions are not changed: each message still has one unit. The
    attributes `msg_chunk_idx`, `msg_chunk_cnt` and `total_chunk_cnt` are int32, too small
    for 2^33, and are set to -1 (not given).
    """
    for file in files:
        file.set("unit_count", "int64", 1 << 33)
        file.set("collective_bytes", "int64", 1 << 33)
    for node in messages(files):
        node.attributes["comm_size"] = ("int64", 1)
        node.attributes |= dict.fromkeys(
            ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt"), ("int32", -1)
        )


def reversed_attributes(files: Set) -> None:
    """Write attributes in another order."""
    for file in files:
        file.metadata = dict(reversed(file.metadata.items()))
        for node in file.nodes:
            node.attributes = dict(reversed(node.attributes.items()))


def reduce_locally(files: Set) -> None:
    """Split the receive-reduce of rank 1 into a plain receive and a separate local reduction.

    A receive-reduce is one step of two nodes: a receive with the attribute `is_rrc`, and
    the reduction directly after it. The first such receive of rank 1 loses `is_rrc` and
    gets the region SCRATCH, offset 0, 1 unit; the reduction reads this region. `files` is
    changed in place. Rank 1 must have 3 steps and a receive-reduce of one unit:
    `step_count` is set to 4 and `scratch_units` to 1. Raises `StopIteration` if rank 1 has
    no receive-reduce.
    """
    file = files[1]
    file.set("scratch_units", "int64", 1)
    file.set("step_count", "int64", 4)
    half = next(node for node in file.nodes if "is_rrc" in node.attributes)
    combining = file.nodes[file.nodes.index(half) + 1]
    del half.attributes["is_rrc"]
    half.attributes["region"] = ("int64_list", [SCRATCH, 0, 1])
    combining.attributes["src_region"] = ("int64_list", [SCRATCH, 0, 1])


KINDS_OF_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast",
                        "reduce", "gather", "scatter")  # fmt: skip
NUMBERS = ("comm_size", "comm_src", "comm_dst", "comm_tag", "channel", "comp_kind", "is_rrc")


def all_reduce() -> Set:
    """Build the direct all-reduce of two ranks."""
    return direct("all-reduce")


def valid_cases() -> Iterator[tuple[str, str, dict[str, bytes]]]:
    """Yield (name, description, files) of every case that a validator must accept.

    `files`: encoded content by file name, one file `trace.RANK.et` per rank. The cases of the
    collectives are first, then those of single properties. Names are unique; files are built
    when the case is reached.
    """
    for collective in KINDS_OF_COLLECTIVES:
        text = f"direct {collective} of 3 ranks, 2 units per part"
        yield f"{collective}-direct", text, encode_set(direct(collective, 3, 2, 0))
    for collective in ("broadcast", "reduce", "gather", "scatter"):
        text = f"direct {collective} with root 1"
        yield f"{collective}-root-1", text, encode_set(direct(collective, 2, 1, 1))
    for collective in ("all-gather-v", "reduce-scatter-v", "all-to-all-v"):
        text = f"direct {collective} of 2 ranks, parts of 1 and 2 units"
        yield f"{collective}-direct", text, encode_set(uneven(collective))
    for operator in ("prod", "min", "max", "avg"):
        text = f"all-reduce with reduce_op {operator}"
        yield f"reduce-op-{operator}", text, encode_set(direct("all-reduce", reduce_op=operator))
    yield "relay", "broadcast through SCRATCH of another rank", encode_set(relay())
    yield "one-rank", "a collective of one rank", encode_set(direct("all-reduce", 1))
    text = "in place, without out of place"
    yield "in-place", text, encode_set(direct("broadcast", in_place=1, out_of_place=0))
    yield "both-modes", "usable in both modes", encode_set(direct("reduce", in_place=1))
    yield "custom", "a custom collective without contract", encode_set(custom())
    yield "contract", "a custom collective with its contract", changed(custom, contract)
    yield "idle-rank", "a rank without steps has one COMP_NODE", encode_set(idle())
    symbolic = without("comm_size", "collective_bytes")
    absolute = without("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt")
    listed: list[tuple[str, str, Callable[[], Set], Change]] = [
        ("symbolic", "sizes in chunks only", all_reduce, symbolic),
        ("absolute", "sizes in bytes only", all_reduce, absolute),
        ("default-size", "a size that is a default", all_reduce,
         with_metadata("collective_bytes_is_default", "bool", 1)),
        ("local-reduction", "a receive, and a reduction of its own", all_reduce, reduce_locally),
        ("other-ids", "unusual ids in descending order", all_reduce, other_ids),
        ("other-order", "children before parents in the file", relay, other_order),
        ("unpacked-dependencies", "dependencies as single fields", relay, unpacked),
        ("flat-dependencies", "data dependencies only", relay, flat),
        ("no-dependencies", "a rank whose steps are independent", relay,
         lambda files: files[2].nodes[1].control.clear()),
        ("two-channels", "two channels between the same ranks", relay, two_channels),
        ("tags-are-channels", "the tag of every message is its channel", relay,
         with_tags(lambda tag: 0)),
        ("sparse-tags", "tags that pair the same messages", relay,
         with_tags(lambda tag: 7 + 5 * tag)),
        ("no-channel", "channel 0 is not stated", all_reduce, without("channel")),
        ("timing-only", "the producer does not know which bytes move", relay, timing_only),
        ("durations", "times of steps", all_reduce, durations),
        ("placement", "thread blocks and lines of the source", relay, placement),
        ("costs", "operations and bytes of computations", all_reduce, costs),
        ("unknown-attributes", "attributes of a vendor", all_reduce, unknown_attributes),
        ("attribute-order", "attributes in descending order", all_reduce, reversed_attributes),
        ("other-ends", "the end of the rank itself is not stated", relay,
         lambda files: [node.attributes.pop("comm_src" if node.type == SEND else "comm_dst")
                        for node in messages(files)]),
        ("large-units", "more units than int32 has", lambda: direct("all-reduce"), many_bytes),
        ("uneven-size", "a size that units do not divide", lambda: direct(
            "all-gather", 3, 1, collective_bytes=1000), lambda files: None),
        ("options", "options of the producer", all_reduce,
         on_rank(0, "options", "string", '{"chunks":"4"}')),
        ("extensions", "data of a vendor", all_reduce,
         on_rank(0, "extensions", "string", '{"vendor":{"a":[1,null]}}')),
        ("no-schema", "version and schema are not stated", all_reduce,
         both(without("schema"), for_all(lambda file: setattr(file, "version", "")))),
        ("list-kind", "regions of kind sint64_list", relay,
         with_kind("sint64_list", "region", "src_region", "dst_region")),
        *((f"kind-{kind}", f"integers of kind {kind}", all_reduce, with_kind(kind, *NUMBERS))
          for kind in ("int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64",
                       "sfixed64")),
        ("metadata-kinds", "numbers of metadata of kind uint64", all_reduce,
         for_all(unsigned_metadata)),
    ]  # fmt: skip
    for name, text, build_set, change in listed:
        yield name, text, changed(build_set, change)


def renamed(old: str, new: str | None) -> dict[str, bytes]:
    """Return the files of the set `relay` (content by file name) with the file `old` renamed.

    With `new` None, the file is removed. A file that is already called `new` is replaced.
    Raise KeyError if there is no file `old`.
    """
    files = encode_set(relay())
    content = files.pop(old)
    return files if new is None else {**files, new: content}


def file_changed(change: Callable[[bytes], bytes]) -> dict[str, bytes]:
    """Return the files of the set `all_reduce` (content by file name), one of them changed.

    The content of `trace.1.et`, the file of rank 1, is replaced by `change(content)`.
    """
    files = encode_set(all_reduce())
    return {**files, "trace.1.et": change(files["trace.1.et"])}


def invalid_cases() -> Iterator[tuple[str, str, str, dict[str, bytes]]]:
    """Yield (name, requirement, description, files) of all invalid cases, in a fixed order.

    The files of a case are a valid set of trace files, one per rank, with one change. The change
    violates one requirement of the specification, such as `P-5`; `description` names the change.
    `files`: content by file name. The change may remove or rename a file.
    """
    yield "missing-rank", "P-1", "the file of rank 1 is missing", renamed("trace.1.et", None)
    yield "missing-last-rank", "P-10", "the last file is missing", renamed("trace.2.et", None)
    text = "a file of rank 3 instead of rank 2"
    yield "rank-gap", "P-1", text, renamed("trace.2.et", "trace.3.et")
    yield "cut-record", "P-2", "the last byte is missing", file_changed(lambda old: old[:-1])
    yield (
        "cut-length",
        "P-2",
        "the length of a record ends",
        file_changed(lambda old: old + b"\x80"),
    )
    text = "the length of record 0 has six bytes"
    yield "long-length", "P-2", text, file_changed(lambda old: b"\xff" * 5 + b"\x01" + old)
    yield "gzip", "P-2", "compressed", file_changed(lambda old: b"\x1f\x8b\x08\x00" + old)
    yield "empty-file", "P-3", "a file of 0 bytes", file_changed(lambda old: b"")
    text = "record 0 is a node"
    yield (
        "no-metadata",
        "P-3",
        text,
        file_changed(lambda old: old[old[0] - 128 + 128 * old[1] + 2 :]),
    )
    text = "a record of length 0 at the end"
    yield "empty-record", "P-4", text, file_changed(lambda old: old + b"\x00")
    listed: list[tuple[str, str, str, Callable[[], Set], Change]] = [
        ("no-nodes", "P-4", "record 0 only", all_reduce, lambda files: files[1].nodes.clear()),
        ("cut-field", "P-5", "a field ends after its record", all_reduce,
         lambda files: setattr(files[0].nodes[0], "extra", b"\x12\x7f")),
        ("wire-type", "P-5", "the id as text", all_reduce,
         lambda files: setattr(files[0].nodes[0], "extra", bytes_field(1, b"4"))),
        ("node-field", "P-5", "a field that Node does not have", all_reduce,
         lambda files: setattr(files[0].nodes[0], "extra", number_field(11, 1))),
        ("cut-list", "P-5", "a list of dependencies ends inside a number", all_reduce,
         lambda files: setattr(files[0].nodes[1], "extra", bytes_field(5, b"\x80"))),
        ("repeated-metadata", "P-6", "unit_count occurs twice", all_reduce,
         with_metadata("unit_count again", "int64", 1)),
        ("other-profile", "P-7", "profile 2", all_reduce,
         with_metadata("profile", "string", "collective-algorithm/2")),
        *((f"no-{name}".replace("_", "-"), "P-8", f"{name} is missing", all_reduce, without(name))
          for name in ("collective", "num_ranks", "rank", "in_place", "reduce_op", "unit_count",
                       "step_count", "scratch_units", "producer", "source_sha256")),
        ("no-input-units", "P-8", "input_units of a custom collective is missing", custom,
         without("input_units")),
        ("unit-count-text", "P-9", "unit_count is a text", all_reduce,
         with_metadata("unit_count", "string", "1")),
        ("in-place-double", "P-9", "in_place is a double in the file of rank 1", all_reduce,
         on_rank(1, "in_place", "double", 0.0)),
        ("contract-texts", "P-9", "a column of the contract is a list of texts", custom,
         both(contract, on_rank(0, "expected_rank", "string_list", "01"))),
        ("too-many-ranks", "P-10", "num_ranks is 3 of 2 files", all_reduce,
         with_metadata("num_ranks", "int32", 3)),
        ("swapped-files", "P-11", "the files of rank 0 and 1 have each other's name", all_reduce,
         lambda files: files.reverse()),
        ("other-producer", "P-12", "two producers", all_reduce,
         on_rank(1, "producer", "string", "another")),
        ("other-size", "P-12", "two values of collective_bytes", lambda: direct("all-reduce"),
         on_rank(1, "collective_bytes", "int64", 2048)),
        ("unknown-collective", "P-13", "an unknown collective", all_reduce,
         with_metadata("collective", "string", "barrier")),
        ("unknown-operator", "P-13", "an unknown reduce_op", all_reduce,
         with_metadata("reduce_op", "string", "xor")),
        ("no-root", "P-14", "a broadcast without root", relay, without("root")),
        ("root-range", "P-14", "root 3 of 3 ranks", relay, with_metadata("root", "int32", 3)),
        ("surplus-root", "P-14", "an all-reduce with root", all_reduce,
         with_metadata("root", "int32", 0)),
        ("no-units", "P-15", "unit_count 0", all_reduce, with_metadata("unit_count", "int64", 0)),
        ("indivisible-units", "P-15", "3 units of an all-gather of 2 ranks",
         lambda: direct("all-gather"),
         both(
            with_metadata("unit_count", "int64", 3), without("total_chunk_cnt"),
            with_metadata("collective_bytes", "int64", 3072))),
        ("no-mode", "P-16", "neither in place nor out of place", all_reduce,
         with_metadata("out_of_place", "bool", 0)),
        ("negative-scratch", "P-17", "scratch_units -1", all_reduce,
         on_rank(1, "scratch_units", "int64", -1)),
        ("no-bytes", "P-17", "collective_bytes 0", all_reduce,
         with_metadata("collective_bytes", "int64", 0)),
        ("options-list", "P-18", "options is a list", all_reduce,
         on_rank(0, "options", "string", "[]")),
        ("options-number", "P-18", "an option is a number", all_reduce,
         on_rank(0, "options", "string", '{"chunks":4}')),
        ("reserved-extension", "P-18", "the reserved extension", all_reduce,
         on_rank(0, "extensions", "string", '{"chakra":{}}')),
        ("contract-columns", "P-19", "three columns of a contract", custom,
         both(contract, without("expected_rank"))),
        ("contract-length", "P-19", "columns of different length", custom,
         both(contract, on_rank(0, "expected_rank", "int64_list", [0]))),
        ("contract-rank", "P-19", "rank 2 in the contract of 2 ranks", custom,
         both(contract, on_rank(0, "expected_rank", "int64_list", [0, 2]))),
        ("collective-node", "P-20", "a COMM_COLL_NODE", all_reduce,
         lambda files: setattr(files[0].nodes[0], "type", 7)),
        ("repeated-id", "P-21", "two nodes with one id", all_reduce,
         lambda files: setattr(files[0].nodes[1], "identifier", 0)),
        ("missing-parent", "P-22", "a dependency on a node that is not there", all_reduce,
         lambda files: files[0].nodes[1].data.append(99)),
        ("cycle", "P-23", "two steps wait for each other", all_reduce,
         lambda files: files[0].nodes[0].control.append(1)),
        ("self-dependency", "P-23", "a step waits for itself", all_reduce,
         lambda files: files[0].nodes[0].control.append(0)),
        ("repeated-attribute", "P-24", "comm_tag occurs twice", all_reduce,
         on_node(0, 1, "comm_tag again", "int32", 0)),
        ("tag-text", "P-25", "comm_tag is a text", all_reduce,
         on_node(0, 1, "comm_tag", "string", "0")),
        ("region-of-two", "P-25", "a region of two numbers", all_reduce,
         on_node(0, 1, "region", "int64_list", [0, 0])),
        ("region-number", "P-25", "a region that is a number", all_reduce,
         on_node(0, 1, "region", "int64", 0)),
        ("unknown-buffer", "P-26", "buffer 4", all_reduce,
         on_node(0, 0, "src_region", "int64_list", [4, 0, 1])),
        ("negative-offset", "P-26", "an offset of -1", all_reduce,
         on_node(0, 1, "region", "int64_list", [0, -1, 1])),
        ("negative-tag", "P-26", "comm_tag -1", all_reduce,
         on_node(0, 1, "comm_tag", "int32", -1)),
        ("negative-duration", "P-26", "duration_ns -1", all_reduce,
         on_node(0, 1, "duration_ns", "int64", -1)),
        ("wide-channel", "P-26", "a channel above int32", all_reduce,
         on_node(0, 1, "channel", "int64", 1 << 31)),
        ("no-region", "P-27", "a message without region", all_reduce, without("region")),
        ("no-tag", "P-27", "a message without comm_tag", all_reduce, without("comm_tag")),
        ("no-destination", "P-27", "a send without comm_dst", all_reduce, without("comm_dst")),
        ("peer-range", "P-28", "a message to rank 2 of 2", all_reduce,
         on_node(0, 1, "comm_dst", "int32", 2)),
        ("other-sender", "P-28", "a send of another rank", all_reduce,
         on_node(0, 1, "comm_src", "int32", 1)),
        ("no-comp-kind", "P-29", "a COMP_NODE without comp_kind", all_reduce, without("comp_kind")),
        ("comp-kind-3", "P-29", "an unknown comp_kind", all_reduce,
         on_node(0, 0, "comp_kind", "int32", 3)),
        ("unequal-regions", "P-30", "a copy to two units", all_reduce,
         on_node(0, 0, "dst_region", "int64_list", [1, 0, 2])),
        ("wrong-bytes", "P-31", "comm_size of another count", all_reduce,
         on_node(0, 1, "comm_size", "int64", 1023)),
        ("bytes-without-size", "P-31", "comm_size without collective_bytes", all_reduce,
         without("collective_bytes")),
        ("wrong-chunks", "P-32", "msg_chunk_cnt of another count", all_reduce,
         on_node(0, 1, "msg_chunk_cnt", "int32", 2)),
        ("wrong-total", "P-32", "total_chunk_cnt of another unit_count", all_reduce,
         on_node(0, 1, "total_chunk_cnt", "int32", 2)),
        ("half-alone", "P-33", "a receiving half without the reduction", all_reduce,
         on_node(0, 3, "comp_kind", "int32", 1)),
        ("half-at-end", "P-33", "a receiving half at the end of the file", all_reduce,
         lambda files: files[0].nodes.pop()),
        ("combining-waits", "P-34", "the reduction waits for another step", all_reduce,
         lambda files: files[0].nodes[3].data.append(0)),
        ("combining-control", "P-34", "the reduction has a control dependency only", all_reduce,
         both(
            flat, lambda files: files[0].nodes[3].control.append(files[0].nodes[3].data.pop()))),
        ("half-as-parent", "P-34", "a step waits for the receiving half",
         lambda: direct("all-reduce", 3), lambda files: files[0].nodes[5].control.append(3)),
        ("unequal-halves", "P-35", "the reduction has more units than the message", all_reduce,
         lambda files: [files[0].nodes[3].attributes.update({
             name: ("int64_list", [1, 0, 2])}) for name in ("src_region", "dst_region")]),
        ("step-less", "P-36", "a file with a step less", relay, lambda files: files[2].nodes.pop()),
        ("step-count", "P-36", "step_count of another file", all_reduce,
         on_rank(1, "step_count", "int64", 7)),
        ("idle-waits", "P-37", "a rank without steps waits", idle,
         lambda files: files[2].nodes[0].control.append(0)),
        ("crossed-tags", "P-38", "tags that pair the messages crosswise", relay,
         lambda files: [files[2].nodes[index].attributes.update(comm_tag=("int32", 1 - index))
                        for index in range(2)]),
        ("no-counts", "P-39", "an uneven collective without counts",
         lambda: uneven("all-gather-v"), without("counts")),
        ("counts-per-rank", "P-39", "an all-to-all-v with counts per rank",
         lambda: uneven("all-to-all-v"), on_rank(0, "counts", "int64_list", [3, 3])),
        ("other-sum", "P-39", "counts of another sum than unit_count",
         lambda: uneven("all-gather-v"), on_rank(0, "counts", "int64_list", [1, 1])),
        ("negative-count", "P-39", "a negative count",
         lambda: uneven("all-gather-v"), on_rank(0, "counts", "int64_list", [-1, 4])),
        ("equal-tags", "P-38", "one tag for two messages of two channels",
         relay, both(two_channels, with_tags(lambda tag: 5))),
    ]  # fmt: skip
    for name, requirement, text, build_set, change in listed:
        yield name, requirement, text, changed(build_set, change)


def all_cases() -> list[Case]:
    """Return all cases, the valid ones first, in the order in which they are defined.

    The requirement of a valid case is "".
    """
    cases = [Case(name, "", text, files) for name, text, files in valid_cases()]
    return cases + [Case(*case) for case in invalid_cases()]


def build_index(cases: Sequence[Case]) -> str:
    """Return the JSON text of `index.json`: the profile, and one entry per case in the given order.

    The keys are `profile` ("collective-algorithm/1") and `cases`. An entry of `cases` has `folder`,
    `valid`, `requirement` (the violated one; null if the case is valid), `description`, and `files`
    (SHA-256 digest in hexadecimal by file name, sorted). The text has an indentation of 1 and ends
    with a line break.
    """
    listed = [
        {
            "folder": case.folder,
            "valid": not case.requirement,
            "requirement": case.requirement or None,
            "description": case.description,
            "files": {
                name: hashlib.sha256(content).hexdigest()
                for name, content in sorted(case.files.items())
            },
        }
        for case in cases
    ]
    document = {"profile": "collective-algorithm/1", "cases": listed}
    return json.dumps(document, indent=1) + "\n"


def main() -> None:
    """Write all cases and `index.json` to the folder that the only command-line argument names.

    Each case has a folder, `valid/NAME` or `invalid/NAME`. Creates folders that are
    missing, replaces files of the same names, keeps all other files, and prints the numbers
    of valid and invalid cases. Exits with code 1 and a usage line on stderr if the number
    of arguments is not 1, or if the argument begins with `-`.
    """
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python cases.py FOLDER")
    target, cases = Path(sys.argv[1]), all_cases()
    for case in cases:
        folder = target / case.folder
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in case.files.items():
            (folder / name).write_bytes(content)
    (target / "index.json").write_text(build_index(cases))
    valid = sum(not case.requirement for case in cases)
    print(f"{valid} valid and {len(cases) - valid} invalid cases in {target}")


if __name__ == "__main__":
    main()
