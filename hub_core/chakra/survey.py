"""Say what is in a set of execution traces of any kind: workloads, algorithms, single examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hub_core.chakra.fields import type_name
from hub_core.chakra.links import link
from hub_core.chakra.metadata import AttributeValue, Metadata
from hub_core.chakra.nodes import NodeType
from hub_core.chakra.rank_files import in_batches, rank_parts
from hub_core.chakra.recognise import open_rank_file
from hub_core.chakra.records import Batch, NodeColumns, RankFile, decode_nodes
from hub_core.chakra.shapes import ShapeBook
from hub_core.plugin_api.sources import Source

_LONGEST_TEXT = 80


@dataclass(frozen=True, slots=True)
class AttributeUse:
    """How often nodes of one type carry an attribute of one kind (`int64_val`, ..., empty: without a value)."""

    node_type: str
    name: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class TraceSurvey:
    """What a set of rank files holds.

    `nodes_by_rank`: nodes of rank 0, 1, ...; `nodes_by_type`: by the schema's names. `forward_references` point to
    a node that stands later in the file, `dangling_references` to none. `metadata`: of rank 0, values as text,
    long ones cut. `dialect`: see `survey`.
    """

    name: str
    dialect: str
    nodes_by_rank: tuple[int, ...]
    nodes_by_type: Mapping[str, int]
    data_dependencies: int
    control_dependencies: int
    forward_references: int
    dangling_references: int
    metadata: Mapping[str, str]
    attributes: tuple[AttributeUse, ...]

    @property
    def num_ranks(self) -> int:
        """Number of rank files."""
        return len(self.nodes_by_rank)


def survey(source: Source) -> TraceSurvey:
    """Look through all files of a set. Raises `InputError` for what is not a trace of today's schema.

    The dialect is a profile's name; `workload` where there are nodes that no algorithm has; `absolute`, `symbolic`
    or `absolute and symbolic` by the sizes of messages; `no messages`; or `messages without peer or size`.
    """
    survey = _Survey()
    files = (
        survey.opened(rank, part.name, part.load()) for rank, part in enumerate(rank_parts(source))
    )
    for batch in in_batches(files):
        survey.add(decode_nodes(Batch(batch), survey.book))
    return survey.result(source.name)


class _Survey:
    def __init__(self) -> None:
        self.book = ShapeBook((), {})
        self._metadata: list[Metadata] = []
        self._nodes_by_rank: list[int] = []
        self._types: Counter[str] = Counter()
        self._uses: Counter[tuple[str, str, str]] = Counter()
        self._edges: Counter[str] = Counter()

    def opened(self, rank: int, name: str, content: bytes) -> RankFile:
        file, metadata = open_rank_file(name, rank, content)
        if not rank:
            self._metadata.append(metadata)
        self._nodes_by_rank.append(len(file.starts))
        return file

    def add(self, nodes: NodeColumns) -> None:
        links = link(nodes, drop_dangling=True)
        self._edges["dangling"] += links.dropped
        for name, edges, dependencies in (
            ("data", links.data, nodes.data),
            ("control", links.control, nodes.control),
        ):
            self._edges[name] += len(dependencies.ids)
            self._edges["forward"] += int(np.count_nonzero(edges.parents >= edges.children))
        for node_type, count in zip(*np.unique(nodes.type, return_counts=True), strict=True):
            self._types[type_name(int(node_type))] += int(count)
        for shape, members in nodes.attributes.groups:
            types = Counter(nodes.type[members].tolist())
            for attribute in shape.attributes:
                kind = attribute.kind.field if attribute.kind else ""
                for node_type, count in types.items():
                    self._uses[type_name(node_type), attribute.name, kind] += count

    def result(self, name: str) -> TraceSurvey:
        metadata = self._metadata[0]
        return TraceSurvey(
            name,
            self._dialect(metadata),
            tuple(self._nodes_by_rank),
            dict(sorted(self._types.items())),
            self._edges["data"],
            self._edges["control"],
            self._edges["forward"],
            self._edges["dangling"],
            {"version": metadata.version}
            | {key: _shown(value) for key, value in metadata.attributes.items()},
            tuple(AttributeUse(*key, count) for key, count in sorted(self._uses.items())),
        )

    def _dialect(self, metadata: Metadata) -> str:
        if profile := metadata.text("profile"):
            return profile
        messages = [
            f"{node_type.name}_NODE" for node_type in (NodeType.COMM_SEND, NodeType.COMM_RECV)
        ]
        if set(self._types) - {*messages, f"{NodeType.COMP.name}_NODE"}:
            return "workload"
        count = sum(self._types[name] for name in messages)
        carried: Counter[str] = Counter()
        for (node_type, name, _), uses in self._uses.items():
            carried[name] += uses if node_type in messages else 0
        found = [dialect for dialect, name in _SIZES.items() if count and carried[name] == count]
        if not count:
            return "no messages"
        is_addressed = (
            carried["comm_src"] + carried["comm_dst"] >= count and carried["comm_tag"] == count
        )
        return " and ".join(found) if found and is_addressed else "messages without peer or size"


_SIZES = {"absolute": "comm_size", "symbolic": "total_chunk_cnt"}


def _shown(value: AttributeValue) -> str:
    text = value if isinstance(value, str) else repr(value)
    return (
        text
        if len(text) <= _LONGEST_TEXT
        else f"{text[:_LONGEST_TEXT]}... ({len(text)} characters)"
    )
