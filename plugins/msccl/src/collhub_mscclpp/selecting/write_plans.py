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
from collections.abc import Iterator, Sequence
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

REGISTER = "register.py"
"""Name of the program that registers the plans."""


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
        """Return the file of the plan that the program chooses for a call; None if none serves it.

        `collective`: name in plans; `size`: bytes, as the runtime passes them (for some collectives
        those of one part). The first row that fits counts.
        """
        rows = [astuple(plan) for plan in self.plans]
        return register_program.choose(rows, self.num_ranks, collective, in_place, size)


def register_text(registration: Registration) -> str:
    """Return the text of the program that registers these plans.

    It is the source text of `register_program.py` in which RANKS, RANKS_PER_NODE and PLANS have the
    values of `registration`, one row of PLANS per line.
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
    refused.
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
            type(plan.collective) is str and type(plan.file) is str and plan.divisor > 0
            for plan in registration.plans
        )
        is_known = has_types and register_text(registration) == text
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        is_known = False
    if not is_known:
        message = f"{REGISTER}: not as 'collhub tune' writes it: its answers are not known"
        raise InputError(message, cure="tune again into this folder", code="changed-program")
    return registration


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
class _Folder:
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

    These cases are losses and left to the runtime: collectives that have no name in plans, and
    windows without an algorithm that can be written. Files are returned, not written to disk.
    """
    num_ranks, num_nodes = selection.num_ranks, selection.num_nodes
    # If nodes have unequal sizes, all ranks are assumed to share a memory domain.
    nodes = num_nodes if num_ranks % num_nodes == 0 else 1
    folder = _Folder(options, num_ranks, nodes, selection.network)
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


def _add_collective(folder: _Folder, selected: SelectedCollective) -> None:
    """Add plans for all windows of a collective to the folder, in every mode that it supports.

    First all windows in place, then out of place. A collective without a name in plans adds one
    loss and no plan.
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


def _add_window(folder: _Folder, selected: SelectedCollective, window_mode: _WindowMode) -> None:
    """Add a plan for a window of sizes to the folder, and if needed a second one for other sizes.

    The algorithms of `_list_candidates` are tried in order, with their steps for the middle
    measured size; the first that can be written is used. A second plan serves the sizes of the
    window that the first does not, because its chunks do not divide them. Each algorithm that
    cannot be written, and a window without any plan, is a loss.
    """
    size = window_mode.window.sizes[len(window_mode.window.sizes) // 2]
    for name in _list_candidates(selected, window_mode.window):
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
    folder: _Folder,
    window_mode: _WindowMode,
    algorithm: Algorithm,
    options: PlanWriteOptions,
    suffix: str = "",
) -> RegisteredPlan:
    """Write one plan, add its file and its row to the folder, and return the row.

    The row serves sizes from the minimum of the window (or of the plan, if larger) to the maximum
    of the window, in multiples of 16 bytes times the chunks of the larger buffer. A plan of a
    reduce-scatter is written without the window's minimum, and its own minimum is multiplied by the
    number of ranks. `suffix`: appended to the name of the file. Raises `HubError` if the algorithm
    cannot be written; the folder is then unchanged.
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
    folder: _Folder, window_mode: _WindowMode, plan: RegisteredPlan
) -> None:
    """Add a second plan with few chunks, unless `plan` serves all sizes of the window.

    `plan` serves all sizes if it serves all multiples of 16 bytes per part, from the minimum of the
    window on. The added plan is a direct exchange, in a file with the suffix "-any". If it cannot
    be written, a loss is added instead.
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


def _list_candidates(selected: SelectedCollective, window: SelectedWindow) -> Iterator[str]:
    """Yield the names of the algorithms to try for a window, each once.

    First the chosen one, then the others that were measured at the sizes of the window, the fastest
    first.
    """
    yield window.algorithm
    names = selected.slowdowns(window.sizes)
    for name in names:
        if name != window.algorithm:
            yield name


def _choose_options(folder: _Folder, window: SelectedWindow) -> PlanWriteOptions:
    """Choose the options of a window's plan.

    The protocol is packets if the maximum size of the window is below the option `packets_below`
    (bytes) and there is a single node, otherwise Simple. Sizes are those of the window. The number
    of nodes and `tbg` are those of the folder.
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
    folder: _Folder, selected: SelectedCollective, window_mode: _WindowMode, name: str
) -> None:
    """Add a loss if an algorithm has different steps for different sizes of a window.

    The steps for the middle measured size, which the plan has, are compared with those for the
    smallest and the largest.
    """
    sizes: Sequence[int] = window_mode.window.sizes
    chosen = selected.made(name, sizes[len(sizes) // 2]).steps
    limit_steps = [selected.made(name, size).steps for size in (sizes[0], sizes[-1])]
    if any(steps.differences(chosen) for steps in limit_steps):
        reason = f"{name} was measured with other steps for other sizes of the window"
        folder.losses.append(Loss("steps", str(window_mode), reason))


_LANE = 0


def direct_exchange(kind: CollectiveKind, num_ranks: int, *, in_place: bool) -> Algorithm:
    """Build the algorithm in which every rank sends its data directly to every other rank.

    An all-reduce has one unit, other collectives one per rank. Rank r sends to r + 1, r + 2, ...
    (modulo the ranks) and receives in the opposite order, all in one lane. Collectives that are
    split by target send to each peer the unit of the peer, others unit 0. Every rank sends all its
    data before it writes any, so the algorithm is also correct in place. It supports only the mode
    `in_place`.
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
    """Add steps that store the own unit and the units of all peers in the output.

    The own unit `own_unit` of the input is copied to unit `rank` of the output. Then each peer's
    unit is received into the unit with the peer's number. All steps are in lane `_LANE` and follow
    the sends `sent`.
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
    """Add steps that store the sum of the own unit and of the units of all peers in the output.

    `own_unit`: unit of the input. The sum is in unit 0 of the output. There is one reducing receive
    per peer, each after the previous one; the first follows the sends `sent`. Nothing is added if
    there are no peers.
    """
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
