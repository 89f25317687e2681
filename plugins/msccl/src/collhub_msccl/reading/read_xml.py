"""Read an MSCCL-IR XML file into an algorithm, and sample files for the conformance kit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

import numpy as np

from collhub_msccl.findings import FileFindings, build_provenance
from collhub_msccl.plugin import ReadOptions
from collhub_msccl.reading.checks import check_program
from collhub_msccl.reading.element_tables import ScannedXml, complete_header
from collhub_msccl.reading.header import AlgoHeader, find_possible_roots, read_header
from collhub_msccl.reading.lowering import LoweredRows, lower
from collhub_msccl.reading.read_thread_blocks import insert_copies, read_copies, read_thread_blocks
from collhub_msccl.reading.scan import MAX_BYTES, scan_xml
from collhub_msccl.thread_block_program import ThreadBlockProgram
from hub_core.columns import Int64Array
from hub_core.model import (
    ROOTED,
    Algorithm,
    Collective,
    CollectiveKind,
    CustomContract,
    InputError,
    JsonValue,
    UsageError,
)
from hub_core.plugin_api import Source

_MAX_SHOWN_ROOTS = 8


def read(source: Source, options: ReadOptions) -> Algorithm:
    """Read an MSCCL-IR XML file as an algorithm, with the semantics of the runtimes.

    The options have these effects:

    - `reading=dsl`: reductions of received data take their local operand from dst, as MSCCLang
      means it; otherwise from src, as the runtimes do.
    - `copies=run`: the `<copy>` elements become steps, which are executed before all other
      steps of their rank. Otherwise they are ignored.
    - `collective`: name of the collective for a file in the short form, which may omit it.
    - `root`: root of the collective. Without it the root is inferred from the steps.

    The extension `msccl` of the result has `algo` (all attributes of `<algo>` as text), and
    `i_chunks`, `o_chunks`, `s_chunks`: one number if all ranks have the same size, otherwise a
    list by rank. The provenance has the file name without its folder, and the options that
    differ from their defaults.

    Constructs that have a clear meaning but that the runtimes refuse or misread are reported as
    warnings to `source.report`. Raises `InputError` with the line:

    - all defects of the first phase of `_read_parts` that has any, together
    - then the first defect of dependencies (a wait that no step ends, a cycle) or of the
      scratch of `rrs` steps
    - a `<copy>` outside the buffers

    Raises `UsageError` if the root is needed but neither given nor inferable, if the given one
    is not a rank, or if the collective has no root.
    """
    content, file = source.content(), source.name
    findings = FileFindings(file, source.report)
    header, program, document = _read_parts(source, options.collective)
    lowered = lower(program, options.reading == "dsl", findings)
    collective = _build_collective(header, program, lowered, options.root, findings)
    steps = lowered.build_table(collective, file)
    if options.copies == "run":
        steps = insert_copies(steps, read_copies(document, program, findings), collective, program)
    changed_options: dict[str, str] = {}
    # Defaults are omitted, so that traces do not change when options are added.
    if options.reading != ReadOptions().reading:
        changed_options["reading"] = options.reading
    if options.copies != ReadOptions().copies:
        changed_options["copies"] = options.copies
    if options.collective is not None:
        changed_options["collective"] = options.collective
    if options.root is not None:
        changed_options["root"] = str(options.root)
    # Without the folder: a file gives the same trace in every folder.
    return Algorithm(
        collective,
        steps,
        lowered.scratch_units,
        build_provenance(PurePath(file).name, content, changed_options),
        extensions={
            "msccl": {
                "algo": dict(header.written),
                "i_chunks": _to_compact_json(program.input_chunks),
                "o_chunks": _to_compact_json(program.output_chunks),
                "s_chunks": _to_compact_json(program.scratch_chunks),
            }
        },
    )


def read_program(source: Source) -> tuple[AlgoHeader, ThreadBlockProgram]:
    """Return the header and the checked thread blocks of a file, without converting the steps.

    Raises `InputError` for the defects that `_read_parts` finds, also `short-form` for a
    file in the short form that names no collective. Dependencies between thread blocks are
    not checked. Warnings are reported to `source.report`.
    """
    header, program, _ = _read_parts(source)
    return header, program


def _read_parts(
    source: Source, collective: str | None = None
) -> tuple[AlgoHeader, ThreadBlockProgram, ScannedXml]:
    """Return the header, the checked thread blocks and the scanned tables of a file.

    `collective`: name of the collective for files in the short form; it counts only if the file
    does not name one. Raises `InputError`, with the line, in the first of these phases that
    finds a defect:

    1. size: more than 2^30 bytes (`too-large`), checked before the file is read if the size is
       known
    2. syntax: the first defect of the XML; then a short form without a collective
       (`short-form`)
    3. header: all defects of `<algo>`, sorted by line
    4. texts of thread blocks and steps that are not valid values
    5. values of thread blocks and steps: all defects, sorted by line

    Warnings of all phases go to `source.report`.
    """
    findings = FileFindings(source.name, source.report)
    # Refuse a large file before it is read.
    for part in source.parts:
        if part.size is not None and part.size > MAX_BYTES:
            message = (
                f"{part.name} has {part.size} bytes;"
                f" MSCCL-IR files up to {MAX_BYTES} bytes are read"
            )
            raise InputError(message, code="too-large")
    scanned = scan_xml(source.content(), source.name, findings)
    document = complete_header(scanned, collective, source.name)
    # Errors are raised after each phase, because the next phase relies on its checks.
    header = read_header(document, findings)
    findings.raise_errors()
    program = read_thread_blocks(document, header, findings)
    check_program(program, header, findings)
    findings.raise_errors()
    return header, program, document


def _build_collective(
    header: AlgoHeader,
    program: ThreadBlockProgram,
    lowered: LoweredRows,
    stated_root: int | None,
    findings: FileFindings,
) -> Collective:
    """Build the collective that the header describes.

    Kind, ranks, units and the modes (in place, out of place) are those of the header. A
    collective with a root gets that of `_choose_root`, all others get None. A custom collective
    gets the declared numbers of input and output chunks; the input of every rank is defined,
    and no result is required.

    `stated_root`: root from the options, or None. Raises `UsageError` if it is given for a
    collective without a root, and the errors of `_choose_root`. If the model refuses the
    collective, raises `InputError` with only the first finding, at the line of `<algo>`.
    """
    is_rooted = header.kind in ROOTED
    if stated_root is not None and not is_rooted:
        name = header.written.get("coll", "this file")
        raise UsageError(f"option root: the collective of {name!r} has no root")
    contract = None
    if header.kind is CollectiveKind.CUSTOM:
        # All input is defined; the file does not define the required output.
        is_defined = np.ones(header.num_ranks, np.bool_)
        contract = CustomContract(program.input_chunks, program.output_chunks, is_defined)
    try:
        return Collective(
            header.kind,
            header.num_ranks,
            header.unit_count,
            _choose_root(header, lowered, stated_root) if is_rooted else None,
            header.is_in_place,
            header.is_out_of_place,
            contract=contract,
        )
    except InputError as error:
        # The model's error has no location: add the line of the header.
        diagnostic = error.diagnostics[0]
        location = findings.get_location(header.line)
        raise InputError(
            diagnostic.message, location=location, code=diagnostic.code, cure=diagnostic.cure
        ) from None


def _choose_root(
    header: AlgoHeader,
    lowered: LoweredRows,
    stated: int | None,
) -> int:
    """Return `stated` if it is given, otherwise the only rank that the steps permit as root.

    `stated` need only be a rank; it is not compared with the steps. Raises `UsageError` if it is
    not a rank. Without it, raises `UsageError` if the steps permit no rank or several, of which the
    message names at most 8.
    """
    if stated is not None:
        if not 0 <= stated < header.num_ranks:
            last = header.num_ranks - 1
            raise UsageError(f"option root: {stated} is not a rank of 0..{last}")
        return stated
    # A file for both modes must also be correct out of place, where the buffers differ.
    is_aliased = header.is_in_place and not header.is_out_of_place
    candidates = find_possible_roots(header.kind, lowered.columns, header.num_ranks, is_aliased)
    if len(candidates) == 1:
        return candidates[0]
    more = ", ..." if len(candidates) > _MAX_SHOWN_ROOTS else ""
    ranks = ", ".join(map(str, candidates[:_MAX_SHOWN_ROOTS])) + more
    reason = f"ranks {ranks} can be" if candidates else "no rank can be"
    raise UsageError(
        f"the file does not name the root of its {header.kind}, and {reason} it",
        cure="specify it: -O root=RANK",
    )


def _to_compact_json(sizes: Int64Array) -> JsonValue:
    """Return the sizes of all ranks as JSON: one number if they are equal, else a list by rank.

    There must be at least one rank.
    """
    if bool(np.all(sizes == sizes[0])):
        return int(sizes[0])
    return [int(size) for size in sizes]


_RANKS = 4
_RING = (
    '<algo name="ring_4" proto="LL" nchannels="1" nchunksperloop="4" ngpus="4" coll="allreduce"'
    ' inplace="1" outofplace="0" minBytes="0" maxBytes="1048576">\n'
)
# Type, and distance (in ranks) from the chunk's first rank to this rank.
_RING_STEPS = (
    ("s", 0),
    ("rrs", 1),
    ("rrcs", 2),
    ("rrc", 3),
    ("s", 3),
    ("rcs", 4),
    ("rcs", 5),
    ("r", 6),
)
_RING_RANK = (
    '<gpu id="{rank}" i_chunks="4" o_chunks="0" s_chunks="0">\n'
    '<tb id="0" send="{after}" recv="{before}" chan="0">\n'
)
_RING_STEP = (
    '<step s="{number}" type="{type}" srcbuf="i" srcoff="{chunk}" dstbuf="i" dstoff="{chunk}"'
    ' cnt="1" depid="-1" deps="-1" hasdep="0"/>\n'
)

_EXCHANGE = (
    '<algo name="exchange_2" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="2"'
    ' coll="allreduce" inplace="0" outofplace="1" minBytes="0" maxBytes="1048576">\n'
)
# The runtimes' parsers require each element on a single line, hence the joined texts.
_EXCHANGE_RANK = (
    '<gpu id="{rank}" i_chunks="1" o_chunks="1" s_chunks="1">\n'
    '<tb id="0" send="{peer}" recv="{peer}" chan="0">\n'
    '<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0"'
    ' cnt="1" depid="-1" deps="-1" hasdep="0"/>\n'
    '<step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0"'
    ' cnt="1" depid="-1" deps="-1" hasdep="1"/>\n'
    "</tb>\n"
    '<tb id="1" send="-1" recv="-1" chan="0">\n'
    '<step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0"'
    ' cnt="1" depid="-1" deps="-1" hasdep="1"/>\n'
    "</tb>\n"
    '<tb id="2" send="-1" recv="-1" chan="0">\n'
    # One step with two waits: the first on the preceding nop, the second on the step itself.
    '<step s="0" type="nop" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0"'
    ' cnt="0" depid="0" deps="1" hasdep="0"/>\n'
    '<step s="1" type="re" srcbuf="s" srcoff="0" dstbuf="o" dstoff="0"'
    ' cnt="1" depid="1" deps="0" hasdep="0"/>\n'
    "</tb>\n"
    "</gpu>\n"
)


def samples() -> Sequence[Source]:
    """Return two files for the conformance kit, which contain every step type.

    An in-place ring all-reduce of 4 ranks with fused steps, and an out-of-place exchange of 2 ranks
    through scratch.
    """
    exchange_ranks = (_EXCHANGE_RANK.format(rank=rank, peer=1 - rank) for rank in range(2))
    texts = {
        "ring_4.xml": _RING + "".join(map(_format_ring_rank, range(_RANKS))),
        "exchange_2.xml": _EXCHANGE + "".join(exchange_ranks),
    }
    return [Source.of_bytes(name, f"{text}</algo>\n".encode()) for name, text in texts.items()]


def _format_ring_rank(rank: int) -> str:
    """Return the `<gpu>` element of a rank of the sample ring of four ranks.

    Its only thread block sends to the next rank and receives from the previous one. `_RING_STEPS`
    lists (type, distance) of each step: it handles the chunk of the rank that is `distance`
    positions before this rank in the ring.
    """
    after = (rank + 1) % _RANKS
    before = (rank - 1) % _RANKS
    lines = [_RING_RANK.format(rank=rank, after=after, before=before)]
    for number, (step_type, distance) in enumerate(_RING_STEPS):
        chunk = (rank - distance) % _RANKS
        lines.append(_RING_STEP.format(number=number, type=step_type, chunk=chunk))
    return "".join([*lines, "</tb>\n</gpu>\n"])
