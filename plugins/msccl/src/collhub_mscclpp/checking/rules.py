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
from hub_core.columns import connected_parts
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

    The findings are added to `findings`. Those called refusals also mark the plan as not loadable.

    - `zero-chunks`: an input or output of 0 chunks, by which the executor divides (refusal)
    - `channel-to-itself`: a channel of a rank to itself, once per kind of channel (refusal)
    - `switch-order`: two ranks whose lists of the groups that contain both of them differ in a
      group or in the order; once per pair (refusal)
    - `chunk-counts`: counts that contradict the collective (`counts_defect`), an error of the whole
      plan; not reported if `findings` has a `zero-chunks`
    - `no-contract`: a note that the name of the collective is not in `_COLLECTIVES`

    The order is that of the list, but the first two rules alternate: both are checked for rank 0,
    then for rank 1, and so on.
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

    Each of the five checks runs for all operations, also after an earlier check failed. Each
    defect is added to `findings` as an error at its operation, so that an operation can have
    several. Codes, in the order of the checks:

    - `unknown-operation`: the executor has no operation of this name.
    - `size-mismatch`: the ranges of an operation differ in size. If the operation pairs
      source k with destination k, only the ranges of a pair must be equal.
    - `switch-group`: the rank is not a member of the group of its switch channel.
    - `port-channels`: an operation on port channels has more destinations than channels.
    - `range`: a range exceeds the buffer of the rank that owns it.
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
    """Refuse ranges of different sizes within an operation of the plan; return True without any.

    If an operation pairs source k with destination k (`is_each`), the ranges at the same position
    must have one size. Otherwise all ranges of the operation must. Each range whose size differs
    from that of the first one adds a refusal `size-mismatch` to `findings`.
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

    A range exceeds if its index plus its size is greater than the chunks of its buffer on the rank
    that owns the memory. Each such range adds an error `range` at its operation, in the order of
    `owners`; a range of a switch is checked for every rank of its group. Buffer and index are those
    that the executor uses (`as_executed`). They can differ from the plan for puts and gets.
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
        cure = "state larger buffers or other ranges"
        if index[operand[at]] != operands.index[operand[at]]:
            message += "; the executor swaps the indices of both sides of a get"
            cure = "use equal indices"
        findings.refuse_at("range", row, message, cure)
    return not len(outside)


def check_offsets(plan: Plan, memory: PlanMemory, findings: PlanFindings) -> None:
    """Report operations whose address the executor computes wrongly in place (`buffer-offset`).

    In place, the smaller one of input and output is a part of the larger one. Its offset is the
    position at which it begins there, and may differ between ranks. Scratch and the larger buffer
    have the offset 0. A range is wrong in two cases:

    - It is in the memory of another rank or of a switch group, and the offset of its buffer on the
      executing rank differs from that on an owner. The executor adds the offset of the executing
      rank.
    - It is a local range of an operation on port channels, and the offset of its buffer is not 0.
      Proxies add no offset.

    There is one error per operation, about its first wrong range, in the order of the operations.
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

    Returns True if there are none, or if the plan has no double scratch. Double scratch has one
    half for even and one for odd launches. In every second launch a sender adds half of its own
    scratch to the remote address.

    Two ranks belong together if one accesses the scratch of the other; groups are connected by such
    pairs. A group with different scratch sizes (in chunks) gives one error `scratch-halves` about
    the plan. It lists the sizes with their ranks and proposes the largest size. Groups are in the
    order of their lowest rank.
    """
    if not plan.header.double_scratch:
        return True
    operand, owner = owners(plan)
    operands = plan.operands
    executing_rank = block_ranks(plan)[plan.operations.block[operands.operation[operand]]]
    is_far = (operands.buffer[operand] == BUFFER_TYPES.index("s")) & (owner != executing_rank)
    pairs = np.unique(np.stack([executing_rank, owner], axis=1)[is_far], axis=0)
    is_right = True
    group = connected_parts(pairs[:, 0], pairs[:, 1], plan.num_ranks).tolist()
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

    A counter is a semaphore or the signals of a channel. Each channel or semaphore of an operation
    takes 1 (wait or acquire) or adds 1 (any other operation). An operation in a pipeline counts
    once, although it is repeated for every slice. Operations on channels without a partner, and
    unknown operations, are skipped.

    A counter has an error if its total of the launch is not 0. Otherwise it has an error if the sum
    of a kind of pipeline is not 0. A kind is the bytes and chunks of a slice; operations outside of
    pipelines are one kind, too. The error is at the first operation of the counter. Errors are in
    the order of these operations.
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
        name, row, total = counters.names[counter], first[counter], sum(of_unit.values())
        if total:
            kind = (
                "raised more often than awaited" if total > 0 else "awaited more often than raised"
            )
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

    A barrier is identified by rank and number; each operation on it is a use. First, in the order
    of the operations, each use whose `num_threadblocks` differs from that of the first use of its
    barrier gets an error. Then each barrier gets at most one error, at its first use, if one of
    these holds:

    - The number of thread blocks that use it differs from `num_threadblocks` of the first use.
    - The thread blocks use it unequally often.
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

    A refusal is an error that marks the plan as not loadable. Each excess is a separate one; a
    number that equals its limit is allowed. The limits, in the order of the report:

    1. For each thread block: 64 operations (`limit-operations`), then 16 channels and 16 remote
       buffers per channel type (`_check_tables`). These refusals are about the rank.
    2. For each operation: 10 ranges in src_buff (`limit-ranges`).
    3. For each operation: 10 ranges in dst_buff (`limit-ranges`).
    4. For each operation: 16 semaphores if it acquires or releases them
       (`limit-semaphores-of-operation`), otherwise 8 channels (`limit-channels-of-operation`).
    5. For each operation on a barrier: number at most 15 (`limit-barriers`).
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

    The limits are 16 each (`MOST_CHANNELS`, `MOST_REMOTE_BUFFERS`) per type, because each type has
    separate tables; exactly 16 are allowed. Entries of the lists of the thread block are counted.
    Each excess is a separate refusal of the rank, in the order of `CHANNEL_TYPES`:
    `limit-channels`, then `limit-remote-buffers`. `name`: name of the thread block in messages.
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
