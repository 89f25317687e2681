"""Read PyTorch execution traces: ordered collectives with sizes and groups, without times."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collhub_pytorch.analysis import match_communications
from collhub_pytorch.calls import (
    HOST_LIBRARIES,
    ROOT_OR_PEER,
    Call,
    call_of_args,
    call_of_shapes,
    group_of_args,
    kind_of,
    with_target,
)
from collhub_pytorch.formats import EXECUTION_TRACE, RankOptions
from collhub_pytorch.job import join_ranks
from collhub_pytorch.profile_reading import read_source
from collhub_pytorch.rank_nodes import RankNodes
from collhub_pytorch.trace_files import JsonStream, Record, TraceFile, open_decompressed
from hub_core.model import InputError, JsonValue, Location, Provenance, Workload
from hub_core.plugin_api import Source

_TENSOR = re.compile(r"Tensor\(([^)]*)\)")
_GROUPS = "process_group:init"
# Names of attributes in Kineto profiles.
_NAMES = {
    "collective_name": "Collective name",
    "in_msg_nelems": "In msg nelems",
    "out_msg_nelems": "Out msg nelems",
    "in_split_size": "In split size",
    "out_split_size": "Out split size",
    "pg_name": "Process Group Name",
    "pg_size": "Group size",
    "global_rank_start": "Global rank start",
    "global_rank_stride": "Global rank stride",
    "dtype": "dtype",
}


@dataclass(slots=True)
class _Trace:
    """Contents of one file: calls by node id, and operators of torch.distributed.

    `waits`: number of records that are not calls. `parents`: enclosing node of each call.
    `issuers`: kind, and root or peer, by operator id. `world_size`: ranks of the
    default group.
    """

    file: str
    operators: int = 0
    waits: int = 0
    world_size: int | None = None
    calls: dict[int, Call] = field(default_factory=dict)
    on_host: dict[int, Call] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    issuers: dict[int, tuple[object, int]] = field(default_factory=dict)


def read(source: Source, options: RankOptions) -> Workload:
    """Read PyTorch execution traces, one file per rank, as a workload; see `workload_of`.

    Raise `InputError` for damaged files, two files of one rank, missing ranks (unless
    `ranks_missing` is `assume-same`), and collectives that do not match (if `mismatches` is
    `refuse`).
    """
    return read_source(source, EXECUTION_TRACE, workload_of, options)


def workload_of(
    files: Sequence[TraceFile], options: RankOptions, provenance: Provenance
) -> Workload:
    """Read PyTorch execution traces, one file per rank, and join them to a workload.

    A file without a known rank gets its position in `files`, from 0, as rank. Each rank executes
    its collectives and messages in the recorded order; they have no durations. The plugin's
    extension of the workload has these lists, with one entry per file in the order of `files`:

    - `operators`: the number of nodes in the file
    - `waits`: the number of `record_param_comms` that are no communication
    - `schemas`: the version of the file

    Its list `notes` mentions messages without a known peer. Raises `InputError` for damaged files
    and other formats, and in the cases of `join_ranks`: two files of a rank, and missing ranks
    unless `ranks_missing` is `assume-same`. If `mismatches` is `refuse`, also for communications
    that do not match between ranks; otherwise they are not compared.
    """
    parts, operators, waits, schemas = [], [], [], []
    for order, file in enumerate(files):
        trace, header = _read(file)
        parts.append(_rank_nodes(trace, file.rank_or(None, order)))
        operators.append(trace.operators)
        waits.append(trace.waits)
        schemas.append(str(header["schema"]))
    extension: dict[str, JsonValue] = {
        "operators": [*operators],
        "waits": [*waits],
        "schemas": [*schemas],
        "notes": [],
    }
    workload = join_ranks(parts, options, provenance, extension)
    if options.mismatches == "refuse":
        match_communications(workload)
    return workload


def _read(file: TraceFile) -> tuple[_Trace, Record]:
    """Parse the communication of a PyTorch execution trace; return it and the file's header.

    Nodes are read one by one: calls of process groups (`record_param_comms`), the operators
    that issue them (`c10d::...`), calls of host libraries, and the number of ranks. Other
    nodes are only counted. A call that names no communication counts as a wait.

    Raises `InputError` (`profile-record`) with id and name of the first node that cannot be
    read. After all nodes, raises `InputError` (`format`) for a file without `schema`.
    """
    trace = _Trace(file.name)
    with open_decompressed(file) as content:
        stream = JsonStream(content, file.name)
        for node in stream.records("nodes"):
            trace.operators += 1
            try:
                _handle(trace, node)
            except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
                reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                name = f" ({str(node['name'])[:60]!r})" if "name" in node else ""
                title = f"node {node.get('id')}{name}"
                message = f"{title} cannot be read: {reason}"
                raise InputError(
                    message, location=Location(file.name), code="profile-record"
                ) from None
        header = stream.header
    if "schema" not in header:
        message = "this is no PyTorch execution trace: it has no schema"
        raise InputError(message, location=Location(file.name), code="format")
    return trace, header


def _handle(trace: _Trace, node: Record) -> None:
    name = str(node["name"])
    if name == "record_param_comms":
        call = _recorded_call(trace, node)
        trace.waits += call is None
        if call is not None:
            trace.calls[int(node["id"])] = call
            trace.parents[int(node["id"])] = int(
                node["ctrl_deps"] if "ctrl_deps" in node else node.get("parent", -1)
            )
    elif name.startswith("c10d::"):
        index = ROOT_OR_PEER.get(name.removeprefix("c10d::"))
        inputs = _inputs(node)
        target = inputs[index] if index is not None and index < len(inputs) else -1
        kind = kind_of(name)
        if kind is not None:
            trace.issuers[int(node["id"])] = (kind, target if isinstance(target, int) else -1)
    elif name.startswith(HOST_LIBRARIES):
        call = _call_of_tensors(name, _inputs(node), _dtype(node))
        if call is not None:
            trace.on_host[int(node["id"])] = call
    elif _GROUPS in name:
        groups = json.loads(_inputs(node)[0])
        sizes = [
            int(group["group_size"]) for group in groups if group.get("pg_desc") == "default_pg"
        ]
        trace.world_size = next(iter(sizes), None)


def _recorded_call(trace: _Trace, node: Record) -> Call | None:
    """Parse the call of a node `record_param_comms`; None if it names no communication.

    If the node has the attribute `collective_name`, its attributes describe the call. Otherwise
    (schema 1.0.1) the first text among the inputs that names a communication is the operation. The
    two inputs after the operation are the splits, unless there are fewer or both are empty; bytes
    and dtype are those of the first input. Raises `InputError` for an invalid list of ranks, and
    `ValueError` for a number among the attributes that is no integer.
    """
    attributes = {attribute["name"]: attribute.get("value") for attribute in node.get("attrs", [])}
    if "collective_name" in attributes:
        named = {_NAMES[name]: value for name, value in attributes.items() if name in _NAMES}
        return call_of_args(named, group_of_args(named, trace.file))
    inputs = _inputs(node)
    name = next((value for value in inputs if isinstance(value, str) and kind_of(value)), "wait")
    call = _call_of_tensors(name, inputs, _dtype(node))
    if call is None:
        return None
    after = inputs[inputs.index(name) + 1 :]
    if len(after) < 2 or not any(after[:2]):
        return call
    return replace(call, splits=(json.dumps(after[0]), json.dumps(after[1])))


def _call_of_tensors(name: str, inputs: Sequence[Any], dtype: str) -> Call | None:
    """Return the call of operation `name`, with the bytes and the dtype of its first input.

    The first of `inputs` is a tensor ([id, storage, offset, elements, bytes per element,
    device]) or a list of tensors, whose bytes are added up. Without tensors the dtype is "",
    and the bytes are unknown (-1), 0 for a barrier. None if `name` is no communication. Raises
    `IndexError` for a shorter tensor.
    """
    first = inputs[0] if inputs and isinstance(inputs[0], list) else []
    tensors = first if first and isinstance(first[0], list) else [first] if first else []
    # A tensor is [id, storage, offset, elements, bytes of an element, device].
    sizes = [int(tensor[3]) * int(tensor[4]) for tensor in tensors]
    call = call_of_shapes(name, (), ())
    if call is None or not sizes:
        return call
    return replace(call, bytes=sum(sizes), dtype=dtype)


def _rank_nodes(trace: _Trace, rank: int) -> RankNodes:
    """Build the nodes of a rank: one per call, by id, each of which depends on the previous one.

    The nodes have no durations (-1) and no names of their own. A trace gives the root of a
    collective, or the peer of a message, only in the operator of torch.distributed that issues the
    call; it is -1 for a call without an operator. The first rule that applies:

    1. The trace has calls on devices: only these are used. The operator of a call is the node that
       encloses it.
    2. Otherwise the calls of host libraries are used, which run in other threads. The operator of
       the k-th call is the k-th operator of the same kind and collective, by id.
    """
    if trace.calls:
        calls = [
            with_target(call, trace.issuers.get(trace.parents[identity], (None, -1))[1])
            for identity, call in sorted(trace.calls.items())
        ]
    else:
        waiting: dict[object, list[int]] = {}
        for _, (kind, target) in sorted(trace.issuers.items(), reverse=True):
            waiting.setdefault(kind, []).append(target)
        calls = []
        for _, call in sorted(trace.on_host.items()):
            targets = waiting.get((call.kind, call.collective))
            calls.append(with_target(call, targets.pop() if targets else -1))
    nodes = RankNodes(trace.file, rank, trace.world_size, (), calls)
    for index in range(len(calls)):
        row = nodes.add(-1, -1, on_host=False, call=index)
        if row:
            nodes.link(row - 1, row)
    return nodes


def _inputs(node: Record) -> list[Any]:
    """Return the values of a node's inputs as a new list; [] without inputs.

    They are a list in schema 1.0.1, and the member `values` of an object in later versions.
    Raise `KeyError` for an object without this member.
    """
    inputs = node.get("inputs", [])
    values = inputs["values"] if isinstance(inputs, dict) else inputs
    return list(values)


def _dtype(node: Record) -> str:
    """Return the torch type of the first input of a node, such as `float`.

    It is the text in parentheses after `Tensor`, in `inputs.types` or, in older traces, in
    `input_types`. "" if the first input is not a tensor, and without inputs or types.
    """
    inputs = node.get("inputs", [])
    types = inputs.get("types", []) if isinstance(inputs, dict) else node.get("input_types", [])
    match = _TENSOR.search(str(types[0])) if types else None
    return match[1] if match else ""
