"""Size windows of a library's built-in algorithms, and the losses of a restriction to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hub_core.model import CollectiveKind, Loss, format_bytes
from hub_core.plugin_api import SelectedCollective, SelectedWindow, Selection


def first_of_kinds(selection: Selection) -> tuple[list[SelectedCollective], list[Loss]]:
    """Return one selection per collective kind, and a loss for each further one.

    The libraries do not distinguish calls in place from calls out of place.
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
    """Return the windows of the algorithms named in `own`, or none and one loss if none fits.

    `otherwise`: how the library serves calls without a window.
    """
    windows = selected.windows(names) if names else ()
    if windows:
        return windows, list(_losses(selected, windows, names, library))
    kind = str(selected.collective.kind)
    reason = f"no algorithm of {library} was compared and fits; {otherwise}"
    return (), [Loss("collective", kind, reason)]


def _losses(
    selected: SelectedCollective,
    windows: Sequence[SelectedWindow],
    names: Mapping[str, object],
    library: str,
) -> Iterator[Loss]:
    """Yield a loss for each window in which the library lacks the fastest algorithm."""
    for best in selected.windows(None):
        for window in windows:
            sizes = [size for size in best.sizes if size in window.sizes]
            if not sizes or best.algorithm in names:
                continue
            slowdown = selected.slowdowns(sizes).get(window.algorithm)
            times = f"{slowdown:.2f} times the time of the fastest" if slowdown else "longer"
            where = " to ".join(dict.fromkeys(map(format_bytes, (sizes[0], sizes[-1]))))
            text = f"{library} has no {best.algorithm}; {window.algorithm} takes {times}"
            yield Loss("algorithm", f"{selected.collective.kind}, {where}", text)
