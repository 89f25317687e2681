"""Fuse neighbouring operations of a thread block into operations of the executor.

The rules are those of the package `mscclpp` (release 1f5f065d), so that a program becomes the same
plan as with the package. `fuse` omits fusions after which the executor would compute a different
result: operands beyond the executor's tables, puts from several buffers, and sums that would read
an operand before an earlier sum has written it. `fuse_as_package` applies every fusion of the
package, for the report of its defects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from collhub_mscclpp.language.recorded import Chunk, Recorded, RemoteRange, SyncType

# Sizes of the executor's tables for one operation; it writes beyond their ends unchecked.
MAX_CHANNELS, MAX_RANGES, MAX_SEMAPHORES = 8, 10, 16

SUMS = ("re", "rre", "repkt")
"""Sums into a local chunk, which may be fused with another sum into the same chunk."""

_Join = Callable[[Recorded, Recorded], Recorded | None]


def fuse(recorded: Iterable[Recorded]) -> list[Recorded]:
    """Fuse neighbours if the executor computes the same result; drop repeated barriers."""
    return _fuse_all(recorded, _join_safely)


def fuse_as_package(recorded: Iterable[Recorded]) -> list[Recorded]:
    """Fuse neighbours as the package does, even if the executor computes something else."""
    return _fuse_all(recorded, _join)


def lists_channels(operation: Recorded) -> bool:
    """Return whether the plan lists the channels of an operation.

    It does for signals, waits, flushes and gets, and for puts on port channels; other operations
    name buffers only.
    """
    is_put = operation.name in _PUTS
    return operation.name in (*_COUNTER_OPERATIONS, "get") or (
        is_put and operation.channel_type == "port"
    )


def exceeds_tables(operation: Recorded) -> bool:
    """Whether the operation has more than 8 channels, 10 ranges on one side, or 16 semaphores."""
    channels = len(operation.channels) if lists_channels(operation) else 0
    ranges = max(len(operation.src), len(operation.dst))
    is_long = channels > MAX_CHANNELS or ranges > MAX_RANGES
    return is_long or len(operation.semaphores) > MAX_SEMAPHORES


def mixes_sources(operation: Recorded) -> bool:
    """Return whether a put on a memory channel has sources in several buffers.

    The executor would read all of them from the first buffer. False for other operations.
    """
    is_put = operation.name in ("put", "ppkt") and operation.channel_type == "memory"
    return is_put and len({chunk.buffer for chunk in operation.src}) > 1


def _fuse_all(recorded: Iterable[Recorded], join: _Join) -> list[Recorded]:
    """Fuse each operation with the last one of the result by `join`, or append it.

    `join` returns the fused operation, or None if the two cannot be fused; a fused one may be fused
    again. Of two adjacent barriers one is dropped. Bodies of pipelines are fused too, by
    themselves. Returns a new list.
    """
    fused: list[Recorded] = []
    for operation in recorded:
        joined = join(fused[-1], operation) if fused else None
        if joined is not None:
            fused[-1] = joined
            continue
        following = operation
        if fused:
            fused[-1], following = _drop_second_barrier(fused[-1], operation)
        if following.name == "pipeline":
            # A pipeline that replaced a nop is not fused further, as in the package.
            following = replace(following, body=_fuse_all(following.body, join))
        fused.append(following)
    return fused


def _drop_second_barrier(first: Recorded, second: Recorded) -> tuple[Recorded, Recorded]:
    """Return two neighbouring operations with only one barrier between them.

    If the first ends and the second begins with a barrier, and one of them is a synchronisation,
    that one gives up its barrier; the first one if both are. Otherwise they are unchanged.
    """
    if first.is_synchronisation and second.starts_with_barrier:
        return replace(first, sync=first.sync & ~SyncType.after), second
    if second.is_synchronisation and first.ends_with_barrier and not first.is_synchronisation:
        return first, replace(second, sync=second.sync & ~SyncType.before)
    return first, second


def _join(first: Recorded, second: Recorded) -> Recorded | None:
    """Fuse two neighbouring operations by the package's rules; None if no rule applies.

    A nop disappears next to an operation with a barrier. Operations for different parts of a group
    are not fused.
    """
    if first.name == "nop" and second.name in ("nop", "barrier", "pipeline"):
        return second if second.starts_with_barrier else None
    if first.name in ("barrier", "pipeline"):
        return first if second.name == "nop" and first.ends_with_barrier else None
    rule = _RULES.get((first.name, second.name))
    return None if rule is None or first.part != second.part else rule(first, second)


def _join_safely(first: Recorded, second: Recorded) -> Recorded | None:
    """Fuse two operations by the package's rules; None also if the executor would misread the
    result.

    That is the case if it exceeds the executor's tables, if it has sources in several buffers where
    the executor takes one, or if it is a sum whose second part reads the result of the first.
    """
    joined = _join(first, second)
    if joined is None or exceeds_tables(joined) or mixes_sources(joined):
        return None
    is_sum = first.name in SUMS and second.name in SUMS
    return None if is_sum and reads_sum(first, second) else joined


def reads_sum(first: Recorded, second: Recorded) -> bool:
    """Return whether the second of two sums into one chunk has an operand that the first one
    writes.

    The result as first operand does not count, as both accumulate into it; neither do remote ranges
    and the packets of "repkt". Overlap by one chunk is enough.
    """
    total = first.dst[0]
    # Packets are no plain data, so the first sum does not write them.
    plain = second.src[:1] if second.name == "repkt" else second.src
    # The first operand may be the sum itself: both operations accumulate into it.
    operands = plain[1:] if plain[0] == total else plain
    local = [chunk for chunk in operands if not isinstance(chunk, RemoteRange)]
    return any(chunk.overlaps(total) for chunk in local)


def _join_counters(first: Recorded, second: Recorded) -> Recorded | None:
    """Fuse two signals, two waits or two flushes into one operation on the channels of both.

    Both have the same name. Returns None if the types of their channels differ, and if a signal or
    a wait would occur twice on a channel; a channel that both flush is listed once. Barriers before
    or after either operation are kept.
    """
    shared = set(first.channels) & set(second.channels)
    if first.channel_type != second.channel_type or (shared and first.name != "flush"):
        return None
    channels = list(dict.fromkeys([*first.channels, *second.channels]))
    return replace(first, channels=channels, sync=first.sync | second.sync)


def _join_semaphores(first: Recorded, second: Recorded) -> Recorded:
    """Fuse two acquires, or two releases, into one operation with the semaphores of both.

    Barriers of both are kept.
    """
    semaphores = [*first.semaphores, *second.semaphores]
    return replace(first, semaphores=semaphores, sync=first.sync | second.sync)


def _join_transfers(first: Recorded, second: Recorded) -> Recorded | None:
    """Fuse puts or gets of ranges of equal size on one type of channel; channel i transfers range
    i.

    None for other channel types or sizes. The ranges and channels of the first come first.
    """
    is_equal = first.channel_type == second.channel_type and first.src[0].size == second.src[0].size
    if not is_equal:
        return None
    return _merge_channels(
        first, second, src=[*first.src, *second.src], dst=[*first.dst, *second.dst]
    )


def _join_forwards(first: Recorded, second: Recorded) -> Recorded | None:
    """Fuse two operations that forward packets of the same range to different ranks.

    None if ranges or channel types differ, or if the channels cannot be merged.
    """
    is_same = first.channel_type == second.channel_type and list(first.src) == list(second.src)
    return _merge_channels(first, second, dst=[*first.dst, *second.dst]) if is_same else None


def _join_sums(first: Recorded, second: Recorded) -> Recorded | None:
    """Fuse sums with the same first operand, result and operator; None for other sums.

    The operands of the second, without its first one, follow those of the first, and so do
    channels.
    """
    is_same = list(first.dst) == list(second.dst) and first.src[0] == second.src[0]
    if not is_same or first.reduce_op != second.reduce_op:
        return None
    return _merge_channels(first, second, src=[*first.src, *second.src[1:]])


def _send_sum(name: str) -> _Join:
    """Build the rule that fuses a sum with a put of its result, over memory, into operation `name`.

    The rule returns None if the put has another channel type or another first source than the sum's
    first destination; else the sum with the channels and destinations of both, its own first.
    """

    def rule(first: Recorded, second: Recorded) -> Recorded | None:
        if second.channel_type != "memory" or second.src[0] != first.dst[0]:
            return None
        dst = [*first.dst, *second.dst]
        return replace(_merge_channels(first, second, dst=dst), name=name, channel_type="memory")

    return rule


def _forward_sum(first: Recorded, second: Recorded) -> Recorded | None:
    """Fuse a sum with the forwarding of the packet copy of its result in the local scratch.

    None if the second operation forwards other data, or not over a memory channel.
    """
    if second.channel_type != "memory" or second.src[0] != first.dst[1]:
        return None
    dst = [*first.dst, *second.dst]
    return replace(_merge_channels(first, second, dst=dst), name="recspkt", channel_type="memory")


def _copy_sum(first: Recorded, second: Recorded) -> Recorded | None:
    """Fuse a sum of packets with the copy of its result to the local scratch as packets.

    None if the second operation copies other data.
    """
    if second.src[0] != first.dst[0]:
        return None
    return replace(first, name="recpkt", dst=[*first.dst, *second.dst])


def _broadcast_sum(first: Recorded, second: Recorded) -> Recorded | None:
    """Fuse a sum through a switch with the broadcast of its result by the same channels.

    The result is the operation `glres`; None if channels or buffers differ.
    """
    is_same = list(first.channels) == list(second.channels) and list(first.dst) == list(second.src)
    return replace(first, name="glres", dst=second.dst) if is_same else None


def _merge_channels(
    first: Recorded,
    second: Recorded,
    src: list[Chunk] | None = None,
    dst: list[Chunk] | None = None,
) -> Recorded:
    """Return the first operation with the channels of both and with the given ranges.

    None for `src` or `dst` keeps the ranges of the first. Channels are not compared, so equal ones
    appear twice. The arguments are not changed.
    """
    return replace(
        first,
        channels=[*first.channels, *second.channels],
        src=first.src if src is None else src,
        dst=first.dst if dst is None else dst,
    )


_COUNTER_OPERATIONS = ("signal", "wait", "rlxsignal", "rlxwait", "flush")
_PUTS = ("put", "ppkt", "pws", "pwsf", "rppkt")

_RULES: Mapping[tuple[str, str], _Join] = {
    **{(name, name): _join_counters for name in _COUNTER_OPERATIONS},
    **{(name, name): _join_semaphores for name in ("sem_acquire", "sem_release")},
    **{(name, name): _join_transfers for name in ("put", "ppkt", "pws", "pwsf", "get")},
    ("rppkt", "rppkt"): _join_forwards,
    **{(name, name): _join_sums for name in SUMS},
    ("re", "put"): _send_sum("res"),
    ("res", "put"): _send_sum("res"),
    ("rre", "put"): _send_sum("rres"),
    ("rres", "put"): _send_sum("rres"),
    ("repkt", "ppkt"): _send_sum("respkt"),
    ("respkt", "ppkt"): _send_sum("respkt"),
    ("repkt", "cpkt"): _copy_sum,
    ("recpkt", "ppkt"): _send_sum("recspkt"),
    ("recspkt", "ppkt"): _send_sum("recspkt"),
    ("recpkt", "rppkt"): _forward_sum,
    ("recspkt", "rppkt"): _forward_sum,
    ("glre", "gstore"): _broadcast_sum,
}
