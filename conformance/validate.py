"""Check files of collective profile v1 (docs/profile-v1.md) with Python's standard library only.

    python validate.py [--json] FILE_OR_FOLDER...

A file is checked by itself. The files `PREFIX.<rank>.et` of a folder are checked together, each
PREFIX as one set. Every finding names the requirement of the profile, the file, the record or node,
and a cure. Exit code: 0 if there is no finding, 1 for findings, 2 if a path cannot be read.

This program does not use Collective Hub: it is a second implementation of the text, and both must
give the same verdict on all conformance files.
"""

from __future__ import annotations

import argparse
import heapq
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

PROFILE = "collective-algorithm/1"
LARGEST = 1 << 62
MAX_INT32 = (1 << 31) - 1
MAX_RANKS = 1 << 20
MAX_STEPS = 1 << 40
COMP, SEND, RECEIVE = 4, 5, 6
TYPE_NAMES = {COMP: "COMP_NODE", SEND: "COMM_SEND_NODE", RECEIVE: "COMM_RECV_NODE"}
COLLECTIVES = {  # The number of parts of the full buffer: "ranks" or 1; whether there is a root.
    "all-reduce": (False, False),
    "all-gather": (True, False),
    "reduce-scatter": (True, False),
    "all-to-all": (True, False),
    "broadcast": (False, True),
    "reduce": (False, True),
    "gather": (True, True),
    "scatter": (True, True),
    "custom": (False, False),
    **dict.fromkeys(("all-to-all-v", "all-gather-v", "reduce-scatter-v"), (False, False)),
}
REDUCTIONS = ("sum", "prod", "min", "max", "avg")
INTEGER, TEXT, INTEGERS = "an integer", "a text", "a list of integers"
METADATA_KINDS = {
    **dict.fromkeys(("schema", "profile", "collective", "reduce_op"), TEXT),
    **dict.fromkeys(("num_ranks", "rank", "root", "in_place", "out_of_place"), INTEGER),
    **dict.fromkeys(("unit_count", "collective_bytes", "collective_bytes_is_default"), INTEGER),
    **dict.fromkeys(("step_count", "scratch_units", "input_units", "output_units"), INTEGER),
    **dict.fromkeys(("input_defined",), INTEGER),
    **dict.fromkeys(("producer", "producer_version", "source_name", "source_sha256"), TEXT),
    **dict.fromkeys(("options", "extensions"), TEXT),
    **dict.fromkeys((f"expected_{column}" for column in
                     ("rank", "offset", "source_rank", "source_unit")), INTEGERS),
    "counts": INTEGERS,
}  # fmt: skip
REQUIRED = ("profile", "collective", "num_ranks", "rank", "in_place", "out_of_place", "reduce_op",
            "unit_count", "step_count", "scratch_units", "producer", "producer_version",
            "source_name", "source_sha256")  # fmt: skip
REQUIRED_OF_CUSTOM = ("input_units", "output_units", "input_defined")
CONTRACT = ("expected_rank", "expected_offset", "expected_source_rank", "expected_source_unit")
SHARED = ("profile", "collective", "num_ranks", "root", "in_place", "out_of_place", "reduce_op",
          "unit_count", "collective_bytes", "producer", "producer_version", "source_name",
          "source_sha256")  # fmt: skip
METADATA_RANGES = {
    "num_ranks": (1, MAX_RANKS, "P-10"),
    "rank": (0, MAX_RANKS, "P-11"),
    "unit_count": (1, LARGEST, "P-15"),
    "in_place": (0, 1, "P-16"),
    "out_of_place": (0, 1, "P-16"),
    "collective_bytes": (1, LARGEST, "P-17"),
    "step_count": (0, MAX_STEPS, "P-17"),
    "scratch_units": (0, LARGEST, "P-17"),
    "input_units": (0, LARGEST, "P-17"),
    "output_units": (0, LARGEST, "P-17"),
    "input_defined": (0, 1, "P-17"),
}
NODE_RANGES = {  # Node types that the attribute belongs to, its smallest and its largest value.
    "comm_size": ((SEND, RECEIVE), 0, LARGEST),
    "comm_src": ((SEND, RECEIVE), 0, MAX_INT32),
    "comm_dst": ((SEND, RECEIVE), 0, MAX_INT32),
    "comm_tag": ((SEND, RECEIVE), 0, MAX_INT32),
    "msg_chunk_cnt": ((SEND, RECEIVE), -1, MAX_INT32),
    "total_chunk_cnt": ((SEND, RECEIVE), -1, MAX_INT32),
    "is_rrc": ((RECEIVE,), 0, 1),
    "comp_kind": ((COMP,), 0, 2),
    "channel": ((COMP, SEND, RECEIVE), -MAX_INT32 - 1, MAX_INT32),
    "lane": ((COMP, SEND, RECEIVE), -MAX_INT32 - 1, MAX_INT32),
    "source_line": ((COMP, SEND, RECEIVE), -MAX_INT32 - 1, MAX_INT32),
    "duration_ns": ((COMP, SEND, RECEIVE), 0, LARGEST),
}
REGIONS = {"region": (SEND, RECEIVE), "src_region": (COMP,), "dst_region": (COMP,)}
NUMBER_OF_KIND = range(7, 28, 2)
LIST_OF_KIND = range(8, 29, 2)
RANK_IN_NAME = re.compile(r"(.*)\.([0-9]{1,9})\.et\Z")
MAX_FINDINGS_PER_FILE = 20
OF_NODES = {f"P-{number}" for number in range(20, 30)}


@dataclass(frozen=True)
class Finding:
    """A violated requirement: where, what and the cure. `node`: type and id, or record 0."""

    requirement: str
    file: str
    node: str
    message: str
    cure: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.node}: " if self.node else f"{self.file}: "
        return f"{where}{self.requirement}: {self.message}; {self.cure}"


class MalformedError(ValueError):
    """Bytes that are not the encoding of a message: the reason."""


@dataclass
class Node:
    """A node: fields of the message, and attributes by name as (kind, value)."""

    identifier: int = 0
    type: int = 0
    micros: int = 0
    data: list[int] = field(default_factory=list)
    control: list[int] = field(default_factory=list)
    attributes: dict[str, tuple[int, object]] = field(default_factory=dict)
    repeated: str = ""

    def __str__(self) -> str:
        return f"{TYPE_NAMES.get(self.type, f'node of type {self.type}')} {self.identifier}"

    @property
    def is_message(self) -> bool:
        """Whether the node sends or receives."""
        return self.type in (SEND, RECEIVE)

    def number(self, name: str, default: int = -1) -> int:
        """Return the value of an integer or bool attribute.

        Return `default` if the attribute is absent, of another kind, or malformed.
        """
        kind, value = self.attributes.get(name, (0, None))
        return value if kind in NUMBER_OF_KIND and isinstance(value, int) else default

    def region(self, name: str) -> tuple[int, int, int] | None:
        """Return the attribute `name` as a region (buffer, offset, count).

        None if the attribute is absent, is no list attribute, or does not have three values. The
        values themselves are not checked.
        """
        kind, value = self.attributes.get(name, (0, None))
        is_triple = kind in LIST_OF_KIND and isinstance(value, list) and len(value) == 3
        return (value[0], value[1], value[2]) if is_triple and isinstance(value, list) else None

    @property
    def count(self) -> int:
        """The number of units that the node sends, receives or computes.

        It is the count of `region` for a message, and the larger count of `src_region` and
        `dst_region` for a local step; 0 if the node has no such region.
        """
        names = ("region",) if self.is_message else ("src_region", "dst_region")
        return max((region[2] for name in names if (region := self.region(name))), default=0)


class RankFile:
    """One file: its metadata, nodes and findings."""

    def __init__(self, path: Path) -> None:
        """Read a rank file and check it in isolation; `check_set` checks a set of files.

        Defects become `findings`, not exceptions. A name other than `PREFIX.<rank>.et` is the
        finding P-1, and `rank` is None. The content is checked even so. Metadata and nodes are
        checked only if the entire file can be parsed (see `_parse`). `nodes_in_order` is filled by
        `_check_steps`, which runs only if the nodes have none of the defects P-20 to P-29 and P-33.
        Raises `OSError` if the file cannot be read.
        """
        self.name = path.name
        match = RANK_IN_NAME.match(path.name)
        self.rank = int(match[2]) if match else None
        self.findings: list[Finding] = []
        self.metadata: dict[str, tuple[int, object]] = {}
        self.nodes: list[Node] = []
        # The first node of every step, in program order; filled if the file has no defect.
        self.nodes_in_order: list[Node] = []
        self.is_complete = False
        if self.rank is None:
            self.add("P-1", "", "the file name has no rank", "name it PREFIX.<rank>.et")
        if self._parse(path.read_bytes()):
            self._check_metadata()
            self._check_nodes()

    def add(self, requirement: str, node: object, message: str, cure: str) -> None:
        """Record a finding; a file keeps the first `MAX_FINDINGS_PER_FILE`."""
        if len(self.findings) < MAX_FINDINGS_PER_FILE:
            self.findings.append(Finding(requirement, self.name, str(node), message, cure))

    def value(self, name: str) -> object:
        """Return a metadata attribute of any kind, None if it is absent."""
        return self.metadata.get(name, (0, None))[1]

    def number(self, name: str) -> int | None:
        """Return the value of an integer or bool attribute of the metadata.

        Return None if the attribute is absent, of another kind, or malformed.
        """
        kind, value = self.metadata.get(name, (0, None))
        return value if kind in NUMBER_OF_KIND and isinstance(value, int) else None

    def _parse(self, content: bytes) -> bool:
        """Parse all records of a file; return whether it has metadata and only nodes of the schema.

        The attributes of record 0 are added to `metadata`, those of the other records to `nodes`.
        Defects become findings. These are checked in order; each one except P-6 ends the parsing
        and gives False, and `metadata` and `nodes` keep the entries before the defect:

        - P-2: the content is compressed with gzip, or cannot be split into records.
        - P-3: there is no record, or record 0 is not GlobalMetadata.
        - P-6: an attribute of record 0 occurs again (one finding per repetition).
        - P-4: no record follows record 0, or one of them is empty.
        - P-5: a record after record 0 is not a node of the schema.
        """
        again = "write the file again"
        if content[:2] == b"\x1f\x8b":
            self.add("P-2", "", "the file is compressed", "decompress it with gunzip")
            return False
        try:
            records = list(split_records(content))
        except MalformedError as error:
            self.add("P-2", "", str(error), again)
            return False
        try:
            names = parse_metadata(records[0] if records else None, self.metadata)
        except MalformedError as error:
            self.add("P-3", "record 0", str(error), "write GlobalMetadata as record 0")
            return False
        for name in names:
            self.add("P-6", "record 0", f"the attribute {name!r} occurs twice", "write it once")
        if len(records) == 1 or not all(records[1:]):
            problem = "a record is empty" if len(records) > 1 else "no node follows the metadata"
            self.add("P-4", "", problem, "an idle rank needs one COMP_NODE")
            return False
        for number, record in enumerate(records[1:], 1):
            try:
                self.nodes.append(parse_node(record))
            except MalformedError as error:
                self.add("P-5", f"record {number}", str(error), again)
                return False
        return True

    def _check_metadata(self) -> None:
        record = "record 0"
        if "profile" in self.metadata and self.value("profile") != PROFILE:
            message = f"the profile is {self.value('profile')!r}"
            self.add("P-7", record, message, f"expected {PROFILE!r}")
        is_custom = self.value("collective") == "custom"
        for name in (*REQUIRED, *(REQUIRED_OF_CUSTOM if is_custom else ())):
            if name not in self.metadata:
                self.add("P-8", record, f"the attribute {name} is missing", "write it")
        for name, expected in METADATA_KINDS.items():
            if name in self.metadata and not has_kind(self.metadata[name], expected):
                self.add("P-9", record, f"{name} is of another kind", f"write {expected}")
        for name, (low, high, requirement) in METADATA_RANGES.items():
            if name in REQUIRED_OF_CUSTOM and not is_custom:
                continue
            number = self.number(name)
            if number is not None and not low <= number <= high:
                self.add(requirement, record, f"{name} is {number}", f"expected {low}..{high}")
        stated = self.number("rank")
        if None not in (stated, self.rank) and stated != self.rank:
            message = f"rank is {stated}, the file name says {self.rank}"
            self.add("P-11", record, message, "rename the file or correct rank")
        self._check_collective()
        self._check_texts()
        self._check_contract()
        self._check_counts()

    def _check_collective(self) -> None:
        record, collective = "record 0", self.value("collective")
        for name, known in (("collective", tuple(COLLECTIVES)), ("reduce_op", REDUCTIONS)):
            value = self.value(name)
            if isinstance(value, str) and value not in known:
                self.add("P-13", record, f"{name} is {value!r}", f"one of {', '.join(known)}")
        ranks, units, root = (self.number(name) for name in ("num_ranks", "unit_count", "root"))
        if self.number("in_place") == 0 and self.number("out_of_place") == 0:
            message = "usable neither in place nor out of place"
            self.add("P-16", record, message, "set in_place or out_of_place")
        if not isinstance(collective, str) or collective not in COLLECTIVES or not ranks:
            return
        is_split, is_rooted = COLLECTIVES[collective]
        if is_rooted and (root is None or not 0 <= root < ranks):
            self.add("P-14", record, f"root is {root}", f"write root, 0..{ranks - 1}")
        if not is_rooted and "root" in self.metadata:
            self.add("P-14", record, f"{collective} has no root", "omit root")
        if is_split and units and units % ranks:
            message = f"unit_count {units} is not a multiple of {ranks} ranks"
            self.add("P-15", record, message, "use a multiple of num_ranks")

    def _check_texts(self) -> None:
        for name in ("options", "extensions"):
            kind, text = self.metadata.get(name, (0, None))
            if not has_kind((kind, text), TEXT) or self.rank not in (0, None):
                continue
            try:
                value = json.loads(str(text))
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                self.add("P-18", "record 0", f"{name} is no JSON object", "write an object")
            elif name == "options" and not all(isinstance(one, str) for one in value.values()):
                self.add("P-18", "record 0", "a value of options is no text", "write texts")
            elif name == "extensions" and "chakra" in value:
                message = "extensions has the reserved member chakra"
                self.add("P-18", "record 0", message, "rename the member")

    def _check_contract(self) -> None:
        present = [name for name in CONTRACT if name in self.metadata]
        if not present or self.value("collective") != "custom" or self.rank not in (0, None):
            return
        if not all(has_kind(self.metadata[name], INTEGERS) for name in present):
            return
        columns = [self.value(name) for name in CONTRACT]
        lengths = {len(column) if isinstance(column, list) else -1 for column in columns}
        if len(present) < len(CONTRACT) or len(lengths) > 1:
            message = "the columns expected_* are not four lists of one length"
            self.add("P-19", "record 0", message, "write all four columns, or none")
            return
        ranks = self.number("num_ranks") or 0
        for name in present:
            column = self.value(name)
            low = -1 if name == "expected_source_rank" else 0
            stop = ranks if name in ("expected_rank", "expected_source_rank") else LARGEST
            if isinstance(column, list) and not all(low <= value < stop for value in column):
                message = f"{name} has a value outside {low}..{stop - 1}"
                self.add("P-19", "record 0", message, "correct the contract")

    def _check_counts(self) -> None:
        collective, ranks = str(self.value("collective")), self.number("num_ranks")
        if not collective.endswith("-v") or self.rank not in (0, None) or not ranks:
            return
        length = ranks * ranks if collective == "all-to-all-v" else ranks
        counts = self.value("counts")
        if "counts" in self.metadata and not has_kind(self.metadata["counts"], INTEGERS):
            return
        if not isinstance(counts, list) or len(counts) != length:
            self.add("P-39", "record 0", f"counts is no list of {length} counts", "write them")
        elif min(counts) < 0 or sum(counts) != self.number("unit_count"):
            message = f"the sum of counts is {sum(counts)}, or one is negative"
            self.add("P-39", "record 0", message, "write counts whose sum is unit_count")

    def _check_nodes(self) -> None:
        position: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            if node.type not in TYPE_NAMES:
                self.add("P-20", node, "an algorithm has no such node", "omit it")
            if node.identifier in position:
                self.add("P-21", node, "the id occurs twice", "number the nodes of a file")
            position.setdefault(node.identifier, index)
            self._check_attributes(node)
            self._check_sizes(node)
        parents = self._resolve(position)
        # Steps follow from correct nodes only.
        if parents is not None and not any(one.requirement in OF_NODES for one in self.findings):
            self._check_pairs()
            if not any(one.requirement == "P-33" for one in self.findings):
                self._check_dependencies(parents)
                self._check_steps(parents)

    def _check_attributes(self, node: Node) -> None:
        if node.repeated:
            message = f"the attribute {node.repeated!r} occurs twice"
            self.add("P-24", node, message, "write it once")
        for name, (types, low, high) in NODE_RANGES.items():
            if name not in node.attributes or node.type not in types:
                continue
            if not has_kind(node.attributes[name], INTEGER):
                self.add("P-25", node, f"{name} is of another kind", "write an integer")
            elif not low <= node.number(name) <= high:
                message = f"{name} is {node.number(name)}"
                self.add("P-29" if name == "comp_kind" else "P-26", node, message,
                         f"expected {low}..{high}")  # fmt: skip
        if node.micros > LARGEST // 1000:
            message = f"duration_micros is {node.micros}"
            self.add("P-26", node, message, f"expected 0..{LARGEST // 1000}")
        for name, owners in REGIONS.items():
            if name not in node.attributes or node.type not in owners:
                continue
            region = node.region(name)
            if region is None:
                message = f"{name} is no list of three integers"
                self.add("P-25", node, message, "write [buffer, offset, count]")
            elif not (0 <= region[0] <= 3 and all(0 <= part <= LARGEST for part in region[1:])):
                message = f"{name} is {list(region)}"
                self.add("P-26", node, message, "buffer 0..3; offset and count at least 0")
        self._check_presence(node)

    def _check_presence(self, node: Node) -> None:
        required = {SEND: ("region", "comm_tag", "comm_dst"), COMP: ("comp_kind",)}
        required[RECEIVE] = ("region", "comm_tag", "comm_src")
        for name in required.get(node.type, ()):
            if name not in node.attributes:
                number = "P-29" if name == "comp_kind" else "P-27"
                self.add(number, node, f"the attribute {name} is missing", "write it")
        ranks = self.number("num_ranks")
        # A missing number is a finding of record 0.
        if not node.is_message or not ranks or self.number("rank") is None:
            return
        for name, owner in (("comm_src", SEND), ("comm_dst", RECEIVE)):
            end = node.number(name)
            if end >= ranks:
                self.add("P-28", node, f"{name} is {end}", f"expected 0..{ranks - 1}")
            elif node.type == owner and end >= 0 and end != self.number("rank"):
                message = f"{name} is {end}, but this end is rank {self.number('rank')}"
                self.add("P-28", node, message, "write the rank of this file")

    def _check_sizes(self, node: Node) -> None:
        units, size, count = self.number("unit_count"), self.number("collective_bytes"), node.count
        src, dst = node.region("src_region"), node.region("dst_region")
        if node.type == COMP and src and dst and src[2] != dst[2]:
            message = f"src_region has {src[2]} units, dst_region {dst[2]}"
            self.add("P-30", node, message, "write equal counts")
        if node.region("region") is None or not node.is_message or not units or units < 1:
            return
        if "comm_size" in node.attributes and (size is None or size > 0):
            if size is None:
                message = "comm_size without collective_bytes in record 0"
                self.add("P-31", node, message, "state collective_bytes")
            elif node.number("comm_size") != (expected := -(-count * size // units)):
                message = f"comm_size is {node.number('comm_size')} for {count} units"
                self.add("P-31", node, message, f"expected {expected}")
            elif expected > LARGEST:
                self.add("P-31", node, "more than 2^62 bytes", "choose a smaller size")
        for name, expected in (("total_chunk_cnt", units), ("msg_chunk_cnt", count)):
            if node.number(name) not in (-1, expected):
                message = f"{name} is {node.number(name)}"
                self.add("P-32", node, message, f"expected {expected} or -1")

    def _resolve(self, position: dict[int, int]) -> list[list[tuple[int, bool]]] | None:
        """Return for every node its parents as pairs (position in the file, is data dependency).

        `position`: position in the file by node id. The result is in the order of the nodes; data
        dependencies of a node are before its control dependencies, each in the order of the file,
        and a repeated dependency is returned repeatedly. Each id that a node depends on and the
        file does not have adds a finding (P-22), once per node. Returns None if there is such a
        finding, or if two nodes have the same id, which adds no finding here (P-21 is added by the
        caller).
        """
        parents: list[list[tuple[int, bool]]] = []
        is_whole = len(position) == len(self.nodes)
        for node in self.nodes:
            listed = [*((one, True) for one in node.data), *((one, False) for one in node.control)]
            for identifier in sorted({one for one, _ in listed} - position.keys()):
                message = f"it depends on node {identifier}, which this file does not have"
                self.add("P-22", node, message, "list ids of this file only")
                is_whole = False
            parents.append([(position.get(one, 0), is_data) for one, is_data in listed])
        return parents if is_whole else None

    def _check_pairs(self) -> None:
        for index, node in enumerate(self.nodes):
            if self._is_half(index):
                if not self._is_combining(index + 1):
                    message = "no COMP_NODE with comp_kind 0 follows this receiving half"
                    self.add("P-33", node, message, "write it as the next record")
                elif self._has_other_count(index):
                    message = "the regions of both halves differ in their count"
                    self.add("P-35", node, message, "write equal counts")

    def _check_dependencies(self, parents: list[list[tuple[int, bool]]]) -> None:
        for index, node in enumerate(self.nodes):
            is_combining = self._is_combining(index)
            if is_combining and parents[index] != [(index - 1, True)]:
                message = "it must depend on its receiving half only, by one data dependency"
                self.add("P-34", node, message, "move other dependencies to the COMM_RECV_NODE")
            if any(self._is_half(one) and not (is_combining and one == index - 1)
                   for one, _ in parents[index]):  # fmt: skip
                message = "it depends on the receiving half of a receive-reduce"
                self.add("P-34", node, message, "depend on the COMP_NODE of the pair")

    def _is_half(self, index: int) -> bool:
        node = self.nodes[index]
        return node.type == RECEIVE and node.number("is_rrc") == 1

    def _is_combining(self, index: int) -> bool:
        if not 0 < index < len(self.nodes) or not self._is_half(index - 1):
            return False
        return self.nodes[index].type == COMP and self.nodes[index].number("comp_kind") == 0

    def _has_other_count(self, half: int) -> bool:
        regions = [self.nodes[half + 1].region(name) for name in ("src_region", "dst_region")]
        return any(region and region[2] != self.nodes[half].count for region in regions)

    def _check_steps(self, parents: list[list[tuple[int, bool]]]) -> None:
        """Check the number of steps (P-36), the node of an idle rank (P-37), and cycles (P-23).

        A step is a node, or a receiving half together with the reduction after it. The dependency
        of the reduction on its half is ignored; any other dependency inside a step is a cycle. A
        file is that of an idle rank if `step_count` is 0 and its only node is a computation; it has
        0 steps. `parents`: the parents of every node, from `_resolve`. Findings, in this order:

        - P-37 if the node of an idle rank has a dependency. The check ends.
        - P-36 if `step_count` is given and differs from the number of steps. The check continues.
        - P-23 if some steps are in a cycle or depend on one, at the first of them in the file. The
          check ends.

        If the check reaches its end, `nodes_in_order` becomes the first node of every step, parents
        first (the order of `earliest_first`), and `is_complete` becomes True, even after P-36.
        """
        step_of_node, steps = [], 0
        for index in range(len(self.nodes)):
            steps += not self._is_combining(index)
            step_of_node.append(steps - 1)
        is_idle = self.number("step_count") == 0 and len(self.nodes) == 1
        is_idle &= self.nodes[0].type == COMP
        if is_idle and parents[0]:
            message = "the node of a rank without steps has a dependency"
            self.add("P-37", self.nodes[0], message, "omit the dependency")
            return
        stated = self.number("step_count")
        if stated is not None and stated != (0 if is_idle else steps):
            message = f"the file has {steps} steps, step_count is {stated}"
            self.add("P-36", "", message, "the file is cut off or was changed: get it again")
        edges = {
            (step_of_node[parent], step_of_node[index])
            for index, listed in enumerate(parents)
            for parent, _ in listed
            if not (self._is_combining(index) and parent == index - 1)
        }
        first = [index for index in range(len(self.nodes)) if not self._is_combining(index)]
        order = earliest_first(steps, edges)
        if len(order) < steps:
            stuck = self.nodes[first[min(set(range(steps)) - set(order))]]
            message = "the dependencies form a cycle, so that it can never run"
            self.add("P-23", stuck, message, "remove one dependency of the cycle")
            return
        self.nodes_in_order = [self.nodes[first[step]] for step in order]
        self.is_complete = True


def check_set(files: Sequence[RankFile], prefix: str) -> list[Finding]:
    """Return the findings of the single files, then those of the files as one set.

    - P-1: a rank of 0..n-1 has no file (n: number of files). The finding names the file
      `prefix.RANK.et`.
    - P-10: `num_ranks` of a file is not n. A file without this attribute is not checked.
    - P-12: an attribute in `SHARED` differs from that of rank 0; a missing one differs from a
      present one. An attribute is not checked if one of its two values has a wrong kind, which is
      a finding already. A file is not checked if it has no metadata, if the file of rank 0 has
      none, or if rank 0 has no file.

    P-10 and P-12 are listed file by file, after P-1. Tags of messages (`check_tags`, P-38) are
    checked only if there are no findings and all files are complete.
    """
    findings = [finding for file in files for finding in file.findings]
    by_rank = {file.rank: file for file in files}
    for rank in range(len(files)):
        if rank not in by_rank:
            message = f"the file of rank {rank} is missing among {len(files)} files"
            findings.append(Finding("P-1", f"{prefix}.{rank}.et", "", message, "add the file"))
    first = by_rank.get(0)
    for file in files:
        stated = file.number("num_ranks")
        if stated is not None and stated != len(files):
            message = f"num_ranks is {stated}, the set has {len(files)} files"
            cure = "give all files of one algorithm"
            findings.append(Finding("P-10", file.name, "record 0", message, cure))
        for name in SHARED if first and file.metadata and first.metadata else ():
            if first is None or file.value(name) == first.value(name):
                continue
            # Values of wrong kinds are findings already.
            if all(
                has_kind(one.metadata[name], METADATA_KINDS[name])
                for one in (file, first)
                if name in one.metadata
            ):
                message = f"{name} is {file.value(name)!r}, in the file of rank 0 "
                message += repr(first.value(name))
                cure = "give the files of one algorithm"
                findings.append(Finding("P-12", file.name, "record 0", message, cure))
    if not findings and all(file.is_complete for file in files):
        findings.extend(check_tags(files))
    return findings


def check_tags(files: Iterable[RankFile]) -> Iterator[Finding]:
    """Yield a finding (P-38) per node whose tag contradicts how its message is paired.

    The files must be complete (`nodes_in_order` filled). The k-th send from a source to a target on
    a channel is paired with the k-th receive there; a message is its channel and k. Tags and
    messages must correspond one to one, for each pair of source and target. A send or receive gets
    a finding if its tag was seen before with another message of this pair, or its message was seen
    before with another tag.

    If every tag in all files equals the channel of its message (0 if it has none), no finding is
    yielded. At most the first `MAX_FINDINGS_PER_FILE` (20) are yielded for all files together, in
    the order of `files` and of their nodes. A file without a rank counts as rank 0.
    """
    partner_by_tag: dict[tuple[int, int, int], tuple[int, int]] = {}
    tag_by_partner: dict[tuple[int, int, int, int], int] = {}
    ordinals: dict[tuple[int, int, int, bool], int] = {}
    found: list[Finding] = []
    are_channels = True
    for file in files:
        for node in file.nodes_in_order:
            if not node.is_message:
                continue
            is_send, own = node.type == SEND, file.rank or 0
            other = node.number("comm_dst" if is_send else "comm_src")
            ends = (own, other) if is_send else (other, own)
            channel, tag = node.number("channel", 0), node.number("comm_tag")
            are_channels &= channel == tag
            side = (*ends, channel, is_send)
            ordinal = ordinals[side] = ordinals.get(side, -1) + 1
            message = (channel, ordinal)
            is_other = partner_by_tag.setdefault((*ends, tag), message) != message
            is_other |= tag_by_partner.setdefault((*ends, *message), tag) != tag
            if is_other:
                text = f"the tag {tag} pairs it with another message than channel and order do"
                found.append(Finding("P-38", file.name, str(node), text, "number the messages"))
    return iter(() if are_channels else found[:MAX_FINDINGS_PER_FILE])


def earliest_first(steps: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Return the steps in an order with parents before children; the lowest ready one is next.

    `edges`: (parent, child), each once. Steps of a cycle, and those that depend on one, are left
    out.
    """
    children: list[list[int]] = [[] for _ in range(steps)]
    missing = [0] * steps
    for parent, child in edges:
        children[parent].append(child)
        missing[child] += 1
    ready = [step for step in range(steps) if not missing[step]]
    order = []
    while ready:
        step = heapq.heappop(ready)
        order.append(step)
        for child in children[step]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(ready, child)
    return order


def has_kind(attribute: tuple[int, object], expected: str) -> bool:
    """Return whether an attribute (kind, value) has the expected kind and could be decoded.

    `expected`: `TEXT` (kind 29), `INTEGER` (kinds 7, 9, ... 27: all integers, and bool) or
    `INTEGERS` (lists of these: 8, 10, ... 28). The value is None if it was malformed; empty values
    are accepted.
    """
    kinds = {INTEGER: NUMBER_OF_KIND, INTEGERS: LIST_OF_KIND, TEXT: (29,)}
    return attribute[0] in kinds[expected] and attribute[1] is not None


def split_records(content: bytes) -> Iterator[bytes]:
    """Yield the content of every record of a file, in order, without the length before it.

    The length is a varint of at most 5 bytes, in bytes. An empty file has no records.
    Raises `MalformedError` if a length is malformed or the file is truncated inside a
    record, after the records before this position were yielded.
    """
    at = 0
    while at < len(content):
        start = at
        length, at = read_varint(content, at, len(content), 5)
        if at + length > len(content):
            raise MalformedError(f"the file ends inside the record at byte {start}")
        yield content[at : at + length]
        at += length


def read_varint(data: bytes, at: int, stop: int, limit: int = 10) -> tuple[int, int]:
    """Read a protobuf varint at position `at`; return (number modulo 2^64, position after it).

    Raises `MalformedError` if it does not end before `stop` or has more than `limit` bytes.
    """
    number = 0
    for count in range(limit):
        if at >= stop:
            raise MalformedError("a number does not end")
        number |= (data[at] & 127) << 7 * count
        at += 1
        if data[at - 1] < 128:
            return number & (1 << 64) - 1, at
    raise MalformedError(f"a number has more than {limit} bytes")


def walk(body: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (field number, wire type, value) for every field of a protobuf message, in order.

    A varint (wire type 0) is an integer modulo 2^64; fixed-size values (1, 5) and
    length-delimited ones (2) are bytes, without their length. Raises `MalformedError`, after the
    fields before it were yielded, for field number 0, another wire type, a tag of more than 5
    bytes, a varint of more than 10 bytes, and a field that does not end in the message.
    """
    at = 0
    while at < len(body):
        tag, at = read_varint(body, at, len(body), 5)
        number, wire = tag >> 3, tag & 7
        if not number or wire not in (0, 1, 2, 5):
            raise MalformedError(f"no field has the tag {tag}")
        if wire == 0:
            value, at = read_varint(body, at, len(body))
            yield number, wire, value
            continue
        length = {1: 8, 5: 4}.get(wire, -1)
        if wire == 2:
            length, at = read_varint(body, at, len(body))
        if at + length > len(body):
            raise MalformedError("a field does not end in its record")
        yield number, wire, body[at : at + length]
        at += length


def parse_metadata(body: bytes | None, attributes: dict[str, tuple[int, object]]) -> list[str]:
    """Parse the metadata message `body`, and add its attributes to `attributes`, by name.

    An attribute is (kind, value). Without a value it is (0, None); with a malformed value, (kind,
    None). A missing name is "". The last attribute of a name replaces the earlier ones. For each
    attribute whose name is already in `attributes`, also from earlier in the message, its name is
    added to the result. The version is only checked to be text. An empty message is valid.

    Raises `MalformedError` if `body` is None, for a field that `GlobalMetadata` lacks, for text
    that is not UTF-8, and for fields that break off. Attributes before the defect are kept.
    """
    if body is None:
        raise MalformedError("the file is empty")
    repeated = []
    for number, wire, value in walk(body):
        if number not in (1, 2) or wire != 2 or not isinstance(value, bytes):
            raise MalformedError("record 0 is not GlobalMetadata")
        if number == 1:
            as_text(value)
            continue
        name, attribute = parse_attribute(value)
        if name in attributes:
            repeated.append(name)
        attributes[name] = attribute
    return repeated


def parse_node(body: bytes) -> Node:
    """Parse a protobuf message `Node`.

    `repeated` of the result is the name of the attribute that was the first to occur again, "" if
    none does. Of two values of one field or attribute the last one counts; repeated lists of
    dependencies are joined. An attribute without a value is not stored, but counts for `repeated`;
    one with a malformed value is stored with the value None. Name (field 2), start time (6), inputs
    (8) and outputs (9) are ignored. Raises `MalformedError` for unknown fields, fields of another
    wire type, and fields that cannot be parsed.
    """
    node = Node()
    names: set[str] = set()
    wires = {1: (0,), 2: (2,), 3: (0,), 4: (0, 2), 5: (0, 2), 6: (0,), 7: (0,), 8: (2,), 9: (2,),
             10: (2,)}  # fmt: skip
    for number, wire, value in walk(body):
        if wire not in wires.get(number, ()):
            raise MalformedError(f"Node has no field {number} of wire type {wire}")
        if isinstance(value, int):
            if number in (4, 5):
                (node.control if number == 4 else node.data).append(value)
            elif number != 6:
                setattr(node, {1: "identifier", 3: "type", 7: "micros"}[number], value)
        elif number in (4, 5):
            (node.control if number == 4 else node.data).extend(
                one for one in unpack(value, 13) if isinstance(one, int)
            )
        elif number == 10:
            name, attribute = parse_attribute(value)
            node.repeated = node.repeated or (name if name in names else "")
            names.add(name)
            # An attribute without a value counts as absent.
            if attribute[0]:
                node.attributes[name] = attribute
    return node


def parse_attribute(body: bytes) -> tuple[str, tuple[int, object]]:
    """Parse an AttributeProto; return (name, (kind, value)).

    The kind is the number of the value's field, 3 to 32; of several such fields only the
    last one counts. Without a value the result is (name, (0, None)); a value that
    `decode_value` rejects gives (name, (kind, None)). Of several names the last one counts;
    a missing name is "". Other fields, and a name of another wire type than 2, are ignored.
    Raises `MalformedError` if `body` is no sequence of protobuf fields (see `walk`), or if
    the name is not UTF-8.
    """
    name, kind = "", 0
    last: tuple[int, int | bytes] = (0, 0)
    for number, wire, value in walk(body):
        if number == 1 and isinstance(value, bytes) and wire == 2:
            name = as_text(value)
        elif 3 <= number <= 32:
            kind, last = number, (wire, value)
    try:
        return name, (kind, decode_value(kind, *last) if kind else None)
    except MalformedError:
        return name, (kind, None)


def decode_value(kind: int, wire: int, value: int | bytes) -> object:
    """Decode the value of an attribute to the Python value of its kind.

    `kind`: field number in AttributeProto; odd numbers are single values, even ones lists of
    them. `wire`: wire type of the field; `value`: its varint, or its bytes.

    - Integer kinds give an integer with the sign and width of the kind (`to_integer`), kind 27 a
      boolean, kind 29 a text (UTF-8).
    - Lists of kinds 8 to 28 give the list of their values, packed or not.
    - Everything else (floats, bytes, lists of floats, texts and bytes) is returned as `value`.

    Raises `MalformedError` for another wire type than that of the kind, for text that is not
    UTF-8, for a list that ends inside a number, and for a list with other fields than 1.
    """
    scalar = kind if kind % 2 else kind - 1
    if kind % 2:
        expected = {3: 1, 5: 5, 19: 5, 21: 1, 23: 5, 25: 1, 29: 2, 31: 2}.get(kind, 0)
        if wire != expected:
            raise MalformedError(f"an attribute has wire type {wire} in field {kind}")
        if kind == 29 and isinstance(value, bytes):
            return as_text(value)
        return to_integer(kind, value)
    if wire != 2 or not isinstance(value, bytes):
        raise MalformedError(f"an attribute has wire type {wire} in field {kind}")
    if kind not in LIST_OF_KIND:
        return value
    numbers: list[object] = []
    for number, inner, content in walk(value):
        if number != 1:
            raise MalformedError("a list has another field than values")
        parts = unpack(content, scalar) if isinstance(content, bytes) and inner == 2 else [content]
        numbers.extend(to_integer(scalar, part) for part in parts)
    return numbers


def unpack(content: bytes, scalar: int) -> list[int | bytes]:
    """Split a packed list into its numbers: varints as integers, fixed-size numbers as bytes.

    `scalar`: field number of a single value of the list's type in `AttributeProto`. For 19 and 23 a
    number has 4 bytes, for 21 and 25 it has 8 bytes; for all others it is a varint (modulo 2^64).
    An empty list gives []. Raises `MalformedError` if the list ends inside a number, and for a
    varint of more than 10 bytes.
    """
    size = {19: 4, 21: 8, 23: 4, 25: 8}.get(scalar)
    if size:
        if len(content) % size:
            raise MalformedError("a list ends inside a number")
        return [content[at : at + size] for at in range(0, len(content), size)]
    numbers: list[int | bytes] = []
    at = 0
    while at < len(content):
        number, at = read_varint(content, at, len(content))
        numbers.append(number)
    return numbers


def to_integer(kind: int, value: int | bytes) -> object:
    """Convert an encoded number of an integer kind (7, 9, ... 27) to the Python value of the kind.

    - Bytes are read as little-endian, with a sign for kinds 23 and 25.
    - Kinds 15 and 17 (`sint`) are decoded from zigzag; kind 27 gives a boolean.
    - Other kinds are reduced to 32 bits (7, 11) or 64 bits, with a sign for 7 and 9.

    A value of any other kind, such as a float, is returned as it is encoded.
    """
    if kind not in NUMBER_OF_KIND:
        return value
    if isinstance(value, bytes):
        return int.from_bytes(value, "little", signed=kind in (23, 25))
    if kind in (15, 17):
        return value >> 1 ^ -(value & 1)
    if kind == 27:
        return bool(value)
    bits = 32 if kind in (7, 11) else 64
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind in (7, 9) and value >> bits - 1 else value


def as_text(value: bytes) -> str:
    """Decode UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MalformedError("a text is not UTF-8") from None


def check(path: Path) -> tuple[int, list[Finding]]:
    """Check a file, or all sets in a folder; return (number of files, findings).

    A file is checked in isolation, and counts as 1. In a folder, the files `*.et` are checked,
    not those of subfolders. Files with the same prefix (`PREFIX.RANK.et`) are one set; any
    other name is a set of its own. Sets are checked in the order of their first names. A folder
    without such files gives (0, one finding `P-1`). Raises `OSError` for a file that cannot be
    read.
    """
    if not path.is_dir():
        return 1, RankFile(path).findings
    files = [RankFile(one) for one in sorted(path.glob("*.et"))]
    sets: dict[str, list[RankFile]] = {}
    for file in files:
        match = RANK_IN_NAME.match(file.name)
        sets.setdefault(match[1] if match else file.name, []).append(file)
    if not files:
        return 0, [Finding("P-1", path.name, "", "the folder has no file *.et", "add the files")]
    findings = [one for prefix, group in sets.items() for one in check_set(group, prefix)]
    return len(files), findings


def main(arguments: Sequence[str] | None = None) -> int:
    """Check files and folders of the command line, and print the findings to stdout.

    `arguments`: None for those of the process. One line per finding is printed, then a line with
    the numbers of files and findings; with `--json`, one object with `ok`, `files` and `findings`.
    Returns the exit code: 0 without findings, 1 with findings. If a file cannot be read, it
    returns 2, and prints only the reason, to stderr. Wrong arguments raise `SystemExit` (2).
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE_OR_FOLDER")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    count, findings = 0, []
    try:
        for path in options.paths:
            files, of_path = check(path)
            count += files
            findings += of_path
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    if options.json:
        listed = [asdict(finding) for finding in findings]
        print(json.dumps({"ok": not findings, "files": count, "findings": listed}, indent=2))
    else:
        for finding in findings:
            print(finding)
        print(f"{count} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
