"""Check which calls a folder of plans serves, with the queries that the runtime makes.

The runtime passes a size in a unit of the collective, `register.py` answers with a plan or leaves
the call to the runtime, and the executor throws for a size that its plan does not divide or that is
outside its window. `register.py` is not executed: its table is read, and its answers are
computed by the function that it contains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.plan_records import Plan
from collhub_mscclpp.reading.json_values import MOST_BYTES
from collhub_mscclpp.reading.read_plan import parse_plan
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
    """List the calls that a folder of plans serves, one record per window.

    A window is a range of sizes, in bytes of the full buffer, of one collective and mode (in place,
    out of place). It is a run of adjacent rows of register.py; windows are in their order. All
    other files of the folder are plans. Problems go to `source.report` in this order:

    1. errors of each plan that is invalid, incorrect or of an unknown collective
    2. an error if register.py is missing (`missing-file`) or not exactly as the hub writes it
       (`changed-program`). Then nothing else is checked, and the list is empty.
    3. one warning about operators if a correct plan is of a reducing collective
    4. an error per correct plan that register.py does not name, by name
    5. an error (`call`) per defect of a window, which is then omitted: a plan is missing,
       incorrect or for other calls, or the executor would throw for one of the tried calls
    6. a note with the number of tried calls
    """
    contents = {part.name: part.load() for part in source.parts}
    plans: dict[str, Plan] = {}
    for name, content in contents.items():
        if name != REGISTER:
            try:
                plan = parse_plan(content, name)
                report = check_plan(plan)
                if not report.ok:
                    raise InputError(report.errors)
                if plan.header.collective not in _KINDS:
                    expected = ", ".join(sorted(_KINDS))
                    message = (
                        f"{name}: collective {plan.header.collective!r}, expected one of {expected}"
                    )
                    raise InputError(message, code="collective")
                plans[name] = plan
            except InputError as error:
                for diagnostic in error.diagnostics:
                    source.report(diagnostic)
    try:
        if REGISTER not in contents:
            message = f"{REGISTER} is missing: no plan is registered"
            raise InputError(message, code="missing-file")
        registration = parse_register_text(contents[REGISTER])
    except InputError as error:
        for diagnostic in error.diagnostics:
            source.report(diagnostic)
        return []
    if any(_KINDS[plan.header.collective].traits.reduces for plan in plans.values()):
        source.report(Diagnostic("operator", f"{REGISTER}: {OPERATOR_WARNING}", Severity.WARNING))
    registered = {diagnostic.file for diagnostic in registration.plans}
    for name in sorted(set(plans) - registered):
        source.report(Diagnostic("not-registered", f"{name}: {REGISTER} does not name it"))
    return list(_list_served_calls(source, registration, plans))


def _list_served_calls(
    source: Source, registration: Registration, plans: Mapping[str, Plan]
) -> Iterator[ServedCalls]:
    """Yield one record for each window of sizes whose tried calls all succeed.

    Windows are in the order of the table. A window is a run of adjacent rows with equal
    collective, mode and maximum size. Each different defect of a window, first of its rows
    (`_find_row_defects`), then of the executor's answers (`_find_answer_defects`), is reported
    to `source` once, as an error `call`. Windows with defects, or with a collective that the
    hub does not know, yield no record.

    `min_bytes` and `byte_multiple` of the record are the minima of its rows; `max_bytes` is the
    common maximum, None without a limit. `by` has the file and name of each plan, in the order
    of the rows. After the last window, also if there are none, a note `calls-tried` gives the
    number of calls that were tried, how many of them get a plan, and how many do not.
    """
    tally: Counter[bool] = Counter()

    def window(row: RegisteredPlan) -> tuple[str, bool, int | None]:
        return row.collective, row.in_place, row.max_bytes

    for (collective, in_place, last), rows in groupby(registration.plans, window):
        tried = list(rows)
        defects = [
            *_find_row_defects(registration, plans, tried),
            *_find_answer_defects(registration, plans, tried, tally),
        ]
        for defect in dict.fromkeys(defects):
            source.report(Diagnostic("call", defect))
        if defects or collective not in _KINDS:
            continue
        names = [f"{row.file}: {plans[row.file].header.name}" for row in tried]
        yield ServedCalls(
            _KINDS[collective],
            in_place=in_place,
            out_of_place=not in_place,
            min_bytes=min(row.min_bytes for row in tried),
            max_bytes=last,
            by=f"{' else '.join(names)} of {registration.num_ranks} ranks",
            byte_multiple=min(row.divisor for row in tried),
        )
    message = f"{tally.total()} calls tried as the runtime names them: {tally[True]} get a plan"
    message = f"{REGISTER}: {message}, {tally[False]} are left to the runtime's own choice"
    source.report(Diagnostic("calls-tried", message, Severity.NOTE))


def _find_row_defects(
    registration: Registration, plans: Mapping[str, Plan], rows: Sequence[RegisteredPlan]
) -> Iterator[str]:
    """Yield reasons why the executor throws for a size that a row assigns to its plan.

    A plan takes all sizes of the row if its alignment times its chunks divides the row's divisor,
    and its window contains the row's. Also rows whose plan is missing or is for other calls.
    """
    for row in rows:
        plan = plans.get(row.file)
        if plan is None:
            yield f"{row.file}: {REGISTER} registers it, but it is missing or incorrect"
            continue
        header = plan.header
        if (header.collective, header.in_place) != (row.collective, row.in_place):
            yield f"{row.file}: the plan is for other calls than {REGISTER} declares"
        if plan.num_ranks != registration.num_ranks:
            yield f"{row.file}: {plan.num_ranks} ranks, expected {registration.num_ranks}"
        multiple = header.alignment * max(max(g.input_chunks, g.output_chunks) for g in plan.gpus)
        if row.divisor % multiple:
            yield f"{row.file}: takes multiples of {multiple} bytes, not of {row.divisor}"
        last = MOST_BYTES if row.max_bytes is None else row.max_bytes
        if header.min_bytes > row.min_bytes or header.max_bytes < last:
            end = "without end" if row.max_bytes is None else f"to {format_bytes(last)}"
            yield f"{row.file}: its window is smaller than {format_bytes(row.min_bytes)} {end}"


def _find_answer_defects(
    registration: Registration,
    plans: Mapping[str, Plan],
    rows: Sequence[RegisteredPlan],
    tally: Counter[bool],
) -> Iterator[str]:
    """Yield a text for each tried size at which the executor throws, by ascending size.

    `rows`: rows of one window, at least one. Sizes are those that the runtime passes: for an
    all-gather and a reduce-scatter, full bytes // ranks; otherwise the bytes of the full buffer.
    Tried are `_ODD_SIZES`, and for each row the minimum and (unless it is None) the maximum
    plus 1, each also 2 and 4 bytes smaller and larger. Sizes below 1 are not tried.

    The plan is the first row of `registration` that fits the size. The executor throws if a
    buffer is no multiple of the plan's alignment times its chunks, or if the message is outside
    of the plan's size limits. A size yields at most one text, and none without a plan in
    `plans`. `tally[True]` grows by 1 per size with a plan, `tally[False]` otherwise. Raises
    `ZeroDivisionError` for an alignment or chunk count of 0.
    """
    collective, in_place = rows[0].collective, rows[0].in_place
    # List the sizes to try, in the unit of the runtime, ascending: around limits of windows,
    # and odd ones.
    borders = {row.min_bytes for row in rows} | {
        row.max_bytes + 1 for row in rows if row.max_bytes is not None
    }
    unit = registration.num_ranks if rows[0].collective in COUNTED_BY_PART else 1
    around = {
        border // unit + step
        for border in borders
        for size in _ELEMENT_BYTES
        for step in (-size, 0, size)
    }
    for size in sorted(size for size in {*_ODD_SIZES, *around} if size > 0):
        file = registration.choose(collective, in_place, size)
        tally[file is not None] += 1
        if file is not None and file in plans:
            for buffer_bytes in _list_buffer_bytes(collective, size, registration.num_ranks):
                reason = _find_buffer_refusal(plans[file], *buffer_bytes)
                if reason is not None:
                    yield f"{file}: a call of {collective} with {size} bytes throws: {reason}"
                    break


def _list_buffer_bytes(collective: str, size: int, num_ranks: int) -> Iterator[tuple[int, int]]:
    """Yield (input bytes, output bytes) of a call, for each unit that a release uses for its size.

    `size` is the input for an all-gather; for a reduce-scatter first the output, then also the
    input if it is a multiple of the ranks; for all others both.
    """
    if collective == "allgather":
        yield size, size * num_ranks
    elif collective == "reducescatter":
        yield size * num_ranks, size
        if size % num_ranks == 0:
            yield size, size // num_ranks
    else:
        yield size, size


def _find_buffer_refusal(plan: Plan, input_bytes: int, output_bytes: int) -> str | None:
    """Return why the executor refuses a call with these buffer sizes in bytes; None if it does
    not.

    The text describes the first violated rule (source: `checkMessageSize`):

    1. By rank, first the input, then the output: its size must be a multiple of the plan's
       alignment times the chunks of the rank's buffer.
    2. The output of an all-gather, otherwise the input, must be within the plan's minimum and
       maximum size, both included.

    A buffer with 0 chunks or an alignment of 0 raises `ZeroDivisionError`.
    """
    header = plan.header
    for gpu in plan.gpus:
        for number, chunks in ((input_bytes, gpu.input_chunks), (output_bytes, gpu.output_chunks)):
            if number % (header.alignment * chunks):
                return f"{number} bytes are no multiple of {chunks} chunks"
    message = output_bytes if header.collective == "allgather" else input_bytes
    if not header.min_bytes <= message <= header.max_bytes:
        return f"{message} bytes are outside {header.min_bytes}..{header.max_bytes}"
    return None
