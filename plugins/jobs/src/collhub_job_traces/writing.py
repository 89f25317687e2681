"""Write Chakra execution traces of jobs. Jobs read from such traces have identical bytes.

Cost: linear in nodes and dependencies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from collhub_job_traces.embedded import ALGORITHM, COUNTS, Traces, counts_entries, embedded_traces
from collhub_job_traces.embedded import entries as embedded_entries
from collhub_job_traces.groups import (
    ALL_RANKS_NAMES,
    ATTRIBUTE,
    infer_groups,
    select_groups,
    stated_groups,
)
from collhub_job_traces.node import COLUMN_OF, NODE_TYPES
from collhub_job_traces.reading import EXTENSION
from collhub_job_traces.records import BYTES, GROUP, MORE, are_tokens, encode_record, fields
from hub_core import Loss
from hub_core.chakra import AttributeKind, MetadataEntry, encode_metadata, varint
from hub_core.model import NodeKind, Workload
from hub_core.plugin_api import Artifact, NoOptions, WriteResult

_VERSION = "0.0.4"
_SCHEMA = "1.0.2-chakra.0.0.4"
PROFILE = "workload/1"
# Kinds of attributes, as read by ASTRA-sim, for nodes that were not read from traces.
_ATTRIBUTE_KINDS = {
    "is_cpu_op": AttributeKind.BOOL,
    "num_ops": AttributeKind.INT64,
    "tensor_size": AttributeKind.UINT64,
    "comm_type": AttributeKind.INT64,
    "comm_size": AttributeKind.INT64,
    "comm_src": AttributeKind.INT32,
    "comm_dst": AttributeKind.INT32,
    "comm_tag": AttributeKind.INT32,
    "root": AttributeKind.INT32,
    "duration_ns": AttributeKind.INT64,
    ALGORITHM: AttributeKind.INT32,
    COUNTS: AttributeKind.INT32,
}
_ALGORITHM_TOKEN = f"@{ALGORITHM}:{int(AttributeKind.INT32)}"
_MICRO_NS = 1000


def write(workload: Workload, options: NoOptions) -> WriteResult:
    """Write one trace per rank, named `.<rank>.et`.

    Contents are encoded on demand, because a job may be larger than memory.

    Losses: extras that are no tokens (`lost_extras`), extensions of other formats, and the
    dimensions of collectives of a job without extras. For jobs that were not read from traces, the
    result names the fields whose form changes when the traces are read back, whether the job uses
    them or not: `extra`, `extras`, `extensions`, `name`, `names`, and `group` if a group has a name
    that means all ranks (`ALL_RANKS_NAMES`).
    """
    losses = lost_extras(workload)
    lost_extensions = sorted(set(workload.extensions) - {EXTENSION})
    if lost_extensions:
        names = ", ".join(lost_extensions)
        losses.append(Loss(f"extensions ({names})", "all", "they have no place here"))
    if EXTENSION in workload.extensions and not _decode_heads(workload):
        consequence = "its metadata are no records of a trace; new ones are written"
        losses.append(Loss(f"extensions ({EXTENSION})", "all", consequence))
    if workload.nodes.dimensions.max(initial=-1) >= 0 and not workload.extras:
        losses.append(Loss("dimensions", "all", "collectives use every dimension"))
    restated: tuple[str, ...] = ()
    if EXTENSION not in workload.extensions:
        # The writer creates records, which the reader preserves, and writes only used names, in
        # node order.
        restated = ("extra", "extras", "extensions", "name", "names")
        if any(group.name in ALL_RANKS_NAMES for group in workload.groups):
            restated = (*restated, "group")
    return WriteResult(trace_files(workload), losses, restated)


def trace_files(
    workload: Workload, profile: str = PROFILE, omitted: frozenset[str] = frozenset()
) -> Iterator[Artifact]:
    """Yield the trace file of each rank, ascending; its name suffix is `.RANK.et`.

    Contents are encoded when they are read. `profile`: text in the metadata that identifies
    traces of the hub. With `""` the traces are for a simulator: they have no algorithms, and
    new metadata. Otherwise a job without algorithms and counts gets the metadata with which it
    was read (`_reuse_heads`), if there are any. `omitted`: names of attributes that are not
    written; if `duration_ns` is one, durations are written in microseconds, rounded down.
    """
    # Traces for a simulator contain no algorithms; their folder selects them.
    embedded = embedded_traces(workload.algorithms) if profile else ()
    # Only traces with a profile reuse the original metadata.
    heads = _reuse_heads(workload) if profile and not embedded and not workload.counts else ()
    for rank in range(workload.num_ranks):
        head = heads[rank] if rank < len(heads) else None
        content = partial(_content, workload, rank, profile, embedded, head, omitted)
        yield Artifact(f".{rank}.et", content)


def lost_extras(workload: Workload) -> list[Loss]:
    """Return the loss of extras that a trace cannot express; [] without any.

    An extra is a text that preserves data of nodes for which there is no column. A trace can
    express extras that were read from a trace (`are_tokens`), but not those of other formats, such
    as data types. The list has at most one loss, with the number of different extras that are lost;
    nodes with equal extras share one.
    """
    foreign = sum(not are_tokens(extra) for extra in workload.extras)
    if not foreign:
        return []
    consequence = "data of other formats, or damaged; they have no place in a trace"
    return [Loss("extras", f"{foreign} shapes of nodes", consequence)]


def _content(
    workload: Workload,
    rank: int,
    profile: str,
    embedded: Traces,
    head: bytes | None,
    omitted: frozenset[str],
) -> bytes:
    """Encode the trace file of a rank as bytes: metadata, then each node after its length.

    Nodes are in the order of rows; each length is a varint. A rank without nodes gets one COMPUTE
    node with id 0, because simulators hang otherwise.

    - `head`: metadata bytes that are written unchanged; `profile` and `embedded` then have no
      effect. With None, metadata are created: version, schema, the profile, and groups with their
      ranks. Then follow the rank's rows of tables of counts, and its traces of algorithms.
    - `profile`: text that identifies traces of the hub. With `""`, created metadata have neither
      the profile nor tables of counts.
    - `embedded`: per algorithm its traces by rank. A rank for which an algorithm has no trace gets
      no entry for it.
    - `omitted`: names of attributes that are not written. Nodes whose original bytes are preserved
      completely keep them.

    Nothing is changed.
    """
    nodes = workload.nodes
    first, end = nodes.rank_indptr[rank : rank + 2].tolist()
    if head is None:
        entries = [MetadataEntry("schema", AttributeKind.STRING, _SCHEMA)]
        if profile:
            entries.append(MetadataEntry("profile", AttributeKind.STRING, profile))
        if workload.groups:
            groups = {group.name: list(group.ranks) for group in workload.groups}
            entries.append(MetadataEntry(ATTRIBUTE, AttributeKind.STRING, json.dumps(groups)))
        # Simulators do not read counts; without a profile, the trace is for one of them.
        entries += counts_entries(workload.counts, rank) if profile else []
        head = encode_metadata(_VERSION, [*entries, *embedded_entries(embedded, rank)])
    parts = [head]
    columns = _RankColumns(workload, first, end, omitted)
    for row in range(first, end):
        record = encode_record(*columns.record(row))
        parts += [varint(len(record)), record]
    if first == end:
        # Simulators hang if a rank has no node.
        record = encode_record("id type", {"id": 0, "type": int(NODE_TYPES[NodeKind.COMPUTE])})
        parts += [varint(len(record)), record]
    return b"".join(parts)


def _reuse_heads(workload: Workload) -> list[bytes]:
    """Return the metadata records (bytes) with which the traces of a job were read, by rank.

    Empty without valid records (`_decode_heads`), or if the groups of the job are neither those
    that its METADATA nodes define nor those whose ranks name them.
    """
    heads = _decode_heads(workload)
    # Other groups cannot be derived without metadata.
    names = tuple(group.name for group in workload.groups)
    if not heads or workload.groups == infer_groups(names, workload.nodes):
        return heads
    stated = select_groups(names, stated_groups(workload.nodes, workload.extras))
    return heads if workload.groups == stated else []


def _decode_heads(workload: Workload) -> list[bytes]:
    """Decode the metadata records in the extension of a job: bytes of every rank, or [].

    The extension has them in hexadecimal: a text counts for all ranks, a list has one text per
    rank. Empty if the job is from another format, or if an entry is not one protobuf message after
    its length.
    """
    extension = workload.extensions.get(EXTENSION)
    stated = extension.get("metadata") if isinstance(extension, dict) else None
    heads = []
    for text in stated if isinstance(stated, list) else [stated]:
        try:
            head = bytes.fromhex(text) if isinstance(text, str) else b""
            # As a field with its length: one field, which is the whole record.
            (_, message, _), *others = fields(bytes([1 << 3 | BYTES]) + head)
            is_message = not others and isinstance(message, bytes)
            list(fields(message if isinstance(message, bytes) else b""))
        except ValueError:
            is_message = False
        if not is_message:
            return []
        heads.append(head)
    return heads if isinstance(stated, list) else heads * workload.num_ranks


class _RankColumns:
    """Columns of one rank as lists; creates the records of its nodes."""

    def __init__(self, workload: Workload, first: int, end: int, omitted: frozenset[str]) -> None:
        nodes = workload.nodes
        self._workload, self._first, self._omitted = workload, first, omitted
        names = ("identity", "kind", "name", "group", "extra", "duration_ns")
        columns = {*names, *(column for column, *_ in COLUMN_OF.values())}
        self._columns = {name: getattr(nodes, name)[first:end].tolist() for name in columns}
        self._identity = nodes.identity

    def record(self, row: int) -> tuple[str, dict[str, int | list[int] | bytes]]:
        """Return (tokens, values by token) from which the record of a node is encoded.

        `row`: row in the workload, which must belong to this rank. Tokens are separated by spaces.
        A token is the name of a field (`id`), an attribute (`@comm_size:9`), or `=` or `!` with
        bytes in hexadecimal. The extra is the text that a reader stored with the node, if any. The
        first case that applies:

        1. The extra is the complete record: its token, which begins with `!`, and {}. Attributes in
           `omitted` are not removed from it.
        2. The extra is the tokens of a trace: these in their order, without attributes in
           `omitted`. If this removes `duration_ns`, a duration of at least 1 us adds the token `us`
           at the end. A missing token `id` is added at the beginning unless the id is 0. The token
           of the algorithm is added at the end, or removed, to fit the node.
        3. Otherwise, also if no token remains: the tokens of `_tokens`. If the extra begins with
           `+`, its other tokens follow.

        In cases 2 and 3 the values contain every attribute of `COLUMN_OF`, also without a token; a
        missing number is negative. They also contain `id`, `type`, `us` (whole microseconds,
        rounded down, 0 if missing), and the lists `data` and `ctrl` of the ids of parents. `name`
        and `pg_name` (the group) are bytes, empty if missing.
        """
        at = {name: column[row - self._first] for name, column in self._columns.items()}
        extra = at["extra"]
        stated = self._workload.extras[extra] if extra >= 0 else ""
        tokens = stated if are_tokens(stated) else ""
        if self._omitted:
            split = tokens.split()
            left = [token for token in split if token[1:].partition(":")[0] not in self._omitted]
            is_lost = "duration_ns" in self._omitted and "@duration_ns" in tokens
            if is_lost and "us" not in left and at["duration_ns"] >= _MICRO_NS:
                left.append("us")
            tokens = " ".join(left)
        if tokens.startswith("!"):
            return tokens, {}
        if tokens and at["identity"] and not tokens.startswith(("id", MORE)):
            # A record without an id had id 0; the node has another id now.
            tokens = tokens if "id" in tokens.split() else f"id {tokens}"
        values = self._values(row, at)
        if not tokens or tokens.startswith(MORE):
            created = " ".join(_tokens(at, values, self._omitted))
            return created + tokens.removeprefix(MORE), values
        is_stated = _ALGORITHM_TOKEN in tokens.split()
        if is_stated and at["algorithm"] < 0:
            tokens = tokens.replace(f" {_ALGORITHM_TOKEN}", "")
        elif not is_stated and at["algorithm"] >= 0:
            tokens += f" {_ALGORITHM_TOKEN}"
        return tokens, values

    def _values(self, row: int, at: dict[str, int]) -> dict[str, int | list[int] | bytes]:
        workload, nodes = self._workload, self._workload.nodes
        values: dict[str, int | list[int] | bytes] = {
            attribute: at[column] for attribute, (column, *_) in COLUMN_OF.items()
        }
        values["id"] = at["identity"]
        values["type"] = int(NODE_TYPES.get(NodeKind(at["kind"]), 0))
        values["us"] = max(at["duration_ns"], 0) // _MICRO_NS
        name, group = at["name"], at["group"]
        text = workload.names[name] if name >= 0 else ""
        values["name"] = text.encode("utf-8", "surrogateescape")
        values[GROUP] = workload.groups[group].name.encode() if group >= 0 else b""
        for token, indptr, indices in (
            ("data", nodes.data_indptr, nodes.data_indices),
            ("ctrl", nodes.control_indptr, nodes.control_indices),
        ):
            parents = indices[indptr[row] : indptr[row + 1]]
            values[token] = self._identity[parents].tolist()
        return values


def _tokens(
    at: dict[str, int], values: dict[str, int | list[int] | bytes], omitted: frozenset[str]
) -> Iterator[str]:
    """Yield the tokens of a node that was not read from a trace: fields, attributes, the group.

    `at`: the node's numbers by column; `values`: its values by field. First come the fields `id`,
    `name`, `type`, `ctrl`, `data` and `us`, each only if its value is not empty and not 0. Then
    attributes follow in the order of `_ATTRIBUTE_KINDS`, such as `@comm_size:9` with the number of
    the attribute's kind. An attribute is left out if its column is negative, if it is in `omitted`,
    or if nodes of this kind do not have it.

    `duration_ns` is yielded only for a duration of 0 ns or one that is not a multiple of 1000 ns.
    For 1500 ns both `us` (rounded down) and `duration_ns` are yielded, for 2000 ns only `us`. The
    last token is the group's name, if the node has a group, even if it is in `omitted`.
    """
    kind = NodeKind(at["kind"])
    for token in ("id", "name", "type", "ctrl", "data", "us"):
        if values[token]:
            yield token
    for attribute, attribute_kind in _ATTRIBUTE_KINDS.items():
        column, kinds, *_ = COLUMN_OF[attribute]
        is_stated = at[column] >= 0 and attribute not in omitted
        if attribute == "duration_ns":
            # `duration_micros` is used for positive multiples of 1 us.
            is_stated = is_stated and (at[column] % _MICRO_NS > 0 or at[column] == 0)
        if kind in kinds and is_stated:
            yield f"@{attribute}:{int(attribute_kind)}"
    if at["group"] >= 0:
        yield f"@{GROUP}:{int(AttributeKind.STRING)}"
