"""Join neighbouring operations of a thread block into operations of the executor.

The rules are those of the package `mscclpp` (release 1f5f065d), so that a program becomes the plan
that the package makes of it. `fuse` leaves out the joins after which the executor would compute
something else than the single operations: operands beyond the executor's tables, puts from several
buffers, and sums that would read an operand before an earlier sum has written it.
`fuse_as_package` applies every join of the package, for the report of its defects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from collhub_mscclpp.language.recorded import Chunk, Recorded, RemoteRange, SyncType

# Sizes of the executor's tables for one operation; it writes beyond them without a check.
MAX_CHANNELS, MAX_RANGES, MAX_SEMAPHORES = 8, 10, 16

SUMS = ("re", "rre", "repkt")
"""Sums into a local chunk, which may be joined with a further one into the same chunk."""

_Join = Callable[[Recorded, Recorded], Recorded | None]


def fuse(recorded: Iterable[Recorded]) -> list[Recorded]:
    """Join neighbours where the executor computes the same; drop meetings that follow another."""
    return _fold(recorded, _join_safely)


def fuse_as_package(recorded: Iterable[Recorded]) -> list[Recorded]:
    """Join neighbours as the package does, whether or not the executor computes the same."""
    return _fold(recorded, _join)


def lists_channels(operation: Recorded) -> bool:
    """Whether the operation names its channels in a plan; others find peers by their buffers."""
    is_put = operation.name in _PUTS
    return operation.name in (*_COUNTER_OPERATIONS, "get") or (
        is_put and operation.channel_type == "port"
    )


def exceeds_tables(operation: Recorded) -> bool:
    """Whether the operation has more operands than the executor has room for."""
    channels = len(operation.channels) if lists_channels(operation) else 0
    ranges = max(len(operation.src), len(operation.dst))
    is_long = channels > MAX_CHANNELS or ranges > MAX_RANGES
    return is_long or len(operation.semaphores) > MAX_SEMAPHORES


def mixes_sources(operation: Recorded) -> bool:
    """Whether a put reads several buffers; the executor takes the first one's for all sources."""
    is_put = operation.name in ("put", "ppkt") and operation.channel_type == "memory"
    return is_put and len({chunk.buffer for chunk in operation.src}) > 1


def _fold(recorded: Iterable[Recorded], join: _Join) -> list[Recorded]:
    """Join each operation with the result so far, or append it."""
    fused: list[Recorded] = []
    for operation in recorded:
        joined = join(fused[-1], operation) if fused else None
        if joined is not None:
            fused[-1] = joined
            continue
        following = operation
        if fused:
            fused[-1], following = _drop_second_meeting(fused[-1], operation)
        if following.name == "pipeline":
            # A pipeline that took the place of a nop keeps its body, as in the package.
            following = replace(following, body=_fold(following.body, join))
        fused.append(following)
    return fused


def _drop_second_meeting(first: Recorded, second: Recorded) -> tuple[Recorded, Recorded]:
    """Both operations, with one meeting of the threads between them where each states one."""
    if first.is_synchronisation and second.starts_with_meeting:
        return replace(first, sync=first.sync & ~SyncType.after), second
    if second.is_synchronisation and first.ends_with_meeting and not first.is_synchronisation:
        return first, replace(second, sync=second.sync & ~SyncType.before)
    return first, second


def _join(first: Recorded, second: Recorded) -> Recorded | None:
    """Both as one operation by the package's rules, or None."""
    if first.name == "nop" and second.name in ("nop", "barrier", "pipeline"):
        return second if second.starts_with_meeting else None
    if first.name in ("barrier", "pipeline"):
        return first if second.name == "nop" and first.ends_with_meeting else None
    rule = _RULES.get((first.name, second.name))
    return None if rule is None or first.part != second.part else rule(first, second)


def _join_safely(first: Recorded, second: Recorded) -> Recorded | None:
    """Both as one operation, or None where the executor would compute something else."""
    joined = _join(first, second)
    if joined is None or exceeds_tables(joined) or mixes_sources(joined):
        return None
    is_sum = first.name in SUMS and second.name in SUMS
    return None if is_sum and reads_sum(first, second) else joined


def reads_sum(first: Recorded, second: Recorded) -> bool:
    """Whether the second of two sums into one chunk adds data that the first one writes."""
    total = first.dst[0]
    # Packets are never plain data of the same launch.
    plain = second.src[:1] if second.name == "repkt" else second.src
    # The first operand may be the sum itself: then both sums accumulate into it.
    operands = plain[1:] if plain[0] == total else plain
    local = [chunk for chunk in operands if not isinstance(chunk, RemoteRange)]
    return any(chunk.overlaps(total) for chunk in local)


def _join_counters(first: Recorded, second: Recorded) -> Recorded | None:
    """Signals, waits or flushes of several channels. A channel is signalled once an operation."""
    shared = set(first.channels) & set(second.channels)
    if first.channel_type != second.channel_type or (shared and first.name != "flush"):
        return None
    channels = list(dict.fromkeys([*first.channels, *second.channels]))
    return replace(first, channels=channels, sync=first.sync | second.sync)


def _join_semaphores(first: Recorded, second: Recorded) -> Recorded:
    """Acquire, or release, several semaphores."""
    semaphores = [*first.semaphores, *second.semaphores]
    return replace(first, semaphores=semaphores, sync=first.sync | second.sync)


def _join_transfers(first: Recorded, second: Recorded) -> Recorded | None:
    """Several ranges of equal size by one put or get; channel i transfers range i."""
    is_equal = first.channel_type == second.channel_type and first.src[0].size == second.src[0].size
    if not is_equal:
        return None
    return _extend(first, second, src=[*first.src, *second.src], dst=[*first.dst, *second.dst])


def _join_forwards(first: Recorded, second: Recorded) -> Recorded | None:
    """Packets of one range forwarded to several ranks."""
    is_same = first.channel_type == second.channel_type and list(first.src) == list(second.src)
    return _extend(first, second, dst=[*first.dst, *second.dst]) if is_same else None


def _join_sums(first: Recorded, second: Recorded) -> Recorded | None:
    """Sums with the same first operand and result: the operands of both are added up."""
    is_same = list(first.dst) == list(second.dst) and first.src[0] == second.src[0]
    if not is_same or first.reduce_op != second.reduce_op:
        return None
    return _extend(first, second, src=[*first.src, *second.src[1:]])


def _send_sum(name: str) -> _Join:
    """The rule that sends the result of a sum by the operation that computes it."""

    def rule(first: Recorded, second: Recorded) -> Recorded | None:
        if second.channel_type != "memory" or second.src[0] != first.dst[0]:
            return None
        dst = [*first.dst, *second.dst]
        return replace(_extend(first, second, dst=dst), name=name, channel_type="memory")

    return rule


def _forward_sum(first: Recorded, second: Recorded) -> Recorded | None:
    """Send the packets of a sum from the packet copy in the local scratch."""
    if second.channel_type != "memory" or second.src[0] != first.dst[1]:
        return None
    dst = [*first.dst, *second.dst]
    return replace(_extend(first, second, dst=dst), name="recspkt", channel_type="memory")


def _copy_sum(first: Recorded, second: Recorded) -> Recorded | None:
    """Write the result of a sum as packets to the local scratch, too."""
    if second.src[0] != first.dst[0]:
        return None
    return replace(first, name="recpkt", dst=[*first.dst, *second.dst])


def _broadcast_sum(first: Recorded, second: Recorded) -> Recorded | None:
    """Store a sum of the switch at every rank of the same channel."""
    is_same = list(first.channels) == list(second.channels) and list(first.dst) == list(second.src)
    return replace(first, name="glres", dst=second.dst) if is_same else None


def _extend(
    first: Recorded,
    second: Recorded,
    src: list[Chunk] | None = None,
    dst: list[Chunk] | None = None,
) -> Recorded:
    """The first operation with the channels of both, and with other ranges where given."""
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
