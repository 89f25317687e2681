"""Run a transformation on a workload: its program out, transformed, and lowered again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from collhub_coconet.documents.from_workload import program_of
from collhub_coconet.documents.json_document import program_to_json
from collhub_coconet.documents.operator_names import Inference, with_inferred
from collhub_coconet.lowering.workload import lower
from collhub_coconet.passes.options import StatedOptions
from collhub_coconet.program.operations import Kind
from collhub_coconet.program.program import Program
from collhub_coconet.transformations.costs import Costs, costs
from collhub_coconet.transformations.legality import LegalityRecord, Parameter, Rewrite
from hub_core.model import JsonValue, UsageError, Workload
from hub_core.plugin_api import PassReport

Transformation = Callable[[Program], Rewrite]


def rewritten_workload(
    workload: Workload, options: StatedOptions, transformation: Transformation
) -> tuple[Workload, PassReport]:
    """The workload of the transformed program, with the record of legality.

    Raises `InputError` where nodes do not state a program, `RefusedMoveError` where a condition of
    the transformation does not hold.
    """
    found = read_program(workload, options)
    before = found.bound
    rewrite = transformation(before.program)
    # Effects are those at the sizes of the workload.
    effect = costs(rewrite.program, before.binding) - costs(before.program, before.binding)
    record = record_fields(rewrite.record, before.program, effect)
    after = lower(rewrite.program, before.binding, (*before.history, record))
    changes = (*found.filled_in, *told(rewrite.record, effect))
    return replace(after, provenance=workload.provenance), PassReport(changes)


def read_program(workload: Workload, options: StatedOptions) -> Inference:
    """The program of a workload, filled in from the table of operator names where asked for."""
    if options.infer:
        return with_inferred(workload, options.element)
    return Inference(program_of(workload), ())


def record_fields(record: LegalityRecord, parent: Program, effect: Costs) -> dict[str, JsonValue]:
    """A legality record as the workload keeps it; `parent`: sha256 of the document before."""
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


def told(record: LegalityRecord, effect: Costs) -> tuple[str, ...]:
    """A legality record in lines: the step, the conditions that hold, the effect."""
    stated = [f"{name}={parameter_text(value)}" for name, value in record.parameters.items()]
    lines = [f"{record.transformation}({', '.join(stated)})"]
    # One line a condition, not one an operation.
    by_condition: dict[str, list[str]] = {}
    for met in record.conditions:
        condition, _, operation = met.partition(": ")
        by_condition.setdefault(condition, []).append(operation)
    lines += [f"holds: {name}: {', '.join(who)}" for name, who in by_condition.items()]
    lines += list(record.notes)
    changed = [f"{name} {value:+d}" for name, value in effect.as_fields().items() if value]
    return (*lines, f"effect a rank: {', '.join(changed) or 'none'}")


def parameter_text(value: Parameter) -> str:
    """A parameter as `-O` takes it."""
    # Names have no plus sign.
    return "+".join(value) if isinstance(value, tuple) else str(value)


def names_of(text: str | None, option: str) -> list[str]:
    """Names joined by `+`. Raises `UsageError` where none is given."""
    names = [name.strip() for name in (text or "").split("+") if name.strip()]
    if not names:
        message = f"{option} is not stated"
        raise UsageError(message, cure=f"-O {option}=a+b; --list shows what is legal")
    return names


def target_of(program: Program, stated: str | None, kind: Kind) -> str:
    """The operation as stated, or the only one of its kind. Raises `UsageError`."""
    if stated:
        return stated
    known = [one.name for one in program.operations if one.kind is kind]
    if len(known) == 1:
        return known[0]
    message = f"target is not stated, and there are {len(known)} operations {kind}"
    raise UsageError(message, cure=f"-O target=NAME, of {', '.join(known) or 'none'}")
