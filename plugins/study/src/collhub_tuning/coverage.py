"""Which sizes files serve, held against what a report states: gaps, overlaps, other servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hub_core.model import CollectiveKind, format_bytes
from hub_core.plugin_api import ServedCalls

RUNTIME = "the runtime's own choice"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Sizes of one kind of call that are alike: who is stated to serve them, and who does.

    `stated`: empty where the runtime keeps them. `found`: none or several where something is wrong.
    """

    kind: CollectiveKind
    in_place: bool
    min_bytes: int
    max_bytes: int | None
    stated: str
    found: tuple[str, ...]

    @property
    def defect(self) -> str:
        """What is wrong, in one clause; empty where nothing is."""
        if len(self.found) > 1:
            return f"overlap: {' and '.join(self.found)} both serve them"
        if self.stated and not self.found:
            return f"gap: nothing serves them, {self.stated} is to"
        if self.found and self.found[0] != self.stated:
            return f"changed: {self.found[0]} serves them, {self.stated or RUNTIME} is to"
        return ""

    def __str__(self) -> str:
        mode = "in place" if self.in_place else "out of place"
        return f"{self.kind} {mode}, {sizes_text(self.min_bytes, self.max_bytes)}"


def stretches(stated: Sequence[ServedCalls], found: Sequence[ServedCalls]) -> list[Stretch]:
    """All sizes from 0 on of every kind of call that is stated or found, alike ones joined."""
    rows = [*stated, *found]
    calls = [(one.kind, mode) for one in rows for mode in (True, False) if _has(one, mode)]
    kinds = sorted(set(calls), key=lambda call: (list(CollectiveKind).index(call[0]), not call[1]))
    return [
        one
        for kind, mode in kinds
        for one in _joined(_pieces(_of(stated, kind, mode), _of(found, kind, mode), kind, mode))
    ]


def sizes_text(min_bytes: int, max_bytes: int | None) -> str:
    """`below 16 KiB`, `16 KiB to 1 MiB - 1`, `from 1 MiB`, `all sizes`."""
    if max_bytes is None:
        return f"from {format_bytes(min_bytes)}" if min_bytes else "all sizes"
    behind = format_bytes(max_bytes + 1)
    return f"{format_bytes(min_bytes)} to below {behind}" if min_bytes else f"below {behind}"


def served_by(one: ServedCalls) -> str:
    """Who serves calls, with the condition on them."""
    conditions = [
        f"multiples of {number} {unit}"
        for number, unit in ((one.element_multiple, "elements"), (one.byte_multiple, "bytes"))
        if number > 1
    ]
    return f"{one.by} ({', '.join(conditions)})" if conditions else one.by


def _of(rows: Sequence[ServedCalls], kind: CollectiveKind, mode: bool) -> list[ServedCalls]:
    return [one for one in rows if one.kind is kind and _has(one, mode)]


def _has(one: ServedCalls, in_place: bool) -> bool:
    """Whether these calls are in place, or, without `in_place`, out of place."""
    return one.in_place if in_place else one.out_of_place


def _pieces(
    stated: Sequence[ServedCalls], found: Sequence[ServedCalls], kind: CollectiveKind, mode: bool
) -> Iterator[Stretch]:
    """Stretches between all borders."""
    rows = [*stated, *found]
    borders = {0, *(one.min_bytes for one in rows)}
    borders |= {one.max_bytes + 1 for one in rows if one.max_bytes is not None}
    ends: list[int | None] = [*sorted(borders), None]
    for first, behind in pairwise(ends):
        assert first is not None
        last = None if behind is None else behind - 1
        names = [served_by(one) for one in stated if _covers(one, first)]
        servers = tuple(served_by(one) for one in found if _covers(one, first))
        yield Stretch(kind, mode, first, last, names[0] if names else "", servers)


def _covers(one: ServedCalls, size: int) -> bool:
    return one.min_bytes <= size and (one.max_bytes is None or size <= one.max_bytes)


def _joined(pieces: Iterable[Stretch]) -> list[Stretch]:
    whole: list[Stretch] = []
    for piece in pieces:
        last = whole[-1] if whole else None
        if last is not None and (last.stated, last.found) == (piece.stated, piece.found):
            whole[-1] = replace(last, max_bytes=piece.max_bytes)
        else:
            whole.append(piece)
    return whole
