"""Compare the sizes that files serve with the report: find gaps, overlaps and other servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hub_core.model import CollectiveKind, format_bytes
from hub_core.plugin_api import ServedCalls

RUNTIME = "the runtime's own choice"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of sizes of one kind of call with the same declared and actual servers.

    `declared`: the server in the report, empty for the runtime's own choice. `servers`: the servers
    in the files; several servers are an error.
    """

    kind: CollectiveKind
    in_place: bool
    min_bytes: int
    max_bytes: int | None
    declared: str
    servers: tuple[str, ...]

    @property
    def defect(self) -> str:
        """The defect as one clause; empty without a defect.

        The first that applies: several servers (overlap), a declared one but none (gap), or another
        one than declared, or one where the runtime was to serve (changed).
        """
        if len(self.servers) > 1:
            return f"overlap: {' and '.join(self.servers)} both serve them"
        if self.declared and not self.servers:
            return f"gap: nothing serves them, {self.declared} is to"
        if self.servers and self.servers[0] != self.declared:
            return f"changed: {self.servers[0]} serves them, {self.declared or RUNTIME} is to"
        return ""

    def __str__(self) -> str:
        mode = "in place" if self.in_place else "out of place"
        return f"{self.kind} {mode}, {format_sizes(self.min_bytes, self.max_bytes)}"


def compare_coverage(
    declared: Sequence[ServedCalls], actual: Sequence[ServedCalls]
) -> list[Stretch]:
    """Divide all sizes from 0 on into stretches with the same declared and actual servers, for
    every collective and mode that either side serves. Sorted by collective, in place first, then by
    size; empty if nothing is served.
    """
    rows = [*declared, *actual]
    calls = [(row.kind, mode) for row in rows for mode in (True, False) if _has(row, mode)]
    kinds = sorted(set(calls), key=lambda call: (list(CollectiveKind).index(call[0]), not call[1]))
    stretches = []
    for kind, mode in kinds:
        pieces = _divide(_select(declared, kind, mode), _select(actual, kind, mode), kind, mode)
        stretches += _merge(pieces)
    return stretches


def format_sizes(min_bytes: int, max_bytes: int | None) -> str:
    """Format a range: `below 16 KiB`, `16 KiB to below 1 MiB`, `from 1 MiB`, `all sizes`.

    `up to 16 KiB` includes its last size, which is a multiple of 1 KiB.
    """
    if max_bytes is None:
        return f"from {format_bytes(min_bytes)}" if min_bytes else "all sizes"
    includes_end = max_bytes and not max_bytes % 1024
    limit = format_bytes(max_bytes if includes_end else max_bytes + 1)
    if includes_end:
        return f"{format_bytes(min_bytes)} up to {limit}" if min_bytes else f"up to {limit}"
    return f"{format_bytes(min_bytes)} to below {limit}" if min_bytes else f"below {limit}"


def format_server(calls: ServedCalls) -> str:
    """Return the server of calls, followed by the condition on their sizes in brackets if they must
    be multiples: `ring (multiples of 8 elements)`.
    """
    conditions = [
        f"multiples of {number} {unit}"
        for number, unit in ((calls.element_multiple, "elements"), (calls.byte_multiple, "bytes"))
        if number > 1
    ]
    return f"{calls.by} ({', '.join(conditions)})" if conditions else calls.by


def _select(rows: Sequence[ServedCalls], kind: CollectiveKind, mode: bool) -> list[ServedCalls]:
    return [row for row in rows if row.kind is kind and _has(row, mode)]


def _has(calls: ServedCalls, in_place: bool) -> bool:
    """Check if these calls include the mode: in place, or out of place."""
    return calls.in_place if in_place else calls.out_of_place


def _divide(
    declared: Sequence[ServedCalls],
    actual: Sequence[ServedCalls],
    kind: CollectiveKind,
    mode: bool,
) -> Iterator[Stretch]:
    """Yield the stretches of sizes between all borders of both lists, ascending from 0 bytes.

    Each stretch is inclusive at both ends; the last has no end (None). It names the first declared
    server that covers it ("" if none) and all actual ones in their order.
    """
    rows = [*declared, *actual]
    borders = {0, *(row.min_bytes for row in rows)}
    borders |= {row.max_bytes + 1 for row in rows if row.max_bytes is not None}
    limits: list[int | None] = [*sorted(borders), None]
    for first, limit in pairwise(limits):
        assert first is not None
        last = None if limit is None else limit - 1
        names = [format_server(row) for row in declared if _covers(row, first)]
        servers = tuple(format_server(row) for row in actual if _covers(row, first))
        yield Stretch(kind, mode, first, last, names[0] if names else "", servers)


def _covers(calls: ServedCalls, size: int) -> bool:
    return calls.min_bytes <= size and (calls.max_bytes is None or size <= calls.max_bytes)


def _merge(pieces: Iterable[Stretch]) -> list[Stretch]:
    """Merge adjacent stretches whose declared server and actual servers are equal, in order.

    The merged one has the minimum of the first and the maximum of the last. The pieces must be of
    one collective and mode and follow each other without gaps.
    """
    merged: list[Stretch] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if last is not None and (last.declared, last.servers) == (piece.declared, piece.servers):
            merged[-1] = replace(last, max_bytes=piece.max_bytes)
        else:
            merged.append(piece)
    return merged
