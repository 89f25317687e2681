"""Check static rules of a plan: names, sizes, ranges, peers, counts, limits of tables.

The executor mostly overruns its tables unchecked.
"""

from __future__ import annotations

import numpy as np

from collhub_mscclpp.checking.lowering import Counters, as_executed, block_ranks, owners
from collhub_mscclpp.checking.memory import PlanMemory, counts_defect
from collhub_mscclpp.checking.report import PlanFindings
from collhub_mscclpp.plan_records import (
    BUFFER_TYPES,
    CHANNEL_TYPES,
    OPERATIONS,
    Plan,
    Role,
    Scope,
    ThreadBlock,
)
from collhub_mscclpp.plugin import MAX_BLOCK_OPERATIONS
from hub_core.model import Buffer, closest, format_ranks

_PORT = CHANNEL_TYPES.index("port")
# The DSL writes it for a sum through the switch that it could not fuse.
_CURES_OF_NAMES = {"glre": "store the sum through a switch channel too: glres"}
_COLLECTIVES = (
    "allreduce",
    "allgather",
    "reducescatter",
    "reduce_scatter",
    "alltoall",
    "sendrecv",
    "test",
    "custom",
)


def check_header(
    plan: Plan,
    findings: PlanFindings,
) -> None:
    """Report invalid chunk counts, channels of a rank to itself, and inconsistent switch groups.

    "Refused" findings mark the plan as not loadable. The order is: the first two rank by rank,
    then the others.

    - `zero-chunks`: an input or output of 0 chunks, by which the executor divides (refused)
    - `channel-to-itself`: a channel of a rank to itself, once per kind of channel (refused)
    - `switch-order`: see `_check_group_lists` (refused)
    - `chunk-counts`: counts that contradict the collective (`counts_defect`); only without
      `zero-chunks`
    - `no-contract`: a note that the name of the collective is not in `_COLLECTIVES`
    """
    for rank, gpu in enumerate(plan.gpus):
        for name, count in (("input", gpu.input_chunks), ("output", gpu.output_chunks)):
            if not count:
                message = f"$.gpus[{rank}].{name}_chunks: 0, by which the executor divides"
                findings.refuse_rank("zero-chunks", rank, message, "state at least 1")
        for kind, peers in gpu.peers.items():
            if rank in peers:
                message = f"$.gpus[{rank}].channels: a {kind} channel of the rank to itself"
                findings.refuse_rank("channel-to-itself", rank, message, "copy instead")
    _check_group_lists(plan, findings)
    defect = counts_defect(plan)
    if defect and not findings.found.has("zero-chunks"):
        findings.on_plan("chunk-counts", defect, "state the counts that the collective has")
    if plan.header.collective not in _COLLECTIVES:
        findings.found.note(
            "no-contract", f"nothing is known of a collective {plan.header.collective!r}"
        )


def _check_group_lists(plan: Plan, findings: PlanFindings) -> None:
    """Report pairs of ranks that list the switch groups with both of them differently.

    For two ranks, the groups that contain both must be the same in both lists and in the same
    order; groups are equal if buffer and members are equal, in any order of members. The
    executor sets up one channel after another and waits for all members of each
    (`setupConnections` of `executor.cc`), so different lists never finish. There is one refusal
    `switch-order` per pair, at the lower rank; if only one of the two lists a group with the
    other, it is at that one. A refusal marks the plan as not loadable.
    """
    listed = [
        [(group.buffer, tuple(sorted(group.ranks))) for group in gpu.groups] for gpu in plan.gpus
    ]
    pairs = {
        (rank, member)
        for rank, groups in enumerate(listed)
        for _, ranks in groups
        for member in ranks
        if member != rank
    }
    for rank, member in sorted(pairs):
        # Each pair is compared once, also if only one of its ranks lists the group.
        if rank > member and (member, rank) in pairs:
            continue
        common = [
            [key for key in listed[first] if second in key[1]]
            for first, second in ((rank, member), (member, rank))
        ]
        if common[0] != common[1]:
            message = (
                f"its switch channels with rank {member} are not those that rank {member} lists, in"
                " the same order: the set-up waits for ever"
            )
            cure = "list every group on all of its members, in one order"
            findings.refuse_rank("switch-order", rank, message, cure)


def check_operations(plan: Plan, findings: PlanFindings) -> bool:
    """Report operations that cannot be simulated; return True if there are none.

    All are reported as refusals of their operations:

    - `unknown-operation`: a name that the executor does not have
    - `size-mismatch`: ranges that belong together have different sizes
    - `switch-group`: a rank uses a switch channel of whose group it is not a member
    - `port-channels`: more destinations than channels on port channels
    - `range`: a range outside its buffer
    """
    for row, name in plan.unknown_names.items():
        message = f"the executor has no operation {name!r}"
        known = closest(name, OPERATIONS) or f"it has {', '.join(OPERATIONS)}"
        cure = _CURES_OF_NAMES.get(name, known)
        findings.refuse_at("unknown-operation", row, message, cure)
    is_whole = not plan.unknown_names
    is_whole &= _check_sizes(plan, findings)
    # Every rank that uses a switch channel must be in its group.
    operands = plan.operands
    executing_rank = block_ranks(plan)[plan.operations.block[operands.operation]]
    for at in np.flatnonzero(operands.scope == Scope.SWITCH).tolist():
        rank = int(executing_rank[at])
        if rank not in plan.gpus[rank].groups[int(operands.reference[at])].ranks:
            message = f"rank {rank} is not in the group of its switch channel"
            row = int(operands.operation[at])
            findings.refuse_at("switch-group", row, message, "list every member itself")
            is_whole = False
    # Destination k of a port operation uses channel k.
    table, operands = plan.operations, plan.operands
    is_port = table.channel_type == _PORT
    targets = np.bincount(operands.operation[operands.is_dst == 1], minlength=len(table))
    channels = np.bincount(plan.items.operation, minlength=len(table))
    lacking = np.flatnonzero(is_port & (targets > channels))
    for row in lacking.tolist():
        message = f"{targets[row]} ranges in dst_buff go through {channels[row]} channels"
        cure = "list one channel in channel_ids for each range"
        findings.refuse_at("port-channels", row, message, cure)
    is_whole &= not len(lacking)
    return is_whole & _check_bounds(plan, findings)


def _check_sizes(plan: Plan, findings: PlanFindings) -> bool:
    """Report ranges of an operation that must have one size but differ; return True if none does.

    If the operation pairs source k with destination k, the ranges of each position must have one
    size, otherwise all ranges. Each range whose size differs from the first one is a refusal
    `size-mismatch`.
    """
    operands = plan.operands
    is_right = True
    keys: dict[tuple[int, int], int] = {}
    columns = zip(
        operands.operation.tolist(),
        operands.position.tolist(),
        operands.size.tolist(),
        strict=True,
    )
    for row, position, size in columns:
        operation = plan.operation(row)
        is_each = operation is not None and operation.is_each
        key = (row, position if is_each else 0)
        if keys.setdefault(key, size) != size:
            message = f"ranges of {keys[key]} and of {size} chunks belong together"
            findings.refuse_at("size-mismatch", row, message, "give them one size")
            is_right = False
    return is_right


def _check_bounds(
    plan: Plan,
    findings: PlanFindings,
) -> bool:
    """Report ranges that exceed their buffers; return True if none does.

    The buffer and index are those that the executor uses, which can differ from the plan for puts
    and gets. A range exceeds if index plus size is greater than the chunks of this buffer on the
    rank that owns it. Each one is a refusal `range` at its operation.
    """
    operands = plan.operands
    sizes = np.asarray(
        [(gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks) for gpu in plan.gpus], np.int64
    )
    operand, owner = owners(plan)
    buffer, index = as_executed(plan)
    end = (index + operands.size)[operand]
    room = sizes[owner, buffer[operand]]
    outside = np.flatnonzero(end > room)
    for at in outside.tolist():
        row = int(operands.operation[operand[at]])
        name = BUFFER_TYPES[int(buffer[operand[at]])]
        message = (
            f"a range ends at chunk {end[at]}, buffer {name!r} of rank {owner[at]} has {room[at]}"
        )
        findings.refuse_at("range", row, message, "state larger buffers or other ranges")
    return not len(outside)


def check_offsets(plan: Plan, memory: PlanMemory, findings: PlanFindings) -> None:
    """Report operations for which the executor computes a wrong address in place.

    In place, the smaller one of input and output is a part of the larger one; its offset there may
    differ between ranks. Two kinds of ranges are wrong: a range in the memory of other ranks,
    because the executor adds the offset of the local rank, if that differs from the offset of the
    owner; and a local range of an operation on port channels, because proxies add no offset, if the
    rank has one. There is one finding `buffer-offset` per operation, about its first wrong range.
    Nothing is reported for plans out of place, and if all offsets are 0.
    """
    base = memory.layout.base[:, [Buffer.INPUT, Buffer.OUTPUT]]
    offset = base - base.min(axis=1)[:, None]
    if not plan.header.in_place or not offset.any():
        return
    operand, owner = owners(plan)
    operands = plan.operands
    row = operands.operation[operand]
    executing_rank = block_ranks(plan)[plan.operations.block[row]]
    # Scratch is a separate allocation without an offset.
    padded = np.pad(offset, ((0, 0), (0, 1)))
    buffer = as_executed(plan)[0][operand]
    is_far = operands.scope[operand] != Scope.LOCAL
    is_near_port = ~is_far & (plan.operations.channel_type[row] == _PORT)
    is_missed = is_far & (padded[executing_rank, buffer] != padded[owner, buffer])
    is_missed |= is_near_port & (padded[executing_rank, buffer] != 0)
    _, first = np.unique(row[is_missed], return_index=True)
    for at in np.flatnonzero(is_missed)[first].tolist():
        name = BUFFER_TYPES[int(buffer[at])]
        other_buffer = BUFFER_TYPES[1 - int(buffer[at])]
        message = (
            f"in place, buffer {name!r} of rank {owner[at]} is a part of buffer {other_buffer!r},"
            " and the executor computes the address without the offset of that part"
        )
        cure = f"name the range of buffer {other_buffer!r} that it is"
        findings.at("buffer-offset", int(row[at]), message, cure)


def check_halves(plan: Plan, findings: PlanFindings) -> bool:
    """Report ranks that use each other's double scratch but have different sizes of it.

    Double scratch has one half for even and one for odd launches. In every second launch a sender
    adds half of its own scratch to the remote address. Ranks that access the scratch of another
    rank form groups with it, directly or through further ranks. A group with different sizes (in
    chunks) gives one finding `scratch-halves`, which proposes the largest size. Returns True if all
    groups have equal sizes, or without double scratch.
    """
    if not plan.header.double_scratch:
        return True
    operand, owner = owners(plan)
    operands = plan.operands
    executing_rank = block_ranks(plan)[plan.operations.block[operands.operation[operand]]]
    is_far = (operands.buffer[operand] == BUFFER_TYPES.index("s")) & (owner != executing_rank)
    pairs = np.unique(np.stack([executing_rank, owner], axis=1)[is_far], axis=0)
    is_right = True
    # Connected components of the ranks under the pairs, numbered by their lowest rank.
    group = list(range(plan.num_ranks))
    for first, second in pairs.tolist():
        low, high = sorted((group[first], group[second]))
        if low != high:
            group = [low if number == high else number for number in group]
    for number in sorted(set(group)):
        by_size: dict[int, list[int]] = {}
        for rank in range(plan.num_ranks):
            if group[rank] == number:
                by_size.setdefault(plan.gpus[rank].scratch_chunks, []).append(rank)
        if len(by_size) > 1:
            sizes = ", ".join(
                f"{size} on {'ranks' if len(members) > 1 else 'rank'} {format_ranks(members)}"
                for size, members in sorted(by_size.items())
            )
            message = (
                f"scratch_chunks of ranks that write to each other's scratch differ: {sizes};"
                " in every second launch a sender adds half of its own scratch to the remote"
                " address, so packets go astray or out of bounds"
            )
            findings.on_plan("scratch-halves", message, f"state {max(by_size)} on all of them")
            is_right = False
    return is_right


def check_counters(
    plan: Plan,
    counters: Counters,
    findings: PlanFindings,
) -> None:
    """Report counters that a launch does not leave at their initial value, as `unbalanced`.

    A counter is a semaphore or the signals of a channel. Increments and takes (waits) must be
    balanced in total, and also separately outside pipelines and in each kind of pipeline (bytes and
    chunks of a slice), because a pipeline repeats its operations for every slice. A finding is at
    the first operation of its counter. Operations on channels without a partner are skipped.
    """
    table, items = plan.operations, plan.items
    # Operations of a pipeline are repeated for each of its slices.
    slices: list[tuple[int, int]] = []
    for outer in table.pipeline[items.operation].tolist():
        unit = (int(table.slice_bytes[outer]), int(table.slice_chunks[outer]))
        slices.append(unit if outer >= 0 else (0, 0))
    balance: dict[int, dict[tuple[int, int], int]] = {}
    first: dict[int, int] = {}
    columns = zip(counters.of_item.tolist(), items.operation.tolist(), slices, strict=True)
    for counter, row, unit in columns:
        operation = plan.operation(row)
        if counter < 0 or operation is None:
            continue
        sign = -1 if operation.role in (Role.WAIT, Role.ACQUIRE) else 1
        of_unit = balance.setdefault(counter, {})
        of_unit[unit] = of_unit.get(unit, 0) + sign
        first.setdefault(counter, row)
    for counter, of_unit in balance.items():
        _report_balance(counters.names[counter], of_unit, first[counter], findings)


def _report_balance(
    name: str,
    of_unit: dict[tuple[int, int], int],
    row: int,
    findings: PlanFindings,
) -> None:
    """Report a counter whose increments and takes differ in a launch, as at most one `unbalanced`.

    `name`: of the counter. `of_unit`: increments minus takes, by kind of pipeline (bytes and chunks
    of a slice). `row`: first operation that uses the counter. If the total is not 0, the difference
    is reported; otherwise it is reported if a kind of pipeline is unbalanced.
    """
    total = sum(of_unit.values())
    if total:
        kind = "raised more often than awaited" if total > 0 else "awaited more often than raised"
        message = f"{name} is {kind}, by {abs(total)} in every launch"
        findings.at("unbalanced", row, message, "balance them in every launch")
    elif any(of_unit.values()):
        message = f"{name} is raised and awaited in pipelines of different numbers of slices"
        findings.at("unbalanced", row, message, "use one iter_context for both")


def check_barriers(
    plan: Plan,
    findings: PlanFindings,
) -> None:
    """Report barriers with inconsistent numbers of thread blocks, as `barrier-blocks`.

    A barrier is identified by rank and number. There is a finding at each use whose
    `num_threadblocks` differs from that of the first use. There is one at the first use if the
    number of thread blocks that use the barrier differs from its `num_threadblocks`, or if they use
    it unequally often.
    """
    table = plan.operations
    users: dict[tuple[int, int], dict[int, int]] = {}
    first: dict[tuple[int, int], int] = {}
    for row in np.flatnonzero(table.barrier >= 0).tolist():
        block = int(table.block[row])
        key = (plan.blocks[block].rank, int(table.barrier[row]))
        uses = users.setdefault(key, {})
        uses[block] = uses.get(block, 0) + 1
        stated = first.setdefault(key, row)
        if table.barrier_blocks[row] != table.barrier_blocks[stated]:
            message = "another use of this barrier states another num_threadblocks"
            findings.at("barrier-blocks", row, message, "state one number in all uses")
    for key, uses in users.items():
        row = first[key]
        stated_blocks = int(table.barrier_blocks[row])
        if len(uses) != stated_blocks or len(set(uses.values())) > 1:
            message = (
                f"{len(uses)} thread blocks use a barrier for {stated_blocks}, equally often or not"
            )
            cure = "let exactly the stated number use it, each equally often"
            findings.at("barrier-blocks", row, message, cure)


MOST_OPERATIONS = MAX_BLOCK_OPERATIONS
MOST_CHANNELS = 16
MOST_REMOTE_BUFFERS = 16
MOST_CHANNELS_OF_OPERATION = 8
MOST_RANGES = 10
MOST_BARRIERS = 16
MOST_SEMAPHORES_OF_OPERATION = 16
MOST_SLICES = 65_535


def check_limits(
    plan: Plan,
    findings: PlanFindings,
) -> None:
    """Report numbers that exceed a table of the executor (`execution_common.hpp`) as refusals.

    - 64 operations per thread block
    - 16 channels and 16 remote buffers per thread block and channel type
    - 10 ranges in src_buff, and 10 in dst_buff, per operation
    - 8 channels or 16 semaphores per operation
    - barriers of a rank with numbers from 0 to 15

    Each excess is a separate finding.
    """
    count = np.bincount(plan.operations.block, minlength=len(plan.blocks))
    for number, block in enumerate(plan.blocks):
        name = f"thread block {block.position}"
        if count[number] > MOST_OPERATIONS:
            message = f"{name} has {count[number]} operations, at most {MOST_OPERATIONS} fit"
            cure = "go on in another thread block behind a semaphore"
            findings.refuse_rank("limit-operations", block.rank, message, cure)
        _check_tables(block, name, findings)
    operands = plan.operands
    # Sources and destinations have separate tables.
    for side, key in ((0, "src_buff"), (1, "dst_buff")):
        rows = operands.operation[operands.is_dst == side]
        count = np.bincount(rows, minlength=len(plan.operations))
        for row in np.flatnonzero(count > MOST_RANGES).tolist():
            message = f"{count[row]} ranges in {key}, at most {MOST_RANGES} fit"
            findings.refuse_at("limit-ranges", row, message, "divide the operation")
    count = np.bincount(plan.items.operation, minlength=len(plan.operations))
    for row in np.flatnonzero(count > MOST_CHANNELS_OF_OPERATION).tolist():
        operation = plan.operation(row)
        # Semaphores and channels are in one column but have tables of different sizes.
        is_semaphore = operation is not None and operation.role in (Role.ACQUIRE, Role.RELEASE)
        resource = "semaphores" if is_semaphore else "channels"
        maximum = MOST_SEMAPHORES_OF_OPERATION if is_semaphore else MOST_CHANNELS_OF_OPERATION
        if count[row] > maximum:
            message = f"{count[row]} {resource}, at most {maximum} fit"
            code = f"limit-{resource}-of-operation"
            findings.refuse_at(code, row, message, "divide the operation")
    for row in np.flatnonzero(plan.operations.barrier >= MOST_BARRIERS).tolist():
        barrier = int(plan.operations.barrier[row])
        message = f"barrier {barrier}, but there are barriers 0..{MOST_BARRIERS - 1}"
        findings.refuse_at("limit-barriers", row, message, "number barriers of a rank from 0")


def _check_tables(
    block: ThreadBlock,
    name: str,
    findings: PlanFindings,
) -> None:
    """Report a thread block with too many channels or remote buffers of one channel type.

    The limits are `MOST_CHANNELS` and `MOST_REMOTE_BUFFERS` (16 each) per type, because each type
    has tables of its own. Each excess is a separate refusal of the rank: `limit-channels` or
    `limit-remote-buffers`. `name` is the name of the thread block in messages.
    """
    cure = "divide its peers among several thread blocks"
    for kind in CHANNEL_TYPES:
        # Each type has separate tables.
        channels = len(block.channels[kind])
        buffers = len(block.remote_buffers.get(kind, ()))
        if channels > MOST_CHANNELS:
            message = f"{name} has {channels} {kind} channels, at most {MOST_CHANNELS} fit"
            findings.refuse_rank("limit-channels", block.rank, message, cure)
        if buffers > MOST_REMOTE_BUFFERS:
            message = (
                f"{name} refers to {buffers} remote buffers by {kind} channels,"
                f" at most {MOST_REMOTE_BUFFERS} fit"
            )
            findings.refuse_rank("limit-remote-buffers", block.rank, message, cure)
