"""Write a selection as plans with windows of sizes, and the program that registers them.

Since release 0.9 the runtime loads no folder: an application registers plans before it creates its
communicator (`AlgorithmCollectionBuilder`, python/mscclpp). Sizes are those of the full buffer, as
in the hub; the program converts the size that the runtime passes. The program is
`register_program.py` with the table of the plans.

The executor refuses sizes that are not a multiple of 16 bytes for every chunk. A window whose plan
has more chunks than the collective needs has a second plan with the minimum number of chunks, for
the other multiples of 16 bytes. The runtime's built-in algorithms serve the remaining sizes.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace

from collhub_mscclpp.plugin import ALIGNMENT, PACKETS, PlanSelectionOptions, PlanWriteOptions
from collhub_mscclpp.selecting import register_program
from collhub_mscclpp.writing.work import NAMES
from collhub_mscclpp.writing.write import build_draft, plan_text, write_thread_blocks
from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    HubError,
    InputError,
    Loss,
    StepKind,
    StepTableBuilder,
    format_bytes,
)
from hub_core.network import Topology
from hub_core.plugin_api import Artifact, SelectedCollective, SelectedWindow, Selection, WriteResult
from hub_core.selections import iterate_candidates

REGISTER = "register.py"
"""Name of the program that registers the plans."""

_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class RegisteredPlan:
    """A plan file and its calls: `min_bytes` to `max_bytes` (inclusive, None: no limit) of the full
    buffer that are multiples of `divisor`. `collective`: the name that the runtime uses.
    """

    collective: str
    in_place: bool
    min_bytes: int
    max_bytes: int | None
    divisor: int
    file: str


@dataclass(frozen=True, slots=True)
class Registration:
    """Plans for calls of `num_ranks` ranks, `per_node` on each node; the first match is used."""

    num_ranks: int
    per_node: int
    plans: tuple[RegisteredPlan, ...]

    def choose(self, collective: str, in_place: bool, size: int) -> str | None:
        """Return the file of the plan that the program chooses for a call; None if no plan fits.

        `collective`: name in plans. `size`: bytes that the runtime passes; for `allgather` and
        `reducescatter` those of one rank's part, which are multiplied by `num_ranks`. The result
        is that of the first row with this collective and mode whose limits (inclusive) contain
        the size of the full buffer and whose divisor divides it. For `reducescatter` the divisor
        must also divide `size` itself.
        """
        rows = [astuple(plan) for plan in self.plans]
        return register_program.choose(rows, self.num_ranks, collective, in_place, size)


def register_text(registration: Registration) -> str:
    """Return the text of the program that registers these plans.

    It is the source text of `register_program.py` in which RANKS, RANKS_PER_NODE and PLANS have the
    values of `registration`, one row of PLANS per line.

    Any change of that file, also of a docstring, makes folders of earlier releases unreadable
    (`parse_register_text`).
    """
    listed = "".join(f"    {astuple(plan)!r},\n" for plan in registration.plans)
    text = inspect.getsource(register_program)
    for old, new in (
        ("\nRANKS = 0\n", f"\nRANKS = {registration.num_ranks}\n"),
        ("\nRANKS_PER_NODE = 0\n", f"\nRANKS_PER_NODE = {registration.per_node}\n"),
        ("str]] = []\n", f"str]] = [\n{listed}]\n"),
    ):
        text = text.replace(old, new, 1)
    return text


def parse_register_text(content: bytes) -> Registration:
    """Read the plans that a program registers from its text, without executing it.

    Read are the assignments of literals to RANKS, RANKS_PER_NODE and PLANS. Raises `InputError`
    (`changed-program`) unless `register_text` returns exactly this text for their values. So
    missing values, wrong types, a divisor below 1, and text that is not Python or UTF-8 are
    refused. So are file names that leave the folder, because the program loads these files.
    """
    try:
        text = content.decode()
        values = {
            name.id: ast.literal_eval(statement.value)
            for statement in ast.parse(text).body
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
            for name in _list_targets(statement)
            if name.id in ("RANKS", "RANKS_PER_NODE", "PLANS")
        }
        plans = tuple(RegisteredPlan(*row) for row in values["PLANS"])
        registration = Registration(values["RANKS"], values["RANKS_PER_NODE"], plans)
        # A changed program may contain values of any type.
        numbers = [registration.num_ranks, registration.per_node]
        numbers += [
            number for plan in registration.plans for number in (plan.min_bytes, plan.divisor)
        ]
        numbers += [plan.max_bytes for plan in registration.plans if plan.max_bytes is not None]
        has_types = all(type(number) is int for number in numbers) and all(
            type(plan.collective) is str and is_file_name(plan.file) and plan.divisor > 0
            for plan in registration.plans
        )
        is_known = has_types and register_text(registration) == text
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        is_known = False
    if not is_known:
        message = f"{REGISTER}: not as 'collhub tune' writes it: its answers are not known"
        raise InputError(message, cure="tune again into this folder", code="changed-program")
    return registration


def is_file_name(name: object) -> bool:
    """Whether a value is the name of a file, without folders, which a table may register."""
    return isinstance(name, str) and bool(_FILE_NAME.fullmatch(name))


def _list_targets(statement: ast.Assign | ast.AnnAssign) -> list[ast.Name]:
    """List the names to which a statement assigns, in order.

    Other targets (attributes, elements, tuples) are left out.
    """
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [target for target in targets if isinstance(target, ast.Name)]


_MODES = {"in-place": True, "out-of-place": False}
OPERATOR_WARNING = (
    "plans always sum, and the runtime does not report the operator of a call: max, min and avg"
    " would run as a sum; register plans of reductions only if every call sums"
)


@dataclass(slots=True)
class _PlanFolder:
    """Files, plans and losses written so far, for `num_ranks` ranks on `nodes` nodes."""

    options: PlanSelectionOptions
    num_ranks: int
    nodes: int
    network: Topology | None
    files: list[Artifact] = field(default_factory=list)
    plans: list[RegisteredPlan] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _WindowMode:
    """A window of sizes of one collective and mode; its text is used in reports."""

    kind: CollectiveKind
    window: SelectedWindow
    mode: str

    @property
    def is_in_place(self) -> bool:
        return _MODES[self.mode]

    def __str__(self) -> str:
        return f"{self.kind}, {self.mode}, from {format_bytes(self.window.min_bytes)}"

    @property
    def file(self) -> str:
        """Return the file name of the plan without suffix: `kind-min-max-mode`, sizes in bytes.

        The maximum is `inf` if there is none.
        """
        last = "inf" if self.window.max_bytes is None else str(self.window.max_bytes)
        return f"{self.kind}-{self.window.min_bytes}-{last}-{self.mode}"


def write(selection: Selection, options: PlanSelectionOptions) -> WriteResult:
    """Write plans for all windows and modes of a selection, and `register.py` for them.

    The files are returned as bytes, not written to disk. `register.py` is the last file, and is
    also returned without any plan. The plans come before it, by collective in the order of the
    selection, then in place before out of place, then by ascending window. A window can have two
    plans (`_add_window`).

    The ranks are divided equally among the nodes of the selection. If they cannot be, all ranks
    count as one node.

    The losses are:

    - a collective without a name in plans; it has no plan
    - an algorithm that cannot be written, and a window for which none can; the runtime serves it
    - an algorithm with other or no steps for the smallest or largest size of the window
    - sizes of a window that the plan does not serve, if the second plan cannot be written

    The notes explain the use. The last one is a warning if a collective of the selection reduces,
    because plans always sum.
    """
    num_ranks, num_nodes = selection.num_ranks, selection.num_nodes
    # If nodes have unequal sizes, all ranks are assumed to share a memory domain.
    nodes = num_nodes if num_ranks % num_nodes == 0 else 1
    folder = _PlanFolder(options, num_ranks, nodes, selection.network)
    for selected in selection.collectives:
        _add_collective(folder, selected)
    registration = Registration(num_ranks, num_ranks // nodes, tuple(folder.plans))
    files = [*folder.files, Artifact(REGISTER, register_text(registration).encode())]
    notes = [
        "call register(rank) of register.py before the communicator is created",
        f"sizes that are not a multiple of {ALIGNMENT} bytes a rank use the runtime's algorithms",
    ]
    if any(selected.collective.kind.traits.reduces for selected in selection.collectives):
        notes.append(f"warning: {OPERATOR_WARNING}")
    return WriteResult(files, folder.losses, (), notes)


def _add_collective(folder: _PlanFolder, selected: SelectedCollective) -> None:
    """Add plans and losses for all size windows of a collective to `folder`.

    A window is a range of sizes for which one algorithm is selected. Windows in place come first,
    if the collective supports it, then windows out of place, if it supports that. For each
    window, `_add_window` adds one or two plans, or losses that give the reasons. A collective
    that has no name in plans (`NAMES`) adds one loss (`collective`) and no plan.
    """
    kind = selected.collective.kind
    if kind not in NAMES:
        reason = "plans of this collective have no name that the runtime asks for"
        folder.losses.append(Loss("collective", str(kind), reason))
        return
    claims = (selected.collective.in_place, selected.collective.out_of_place)
    for mode, is_claimed in zip(_MODES, claims, strict=True):
        if is_claimed:
            # Up to release 0.8 the mode of a plan must be that of the call.
            for window in selected.windows(None):
                _add_window(folder, selected, _WindowMode(kind, window, mode))


def _add_window(
    folder: _PlanFolder, selected: SelectedCollective, window_mode: _WindowMode
) -> None:
    """Add plans for a window, i.e. a range of sizes of one collective and mode, to the folder.

    Candidates are the selected algorithm of the window, then the others by ascending slowdown
    (`iterate_candidates`). They are built for the measured size at index `len(sizes) // 2`, for the
    mode (in place or out of place) of the window only. A candidate that raises a `HubError` adds a
    loss (`algorithm`) with the reason, and the next one is tried. The first one that can be
    written:

    1. Its plan is added.
    2. `_note_other_steps` adds a loss if the algorithm has other or no steps for the smallest or
       the largest measured size.
    3. `_add_minimum_chunks_plan` adds a second plan or a loss, unless the first plan serves all
       sizes of the window.

    If no candidate can be written, a last loss says that the window is left to the runtime.
    """
    size = window_mode.window.sizes[len(window_mode.window.sizes) // 2]
    for name in iterate_candidates(selected, window_mode.window):
        try:
            algorithm = selected.made(name, size)
            is_in_place = window_mode.is_in_place
            collective = replace(
                algorithm.collective, in_place=is_in_place, out_of_place=not is_in_place
            )
            algorithm = replace(algorithm, collective=collective)
            options = _choose_options(folder, window_mode.window)
            plan = _add_plan(folder, window_mode, algorithm, options)
        except HubError as error:
            reason = f"not {name}: {error.diagnostics[0].message}"
            folder.losses.append(Loss("algorithm", str(window_mode), reason))
            continue
        _note_other_steps(folder, selected, window_mode, name)
        _add_minimum_chunks_plan(folder, window_mode, plan)
        return
    reason = "left to the runtime: no algorithm can be written as a plan"
    folder.losses.append(Loss("algorithm", str(window_mode), reason))


def _add_plan(
    folder: _PlanFolder,
    window_mode: _WindowMode,
    algorithm: Algorithm,
    options: PlanWriteOptions,
    suffix: str = "",
) -> RegisteredPlan:
    """Write one plan, append its file and its row to the folder, and return the row.

    The file is `KIND-MINIMUM-MAXIMUM-MODE` of the window, then `suffix` and `.json`. The row
    serves these sizes of the full buffer in bytes:

    - at least the larger of the window's minimum and the plan's minimum message size
    - at most the window's maximum (None: no limit), also if this is below the minimum
    - multiples of 16 times the chunks of rank 0, of input or output, whichever has more

    A plan of a reduce-scatter is written without the option `min_size`, and its minimum message
    size is multiplied by the number of ranks for the row. This is because releases pass
    different sizes.

    Raises `HubError` if no plan can express the algorithm, or if the options contradict each
    other (`build_draft`, `plan_text`); the folder is then unchanged. The kind must be in `NAMES`.
    """
    least_factor = 1
    if window_mode.kind is CollectiveKind.REDUCE_SCATTER:
        # Some releases pass the size of the result, others of the input; the plan accepts both.
        options, least_factor = replace(options, min_size=None), folder.num_ranks
    draft = build_draft(algorithm, options, folder.network)
    content = plan_text(draft, write_thread_blocks(draft))
    document = json.loads(content)
    gpu = document["gpus"][0]
    plan = RegisteredPlan(
        NAMES[window_mode.kind],
        window_mode.is_in_place,
        # Each thread block of a group needs at least one unit of data.
        max(window_mode.window.min_bytes, document["min_message_size"] * least_factor),
        window_mode.window.max_bytes,
        ALIGNMENT * max(gpu["input_chunks"], gpu["output_chunks"]),
        f"{window_mode.file}{suffix}.json",
    )
    folder.files.append(Artifact(plan.file, content))
    folder.plans.append(plan)
    return plan


def _add_minimum_chunks_plan(
    folder: _PlanFolder, window_mode: _WindowMode, plan: RegisteredPlan
) -> None:
    """Add a second plan with few chunks, unless `plan` serves all sizes of the window.

    `plan` serves all sizes if its minimum is that of the window, and its divisor of the size is 16
    bytes * p. Here p is the number of equal parts of the full buffer: the number of ranks, or 1 if
    the collective does not split the buffer by rank (all-reduce).

    Otherwise the plan of `direct_exchange` is added, with the same window and mode, and without
    sharing of the work by thread blocks. Its file has the suffix `-any`. Its row comes after that
    of `plan`, so it is used only for calls that `plan` does not serve. If adding it raises
    `HubError`, a loss `sizes` with the reason is added instead.
    """
    parts = window_mode.kind.traits.parts(folder.num_ranks)
    if plan.divisor == ALIGNMENT * parts and plan.min_bytes == window_mode.window.min_bytes:
        return
    algorithm = direct_exchange(
        window_mode.kind, folder.num_ranks, in_place=window_mode.is_in_place
    )
    options = replace(_choose_options(folder, window_mode.window), tbg=1)
    try:
        _add_plan(folder, window_mode, algorithm, options, "-any")
    except HubError as error:
        reason = f"only multiples of {plan.divisor} bytes: {error.diagnostics[0].message}"
        folder.losses.append(Loss("sizes", str(window_mode), reason))


def _choose_options(folder: _PlanFolder, window: SelectedWindow) -> PlanWriteOptions:
    """Choose the options of a window's plan.

    The protocol is packets if the window has a maximum size below the option
    `packets_below` (bytes) and there is a single node, otherwise Simple. Minimum and
    maximum size are those of the window, the number of nodes and `tbg` those of the folder.
    """
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
    folder: _PlanFolder, selected: SelectedCollective, window_mode: _WindowMode, name: str
) -> None:
    """Add a loss to `folder.losses` if the steps of a plan do not fit all sizes of its window.

    The plan has the steps of the algorithm `name` for the middle one of the measured sizes of the
    window (of an even number of sizes, the larger middle one). These steps are compared with those
    for the smallest size, then with those for the largest size. The first of these two sizes in
    the following cases gives the loss; there is no second loss:

    - The steps differ.
    - A `HubError` prevents building the steps for the size.

    A `HubError` for the middle size passes through.
    """
    sizes: Sequence[int] = window_mode.window.sizes
    chosen = selected.made(name, sizes[len(sizes) // 2]).steps
    for size in (sizes[0], sizes[-1]):
        try:
            is_same = not selected.made(name, size).steps.differences(chosen)
            reason = f"{name} was measured with other steps for other sizes of the window"
        except HubError as error:
            is_same = False
            reason = f"{name} has no steps for {format_bytes(size)}: {error.diagnostics[0].message}"
        if not is_same:
            folder.losses.append(Loss("steps", str(window_mode), reason))
            return


_LANE = 0


def direct_exchange(kind: CollectiveKind, num_ranks: int, *, in_place: bool) -> Algorithm:
    """Build the algorithm in which every rank sends its data directly to every other rank.

    The collective has one unit for an all-reduce, otherwise one per rank. Rank r first sends
    one unit of its input to r + 1, r + 2, ..., r - 1 (modulo the ranks). It is the unit with
    the number of the peer for reduce-scatter and all-to-all, otherwise unit 0. After all
    sends, it receives from r - 1, r - 2, ..., r + 1. Reductions add all units into unit 0 of
    the output. Other collectives store each unit, and the rank's own, at the number of its
    source.

    A rank has one lane and no scratch; a single rank only copies. The mode is in place if
    `in_place`, otherwise out of place. Raises `InputError` (`invalid-collective`) for kinds
    with a root, counts or a contract, and without ranks.
    """
    units = 1 if kind is CollectiveKind.ALL_REDUCE else num_ranks
    collective = Collective(kind, num_ranks, units, in_place=in_place, out_of_place=not in_place)
    steps = StepTableBuilder(num_ranks)
    is_by_target = kind.traits.split_by_target
    finish = _add_up if kind.traits.reduces else _store
    for rank in range(num_ranks):
        # Every rank begins with a different peer, so that no rank receives from all at once.
        peers = [(rank + distance) % num_ranks for distance in range(1, num_ranks)]
        sent = [
            steps.add(
                rank,
                StepKind.SEND,
                peer=peer,
                src_buffer=Buffer.INPUT,
                src_offset=peer if is_by_target else 0,
                count=1,
                lane=_LANE,
            )
            for peer in peers
        ]
        finish(steps, rank, peers[::-1], sent, rank if is_by_target else 0)
    return Algorithm(collective, steps.build(), collective.input_units() * 0)


def _store(
    steps: StepTableBuilder, rank: int, peers: list[int], sent: list[int], own_unit: int
) -> None:
    """Add steps of `rank` that store its own unit and one unit of each peer in the output.

    The first step copies unit `own_unit` of the input to unit `rank` of the output. Then, in the
    order of `peers`, one unit is received from each peer into the output unit with the peer's
    number. Without peers there is only the copy. All steps are in lane `_LANE`. Each depends on
    all rows of `sent` (sends of the rank), not on the other new steps.
    """
    steps.add(
        rank,
        StepKind.COPY,
        control=sent,
        src_buffer=Buffer.INPUT,
        src_offset=own_unit,
        dst_buffer=Buffer.OUTPUT,
        dst_offset=rank,
        count=1,
        lane=_LANE,
    )
    for peer in peers:
        steps.add(
            rank,
            StepKind.RECV,
            control=sent,
            peer=peer,
            dst_buffer=Buffer.OUTPUT,
            dst_offset=peer,
            count=1,
            lane=_LANE,
        )


def _add_up(
    steps: StepTableBuilder, rank: int, peers: list[int], sent: list[int], own_unit: int
) -> None:
    """Add steps of `rank` that store the sum of its own unit and one unit of each peer.

    The sum is stored in unit 0 of the output. All steps have the same lane.

    - With peers: one reducing receive per peer, in the order of `peers`. The first adds the
      received unit to unit `own_unit` of the input; it depends on all rows of `sent` (sends
      of the rank). Each further one adds to the sum so far, and depends on the one before it.
    - Without peers: one copy of unit `own_unit`, which depends on all rows of `sent`.
    """
    if not peers:
        steps.add(
            rank,
            StepKind.COPY,
            control=sent,
            src_buffer=Buffer.INPUT,
            src_offset=own_unit,
            dst_buffer=Buffer.OUTPUT,
            dst_offset=0,
            count=1,
            lane=_LANE,
        )
    buffer, offset, before = Buffer.INPUT, own_unit, sent
    for peer in peers:
        row = steps.add(
            rank,
            StepKind.RECV_REDUCE,
            control=before,
            peer=peer,
            src_buffer=buffer,
            src_offset=offset,
            dst_buffer=Buffer.OUTPUT,
            dst_offset=0,
            count=1,
            lane=_LANE,
        )
        buffer, offset, before = Buffer.OUTPUT, 0, [row]
