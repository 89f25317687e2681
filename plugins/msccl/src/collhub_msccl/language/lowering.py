"""Lower a trace to an algorithm: order of the operations, instances, collective, steps.

Operations become messages and local steps with their dependencies, in an order that keeps every
rank busy. Source of the order: the scheduler of MSCCLang (Cowan et al., ASPLOS 2023, section on
lowering); fusion and thread blocks are left to the writer of the runtime's file.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collhub_msccl.accesses import Edges, find_accesses, find_conflicts_within_blocks
from collhub_msccl.findings import build_provenance
from collhub_msccl.language.operation_columns import Instances, assign_blocks
from collhub_msccl.language.trace import COPY, INPUT, OPERATION_FIELDS, OUTPUT, Trace
from hub_core.columns import Int64Array, group_of_entry, row_pointer, run_mask
from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    Contributions,
    CustomContract,
    JsonValue,
    Provenance,
    StepKind,
    StepTable,
)


def xml_text(algorithm: Algorithm) -> str:
    """Return the MSCCL-IR XML text of an algorithm, written with the default options of the writer.

    The text is the file that `collhub convert` writes without options. It ends with a line feed.
    The losses and notes of the writer are dropped, and no file is written to disk. Raises
    `InputError`, with the exceeded limit, if the runtime cannot execute the algorithm. All other
    errors of the writer (`write`) pass through.
    """
    # Imported here: a program that is only lowered does not need the writer.
    from collhub_msccl.plugin import WriteOptions
    from collhub_msccl.writing.write_xml import write

    # The function of the registered writer, so that a program's XML() and `collhub convert` agree.
    result = write(algorithm, WriteOptions())
    return b"".join(artifact.content() for artifact in result.artifacts).decode()


def compute_execution_order(
    operations: int, parents: Int64Array, children: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the order in which to execute operations, and the depth of each: two int64 arrays.

    The depth is the number of operations in the longest dependency chain before an operation, by
    operation in program order. The order has row numbers: by depth, then by the longest chain after
    the operation (longest first), then by program order, like the heap of MSCCLang's scheduler. It
    respects all dependencies and is the same on both sides of every connection, so messages cannot
    deadlock. `parents`, `children`: pairs of dependent operations, each parent below its child.
    Cost: n log n in the number of pairs.
    """
    depth = _compute_longest_chains(operations, parents, children)
    # In reverse order, children precede their parents.
    last = operations - 1
    height = _compute_longest_chains(operations, last - children, last - parents)[::-1]
    in_program = np.arange(operations)
    return np.lexsort((in_program, -height, depth)), depth


def _compute_longest_chains(
    operations: int, parents: Int64Array, children: Int64Array
) -> Int64Array:
    """Return, for each operation, the number of operations in the longest chain before it: int64.

    An operation without parents has 0; any other has 1 + the maximum of its parents. `parents[i]`
    and `children[i]` are a pair of dependent operations, numbered from 0. The pairs may be in any
    order and may be repeated. Each parent must have a lower number than its child; this is not
    checked. With 4 operations and the pairs (0, 1), (1, 3), (0, 3) the result is 0, 1, 0, 2.
    Without operations it is empty.
    """
    by_child = np.lexsort((parents, children))
    pairs = zip(parents[by_child].tolist(), children[by_child].tolist(), strict=True)
    chain = [0] * operations
    # Parents precede their children, so their chains are final.
    for parent, child in pairs:
        if chain[parent] >= chain[child]:
            chain[child] = chain[parent] + 1
    return np.asarray(chain, np.int64)


def lower_collective(trace: Trace, instances: Instances) -> Collective:
    """Build the collective that all instances of a program implement together.

    An instance is a copy of the program on its part of the data. One chunk of one instance is one
    unit. `unit_count` for a custom collective is the largest input or output size of any rank in
    chunks, times the number of instances, at least 1. For other kinds it is `chunk_factor` times
    the number of instances; for all-gather, reduce-scatter and all-to-all also times the ranks.

    The only mode is in place if `trace.is_in_place`, else out of place. Only a broadcast has a
    root (`trace.root`). Only a custom collective has a contract, with sizes for all instances.

    Raises `ValueError` for an unknown kind, and for a custom collective without `trace.contract`.
    Raises `InputError` (`invalid-collective`) for values that `Collective` refuses.
    """
    kind = CollectiveKind(trace.kind)
    contract = None
    if kind is CollectiveKind.CUSTOM:
        stated = trace.contract
        if stated is None:
            raise ValueError("the trace of a custom collective has no contract")
        contract = CustomContract(
            np.asarray(trace.input_sizes, np.int64) * instances.number,
            np.asarray(trace.output_sizes, np.int64) * instances.number,
            np.asarray(stated.defined, np.bool_),
            None if stated.expected is None else _build_expected(stated.expected, instances),
        )
        # The longest buffer of any rank: the full buffer of a custom collective has this length.
        units = int(max(contract.input_units.max(), contract.output_units.max(), 1))
    else:
        units = kind.traits.parts(trace.num_ranks) * trace.chunk_factor * instances.number
    return Collective(
        kind,
        trace.num_ranks,
        units,
        trace.root if kind is CollectiveKind.BROADCAST else None,
        in_place=trace.is_in_place,
        out_of_place=not trace.is_in_place,
        contract=contract,
    )


def _build_expected(rows: list[list[int]], instances: Instances) -> Contributions:
    """Build the required result of all instances from the rows of one instance, a program copy.

    A row is (rank, output index, source rank, input index). The indices count the chunks of one
    instance from 0. The row requires that this output chunk contains this input chunk. Several
    rows with one output chunk require the sum of their input chunks.

    The result has len(rows) * number of instances rows: all rows of instance 0 in the given
    order, then all rows of instance 1, and so on. Ranks are copied. Each index becomes the unit
    (one chunk of one instance) that `Instances.compute_offsets` returns for this instance in
    the OUTPUT or INPUT of all instances. Columns are int64. Without rows the result is empty.
    """
    rank, index, source_rank, source_index = np.asarray(rows, np.int64).reshape(-1, 4).T
    output, source = np.full_like(rank, OUTPUT), np.full_like(rank, INPUT)
    copies = range(instances.number)

    def concatenate_copies(column: Callable[[int], Int64Array]) -> Int64Array:
        """The column of every instance, one after the other."""
        return np.concatenate([column(copy) for copy in copies])

    return Contributions(
        concatenate_copies(lambda copy: rank),
        concatenate_copies(lambda copy: instances.compute_offsets(rank, output, index, copy)),
        concatenate_copies(lambda copy: source_rank),
        concatenate_copies(
            lambda copy: instances.compute_offsets(source_rank, source, source_index, copy)
        ),
    )


Columns = dict[str, Int64Array]


def lower(trace: Trace, file: str, provenance: Provenance | None = None) -> Algorithm:
    """Convert a trace to an algorithm with all instances (copies) of the program; keep the trace.

    An operation becomes a send and a receive, or one local step, after `Instances.replicate`.
    Steps of a rank are sorted by: depth (longest chain of dependencies before the operation);
    receives last; `compute_execution_order` of one instance; instance. Messages of one (source,
    destination, channel) match in this order. Data dependencies are those of `_find_conflicts`.

    Thread blocks that the program assigns are lanes; control dependencies join consecutive steps
    of a lane. Otherwise lanes are -1. `extensions["msccl"]` has `algo` (`name`, `proto`), and
    `channels: "unstated"` without any assigned block and channel. `provenance` None: from `file`.

    Raises `InputError` with `file` for invalid thread blocks and for values out of range. Raises
    `ValueError` for a custom collective without a contract.
    """
    table = np.asarray(trace.operations, np.int64).reshape(-1, len(OPERATION_FIELDS))
    columns = dict(zip(OPERATION_FIELDS, table.T, strict=True))
    columns = assign_blocks(columns, trace.is_manual, file)
    # The order of one instance suffices, because the copies are independent.
    single = Instances(trace, columns, 1)
    rows, operation = _build_rows(single.replicate(columns))
    collective = lower_collective(single.trace, single)
    parents, children = _find_conflicts(rows, collective, single.scratch_units)
    order, depth = compute_execution_order(
        len(columns["kind"]), operation[parents], operation[children]
    )
    columns["depth"] = depth
    columns = {name: column[order] for name, column in columns.items()}
    instances = Instances(trace, columns, trace.instances)
    collective = lower_collective(trace, instances)
    columns = instances.replicate(columns)
    rows, operation = _build_rows(columns)
    # Operations of equal depth are independent. Sends precede receives, which puts a receive next
    # to the send that forwards its data, so that the runtimes can fuse the two.
    is_receive = np.isin(rows["kind"], (StepKind.RECV, StepKind.RECV_REDUCE))
    order = np.lexsort((is_receive, columns["depth"][operation]))
    rows = {name: column[order] for name, column in rows.items()}
    data = _find_conflicts(rows, collective, instances.scratch_units)
    # Steps of a declared thread block are executed in order.
    has_lane = np.flatnonzero(rows["lane"] >= 0)
    lane = rows["lane"][has_lane]
    lanes = int(rows["lane"].max(initial=0)) + 1
    # One number per thread block of a rank.
    parents, children = _chain_entries(rows["rank"][has_lane] * lanes + lane)
    control = has_lane[parents], has_lane[children]
    extension: dict[str, JsonValue] = {"algo": {"name": trace.name, "proto": trace.protocol}}
    channel = OPERATION_FIELDS.index("channel")
    if not trace.is_manual and all(operation[channel] < 0 for operation in trace.operations):
        # The writer may choose channels.
        extension["channels"] = "unstated"
    return Algorithm(
        collective,
        StepTable.from_columns(trace.num_ranks, rows, data, control, file),
        instances.scratch_units,
        provenance or build_provenance(file),
        extensions={"msccl": extension},
    )


def _build_rows(columns: Columns) -> tuple[Columns, Int64Array]:
    """Build the step columns of operations in the given order, and the operation of each row.

    Returns (columns by name, int64[rows] with the index of the operation). An operation between
    two ranks is a message and has two rows, first the send, then the receive:

    - send: kind SEND, source rank and source operand; the destination operand is (UNKNOWN, 0).
    - receive: kind RECV for a copy, with the source operand (UNKNOWN, 0). Otherwise
      RECV_REDUCE, whose source operand equals the destination operand. Both have the
      destination rank.

    An operation within one rank has one row: COPY for a copy, otherwise REDUCE, with both
    operands and peer -1. The lane is the operation's receive block for receives, otherwise its
    send block. Channel, count and source line are those of the operation in all rows.
    """
    is_message = columns["src_rank"] != columns["dst_rank"]
    operation = group_of_entry(row_pointer(1 + is_message))
    is_second = ~run_mask(operation)
    is_copy = columns["kind"] == COPY
    local_kind = np.where(is_copy, StepKind.COPY, StepKind.REDUCE)
    first = {
        "rank": columns["src_rank"],
        "kind": np.where(is_message, StepKind.SEND, local_kind),
        "peer": np.where(is_message, columns["dst_rank"], -1),
        "src_buffer": columns["src_buffer"],
        "src_offset": columns["src_index"],
        "dst_buffer": np.where(is_message, Buffer.UNKNOWN, columns["dst_buffer"]),
        "dst_offset": np.where(is_message, 0, columns["dst_index"]),
        "lane": columns["send_block"],
    }
    # The receive of a message. For operations within a rank these values are not used.
    second = {
        "rank": columns["dst_rank"],
        "kind": np.where(is_copy, StepKind.RECV, StepKind.RECV_REDUCE),
        "peer": columns["src_rank"],
        # The local operand of a reducing receive is its destination.
        "src_buffer": np.where(is_copy, Buffer.UNKNOWN, columns["dst_buffer"]),
        "src_offset": np.where(is_copy, 0, columns["dst_index"]),
        "dst_buffer": columns["dst_buffer"],
        "dst_offset": columns["dst_index"],
        "lane": columns["receive_block"],
    }
    rows = {
        name: np.where(is_second, second[name][operation], first[name][operation]) for name in first
    }
    for name, field in (("channel", "channel"), ("count", "size"), ("source_line", "line")):
        rows[name] = columns[field][operation]
    return rows, operation


def _find_conflicts(rows: Columns, collective: Collective, scratch_units: Int64Array) -> Edges:
    """Find pairs of rows of one rank that access the same memory, at least one of them writing.

    Returns two int64 arrays with indices of `rows`: the earlier (lower) and the later row of each
    pair. Pairs are not sorted and may repeat. Pairs of the layout in place precede those of the
    layout out of place; a layout that the collective does not support has none. `scratch_units`:
    size of the scratch buffer of each rank, in units of the collective.

    Memory is compared in blocks. Their size is the greatest common divisor of all first addresses
    and all counts (`find_accesses`). The pairs of a block are: the last write before a read and
    this read; a read and the next write; two consecutive writes without a read in between. A row
    that reads and writes a block counts as a write only. If the reads or the writes in a layout
    access more than 2^22 + 4 * len(rows) blocks in total, its pairs are instead all pairs of
    consecutive rows of a rank.
    """
    parents, children = [], []
    for in_place, is_claimed in ((True, collective.in_place), (False, collective.out_of_place)):
        if is_claimed:
            layout = collective.memory_layout(in_place, scratch_units)
            accesses = find_accesses(rows, rows["rank"], layout.base)
            # If there are too many accesses to analyse, the complete order of each rank is kept.
            if accesses is None:
                earlier, later = _chain_entries(rows["rank"])
            else:
                earlier, later = find_conflicts_within_blocks(accesses)
            parents.append(earlier)
            children.append(later)
    return np.concatenate(parents), np.concatenate(children)


def _chain_entries(key: Int64Array) -> Edges:
    """Return the pairs of consecutive entries with equal keys, as two index arrays.

    The first array has the earlier entries, the second one the later entries. Entries with other
    keys may be in between. The pairs are ordered by key.
    """
    order = np.argsort(key, kind="stable")
    # A stable sort keeps the order of entries with equal keys.
    is_same = key[order[1:]] == key[order[:-1]]
    return order[:-1][is_same], order[1:][is_same]
