"""Write a selection as the configuration of NCCL's example tuner.

    collective,minBytes,maxBytes,algorithm,protocol,channels,nNodes,nRanks

The first line that matches wins, both ends included. Where none matches, the tuner leaves a single
channel: every size of a collective is covered, and the channels are always stated. NCCL counts the
bytes of the full buffer of all its collectives, as the hub does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from collhub_selections import first_of_kinds, own_windows

from collhub_nccl.options import TunerOptions
from collhub_nccl.tuner.tuner_names import COLLECTIVES, FILE, LARGEST, own_algorithms
from hub_core.model import Loss
from hub_core.plugin_api import (
    Artifact,
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
    ranks = (selection.num_nodes, selection.num_ranks)
    once, losses = first_of_kinds(selection)
    for selected in once:
        kind = selected.collective.kind
        if kind not in _NAME_OF:
            reason = "NCCL's tuner is not asked for it; NCCL chooses itself"
            losses.append(Loss("collective", str(kind), reason))
            continue
        own = own_algorithms(kind, selection.num_ranks, selection.num_nodes)
        windows, lost = own_windows(selected, own, "NCCL")
        losses += lost
        for window in windows:
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
