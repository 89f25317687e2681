"""Prove what every call of a folder of plans gets, with the queries that the runtime makes.

The runtime names a size in a unit of the collective, `register.py` answers with a plan or leaves
the call to the runtime, and the executor throws for a size that its plan does not divide or that is
outside its window. `register.py` is not executed: its table is read, and its answers are given by
the function that it contains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.plans.json_values import MOST_BYTES
from collhub_mscclpp.plans.read_plan import parse_plan
from collhub_mscclpp.plans.records import Plan
from collhub_mscclpp.selecting.register_program import COUNTED_BY_PART
from collhub_mscclpp.selecting.write_plans import (
    OPERATOR_WARNING,
    REGISTER,
    RegisteredPlan,
    Registration,
    parse_register_text,
)
from collhub_mscclpp.writing.work import NAMES
from hub_core.model import Diagnostic, InputError, Severity, format_bytes
from hub_core.plugin_api import ServedCalls, Source

_KINDS = {name: kind for kind, name in NAMES.items()}
# Bytes of a call: no multiple of chunks, or of 16 bytes; odd numbers of elements of 2 and 4 bytes.
_ODD_SIZES = (2, 4, 6, 12, 16, 36, 48, 100, 1000, 4096, 4098, 4100, 65_540, (1 << 20) + 4)
_ELEMENT_BYTES = (2, 4)


def read(source: Source) -> Sequence[ServedCalls]:
    """The calls that get a plan, by window; sizes of the full buffer.

    A window with a plan that the executor would not run rightly, or that throws for a call of it,
    serves nothing. Errors are reported, with the file's name.
    """
    contents = {part.name: part.load() for part in source.parts}
    plans: dict[str, Plan] = {}
    for name, content in contents.items():
        if name != REGISTER:
            try:
                plans[name] = _right_plan(name, content)
            except InputError as error:
                for one in error.diagnostics:
                    source.report(one)
    try:
        registration = _registration(contents)
    except InputError as error:
        for one in error.diagnostics:
            source.report(one)
        return []
    if any(_KINDS[plan.header.collective].traits.reduces for plan in plans.values()):
        source.report(Diagnostic("operator", f"{REGISTER}: {OPERATOR_WARNING}", Severity.WARNING))
    registered = {one.file for one in registration.plans}
    for name in sorted(set(plans) - registered):
        source.report(Diagnostic("not-registered", f"{name}: {REGISTER} does not name it"))
    return list(_served_calls(source, registration, plans))


def _registration(contents: Mapping[str, bytes]) -> Registration:
    """The table of `register.py`. Raises `InputError`."""
    if REGISTER not in contents:
        message = f"{REGISTER} is missing: no plan is registered"
        raise InputError(message, code="missing-file")
    return parse_register_text(contents[REGISTER])


def _right_plan(name: str, content: bytes) -> Plan:
    """A plan of a collective that the runtime asks for. Raises `InputError`."""
    plan = parse_plan(content, name)
    report = check_plan(plan)
    if not report.ok:
        raise InputError(report.errors)
    if plan.header.collective not in _KINDS:
        expected = ", ".join(sorted(_KINDS))
        message = f"{name}: collective {plan.header.collective!r}, expected one of {expected}"
        raise InputError(message, code="collective")
    return plan


def _served_calls(
    source: Source, registration: Registration, plans: Mapping[str, Plan]
) -> Iterator[ServedCalls]:
    """One record a window: its plans are tried in their order.

    Reports defects, and how many calls were tried.
    """
    tally: Counter[bool] = Counter()

    def window(one: RegisteredPlan) -> tuple[str, bool, int | None]:
        return one.collective, one.in_place, one.max_bytes

    for (collective, in_place, last), rows in groupby(registration.plans, window):
        tried = list(rows)
        defects = [
            *_defects_of_rows(registration, plans, tried),
            *_defects_of_answers(registration, plans, tried, tally),
        ]
        for defect in dict.fromkeys(defects):
            source.report(Diagnostic("call", defect))
        if defects or collective not in _KINDS:
            continue
        names = [f"{one.file}: {plans[one.file].header.name}" for one in tried]
        yield ServedCalls(
            _KINDS[collective],
            in_place=in_place,
            out_of_place=not in_place,
            min_bytes=min(one.min_bytes for one in tried),
            max_bytes=last,
            by=f"{' else '.join(names)} of {registration.num_ranks} ranks",
            byte_multiple=min(one.divisor for one in tried),
        )
    message = f"{tally.total()} calls tried as the runtime names them: {tally[True]} get a plan"
    message = f"{REGISTER}: {message}, {tally[False]} are left to the runtime's own choice"
    source.report(Diagnostic("calls-tried", message, Severity.NOTE))


def _defects_of_rows(
    registration: Registration, plans: Mapping[str, Plan], rows: Sequence[RegisteredPlan]
) -> Iterator[str]:
    """Why the executor throws for some size that a row gives to its plan.

    A plan takes all sizes of the row if its alignment times its chunks divides the row's divisor,
    and its window contains the row's.
    """
    for row in rows:
        plan = plans.get(row.file)
        if plan is None:
            yield f"{row.file}: {REGISTER} names it, and it is missing or wrong"
            continue
        header = plan.header
        if (header.collective, header.in_place) != (row.collective, row.in_place):
            yield f"{row.file}: a plan for other calls than {REGISTER} says"
        if plan.num_ranks != registration.num_ranks:
            yield f"{row.file}: {plan.num_ranks} ranks, expected {registration.num_ranks}"
        multiple = header.alignment * max(max(g.input_chunks, g.output_chunks) for g in plan.gpus)
        if row.divisor % multiple:
            yield f"{row.file}: takes multiples of {multiple} bytes, not of {row.divisor}"
        last = MOST_BYTES if row.max_bytes is None else row.max_bytes
        if header.min_bytes > row.min_bytes or header.max_bytes < last:
            end = "without end" if row.max_bytes is None else f"to {format_bytes(last)}"
            yield f"{row.file}: its window is smaller than {format_bytes(row.min_bytes)} {end}"


def _defects_of_answers(
    registration: Registration,
    plans: Mapping[str, Plan],
    rows: Sequence[RegisteredPlan],
    tally: Counter[bool],
) -> Iterator[str]:
    """Calls at the borders of a window and of odd sizes for which the executor throws.

    `tally` counts those that get a plan, and those that do not.
    """
    collective, in_place = rows[0].collective, rows[0].in_place
    for size in _queries(registration, rows):
        file = registration.choose(collective, in_place, size)
        tally[file is not None] += 1
        if file is not None and file in plans:
            reason = _refusal(plans[file], collective, size, registration.num_ranks)
            if reason is not None:
                yield f"{file}: a call of {collective} with {size} bytes throws: {reason}"


def _queries(registration: Registration, rows: Sequence[RegisteredPlan]) -> list[int]:
    """Sizes as the runtime names them, in its unit, around borders and odd ones."""
    borders = {one.min_bytes for one in rows} | {
        one.max_bytes + 1 for one in rows if one.max_bytes is not None
    }
    unit = registration.num_ranks if rows[0].collective in COUNTED_BY_PART else 1
    around = {
        border // unit + step
        for border in borders
        for size in _ELEMENT_BYTES
        for step in (-size, 0, size)
    }
    return sorted(size for size in {*_ODD_SIZES, *around} if size > 0)


def _refusal(plan: Plan, collective: str, size: int, num_ranks: int) -> str | None:
    """Why the loader throws for a call of this size, or None (`checkMessageSize`)."""
    reasons = (
        _refusal_of_buffers(plan, given, made)
        for given, made in _buffer_bytes(collective, size, num_ranks)
    )
    return next(filter(None, reasons), None)


def _buffer_bytes(collective: str, size: int, num_ranks: int) -> Iterator[tuple[int, int]]:
    """Bytes of input and output of a call, by every unit in which a release names its size."""
    if collective == "allgather":
        yield size, size * num_ranks
    elif collective == "reducescatter":
        yield size * num_ranks, size
        if size % num_ranks == 0:
            yield size, size // num_ranks
    else:
        yield size, size


def _refusal_of_buffers(plan: Plan, given: int, made: int) -> str | None:
    header = plan.header
    for gpu in plan.gpus:
        for number, chunks in ((given, gpu.input_chunks), (made, gpu.output_chunks)):
            if number % (header.alignment * chunks):
                return f"{number} bytes are no multiple of {chunks} chunks"
    message = made if header.collective == "allgather" else given
    if not header.min_bytes <= message <= header.max_bytes:
        return f"{message} bytes are outside {header.min_bytes}..{header.max_bytes}"
    return None
