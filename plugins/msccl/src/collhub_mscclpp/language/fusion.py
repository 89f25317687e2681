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

    It does for the operations in `_COUNTER_OPERATIONS` (such as signals and waits), for gets, and
    for puts on port channels. Other operations name only buffers.
    """
    is_put = operation.name in _PUTS
    return operation.name in (*_COUNTER_OPERATIONS, "get") or (
        is_put and operation.channel_type == "port"
    )


def exceeds_tables(operation: Recorded) -> bool:
    """Return whether the operation exceeds a table of the executor.

    It does with more than 8 channels (if the plan lists them), more than 10 sources, more
    than 10 destinations, or more than 16 semaphores.
    """
    channels = len(operation.channels) if lists_channels(operation) else 0
    ranges = max(len(operation.src), len(operation.dst))
    is_long = channels > MAX_CHANNELS or ranges > MAX_RANGES
    return is_long or len(operation.semaphores) > MAX_SEMAPHORES


def mixes_sources(operation: Recorded) -> bool:
    """Return whether a put on a memory channel has sources in several buffers.

    A put is an operation `put` or `ppkt` (in packets). The executor would read all its sources from
    the first buffer. False for other operations and other channels.
    """
    is_put = operation.name in ("put", "ppkt") and operation.channel_type == "memory"
    return is_put and len({chunk.buffer for chunk in operation.src}) > 1


def _fuse_all(recorded: Iterable[Recorded], join: _Join) -> list[Recorded]:
    """Return the operations in their order, adjacent ones fused wherever `join` permits it.

    Each operation is compared with the last one of the result. If `join` returns a fused operation,
    it replaces the last one, and may be fused with the next operation again. If `join` returns
    None, the operation is appended. If then the last one ends with a barrier and the appended one
    begins with one, one of them is removed:

    - that of the last operation, if it is a synchronisation such as a signal or wait
    - otherwise that of the appended operation, if this is a synchronisation
    - otherwise none

    The operations in the body of an appended pipeline are fused in the same way, but not those of a
    pipeline that `join` returned. Operations of the argument are not changed; changed ones are
    copies.
    """
    fused: list[Recorded] = []
    for operation in recorded:
        joined = join(fused[-1], operation) if fused else None
        if joined is not None:
            fused[-1] = joined
            continue
        last, following = fused[-1] if fused else None, operation
        if last is not None and last.is_synchronisation:
            if following.starts_with_barrier:
                fused[-1] = replace(last, sync=last.sync & ~SyncType.after)
        elif last is not None and last.ends_with_barrier and following.is_synchronisation:
            following = replace(following, sync=following.sync & ~SyncType.before)
        if following.name == "pipeline":
            # A pipeline that replaced a nop is not fused further, as in the package.
            following = replace(following, body=_fuse_all(following.body, join))
        fused.append(following)
    return fused


def _join(first: Recorded, second: Recorded) -> Recorded | None:
    """Return the fusion of two adjacent operations by the package's rules; None if none applies.

    The first case that applies decides:

    1. `first` is a nop, and `second` a nop, barrier or pipeline: `second`, if its first
       action is a barrier of the threads (as of a nop or barrier); otherwise None.
    2. `first` is a barrier or pipeline: `first`, if its last action is such a barrier and
       `second` is a nop; otherwise None.
    3. The two are of different parts of a group: None.
    4. There is a rule for the two names, such as two signals, or a sum and a put of its
       result: the result of this rule, which may be None.
    5. Otherwise None.
    """
    if first.name == "nop" and second.name in ("nop", "barrier", "pipeline"):
        return second if second.starts_with_barrier else None
    if first.name in ("barrier", "pipeline"):
        return first if second.name == "nop" and first.ends_with_barrier else None
    rule = _RULES.get((first.name, second.name))
    return None if rule is None or first.part != second.part else rule(first, second)


def _join_safely(first: Recorded, second: Recorded) -> Recorded | None:
    """Return the fusion of two operations by the package's rules, if the executor runs it right.

    None if no rule applies, if the result exceeds the executor's tables, if it has sources in
    several buffers where the executor takes only one, or if it is a sum whose second part reads the
    result of the first.
    """
    joined = _join(first, second)
    if joined is None or exceeds_tables(joined) or mixes_sources(joined):
        return None
    is_sum = first.name in SUMS and second.name in SUMS
    return None if is_sum and reads_sum(first, second) else joined


def reads_sum(first: Recorded, second: Recorded) -> bool:
    """Return whether the second of two sums reads data that the first one writes.

    The two have the same destination. The first operand of `second` does not count if it is this
    destination, because both sums accumulate into it. Remote ranges, and the packets of `repkt`, do
    not count either. An overlap of one chunk suffices.
    """
    total = first.dst[0]
    # Packets are no plain data, so the first sum does not write them.
    plain = second.src[:1] if second.name == "repkt" else second.src
    # The first operand may be the sum itself: both operations accumulate into it.
    operands = plain[1:] if plain[0] == total else plain
    local = [chunk for chunk in operands if not isinstance(chunk, RemoteRange)]
    return any(chunk.overlaps(total) for chunk in local)


def _join_counters(first: Recorded, second: Recorded) -> Recorded | None:
    """Return the fusion of two signals, two waits or two flushes, on the channels of both.

    Both operations have the same name. Returns None if their channel types differ, or if a signal
    or wait would be listed twice for a channel. A channel that both flush is listed once. The
    barriers before or after either operation are kept.
    """
    shared = set(first.channels) & set(second.channels)
    if first.channel_type != second.channel_type or (shared and first.name != "flush"):
        return None
    channels = list(dict.fromkeys([*first.channels, *second.channels]))
    return replace(first, channels=channels, sync=first.sync | second.sync)


def _join_semaphores(first: Recorded, second: Recorded) -> Recorded:
    """Fuse two acquires, or two releases, into one operation with the semaphores of both.

    The semaphores of the first come first, and a common one is listed twice. Barriers of
    both are kept.
    """
    semaphores = [*first.semaphores, *second.semaphores]
    return replace(first, semaphores=semaphores, sync=first.sync | second.sync)


def _join_transfers(first: Recorded, second: Recorded) -> Recorded | None:
    """Return the fusion of two puts or two gets; channel i transfers range i.

    It is the first operation with sources, destinations and channels of both, those of the
    first before those of the second. A channel of both occurs twice. Returns None if the
    channel types differ, or if the first source ranges have different sizes. The arguments
    are not changed.
    """
    is_equal = first.channel_type == second.channel_type and first.src[0].size == second.src[0].size
    if not is_equal:
        return None
    return _merge_channels(
        first, second, src=[*first.src, *second.src], dst=[*first.dst, *second.dst]
    )


def _join_forwards(first: Recorded, second: Recorded) -> Recorded | None:
    """Return the fusion of two operations that forward packets of the same range.

    The destinations and channels of the first come first; equal channels are repeated.
    Return None if the sources or the channel types differ.
    """
    is_same = first.channel_type == second.channel_type and list(first.src) == list(second.src)
    return _merge_channels(first, second, dst=[*first.dst, *second.dst]) if is_same else None


def _join_sums(first: Recorded, second: Recorded) -> Recorded | None:
    """Return the fusion of two sums; None if first operand, result or operator differ.

    The operands of the second sum without its first one, and its channels, follow those of the
    first sum.
    """
    is_same = list(first.dst) == list(second.dst) and first.src[0] == second.src[0]
    if not is_same or first.reduce_op != second.reduce_op:
        return None
    return _merge_channels(first, second, src=[*first.src, *second.src[1:]])


def _send_sum(name: str) -> _Join:
    """Return the rule that fuses a sum with a put of its result over a memory channel.

    A rule takes two adjacent operations and returns the fused one, or None. This rule gives None
    if the put uses another channel type, or if the first source of the put is not the first
    destination of the sum. Otherwise the fused operation is the sum with these changes:

    - Its name is `name`, and its channel type is `memory`.
    - Its destinations and channels are those of the sum, then those of the put.
    """

    def rule(first: Recorded, second: Recorded) -> Recorded | None:
        if second.channel_type != "memory" or second.src[0] != first.dst[0]:
            return None
        dst = [*first.dst, *second.dst]
        return replace(_merge_channels(first, second, dst=dst), name=name, channel_type="memory")

    return rule


def _forward_sum(first: Recorded, second: Recorded) -> Recorded | None:
    """Return the fusion of a sum, also stored as packets, with the forwarding of these packets.

    The result is the operation `recspkt`, with the destinations and channels of both, those
    of the sum first. Return None if the second operation forwards other data than the
    second destination of the sum, or not over a memory channel.
    """
    if second.channel_type != "memory" or second.src[0] != first.dst[1]:
        return None
    dst = [*first.dst, *second.dst]
    return replace(_merge_channels(first, second, dst=dst), name="recspkt", channel_type="memory")


def _copy_sum(first: Recorded, second: Recorded) -> Recorded | None:
    """Return the fusion of a sum of packets with the storing of its result as packets.

    The result is the operation `recpkt`, with the destinations of both, those of the sum
    first. Return None if the second operation copies other data than the result of the sum.
    """
    if second.src[0] != first.dst[0]:
        return None
    return replace(first, name="recpkt", dst=[*first.dst, *second.dst])


def _broadcast_sum(first: Recorded, second: Recorded) -> Recorded | None:
    """Return the fusion of a sum through a switch with the broadcast of its result: `glres`.

    It has the sources of the sum and the destinations of the broadcast. Return None if the
    channels differ, or if the broadcast does not send the result of the sum.
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
