"""Survey a set of execution traces of any kind, and report it: `collhub inspect`.

The traces are workloads, algorithms or single examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hub_core.chakra import (
    Batch,
    DecodedNodes,
    Metadata,
    NodeType,
    RankFile,
    ShapeBook,
    decode_nodes,
    in_batches,
    link,
    open_rank_file,
    type_name,
)
from hub_core.cli.output import print_fields, print_json, print_note, print_table
from hub_core.cli.reports.inspection_records import AttributeUse, ReferenceCounts, SurveyReport
from hub_core.plugin_api import Source
from hub_core.reports import to_json
from hub_core.trace_profile.read import input_errors, rank_parts

_MAX_TEXT = 80
_MESSAGES = (type_name(NodeType.COMM_SEND), type_name(NodeType.COMM_RECV))
_SIZES = {"absolute": "comm_size", "symbolic": "total_chunk_cnt"}


@dataclass(frozen=True, slots=True)
class TraceSurvey:
    """Summary of a set of rank files.

    `nodes_by_rank`: number of nodes of rank 0, 1, ... `nodes_by_type`: by names of the schema.
    `forward_references`: dependencies on later nodes of the file; `dangling_references`: on missing
    nodes. `metadata`: of rank 0, as text, long values truncated. `dialect`: see `survey`.
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
    """Summarize the nodes, dependencies and attributes of all files of a trace set.

    The dialect in the result is the first that applies:

    1. The metadata attribute `profile` of the first file, if it is a nonempty text.
    2. `workload`: there are nodes other than COMM_SEND, COMM_RECV and COMP.
    3. `no messages`: there are only COMP nodes, or no nodes.
    4. `messages without peer or size`: not every message has a peer, a `comm_tag` and a
       size.
    5. `absolute` if every message has the size `comm_size` (bytes), `symbolic` if every
       message has `total_chunk_cnt` (chunks), `absolute and symbolic` if every message has
       both.

    Dependencies on missing nodes are counted, not refused. Raises `InputError` for a
    malformed file, a file of another or older schema, and two nodes of a file with the same
    id.
    """
    counts, book = _Counts(), ShapeBook((), ())
    with input_errors():
        for batch in in_batches(counts.files(source)):
            counts.add(decode_nodes(Batch(batch), book))
    return counts.result(source.name)


class _Counts:
    """Counts over the files so far."""

    def __init__(self) -> None:
        self._metadata = Metadata()
        self._nodes_by_rank: list[int] = []
        self._types: Counter[str] = Counter()
        self._uses: Counter[tuple[str, str, str]] = Counter()
        self._edges: Counter[str] = Counter()

    def files(self, source: Source) -> Iterator[RankFile]:
        """Yield the rank files of a trace in order of rank, each loaded when it is requested.

        As a side effect, it keeps the metadata of the first file and records the number of nodes of
        each. Raises what loading and parsing a file raise.
        """
        for rank, part in enumerate(rank_parts(source)):
            # Only one file is in memory at a time, in addition to the batch that is decoded.
            content = part.load()
            file, metadata = open_rank_file(part.name, rank, content)
            if not rank:
                self._metadata = metadata
            self._nodes_by_rank.append(len(file.starts))
            yield file

    def add(self, nodes: DecodedNodes) -> None:
        """Count the nodes of a batch: types, dependencies, and attributes by type of node and kind.

        A dependency on a node that is missing in the file is counted as dangling, not refused; one
        whose parent does not come before its child counts as forward. Data and control dependencies
        are counted as the nodes list them, dangling ones included. The counts are added to those of
        earlier batches. Raises `TraceError` (`duplicate-id`), without counting the batch, if two
        nodes of a file have the same id.
        """
        links = link(nodes, drop_dangling=True)
        self._edges["dangling"] += links.dropped
        self._edges["data"] += len(nodes.data.ids)
        self._edges["control"] += len(nodes.control.ids)
        for edges in (links.data, links.control):
            self._edges["forward"] += int(np.count_nonzero(edges.parents >= edges.children))
        for node_type, count in Counter(nodes.type.tolist()).items():
            self._types[type_name(node_type)] += count
        for shape, members in nodes.attributes.groups:
            types = Counter(nodes.type[members].tolist())
            for name, kind in shape.attributes:
                for node_type, count in types.items():
                    use = (type_name(node_type), name, kind.field if kind else "")
                    self._uses[use] += count

    def result(self, name: str) -> TraceSurvey:
        """Return the survey of all nodes that were counted so far; `name` is that of the trace.

        Types are in ascending order, uses of attributes by type of node, name and kind. The dialect
        is determined as in `survey`. The metadata are `version` and the attributes of the first
        file, as texts. A text longer than 80 characters is cut there, and `... (N characters)` with
        its full length N is added. An attribute that is named `version` replaces the version.
        """
        metadata = {"version": self._metadata.version}
        for key, value in self._metadata.attributes.items():
            text = value if isinstance(value, str) else repr(value)
            # Attributes may contain source files and parameters of models.
            if len(text) > _MAX_TEXT:
                text = f"{text[:_MAX_TEXT]}... ({len(text)} characters)"
            metadata[key] = text
        uses = sorted(self._uses.items())
        return TraceSurvey(
            name,
            self._dialect(),
            tuple(self._nodes_by_rank),
            dict(sorted(self._types.items())),
            self._edges["data"],
            self._edges["control"],
            self._edges["forward"],
            self._edges["dangling"],
            metadata,
            tuple(AttributeUse(*key, count) for key, count in uses),
        )

    def _dialect(self) -> str:
        if profile := self._metadata.text("profile"):
            return profile
        # Algorithms have messages and COMP nodes, nothing else.
        if set(self._types) - {*_MESSAGES, type_name(NodeType.COMP)}:
            return "workload"
        count = sum(self._types[name] for name in _MESSAGES)
        if not count:
            return "no messages"
        carried: Counter[str] = Counter()
        for (node_type, name, _), uses in self._uses.items():
            carried[name] += uses if node_type in _MESSAGES else 0
        has_peers = carried["comm_src"] + carried["comm_dst"] >= count
        sizes = [dialect for dialect, name in _SIZES.items() if carried[name] == count]
        if not sizes or not has_peers or carried["comm_tag"] != count:
            return "messages without peer or size"
        return " and ".join(sizes)


def print_survey(survey: TraceSurvey, as_json: bool) -> None:
    """Print a survey to standard output as text, or as the JSON report `collhub/report-survey-1`.

    With `as_json` only the report is printed. The text has the name, dialect, ranks, nodes by type,
    dependencies and metadata. A table of the attributes follows, in the order of the survey, with
    the type of the node, the kind of value (`none` without one) and the number of uses; no table
    without attributes. After the text, a note on stderr says that the input is a trace of a
    workload.
    """
    if as_json:
        report = SurveyReport(
            source=survey.name,
            format="chakra",
            dialect=survey.dialect,
            num_ranks=survey.num_ranks,
            nodes_by_rank=survey.nodes_by_rank,
            nodes_by_type=survey.nodes_by_type,
            dependencies=ReferenceCounts(
                data=survey.data_dependencies,
                control=survey.control_dependencies,
                forward=survey.forward_references,
                dangling=survey.dangling_references,
            ),
            metadata=survey.metadata,
            attributes=survey.attributes,
        )
        print_json(to_json(report))
        return
    kinds = ", ".join(f"{count} {name}" for name, count in survey.nodes_by_type.items())
    references = f"{survey.forward_references} to later nodes, {survey.dangling_references} to none"
    dependencies = f"{survey.data_dependencies} data, {survey.control_dependencies} control"
    print_fields(
        {
            "file": f"{survey.name} (chakra)",
            "dialect": survey.dialect,
            "ranks": str(survey.num_ranks),
            "nodes": f"{sum(survey.nodes_by_rank)}: {kinds}",
            "dependencies": f"{dependencies}; {references}",
            "metadata": ", ".join(f"{name}={value}" for name, value in survey.metadata.items()),
        }
    )
    rows = [
        (use.node_type, use.name, use.kind or "none", str(use.count)) for use in survey.attributes
    ]
    if rows:
        print_table(("node", "attribute", "kind", "count"), rows, right=("count",))
    print_note(
        "a workload trace: it can be inspected; verify, convert and simulate need algorithms"
    )
