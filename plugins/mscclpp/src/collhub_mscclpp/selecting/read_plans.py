"""What every plan of a folder serves, as the executor has it."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.plans.json_values import MOST_BYTES
from collhub_mscclpp.plans.read_plan import parse_plan
from collhub_mscclpp.writing.work import NAMES
from hub_core.model import InputError
from hub_core.plugin_api import ServedCalls, Source, SourcePart

_KINDS = {name: kind for kind, name in NAMES.items()}
# The program of the folder only says of the plans what they say themselves.
_PROGRAM_SUFFIX = ".py"


def read(source: Source) -> Sequence[ServedCalls]:
    """The calls that all plans serve; a plan that the executor would not run rightly serves none.

    Errors are reported, with the file's name.
    """
    found: list[ServedCalls] = []
    for part in source.parts:
        if part.name.endswith(_PROGRAM_SUFFIX):
            continue
        try:
            found.append(_served(part))
        except InputError as error:
            for one in error.diagnostics:
                source.report(one)
    return found


def _served(part: SourcePart) -> ServedCalls:
    """The calls of one plan. Raises `InputError`."""
    plan = parse_plan(part.load(), part.name)
    report = check_plan(plan)
    if not report.ok:
        raise InputError(report.errors)
    header = plan.header
    kind = _KINDS.get(header.collective)
    if kind is None:
        expected = ", ".join(sorted(_KINDS))
        message = f"{part.name}: collective {header.collective!r}, expected one of {expected}"
        raise InputError(message, code="collective")
    chunks = max(max(gpu.input_chunks, gpu.output_chunks) for gpu in plan.gpus)
    return ServedCalls(
        kind,
        in_place=header.in_place,
        out_of_place=not header.in_place,
        min_bytes=header.min_bytes,
        max_bytes=None if header.max_bytes == MOST_BYTES else header.max_bytes,
        by=f"{part.name}: {header.name} of {plan.num_ranks} ranks",
        element_multiple=chunks,
    )
