"""Neighbours of a thread block that executors have one operation for.

Unlike the package, what is fused is just what the executor does: the sources of a put lie in one
buffer, and no operation has more entries or channels than the kernel has room for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from collhub_mscclpp.language.buffers import Chunk
from collhub_mscclpp.language.recorded import Recorded

# Beyond, the executor writes past its arrays without a word.
MOST_CHANNELS, MOST_ENTRIES = 8, 10


def fused(recorded: Iterable[Recorded]) -> list[Recorded]:
    """The operations of a thread block, neighbours joined where that is possible."""
    return _folded(recorded, _fitting)


def fused_by_package(recorded: Iterable[Recorded]) -> list[Recorded]:
    """What the package makes of them: it looks at neither buffers nor sizes."""
    return _folded(recorded, _joined)


def _folded(
    recorded: Iterable[Recorded], join: Callable[[Recorded, Recorded], Recorded | None]
) -> list[Recorded]:
    found: list[Recorded] = []
    for one in recorded:
        joined = join(found[-1], one) if found else None
        if joined is None:
            found.append(one)
        else:
            found[-1] = joined
    return found


def _joined(one: Recorded, other: Recorded) -> Recorded | None:
    """Both as one operation, None where there is none."""
    rule = _RULES.get((one.name, other.name))
    return None if rule is None or one.part != other.part else rule(one, other)


def _fitting(one: Recorded, other: Recorded) -> Recorded | None:
    """Both as one operation, None where the executor would take it for another."""
    made = _joined(one, other)
    if made is None or max(len(made.src), len(made.dst)) > MOST_ENTRIES:
        return None
    # The executor takes the buffer of the first source for all of them.
    is_put = made.name in ("put", "ppkt")
    is_mixed = is_put and len({chunk.buffer for chunk in made.src}) > 1
    return None if is_mixed or len(made.channels) > MOST_CHANNELS else made


def _meetings(one: Recorded, other: Recorded) -> Recorded | None:
    """Signals, or waits, of several channels; one channel twice counts twice."""
    is_alike = (one.channel_type, one.sync) == (other.channel_type, other.sync)
    if not is_alike or set(one.channels) & set(other.channels):
        return None
    return replace(one, channels=[*one.channels, *other.channels])


def _puts(one: Recorded, other: Recorded) -> Recorded | None:
    """Several ranges; of a proxy, who tells which channel has which?"""
    if not one.channel_type == other.channel_type == "memory":
        return None
    return _with_more(one, other, one.name, [*one.src, *other.src])


def _sums(one: Recorded, other: Recorded) -> Recorded | None:
    """Further summands of what the first adds up."""
    is_same = list(one.dst) == list(other.dst) == [other.src[0]]
    added = other.src[1:]
    # A summand that the first sum wrote would be read too early.
    is_late = any(chunk.overlaps(one.dst[0]) for chunk in added)
    if not is_same or is_late:
        return None
    return replace(one, src=[*one.src, *added])


def _sum_and_put(name: str) -> Callable[[Recorded, Recorded], Recorded | None]:
    """What is added up is sent on at once."""

    def rule(one: Recorded, other: Recorded) -> Recorded | None:
        is_memory = other.channel_type == "memory"
        if not is_memory or list(other.src) != [one.dst[0]]:
            return None
        return _with_more(one, other, name, one.src)

    return rule


def _sum_and_copy(one: Recorded, other: Recorded) -> Recorded | None:
    """What is added up becomes packets of the own scratch too."""
    if list(other.src) != [one.dst[0]]:
        return None
    return replace(one, name="recpkt", dst=[*one.dst, *other.dst])


def _with_more(one: Recorded, other: Recorded, name: str, src: Iterable[Chunk]) -> Recorded:
    channels = list(dict.fromkeys([*one.channels, *other.channels]))
    targets = [*one.dst, *other.dst]
    return replace(
        one, name=name, channel_type="memory", channels=channels, src=list(src), dst=targets
    )


_RULES: Mapping[tuple[str, str], Callable[[Recorded, Recorded], Recorded | None]] = {
    **{(name, name): _meetings for name in ("signal", "wait", "rlxsignal", "rlxwait")},
    **{(name, name): _puts for name in ("put", "ppkt")},
    ("re", "re"): _sums,
    ("re", "put"): _sum_and_put("res"),
    ("res", "put"): _sum_and_put("res"),
    ("rre", "put"): _sum_and_put("rres"),
    ("rres", "put"): _sum_and_put("rres"),
    ("repkt", "ppkt"): _sum_and_put("respkt"),
    ("respkt", "ppkt"): _sum_and_put("respkt"),
    ("repkt", "cpkt"): _sum_and_copy,
    ("recpkt", "ppkt"): _sum_and_put("recspkt"),
    ("recspkt", "ppkt"): _sum_and_put("recspkt"),
}
