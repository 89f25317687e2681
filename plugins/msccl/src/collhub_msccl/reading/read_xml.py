"""Read an MSCCL-IR XML file into an algorithm."""

from __future__ import annotations

from pathlib import PurePath

import numpy as np
from collhub_columns import Int64Array

from collhub_msccl.findings import FileFindings
from collhub_msccl.options import ReadOptions
from collhub_msccl.provenance import provenance_of
from collhub_msccl.reading.checks import check_program
from collhub_msccl.reading.copies import copies_of, with_copies
from collhub_msccl.reading.element_tables import ScannedXml
from collhub_msccl.reading.header import AlgoHeader, read_header
from collhub_msccl.reading.lowering import Lowered, lower
from collhub_msccl.reading.read_thread_blocks import read_thread_blocks
from collhub_msccl.reading.roots import possible_roots
from collhub_msccl.reading.scan import MAX_BYTES, scan
from collhub_msccl.reading.short_form import with_header
from collhub_msccl.thread_block_program import ThreadBlockProgram
from hub_core.model import (
    ROOTED,
    Algorithm,
    Collective,
    CollectiveKind,
    CustomContract,
    InputError,
    JsonValue,
    Provenance,
    UsageError,
)
from hub_core.plugin_api import Source

_MOST_SHOWN_ROOTS = 8


def read(source: Source, options: ReadOptions) -> Algorithm:
    """Read a file as the runtimes do; see the plugin's page for the mapping.

    Raises `InputError` with every defect that was found, each with its line. What the runtimes
    would refuse or misread, but has a clear meaning, goes to `source.report`.
    """
    content, file = source.content(), source.name
    findings = FileFindings(file, source.report)
    header, program, document = _read_parts(source, options.collective)
    lowered = lower(program, options.reading == "dsl", findings)
    collective = _collective(header, program, lowered, options.root, findings)
    steps = lowered.table(collective, file)
    if options.copies == "run":
        steps = with_copies(steps, copies_of(document, program, findings), collective, program)
    return Algorithm(
        collective,
        steps,
        lowered.scratch_units,
        _provenance(file, content, options),
        extensions={"msccl": _extension(header, program)},
    )


def read_program(source: Source) -> tuple[AlgoHeader, ThreadBlockProgram]:
    """Header and thread blocks as the file states them, once they are known to be sound."""
    header, program, _ = _read_parts(source)
    return header, program


def _read_parts(
    source: Source, collective: str | None = None
) -> tuple[AlgoHeader, ThreadBlockProgram, ScannedXml]:
    """The same, and the file as it was scanned."""
    findings = FileFindings(source.name, source.report)
    # Errors are raised after each phase, as the next one counts on what this one checks.
    scanned = scan(_content(source), source.name, findings)
    document = with_header(scanned, collective, source.name)
    header = read_header(document, findings)
    findings.raise_errors()
    program = read_thread_blocks(document, header, findings)
    check_program(program, header, findings)
    findings.raise_errors()
    return header, program, document


def _content(source: Source) -> bytes:
    """The file, unless it is too large to be looked at; its size is asked for before it is read."""
    for part in source.parts:
        if part.size is not None and part.size > MAX_BYTES:
            message = (
                f"{part.name} has {part.size} bytes;"
                f" MSCCL-IR files up to {MAX_BYTES} bytes are read"
            )
            raise InputError(message, code="too-large")
    return source.content()


def _collective(
    header: AlgoHeader,
    program: ThreadBlockProgram,
    lowered: Lowered,
    stated_root: int | None,
    findings: FileFindings,
) -> Collective:
    """The collective of the header; a custom one has the declared buffers and no stated result."""
    is_rooted = header.kind in ROOTED
    if stated_root is not None and not is_rooted:
        name = header.written.get("coll", "this file")
        raise UsageError(f"option root: the collective of {name!r} has no root")
    try:
        return Collective(
            header.kind,
            header.num_ranks,
            header.unit_count,
            _root(header, lowered, stated_root) if is_rooted else None,
            header.is_in_place,
            header.is_out_of_place,
            contract=_contract(header, program),
        )
    except InputError as error:
        # The model knows no files: its reason gets the line of the header.
        found = error.diagnostics[0]
        place = findings.place(header.line)
        raise InputError(found.message, location=place, code=found.code, cure=found.cure) from None


def _contract(header: AlgoHeader, program: ThreadBlockProgram) -> CustomContract | None:
    """The declared buffers of a custom collective, None for others."""
    if header.kind is not CollectiveKind.CUSTOM:
        return None
    # All input is defined, and what the output must hold is not in the file.
    is_defined = np.ones(header.num_ranks, np.bool_)
    return CustomContract(program.input_chunks, program.output_chunks, is_defined)


def _root(
    header: AlgoHeader,
    lowered: Lowered,
    stated: int | None,
) -> int:
    """The root as stated by the user, else as the steps tell. Raises `UsageError` for neither."""
    if stated is not None:
        if not 0 <= stated < header.num_ranks:
            last = header.num_ranks - 1
            raise UsageError(f"option root: {stated} is not a rank of 0..{last}")
        return stated
    # A file for both modes must be right out of place too, where the buffers differ.
    is_aliased = header.is_in_place and not header.is_out_of_place
    found = possible_roots(header.kind, lowered.columns, header.num_ranks, is_aliased)
    if len(found) == 1:
        return found[0]
    reason = f"ranks {_listed(found)} can be" if found else "no rank can be"
    raise UsageError(
        f"the file does not name the root of its {header.kind}, and {reason} it",
        cure="state it: -O root=RANK",
    )


def _listed(ranks: list[int]) -> str:
    """The first ranks of a list, as messages show them."""
    shown = ", ".join(map(str, ranks[:_MOST_SHOWN_ROOTS]))
    if len(ranks) > _MOST_SHOWN_ROOTS:
        return f"{shown}, ..."
    return shown


def _provenance(
    name: str,
    content: bytes,
    options: ReadOptions,
) -> Provenance:
    """Provenance: this plugin, the file, and the options that are not at their default."""
    given: dict[str, str] = {}
    # Defaults are left out, so that traces do not change when options are added.
    if options.reading != ReadOptions().reading:
        given["reading"] = options.reading
    if options.copies != ReadOptions().copies:
        given["copies"] = options.copies
    if options.collective is not None:
        given["collective"] = options.collective
    if options.root is not None:
        given["root"] = str(options.root)
    # The name alone: the same file gives the same traces, wherever it lies.
    return provenance_of(PurePath(name).name, content, given)


def _extension(header: AlgoHeader, program: ThreadBlockProgram) -> JsonValue:
    """Extension `msccl`: facts of the file that the model has no place for.

    `algo`: attributes verbatim; `i_chunks`, `o_chunks`, `s_chunks` as declared: one number, or one
    per rank. Small, because it travels in every trace file.
    """
    return {
        "algo": dict(header.written),
        "i_chunks": _compact(program.input_chunks),
        "o_chunks": _compact(program.output_chunks),
        "s_chunks": _compact(program.scratch_chunks),
    }


def _compact(sizes: Int64Array) -> JsonValue:
    """One number where all ranks have the same, else a list."""
    if bool(np.all(sizes == sizes[0])):
        return int(sizes[0])
    return [int(size) for size in sizes]
