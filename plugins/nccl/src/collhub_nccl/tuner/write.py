"""Write a selection as the configuration of NCCL's example tuner.

    collective,minBytes,maxBytes,algorithm,protocol,channels,nNodes,nRanks

The first line that matches wins, both ends included. If none matches, the tuner leaves a single
channel (`plugins/tuner/example/plugin.c` of NCCL 2.27 to 2.30 sets it before it looks for a line,
and `src/enqueue.cc` applies every number but 0). So lines for all collectives, sizes and
communicators follow the tuned ones. NCCL counts the bytes of the full buffer of all its
collectives, as the hub does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from collhub_machine_profiles.nccl_choice import find_choice_windows
from collhub_machine_profiles.nccl_costs import Communicator

from collhub_nccl.options import TunerOptions
from collhub_nccl.tuner.read import (
    ANY,
    COLLECTIVES,
    FILE,
    LARGEST,
    OWN_CHANNELS,
    own_algorithms,
)
from hub_core.model import CollectiveKind, Loss
from hub_core.plugin_api import (
    Artifact,
    SelectedWindow,
    Selection,
    WriteResult,
)
from hub_core.selections import first_of_kinds, own_windows

_DEFAULT_CHANNELS = 16
_NAME_OF = {kind: name for name, kind in COLLECTIVES.items()}
# Sizes in bytes from which NVLS is faster than rings within a node (H100, NCCL 2.19 and later), and
# rings are faster than trees between nodes, by the cost model of NCCL.
_NVLS_FROM, _RINGS_FROM = 2 << 20, 4 << 20


def write(selection: Selection, options: TunerOptions) -> WriteResult:
    """Write one file.

    Algorithms that NCCL lacks are replaced by the best available one, with a loss.
    """
    nodes = "1 node" if selection.num_nodes == 1 else f"{selection.num_nodes} nodes"
    communicator_size = f"{nodes}, {selection.num_ranks} ranks"
    lines = [f"# collhub tune: {selection.topology}, {communicator_size}"[:200]]
    ranks = (selection.num_nodes, selection.num_ranks)
    communicator = _find_communicator(selection)
    once, losses = first_of_kinds(selection)
    tuned = set()
    for selected in once:
        kind = selected.collective.kind
        if kind not in _NAME_OF:
            reason = "NCCL's tuner is not asked for it; NCCL chooses itself"
            losses.append(Loss("collective", str(kind), reason))
            continue
        nccl_names = own_algorithms(kind, selection.num_ranks, selection.num_nodes)
        windows, lost = own_windows(selected, nccl_names, "NCCL", "the lines for other calls hold")
        losses += lost
        for window in windows:
            tuned.add(kind)
            lines += _build_window_lines(
                _NAME_OF[kind], window, nccl_names, options, ranks, communicator
            )
    lines.append("# All other calls, which the tuner would leave a single channel.")
    if communicator is not None:
        lines += _build_nccl_lines(communicator)
    lines += _build_default_lines(options.ll_below)
    content = "\n".join([*lines, ""]).encode("ascii", "replace")
    return WriteResult(
        [Artifact(FILE, content)],
        losses,
        (),
        list(_build_notes(tuned, communicator_size, options, communicator)),
    )


def _find_communicator(selection: Selection) -> Communicator | None:
    """Return the communicator of a selection for a known machine, else None."""
    # Imported here: it needs numpy, which files for other networks do without.
    from collhub_machine_profiles.nccl_baseline import communicator_of_topology

    topology = selection.network
    if topology is None:
        return None
    communicator = communicator_of_topology(topology)
    if communicator is None or communicator.nodes != selection.num_nodes:
        return None
    return communicator


def _count_tuned_channels(options: TunerOptions, communicator: Communicator | None) -> int:
    """Return the channels of tuned lines; 0 leaves the number to NCCL."""
    if options.channels is not None:
        return options.channels
    return _DEFAULT_CHANNELS if communicator is None else 0


def _build_nccl_lines(communicator: Communicator) -> Iterator[str]:
    """Yield lines that repeat NCCL's own choice for all sizes in the tuned communicator."""
    for name, kind in COLLECTIVES.items():
        windows = find_choice_windows(communicator, str(kind))
        for first, last, best in windows:
            end = LARGEST if last == windows[-1][1] else last
            yield _format_line(
                *(name, first, end, best.algorithm, best.protocol, OWN_CHANNELS),
                *(communicator.nodes, communicator.ranks),
            )


def _build_notes(
    tuned: set[CollectiveKind],
    communicator_size: str,
    options: TunerOptions,
    communicator: Communicator | None,
) -> Iterator[str]:
    """Yield notes on how NCCL loads the file, and on its calls outside of the tuned windows."""
    yield f"set NCCL_TUNER_PLUGIN to NCCL's example tuner, and NCCL_TUNER_CONFIG_FILE to {FILE}"
    channels = _count_tuned_channels(options, communicator)
    if channels:
        yield (
            f"tuned lines state {channels} channels, which no simulation tells "
            "(-O channels=, 0 for NCCL's own number)"
        )
    if communicator is not None:
        yield (
            f"protocols of tuned lines, and lines for all sizes of {communicator_size}, follow the"
            f" cost model of NCCL {communicator.version} on {communicator.gpu.name}"
        )
    untuned = ", ".join(str(kind) for kind in COLLECTIVES.values() if kind not in tuned)
    calls = f"{untuned}, and all calls" if untuned else "calls"
    yield (
        f"{calls} of communicators other than {communicator_size} were not tuned: without a line"
        " the tuner leaves them one channel, so lines at the end keep NCCL's own number of channels"
        " (0) and name the algorithm that NCCL's cost model mostly chooses"
    )


def _build_window_lines(
    name: str,
    window: SelectedWindow,
    nccl_names: Mapping[str, str],
    options: TunerOptions,
    ranks: tuple[int, int],
    communicator: Communicator | None,
) -> Iterator[str]:
    """Yield a line of a window for each protocol: those of the cost model on a known machine, else
    ll for small sizes.
    """
    algorithm = nccl_names[window.algorithm]
    max_bytes = LARGEST if window.max_bytes is None else window.max_bytes
    channels = _count_tuned_channels(options, communicator)
    choices = []
    if communicator is not None:
        choices = find_choice_windows(communicator, str(COLLECTIVES[name]), algorithm)
    for first, last, best in choices:
        end = LARGEST if last == choices[-1][1] else last
        first, end = max(first, window.min_bytes), min(end, max_bytes)
        if first <= end:
            yield _format_line(name, first, end, algorithm, best.protocol, channels, *ranks)
    if choices:
        return
    # NCCL's parallel aggregated trees support only the protocol Simple.
    border = 0 if algorithm == "pat" else options.ll_below
    parts = (
        (window.min_bytes, min(max_bytes, border - 1), "ll"),
        (max(window.min_bytes, border), max_bytes, "simple"),
    )
    for first, last, protocol in parts:
        if first <= last:
            yield _format_line(name, first, last, algorithm, protocol, channels, *ranks)


def _build_default_lines(ll_below: int) -> Iterator[str]:
    """Yield lines for every size of all collectives and communicators, with NCCL's channels.

    A line must name an algorithm, so these follow the cost model of NCCL: rings, except trees for
    the smaller all-reduces on several nodes, and NVLS for the larger ones on one node. NCCL skips a
    line that it does not allow, such as NVLS on machines without it, and uses the next one.
    """
    reduce = _NAME_OF[CollectiveKind.ALL_REDUCE]
    nvls_from, rings_from = max(_NVLS_FROM, ll_below), max(_RINGS_FROM, ll_below)
    yield _format_line(reduce, nvls_from, LARGEST, "nvls", "simple", OWN_CHANNELS, 1, ANY)
    if ll_below:
        yield _format_line(reduce, 0, ll_below - 1, "ring", "ll", OWN_CHANNELS, 1, ANY)
    yield _format_line(reduce, ll_below, LARGEST, "ring", "simple", OWN_CHANNELS, 1, ANY)
    if ll_below:
        yield _format_line(reduce, 0, ll_below - 1, "tree", "ll", OWN_CHANNELS, ANY, ANY)
    if ll_below < rings_from:
        yield _format_line(
            reduce, ll_below, rings_from - 1, "tree", "simple", OWN_CHANNELS, ANY, ANY
        )
    for name in COLLECTIVES:
        first = rings_from if name == reduce else 0
        if first < ll_below:
            yield _format_line(name, first, ll_below - 1, "ring", "ll", OWN_CHANNELS, ANY, ANY)
        yield _format_line(
            name, max(first, ll_below), LARGEST, "ring", "simple", OWN_CHANNELS, ANY, ANY
        )


def _format_line(*fields: object) -> str:
    return ",".join(map(str, fields))
