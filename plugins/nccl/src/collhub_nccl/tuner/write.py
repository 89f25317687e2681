"""Write a selection as the configuration of NCCL's example tuner.

    collective,minBytes,maxBytes,algorithm,protocol,channels,nNodes,nRanks

The first line that matches wins, both ends included. Where none matches, the tuner leaves a single
channel: every size of a collective is covered, and the channels are always stated. NCCL counts the
bytes of the full buffer of all its collectives, as the hub does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from collhub_nccl.options import TunerOptions
from collhub_nccl.tuner.tuner_names import COLLECTIVES, FILE, LARGEST, own_algorithms
from hub_core.model import CollectiveKind, Loss, format_bytes
from hub_core.plugin_api import (
    Artifact,
    SelectedCollective,
    SelectedWindow,
    Selection,
    WriteResult,
)

_NAME_OF = {kind: name for name, kind in COLLECTIVES.items()}


def write(selection: Selection, options: TunerOptions) -> WriteResult:
    """One file. What NCCL does not have goes to the best of what it has, and that is a loss."""
    nodes = "1 node" if selection.num_nodes == 1 else f"{selection.num_nodes} nodes"
    place = f"{nodes}, {selection.num_ranks} ranks"
    lines = [f"# collhub tune: {selection.topology}, {place}"[:200]]
    losses: list[Loss] = []
    seen: set[CollectiveKind] = set()
    for selected in selection.collectives:
        kind = selected.collective.kind
        if kind in seen:
            reason = "calls in and out of place are served alike, by what was selected in place"
            losses.append(Loss("out_of_place", str(kind), reason))
            continue
        seen.add(kind)
        own = own_algorithms(kind, selection.num_ranks, selection.num_nodes)
        windows = selected.windows(own) if own else ()
        if not windows:
            losses.append(_left_out(selected))
            continue
        losses += _losses(selected, windows, own)
        for window in windows:
            ranks = (selection.num_nodes, selection.num_ranks)
            lines += _lines(_NAME_OF[kind], window, own, options, ranks)
    content = "\n".join([*lines, ""]).encode("ascii", "replace")
    notes = [
        f"set NCCL_TUNER_PLUGIN to NCCL's example tuner, and NCCL_TUNER_CONFIG_FILE to {FILE}",
        f"all lines state {options.channels} channels, which no simulation tells (-O channels=)",
    ]
    return WriteResult([Artifact(FILE, content)], losses, (), notes)


def _lines(
    name: str,
    window: SelectedWindow,
    own: Mapping[str, str],
    options: TunerOptions,
    ranks: tuple[int, int],
) -> Iterator[str]:
    """The line of a window, or two where its small sizes take another protocol."""
    algorithm = own[window.algorithm]
    most = LARGEST if window.max_bytes is None else window.max_bytes
    # Its parallel aggregated trees know the protocol Simple alone.
    border = 0 if algorithm == "pat" else options.ll_below
    parts = (
        (window.min_bytes, min(most, border - 1), "ll"),
        (max(window.min_bytes, border), most, "simple"),
    )
    for first, last, protocol in parts:
        if first <= last:
            fields = (name, first, last, algorithm, protocol, options.channels, *ranks)
            yield ",".join(map(str, fields))


def _left_out(selected: SelectedCollective) -> Loss:
    kind = str(selected.collective.kind)
    if selected.collective.kind not in _NAME_OF:
        return Loss("collective", kind, "NCCL's tuner is not asked for it; NCCL chooses itself")
    reason = "none of NCCL's own algorithms was compared and fits; NCCL chooses itself"
    return Loss("collective", kind, reason)


def _losses(
    selected: SelectedCollective, windows: Sequence[SelectedWindow], own: Mapping[str, str]
) -> Iterator[Loss]:
    """What the best algorithm is, wherever NCCL has another one."""
    for best in selected.windows(None):
        for window in windows:
            sizes = [size for size in best.sizes if size in window.sizes]
            if not sizes or best.algorithm in own:
                continue
            slowdown = selected.slowdowns(sizes).get(window.algorithm)
            times = f"{slowdown:.2f} times the time of the fastest" if slowdown else "slower"
            sizes_text = " to ".join(dict.fromkeys(map(format_bytes, (sizes[0], sizes[-1]))))
            yield Loss(
                "algorithm",
                f"{selected.collective.kind}, {sizes_text}",
                f"NCCL has no {best.algorithm}; {window.algorithm} takes {times}",
            )
