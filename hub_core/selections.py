"""Size windows of a library's built-in algorithms, and the losses of a restriction to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hub_core.model import CollectiveKind, Loss, format_bytes
from hub_core.plugin_api import SelectedCollective, SelectedWindow, Selection

__all__ = ["fill_gaps", "first_of_kinds", "iterate_candidates", "own_windows"]


def first_of_kinds(selection: Selection) -> tuple[list[SelectedCollective], list[Loss]]:
    """Return the first selection of each collective kind, and a loss for each further one.

    The order is that of the first selections. The libraries do not distinguish calls in place from
    calls out of place, so only one selection per kind can be written; it serves both.
    """
    selected_by_kind: dict[CollectiveKind, SelectedCollective] = {}
    losses = []
    for selected in selection.collectives:
        kind = selected.collective.kind
        if kind in selected_by_kind:
            reason = "calls in and out of place are served alike, by what was selected in place"
            losses.append(Loss("out_of_place", str(kind), reason))
        selected_by_kind.setdefault(kind, selected)
    return list(selected_by_kind.values()), losses


def own_windows(
    selected: SelectedCollective,
    names: Mapping[str, object],
    library: str,
    otherwise: str = "it chooses itself",
) -> tuple[Sequence[SelectedWindow], list[Loss]]:
    """Return the windows of sizes for the algorithms `names` of a library, and the losses.

    `selected`: the selection of one collective, whose windows are recomputed for these
    algorithms only. `library`: its name, for messages. `otherwise`: text about the calls
    that no window serves, for messages. The losses (`algorithm`) are in the order of sizes.
    For each window with all algorithms there is a loss for the measured sizes that no returned
    window covers. Then, if its algorithm is not in `names`, there is one for each returned
    window that has some of its sizes, with the slowdown there. If `names` is empty or no window
    remains, the result is () and one loss (`collective`).
    """
    kind = str(selected.collective.kind)
    windows = selected.windows(names) if names else ()
    if not windows:
        reason = f"no algorithm of {library} was compared and fits; {otherwise}"
        return (), [Loss("collective", kind, reason)]
    losses = []
    for best in selected.windows(None):
        unserved = [
            size for size in best.sizes if not any(_covers(window, size) for window in windows)
        ]
        if unserved:
            # No algorithm of the library certainly beats a measurement.
            text = f"no algorithm of {library} is certainly faster than its default, which stays"
            losses.append(Loss("algorithm", f"{kind}, {_format_range(unserved)}", text))
        for window in windows:
            sizes = [size for size in best.sizes if size in window.sizes]
            if not sizes or best.algorithm in names:
                continue
            slowdown = selected.slowdowns(sizes).get(window.algorithm)
            times = f"{slowdown:.2f} times the time of the fastest" if slowdown else "longer"
            text = f"{library} has no {best.algorithm}; {window.algorithm} takes {times}"
            losses.append(Loss("algorithm", f"{kind}, {_format_range(sizes)}", text))
    return windows, losses


def iterate_candidates(selected: SelectedCollective, window: SelectedWindow) -> Iterator[str]:
    """Yield the names of the algorithms to try for a window, the best first, each once.

    First the algorithm of the window, then all other algorithms that run at every measured size of
    the window, by ascending mean of their time divided by the fastest time.
    """
    yield window.algorithm
    yield from (name for name in selected.slowdowns(window.sizes) if name != window.algorithm)


def fill_gaps(
    windows: Sequence[SelectedWindow],
) -> Iterator[tuple[int, int | None, SelectedWindow | None]]:
    """Yield (first byte, last byte, window) of ascending windows and of the gaps between them.

    Windows must not overlap. A last byte of None means no limit. All sizes from 0 on are covered
    exactly once; the window of a gap is None. Without windows, one gap covers all sizes.
    """
    start: int | None = 0
    for window in windows:
        if start is not None and start < window.min_bytes:
            yield start, window.min_bytes - 1, None
        yield window.min_bytes, window.max_bytes, window
        start = None if window.max_bytes is None else window.max_bytes + 1
    if start is not None:
        yield start, None, None


def _covers(window: SelectedWindow, size: int) -> bool:
    return window.min_bytes <= size and (window.max_bytes is None or size <= window.max_bytes)


def _format_range(sizes: Sequence[int]) -> str:
    return " to ".join(dict.fromkeys(map(format_bytes, (sizes[0], sizes[-1]))))
