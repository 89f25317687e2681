"""Lower a trace to an algorithm: messages and local steps, in an order that keeps every rank busy, with their dependencies."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import numpy as np
import numpy.typing as npt

from collhub_msccl.conflicts.accesses import Edges, conflicts_within_blocks, find_accesses
from collhub_msccl.language.instances import Instances
from collhub_msccl.language.priorities import execution_order
from collhub_msccl.language.stated_blocks import stated_blocks
from collhub_msccl.language.trace import COPY, INPUT, OPERATION_FIELDS, OUTPUT, Trace
from hub_core.algorithm import Algorithm, Provenance
from hub_core.collectives import Buffer, Collective, CollectiveKind, Contributions, CustomContract
from hub_core.steps import StepKind, StepTable

__all__ = ["lower"]

Int64Array = npt.NDArray[np.int64]
Columns = dict[str, Int64Array]


def lower(trace: Trace, file: str, provenance: Provenance | None = None) -> Algorithm:
    """Return the algorithm of a trace, all instances of it.

    Messages match in row order; rows of a rank follow the longest chains of the dataflow, as the public compiler's do.
    Lanes and control dependencies are there only where the program states thread blocks. Raises `InputError` with the
    line where the stated ones cannot be.
    """
    operations = np.asarray(trace.operations, np.int64).reshape(-1, len(OPERATION_FIELDS)).T
    columns = stated_blocks(
        dict(zip(OPERATION_FIELDS, operations, strict=True)), trace.is_manual, file
    )
    order, depth = _order(columns, Instances(trace, columns, 1))
    columns = {name: column[order] for name, column in (columns | {"depth": depth}).items()}
    instances = Instances(trace, columns, trace.instances)
    collective = _collective(trace, instances)
    rows = _sends_first(instances.replicated(columns))
    data = _conflicts(rows, collective, instances.scratch_units)
    control = _program_order(rows)
    return Algorithm(
        collective,
        StepTable.from_columns(trace.num_ranks, rows, data, control, file),
        instances.scratch_units,
        provenance or Provenance("collhub-msccl", version("collhub-msccl"), file),
        extensions={"msccl": {"algo": {"name": trace.name, "proto": trace.protocol}}},
    )


def _order(columns: Columns, single: Instances) -> tuple[Int64Array, Int64Array]:
    """The order of operations, a valid sequential run in which the longest chains go first, and their depths."""
    rows, operation = _rows(single.replicated(columns))
    parents, children = _conflicts(rows, _collective(single.trace, single), single.scratch_units)
    return execution_order(len(columns["kind"]), operation[parents], operation[children])


def _sends_first(columns: Columns) -> Columns:
    """Step columns of operations; of equal depth, which never depend on each other, sends go before receives.

    This keeps a receive next to the send that passes it on, where the runtimes can fuse the two.
    """
    rows, operation = _rows(columns)
    is_receive = np.isin(rows["kind"], (StepKind.RECV, StepKind.RECV_REDUCE))
    order = np.lexsort((is_receive, columns["depth"][operation]))
    return {name: column[order] for name, column in rows.items()}


def _rows(columns: Columns) -> tuple[Columns, Int64Array]:
    """Step columns of operations in order, and the operation that each row belongs to."""
    is_message = columns["src_rank"] != columns["dst_rank"]
    is_copy = columns["kind"] == COPY
    first = {
        "rank": columns["src_rank"],
        "kind": np.where(
            is_message, StepKind.SEND, np.where(is_copy, StepKind.COPY, StepKind.REDUCE)
        ),
        "peer": np.where(is_message, columns["dst_rank"], -1),
        "src_buffer": columns["src_buffer"],
        "src_offset": columns["src_index"],
        "dst_buffer": np.where(is_message, Buffer.UNKNOWN, columns["dst_buffer"]),
        "dst_offset": np.where(is_message, 0, columns["dst_index"]),
        "lane": columns["send_block"],
    }
    second = {
        "rank": columns["dst_rank"],
        "kind": np.where(is_copy, StepKind.RECV, StepKind.RECV_REDUCE),
        "peer": columns["src_rank"],
        "src_buffer": np.where(is_copy, Buffer.UNKNOWN, columns["dst_buffer"]),
        "src_offset": np.where(is_copy, 0, columns["dst_index"]),
        "dst_buffer": columns["dst_buffer"],
        "dst_offset": columns["dst_index"],
        "lane": columns["receive_block"],
    }
    shared = {
        "channel": columns["channel"],
        "count": columns["size"],
        "source_line": columns["line"],
    }
    operation = np.repeat(np.arange(len(is_message)), 1 + is_message)
    is_second = np.append(False, operation[1:] == operation[:-1])[: len(operation)]
    rows = {
        name: np.where(is_second, second[name][operation], first[name][operation]) for name in first
    }
    return rows | {name: column[operation] for name, column in shared.items()}, operation


def _conflicts(rows: Columns, collective: Collective, scratch_units: Int64Array) -> Edges:
    """Pairs (earlier row, later row) of a rank that touch the same memory, one of them writing, in any claimed mode."""
    found: list[Edges] = []
    for in_place, is_claimed in ((True, collective.in_place), (False, collective.out_of_place)):
        if is_claimed:
            accesses = find_accesses(
                rows, rows["rank"], collective.memory_layout(in_place, scratch_units).base
            )
            # Where steps touch more units than can be looked at, all of a rank's order is kept.
            found.append(
                _chain(rows["rank"]) if accesses is None else conflicts_within_blocks(accesses)
            )
    return np.concatenate([parents for parents, _ in found]), np.concatenate(
        [children for _, children in found]
    )


def _program_order(rows: Columns) -> Edges:
    """The order of steps in each stated thread block."""
    has_lane = np.flatnonzero(rows["lane"] >= 0)
    parents, children = _chain(
        rows["rank"][has_lane] * (int(rows["lane"].max(initial=0)) + 1) + rows["lane"][has_lane]
    )
    return has_lane[parents], has_lane[children]


def _chain(key: Int64Array) -> Edges:
    """Each entry with the next one of the same key."""
    order = np.argsort(key, kind="stable")
    is_same = key[order[1:]] == key[order[:-1]]
    return order[:-1][is_same], order[1:][is_same]


def _collective(trace: Trace, instances: Instances) -> Collective:
    kind = CollectiveKind(trace.kind)
    contract = None
    if kind is CollectiveKind.CUSTOM:
        contract = _contract(trace, instances)
        units = int(max(contract.input_units.max(), contract.output_units.max(), 1))
    else:
        shares = (
            trace.num_ranks
            if kind not in (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST)
            else 1
        )
        units = shares * trace.chunk_factor * instances.number
    return Collective(
        kind,
        trace.num_ranks,
        units,
        trace.root if kind is CollectiveKind.BROADCAST else None,
        in_place=trace.is_in_place,
        out_of_place=not trace.is_in_place,
        contract=contract,
    )


def _contract(trace: Trace, instances: Instances) -> CustomContract:
    stated = trace.contract
    if stated is None:
        raise ValueError("the trace of a custom collective states no contract")
    sizes = [
        np.asarray(of, np.int64) * instances.number
        for of in (trace.input_sizes, trace.output_sizes)
    ]
    expected = None if stated.expected is None else _expected(stated.expected, instances)
    return CustomContract(sizes[0], sizes[1], np.asarray(stated.defined, np.bool_), expected)


def _expected(rows: list[list[int]], instances: Instances) -> Contributions:
    rank, index, source_rank, source_index = np.asarray(rows, np.int64).reshape(-1, 4).T
    copies = range(instances.number)

    def each(column: Callable[[int], Int64Array]) -> Int64Array:
        return np.concatenate([column(copy) for copy in copies])

    return Contributions(
        each(lambda copy: rank),
        each(lambda copy: instances.place(rank, np.full_like(rank, OUTPUT), index, copy)),
        each(lambda copy: source_rank),
        each(
            lambda copy: instances.place(source_rank, np.full_like(rank, INPUT), source_index, copy)
        ),
    )
