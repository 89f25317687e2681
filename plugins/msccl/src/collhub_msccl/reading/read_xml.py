"""Read an MSCCL-IR XML file into an algorithm."""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import version
from pathlib import PurePath

import numpy as np

from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.checks import check_program
from collhub_msccl.reading.header import AlgoHeader, read_header
from collhub_msccl.reading.lowering import Lowered, lower
from collhub_msccl.reading.read_thread_blocks import read_thread_blocks
from collhub_msccl.reading.roots import possible_roots
from collhub_msccl.reading.scan import MAX_BYTES, scan
from collhub_msccl.thread_block_program import Int64Array, ThreadBlockProgram
from hub_core.algorithm import Algorithm, JsonValue, Provenance
from hub_core.collectives import ROOTED, Collective, CollectiveKind, CustomContract
from hub_core.diagnostics import InputError, UsageError
from hub_core.plugins.contract import Options, Source


def read(source: Source, options: Options) -> Algorithm:
    """Read a file as the runtimes do; see the plugin's page for the mapping.

    Raises `InputError` with every defect that was found, each with its line. What the runtimes would refuse or
    misread, but has a clear meaning, goes to `source.report`.
    """
    content = _content(source)
    file = source.name
    findings = FileFindings(file, source.report)
    document = scan(content, file, findings)
    header = read_header(document, findings)
    findings.raise_errors()
    program = read_thread_blocks(document, header, findings)
    check_program(program, header, findings)
    findings.raise_errors()
    lowered = lower(program, options.get("reading") == "dsl", findings)
    collective = _collective(header, program, lowered, options.get("root"), findings)
    return Algorithm(
        collective,
        lowered.table(collective, file),
        lowered.scratch_units,
        _provenance(source.name, content, options),
        extensions={"msccl": _extension(header, program)},
    )


def _content(source: Source) -> bytes:
    for part in source.parts:
        if part.size is not None and part.size > MAX_BYTES:
            message = f"{part.name} has {part.size} bytes; MSCCL-IR files up to {MAX_BYTES} bytes are read"
            raise InputError(message, code="too-large")
    return source.content()


def _collective(
    header: AlgoHeader,
    program: ThreadBlockProgram,
    lowered: Lowered,
    root: object,
    findings: FileFindings,
) -> Collective:
    n, kind = header.num_ranks, header.kind
    is_rooted = kind in ROOTED
    if root is not None and not is_rooted:
        raise UsageError(
            f"option root: the collective of {header.written.get('coll', 'this file')!r} has no root"
        )
    contract = None
    if kind is CollectiveKind.CUSTOM:
        contract = CustomContract(program.input_chunks, program.output_chunks, np.ones(n, np.bool_))
    try:
        return Collective(
            kind,
            n,
            header.unit_count,
            _root(header, lowered, root) if is_rooted else None,
            header.is_in_place,
            header.is_out_of_place,
            contract=contract,
        )
    except InputError as error:
        found = error.diagnostics[0]
        raise InputError(
            found.message, location=findings.place(header.line), code=found.code, cure=found.cure
        ) from None


def _root(header: AlgoHeader, lowered: Lowered, stated: object) -> int:
    if isinstance(stated, int):
        if not 0 <= stated < header.num_ranks:
            raise UsageError(f"option root: {stated} is not a rank of 0..{header.num_ranks - 1}")
        return stated
    is_aliased = header.is_in_place and not header.is_out_of_place
    found = possible_roots(header.kind, lowered.columns, header.num_ranks, is_aliased)
    if len(found) == 1:
        return found[0]
    shown = ", ".join(map(str, found[:8])) + (", ..." if len(found) > 8 else "")
    reason = f"ranks {shown} can be" if found else "no rank can be"
    raise UsageError(
        f"the file does not name the root of its {header.kind}, and {reason} it",
        cure="state it: -O root=RANK",
    )


def _provenance(name: str, content: bytes, options: Options) -> Provenance:
    given = {
        option: str(value)
        for option, value in sorted(options.items())
        if value is not None and (option, value) != ("reading", "runtime")
    }
    # The name alone: the same file gives the same traces, wherever it lies.
    file_name = PurePath(name).name
    return Provenance(
        "collhub-msccl", version("collhub-msccl"), file_name, sha256(content).hexdigest(), given
    )


def _extension(header: AlgoHeader, program: ThreadBlockProgram) -> JsonValue:
    """What the model has no place for, small because it travels in every trace file.

    `algo`: attributes verbatim; `i_chunks`, `o_chunks`, `s_chunks` as declared: one number, or one per rank.
    """
    declared = {
        "i_chunks": program.input_chunks,
        "o_chunks": program.output_chunks,
        "s_chunks": program.scratch_chunks,
    }
    extension: dict[str, JsonValue] = {"algo": dict(header.written)}
    for name, sizes in declared.items():
        extension[name] = _compact(sizes)
    return extension


def _compact(sizes: Int64Array) -> JsonValue:
    is_uniform = bool(np.all(sizes == sizes[0]))
    return int(sizes[0]) if is_uniform else [int(size) for size in sizes]
