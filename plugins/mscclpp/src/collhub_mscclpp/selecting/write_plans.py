"""Write a selection as plans with windows of sizes, and the program that registers them.

Since release 0.9 the runtime loads no folder: an application registers plans before it makes its
communicator (`AlgorithmCollectionBuilder`, python/mscclpp). Sizes are those of the full buffer, as
the hub counts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from collhub_mscclpp.options import PACKETS, PlanSelectionOptions, PlanWriteOptions
from collhub_mscclpp.selecting.register_text import RegisteredPlan, register_text
from collhub_mscclpp.writing.plan_text import plan_text
from collhub_mscclpp.writing.work import NAMES
from collhub_mscclpp.writing.write import draft_of, thread_blocks
from hub_core.model import Algorithm, HubError, Loss, format_bytes
from hub_core.plugin_api import (
    Artifact,
    SelectedCollective,
    SelectedWindow,
    Selection,
    WriteResult,
)

_MODES = {"in-place": True, "out-of-place": False}
REGISTER = "register.py"
"""Name of the program that registers the plans."""


@dataclass(slots=True)
class _Folder:
    """What has been written so far, for ranks on so many nodes."""

    options: PlanSelectionOptions
    nodes: int
    files: list[Artifact] = field(default_factory=list)
    plans: list[RegisteredPlan] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)


def write(selection: Selection, options: PlanSelectionOptions) -> WriteResult:
    """A plan for every window and mode, and `register.py`, which gives them to the runtime.

    Collectives that plans do not name, and windows that no algorithm can be written for, are left
    to the runtime. Both are losses.
    """
    num_ranks, num_nodes = selection.num_ranks, selection.num_nodes
    # Ranks that do not divide among the nodes: all reach each other by memory, as far as is known.
    nodes = num_nodes if num_ranks % num_nodes == 0 else 1
    folder = _Folder(options, nodes)
    for selected in selection.collectives:
        _add_collective(folder, selected)
    text = register_text(folder.plans, num_ranks, num_ranks // nodes)
    files = [*folder.files, Artifact(REGISTER, text.encode())]
    notes = ["call register(rank) of register.py before the communicator is made"]
    return WriteResult(files, folder.losses, (), notes)


def _add_collective(folder: _Folder, selected: SelectedCollective) -> None:
    """Plans for all windows of a collective."""
    kind = selected.collective.kind
    if kind not in NAMES:
        reason = "plans of this collective have no name that the runtime asks for"
        folder.losses.append(Loss("collective", str(kind), reason))
        return
    claims = (selected.collective.in_place, selected.collective.out_of_place)
    for (mode, is_in_place), is_wanted in zip(_MODES.items(), claims, strict=True):
        if is_wanted:
            # Up to release 0.8 the mode of a plan must be that of the call.
            for window in selected.windows(None):
                _add_window(folder, selected, window, mode, is_in_place)


def _add_window(
    folder: _Folder,
    selected: SelectedCollective,
    window: SelectedWindow,
    mode: str,
    is_in_place: bool,
) -> None:
    """One plan, by the best algorithm that can be written."""
    where = f"{selected.collective.kind}, {mode}, from {format_bytes(window.min_bytes)}"
    size = window.sizes[len(window.sizes) // 2]
    for name in _candidates(selected, window):
        try:
            algorithm = _of_mode(selected.made(name, size), is_in_place)
            draft = draft_of(algorithm, _way(folder, window))
        except HubError as error:
            reason = f"not {name}: {error.diagnostics[0].message}"
            folder.losses.append(Loss("algorithm", where, reason))
            continue
        last = "inf" if window.max_bytes is None else str(window.max_bytes)
        file = f"{selected.collective.kind}-{window.min_bytes}-{last}-{mode}.json"
        content = plan_text(draft, thread_blocks(draft))
        folder.files.append(Artifact(file, content))
        kind = NAMES[selected.collective.kind]
        plan = RegisteredPlan(file, kind, is_in_place, window.min_bytes, window.max_bytes)
        folder.plans.append(plan)
        _note_other_steps(folder, selected, window, name, where)
        return
    folder.losses.append(Loss("algorithm", where, "left to the runtime: nothing can be written"))


def _candidates(selected: SelectedCollective, window: SelectedWindow) -> Iterator[str]:
    """The algorithm of the window, then the others that fit its sizes, the best first."""
    yield window.algorithm
    others = selected.slowdowns(window.sizes)
    for name in others:
        if name != window.algorithm:
            yield name


def _of_mode(algorithm: Algorithm, is_in_place: bool) -> Algorithm:
    """The algorithm for calls of one mode."""
    collective = algorithm.collective
    served = replace(collective, in_place=is_in_place, out_of_place=not is_in_place)
    return replace(algorithm, collective=served)


def _way(folder: _Folder, window: SelectedWindow) -> PlanWriteOptions:
    """How the plan of a window moves data: small messages as packets, where packets travel."""
    is_small = window.max_bytes is not None and window.max_bytes < folder.options.packets_below
    is_packets = is_small and folder.nodes == 1
    return PlanWriteOptions(
        protocol=PACKETS if is_packets else "Simple",
        nodes=folder.nodes,
        tbg=folder.options.tbg,
        min_size=window.min_bytes,
        max_size=window.max_bytes,
    )


def _note_other_steps(
    folder: _Folder, selected: SelectedCollective, window: SelectedWindow, name: str, where: str
) -> None:
    """Say where the steps of the window's middle are not those of its ends."""
    sizes: Sequence[int] = window.sizes
    chosen = selected.made(name, sizes[len(sizes) // 2]).steps
    ends = [selected.made(name, size).steps for size in (sizes[0], sizes[-1])]
    if any(steps.differences(chosen) for steps in ends):
        reason = f"{name} was measured with other steps for other sizes of the window"
        folder.losses.append(Loss("steps", where, reason))
