"""Passes that apply one transformation to the program of a workload, and list its moves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from collhub_coconet.documents.from_workload import find_program
from collhub_coconet.documents.json_document import program_to_json
from collhub_coconet.documents.operator_names import Inference, infer_program
from collhub_coconet.lowering.workload import lower
from collhub_coconet.plugin import (
    CoalesceOptions,
    FuseOptions,
    OverlapOptions,
    ReorderOptions,
    RootOptions,
    ScatterOptions,
    StatedOptions,
    StateOptions,
)
from collhub_coconet.program.operations import Kind
from collhub_coconet.program.program import Program
from collhub_coconet.transformations.buckets import coalesce, coalesce_by_size
from collhub_coconet.transformations.costs import Costs, costs
from collhub_coconet.transformations.grouping import fuse, overlap
from collhub_coconet.transformations.legality import LegalityRecord, Parameter, Rewrite, remove_dead
from collhub_coconet.transformations.moves import legal_moves
from collhub_coconet.transformations.reorder import movable, reorder
from collhub_coconet.transformations.slicing import as_slice, split, split_at_root
from hub_core.model import JsonValue, UsageError, Workload
from hub_core.plugin_api import PassMove, PassReport

Transformation = Callable[[Program], Rewrite]


def rewrite_workload(
    workload: Workload, options: StatedOptions, transformation: Transformation
) -> tuple[Workload, PassReport]:
    """Transform the program of a workload, and return the lowered result and a report.

    The history of the result has one more record (`record_fields`): the transformation, the
    checked conditions, and the change of the costs at the sizes of the workload. The report
    lists the nodes that were inferred because of the option `infer`, then the lines of
    `describe_record`. The provenance is kept, and `workload` is not changed.

    Raise the errors of `read_program` if the nodes do not describe a program (`InputError`)
    or the option `element` is needed (`UsageError`), `RefusedMoveError` if a condition of
    the transformation does not hold, and all other errors of `transformation`.
    """
    inference = read_program(workload, options)
    before = inference.bound
    rewrite = transformation(before.program)
    effect = costs(rewrite.program, before.binding) - costs(before.program, before.binding)
    record = record_fields(rewrite.record, before.program, effect)
    after = lower(rewrite.program, before.binding, (*before.history, record))
    changes = (*inference.filled_in, *describe_record(rewrite.record, effect))
    return replace(after, provenance=workload.provenance), PassReport(changes)


def read_program(workload: Workload, options: StatedOptions) -> Inference:
    """Extract the program of a workload and the list of inferred nodes.

    With the option `infer`, nodes that do not describe their operation are inferred from the table
    of operator names; without it the list is empty. Raises `InputError` if the nodes do not
    describe a program, `UsageError` if an inferred node needs the option `element`.
    """
    if options.infer:
        return infer_program(workload, options.element)
    return Inference(find_program(workload), ())


def record_fields(record: LegalityRecord, parent: Program, effect: Costs) -> dict[str, JsonValue]:
    """Return the JSON fields of a transformation in the history of a workload.

    - `transformation`: its name
    - `parameters`: values by name, with lists in place of tuples
    - `conditions`, `notes`: the lists of the record
    - `effect`: change of each cost by name, such as `sent bytes`
    - `parent`: hexadecimal SHA-256 of the JSON text of `parent`, the program before the
      transformation
    """
    parameters = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in record.parameters.items()
    }
    return {
        "transformation": record.transformation,
        "parameters": parameters,  # type: ignore[dict-item]
        "conditions": list(record.conditions),
        "notes": list(record.notes),
        "effect": effect.as_fields(),  # type: ignore[dict-item]
        "parent": hashlib.sha256(program_to_json(parent).encode()).hexdigest(),
    }


def describe_record(record: LegalityRecord, effect: Costs) -> tuple[str, ...]:
    """Describe a transformation in lines of text.

    The lines are: the call (`NAME(PARAMETER=VALUE, ...)`), one line `holds: CONDITION: OPERATIONS`
    per checked condition, the notes of the record, and the `effect per rank`: every cost that
    changes, with its difference and sign, or `none`. Conditions of the record have the form
    `condition: operation`; operations of one condition share a line.
    """
    arguments = [f"{name}={format_parameter(value)}" for name, value in record.parameters.items()]
    lines = [f"{record.transformation}({', '.join(arguments)})"]
    operations_of: dict[str, list[str]] = {}
    for entry in record.conditions:
        condition, _, operation = entry.partition(": ")
        operations_of.setdefault(condition, []).append(operation)
    lines += [f"holds: {name}: {', '.join(names)}" for name, names in operations_of.items()]
    lines += list(record.notes)
    changes = [f"{name} {value:+d}" for name, value in effect.as_fields().items() if value]
    return (*lines, f"effect per rank: {', '.join(changes) or 'none'}")


def format_parameter(value: Parameter) -> str:
    """Format a parameter as a value of `-O`; lists of names are joined by `+`.

    Names contain no plus sign, so that `split_names` can split the text again.
    """
    return "+".join(value) if isinstance(value, tuple) else str(value)


def split_names(text: str | None, option: str) -> list[str]:
    """Split names that are joined by `+`, and strip them; empty names are dropped.

    `option`: name of the option, for the error. Repeated names remain. Raises `UsageError` if the
    text is None or has no name.
    """
    names = [name.strip() for name in (text or "").split("+") if name.strip()]
    if not names:
        message = f"option {option} is missing"
        raise UsageError(message, cure=f"-O {option}=a+b; --list shows what is legal")
    return names


def select_target(program: Program, target: str | None, kind: Kind) -> str:
    """Return `target`, or if it is None or empty, the name of the only operation of this kind.

    A given target is not checked. Raises `UsageError` if none is given and the program does not
    have exactly one operation of this kind.
    """
    if target:
        return target
    names = [operation.name for operation in program.operations if operation.kind is kind]
    if len(names) == 1:
        return names[0]
    message = f"option target is missing, and the program has {len(names)} operations {kind}"
    raise UsageError(message, cure=f"-O target=NAME, of {', '.join(names) or 'none'}")


def run_split(workload: Workload, options: ScatterOptions) -> tuple[Workload, PassReport]:
    """Replace the AllReduce `target` by a ReduceScatter along `dimension` and an AllGather.

    Returns the new workload and a report. Raises `UsageError` if no target is given and the program
    does not have exactly one AllReduce, and all exceptions of `rewrite_workload`.
    """

    def transformation(program: Program) -> Rewrite:
        target = select_target(program, options.target, Kind.ALL_REDUCE)
        return split(program, target, options.dimension)

    return rewrite_workload(workload, options, transformation)


def run_split_at_root(workload: Workload, options: RootOptions) -> tuple[Workload, PassReport]:
    """Replace the AllReduce `target` by a Reduce to rank `root` and a Broadcast from it.

    `root` is counted from 0 within the group. Returns the new workload and a report. Raises
    `UsageError` if no target is given and the program does not have exactly one AllReduce, and all
    exceptions of `rewrite_workload`.
    """

    def transformation(program: Program) -> Rewrite:
        target = select_target(program, options.target, Kind.ALL_REDUCE)
        return split_at_root(program, target, options.root)

    return rewrite_workload(workload, options, transformation)


def run_reorder(workload: Workload, options: ReorderOptions) -> tuple[Workload, PassReport]:
    """Move operations before an AllGather, so that they compute on slices of the data.

    `target`: name of the AllGather; if it is missing, the only AllGather of the program.
    `members`: names of the operations, joined by `+`; if they are missing, all operations that
    can move. Returns a new workload and a report; `workload` is not changed.

    Raises `UsageError` if `target` is missing and the program does not have exactly one
    AllGather, or if `members` has no name. Raises `RefusedMoveError` if the target is not an
    AllGather, if no operation can move, or if one of `members` cannot move. The errors of
    `rewrite_workload` are raised, too.
    """

    def transformation(program: Program) -> Rewrite:
        target = select_target(program, options.target, Kind.ALL_GATHER)
        is_gather = target in program.by_name and program.by_name[target].kind is Kind.ALL_GATHER
        # `reorder` explains in its refusal that the target is not an AllGather.
        if options.members or not is_gather:
            return reorder(program, target, split_names(options.members or target, "members"))
        return reorder(program, target, movable(program, target))

    return rewrite_workload(workload, options, transformation)


def run_as_slice(workload: Workload, options: StateOptions) -> tuple[Workload, PassReport]:
    """Store the states of the options as slices; return the new workload and a report.

    `options.states`: names joined by `+`. Raises `UsageError` without names, and all exceptions
    of `rewrite_workload`.
    """
    states = split_names(options.states, "states")
    return rewrite_workload(workload, options, lambda program: as_slice(program, states))


def run_dead(workload: Workload, options: StatedOptions) -> tuple[Workload, PassReport]:
    """Keep only operations that an output or an Update needs; return the new workload and a report.

    The remaining passes remove such operations, too. Raises the exceptions of `rewrite_workload`.
    """
    return rewrite_workload(workload, options, remove_dead)


def run_fuse(workload: Workload, options: FuseOptions) -> tuple[Workload, PassReport]:
    """Combine operations into a stage `options.name`; return the new workload and a report.

    `options.members`: names of operations or stages, joined by `+`. Raises `UsageError` without
    names, and all exceptions of `rewrite_workload`.
    """
    members, name = split_names(options.members, "members"), options.name
    return rewrite_workload(workload, options, lambda program: fuse(program, members, name))


def run_coalesce(workload: Workload, options: CoalesceOptions) -> tuple[Workload, PassReport]:
    """Put collectives into buckets, each of which is sent as one; return workload and report.

    - `members` (names joined by `+`): these form one bucket, whose name is the option `name`.
    - `bucket_size` (bytes): all collectives outside of stages are put into buckets, in the order of
      execution. For each combination of kind, reduction, group, axes, element type and counts, one
      bucket is open. It is closed when it has at least this size, before a collective that depends
      on a member, and after the last collective. Buckets of one collective are dropped.

    The given workload is not changed. Raises `UsageError` unless exactly one of `members` and
    `bucket_size` is given. With `bucket_size`, raises `RefusedMoveError` if no bucket has two
    collectives. Raises all exceptions of `rewrite_workload`.
    """
    if bool(options.members) is (options.bucket_size is not None):
        message = "coalesce needs either members or bucket_size"
        cure = "-O members=a+b for one bucket, or -O bucket_size=25MiB for all collectives"
        raise UsageError(message, cure=cure)
    if options.bucket_size is None:
        members, name = split_names(options.members, "members"), options.name
        return rewrite_workload(workload, options, lambda program: coalesce(program, members, name))
    binding, size = read_program(workload, options).bound.binding, options.bucket_size
    return rewrite_workload(
        workload, options, lambda program: coalesce_by_size(program, binding, size)
    )


def run_overlap(workload: Workload, options: OverlapOptions) -> tuple[Workload, PassReport]:
    """Make a chain of operations or stages; return the new workload and a report.

    The members of a chain run at the same time on successive chunks of the data.
    `options.members`: at least two names, joined by `+`, in the order from producer to consumer:
    each member must read a value of the one before it (all conditions: `overlap`). Blanks around
    names and empty names are ignored. Raises `UsageError` without names, and all exceptions of
    `rewrite_workload`: `RefusedMoveError` for a violated condition, such as a single name.
    """
    members = split_names(options.members, "members")
    return rewrite_workload(workload, options, lambda program: overlap(program, members))


def list_moves(workload: Workload, name: str) -> list[PassMove]:
    """List the legal applications of the pass `name` to the program of a workload.

    Each has the options of the pass as text and the effect on the costs of one rank. The
    order is that of `legal_moves`; [] if there are none, and for an unknown name. Raises
    `InputError` for a workload whose nodes do not describe a program; nodes are not
    inferred.
    """
    bound = find_program(workload)
    listed = []
    for move in legal_moves(bound.program, bound.binding):
        record = move.rewrite.record
        if record.transformation != name:
            continue
        options = {key: format_parameter(value) for key, value in record.parameters.items()}
        listed.append(PassMove(options, move.effect.as_fields()))
    return listed
