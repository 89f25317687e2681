"""Buckets: several collectives of one kind become one collective.

The members of a bucket are one stage. Each message of its collective carries a chunk of every
member, so that the result of a member is its part of the common result. A bucket starts when the
operands of all members are complete. Sources: the buckets of PyTorch's DistributedDataParallel (Li
et al., VLDB 2020) and `all_reduce_coalesced`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collhub_coconet.lowering.algorithms import count_buffer_bytes
from collhub_coconet.program.operations import Binding
from collhub_coconet.program.program import (
    BUCKET,
    BUCKET_KINDS,
    BucketClass,
    Program,
    Stage,
    find_descendants,
    order_groups,
)
from collhub_coconet.transformations.legality import (
    Conditions,
    Rewrite,
    choose_name,
    find_members,
)


def coalesce(program: Program, members: Sequence[str], name: str = BUCKET) -> Rewrite:
    """Return the program with the collectives `members` in one new bucket, and the record of it.

    `members`: names of operations, or of buckets, which stand for all their operations. The new
    bucket is the last stage and replaces the given buckets. It is called `name`; a number is
    appended if that is in use.

    Raises `RefusedMoveError` (code `refused-` and the name of the condition) for the first
    condition that is violated; the last four ones are checked collective by collective:

    1. `target`: Each name is an operation or a bucket.
    2. `order`: The program has no chain.
    3. `several`: There are at least two collectives.
    4. `collective`: It is an AllReduce, ReduceScatter, AllGather or uneven collective.
    5. `one-class`: It has the kind, reduction, group, mesh axes, element type and counts of the
       first one.
    6. `whole-stages`: It is in no stage, or in a bucket of which all operations are members.
    7. `independent`: It depends on no other member, also indirectly.

    Finally `no-cycle` is checked: no stage must run after one member and before another one.
    """
    conditions = Conditions("coalesce", program, {"members": tuple(members), "name": name})
    buckets = {stage.name: stage.members for stage in program.stages if stage.family == BUCKET}
    names = [name for member in members for name in buckets.get(member, (member,))]
    chosen = find_members(program, names, conditions)
    first = chosen[0].name if chosen else name
    _check_no_chain(program, first, conditions)
    message = "one collective is no bucket"
    conditions.require(len(chosen) > 1, "several", first, message, "add one")
    inside = {operation.name for operation in chosen}
    expected = program.classify_for_bucket(chosen[0])
    staged = {
        name
        for stage in program.stages
        if stage.family != BUCKET or not inside.issuperset(stage.members)
        for name in stage.members
    }
    dependent = find_descendants(program.operations, inside)
    for operation in chosen:
        actual = program.classify_for_bucket(operation)
        message = f"{operation.kind} is no AllReduce, ReduceScatter, AllGather or uneven collective"
        cure = "name collectives of these kinds"
        conditions.require(actual is not None, "collective", operation.name, message, cure)
        different = "kind, reduction, group, axis, element type or counts"
        message = f"it differs from {first} in {different}"
        cure = "put equal collectives into a bucket"
        conditions.require(actual == expected, "one-class", operation.name, message, cure)
        message = "it is a member of a stage with operations outside the set"
        cure = "name the bucket itself, or leave the operation out"
        conditions.require(
            operation.name not in staged, "whole-stages", operation.name, message, cure
        )
        message = "it depends on another member"
        cure = "put independent collectives into a bucket"
        conditions.require(
            operation.name not in dependent, "independent", operation.name, message, cure
        )
    stages = _add_stages(program, [[operation.name for operation in chosen]], name)
    message = "the bucket and another stage would wait for one another"
    order = order_groups(program.operations, [stage.members for stage in stages])
    conditions.require(order is not None, "no-cycle", first, message, "leave an operation out")
    return Rewrite(program.with_stages(stages, program.chains), conditions.to_record())


def coalesce_by_size(program: Program, binding: Binding, bucket_bytes: int) -> Rewrite:
    """Put the collectives outside of stages into buckets; return the new program and its record.

    The collectives of a bucket have one class: equal kind, reduction, group, mesh axes, element
    type and counts. In the order of execution, each collective joins the open bucket of its class.
    If it depends on a member, this bucket is closed before, and it begins the next one. A bucket is
    closed once the full buffers of its members have at least `bucket_bytes` bytes.

    Buckets of one collective are dropped. If the others and the stages have no common order of
    execution, each bucket that prevents it is halved repeatedly, and halves of one collective are
    dropped. The buckets become the last stages. The given program is not changed.

    Raises `RefusedMoveError` if the program has a chain (`refused-order`), or if no bucket remains
    (`refused-several`).
    """
    conditions = Conditions("coalesce", program, {"bucket_size": bucket_bytes})
    first = program.operations[0].name if program.operations else program.name
    _check_no_chain(program, first, conditions)
    sizes = _list_sizes(program, binding)
    groups = [group for group in _fill_buckets(program, sizes, bucket_bytes) if len(group) > 1]
    fixed = [stage.members for stage in program.stages]
    if order_groups(program.operations, [*fixed, *groups]) is None:
        divided: list[list[str]] = []
        for group in groups:
            divided += _divide_cycles(program, divided, group)
        groups = [group for group in divided if len(group) > 1]
    message = f"no two collectives share a bucket of {bucket_bytes} bytes"
    conditions.require(bool(groups), "several", first, message, "state a larger bucket size")
    for name in (name for group in groups for name in group):
        for condition in ("one-class", "whole-stages", "independent"):
            conditions.require(True, condition, name, "", "")
    for group in groups:
        conditions.require(True, "no-cycle", group[0], "", "")
    stages = _add_stages(program, groups, BUCKET)
    count = sum(map(len, groups))
    note = f"{count} collectives in {len(groups)} buckets of {bucket_bytes} bytes or more"
    return Rewrite(program.with_stages(stages, program.chains), conditions.to_record((note,)))


def list_bucket_sizes(program: Program, binding: Binding, max_count: int = 8) -> list[int]:
    """Return bucket sizes in bytes that are useful to try, in descending order.

    Only collectives of `BUCKET_KINDS` outside of stages count. They are in one class if kind,
    reduction, group, mesh axes, element type and counts are equal. Only classes of at least two
    collectives count. A collective has the bytes of its full buffer (`count_buffer_bytes`, which
    has the errors).

    The first size is the largest total of a class, so that each class fits one bucket. Then follow
    all powers of two below this total and above the smallest collective of all classes:
    collectives of 3, 8 and 20 bytes give 31, 16, 8, 4. At most `max_count` sizes are returned, but
    at least the first one. The list is empty if no class has two collectives.
    """
    sizes: dict[BucketClass, list[int]] = {}
    for name, size in _list_sizes(program, binding).items():
        key = program.classify_for_bucket(program.by_name[name])
        if key is not None:
            sizes.setdefault(key, []).append(size)
    shared = [entries for entries in sizes.values() if len(entries) > 1]
    if not shared:
        return []
    total, smallest = max(map(sum, shared)), min(map(min, shared))
    power = 1 << (total - 1).bit_length() - 1 if total > 1 else 1
    result = [total]
    while len(result) < max_count and power > smallest:
        if power < total:
            result.append(power)
        power //= 2
    return result


@dataclass(slots=True)
class _OpenBucket:
    """Bucket that is being filled; `reached`: members and all values that depend on them."""

    names: list[str] = field(default_factory=list)
    size: int = 0
    reached: set[str] = field(default_factory=set)


def find_largest_buckets(program: Program) -> list[list[str]]:
    """Fill buckets without a size limit; return those of two or more members as lists of names.

    A bucket has collectives of one class (kind, reduction, group, axes, element type, counts),
    none of which depends on another one. Collectives outside of stages join the open bucket of
    their class in the order of execution. If one depends on a member, directly or not, a
    new bucket starts with it (`_fill_buckets`). Whether the buckets and the stages have a
    common order of execution is not checked. Raise `InputError` if the stages wait for each
    other.
    """
    staged = {name for stage in program.stages for name in stage.members}
    names = {
        operation.name: 0
        for operation in program.operations
        if operation.kind in BUCKET_KINDS and operation.name not in staged
    }
    return [group for group in _fill_buckets(program, names, 1) if len(group) > 1]


def _list_sizes(program: Program, binding: Binding) -> dict[str, int]:
    """Return the bytes of the full buffer of each collective that may join a bucket, by name.

    These are the collectives of `BUCKET_KINDS` that are in no stage, in program order. The
    bytes are those of `count_buffer_bytes`, which also has the errors.
    """
    staged = {name for stage in program.stages for name in stage.members}
    return {
        operation.name: count_buffer_bytes(program, binding, operation)
        for operation in program.operations
        if operation.kind in BUCKET_KINDS and operation.name not in staged
    }


def _fill_buckets(program: Program, sizes: Mapping[str, int], bucket_bytes: int) -> list[list[str]]:
    """Divide the collectives in `sizes` into buckets; return the names in each bucket.

    `sizes`: bytes by name. Each class (`Program.classify_for_bucket`) has at most one open bucket.
    In the order of execution, each collective with a size and a class is processed:

    1. If it depends on a member of the open bucket of its class, also indirectly, this bucket is
       closed.
    2. It joins the open bucket of its class, else a new one.
    3. If the bucket then has at least `bucket_bytes` bytes, it is closed.

    The result is the closed buckets in the order of closing, then the open ones in the order of
    opening. A bucket that replaces one closed in step 1 keeps the position of the latter. Raises
    `InputError` (`stage`) if stages of the program wait for each other.
    """
    open_buckets: dict[BucketClass, _OpenBucket] = {}
    complete: list[list[str]] = []
    for operation in (operation for kernel in program.kernels() for operation in kernel):
        for bucket in open_buckets.values():
            if not bucket.reached.isdisjoint(operation.reads):
                bucket.reached.add(operation.name)
        key = program.classify_for_bucket(operation)
        if key is None or operation.name not in sizes:
            continue
        bucket = open_buckets.setdefault(key, _OpenBucket())
        if operation.name in bucket.reached:
            complete.append(bucket.names)
            bucket = open_buckets[key] = _OpenBucket()
        bucket.names.append(operation.name)
        bucket.reached.add(operation.name)
        bucket.size += sizes[operation.name]
        if bucket.size >= bucket_bytes:
            complete.append(open_buckets.pop(key).names)
    return [*complete, *(bucket.names for bucket in open_buckets.values())]


def _divide_cycles(
    program: Program, groups: Sequence[Sequence[str]], group: list[str]
) -> list[list[str]]:
    """Divide a bucket into parts that do not wait for the stages, for `groups` or for each other.

    If the operations have an order in which the members of each stage, of each of `groups`
    and of `group` are adjacent, return `[group]`. Otherwise each half of the members is
    divided in the same way, the second one with the parts of the first one added to
    `groups`. Return the parts in the order of their members. A part of one member is
    returned without a check.
    """
    fixed = [stage.members for stage in program.stages]
    if len(group) < 2 or order_groups(program.operations, [*fixed, *groups, group]):
        return [group]
    middle = len(group) // 2
    halves: list[list[str]] = []
    for half in (group[:middle], group[middle:]):
        halves += _divide_cycles(program, [*groups, *halves], half)
    return halves


def _add_stages(program: Program, groups: Sequence[Sequence[str]], name: str) -> tuple[Stage, ...]:
    """Return the stages of a program, followed by one bucket per group.

    A bucket is a stage of collectives that are performed as one. Existing stages that share
    a member with a group are omitted. The first bucket is called `name`, the next ones
    `name_2`, `name_3`, ...; names of values and of remaining stages are skipped. The
    program is not changed, and the members are not checked.
    """
    grouped = {member for group in groups for member in group}
    stages = [stage for stage in program.stages if grouped.isdisjoint(stage.members)]
    taken = {stage.name for stage in stages}
    for group in groups:
        label = choose_name(program, name, taken)
        taken.add(label)
        stages.append(Stage(label, BUCKET, tuple(group)))
    return tuple(stages)


def _check_no_chain(program: Program, first: str, conditions: Conditions) -> None:
    """Raise `RefusedMoveError` (condition `order`) if the program has a chain.

    A chain (stages that overlap chunk by chunk) must be made last. `first`: operation that the
    error names; otherwise the met condition is recorded for it.
    """
    message = "a chain is overlapped already"
    cure = "overlap is the last transformation"
    conditions.require(not program.chains, "order", first, message, cure)
