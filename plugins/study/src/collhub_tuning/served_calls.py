"""Calls that runtimes serve with files: coverage of a folder, and check of single tuner files.

Coverage compares the sizes that files serve with the report: gaps, overlaps and other servers.
Single files may have any producer. The readers are those of the selection formats, which also read
files of `collhub tune` back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from collhub_tuning.tuning_records import CheckedFileItem, ServedCallsItem, TuneFilesReport
from hub_core.model import (
    CollectiveKind,
    Diagnostic,
    HubError,
    Location,
    Severity,
    UsageError,
    format_bytes,
)
from hub_core.plugin_api import MeasurementReader, SelectionWriter, ServedCalls, Source, SourcePart
from hub_core.reports import list_findings

if TYPE_CHECKING:
    from hub_core import CommandContext

RUNTIME = "the runtime's own choice"
MAX_BYTES = 4 << 20
FILES_HEADER = ("file", "format", "collective", "sizes", "served by")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of sizes of one kind of call with the same declared and actual servers.

    `declared`: the server in the report, empty for the runtime's own choice. `servers`: the servers
    in the files; several servers are an error.
    """

    kind: CollectiveKind
    in_place: bool
    min_bytes: int
    max_bytes: int | None
    declared: str
    servers: tuple[str, ...]

    @property
    def defect(self) -> str:
        """Return a text about the defect of these sizes; "" if there is none.

        The first rule that applies decides about the text:

        1. `overlap: ...`: several servers.
        2. `gap: ...`: a server is declared, but there is none.
        3. `changed: ...`: another server than the declared one, or a server although none is
           declared, so that the runtime's own choice was expected.
        """
        if len(self.servers) > 1:
            return f"overlap: {' and '.join(self.servers)} both serve them"
        if self.declared and not self.servers:
            return f"gap: nothing serves them, {self.declared} is to"
        if self.servers and self.servers[0] != self.declared:
            return f"changed: {self.servers[0]} serves them, {self.declared or RUNTIME} is to"
        return ""

    def __str__(self) -> str:
        mode = "in place" if self.in_place else "out of place"
        return f"{self.kind} {mode}, {format_sizes(self.min_bytes, self.max_bytes)}"


def compare_coverage(
    declared: Sequence[ServedCalls], actual: Sequence[ServedCalls]
) -> list[Stretch]:
    """Divide all sizes into stretches (ranges) with equal declared and equal actual servers.

    A server is the algorithm or file entry that serves calls. `declared`: calls that a
    report promises, of which the first that covers a size counts; `actual`: calls that the
    files serve, which all count. For every collective and mode (in place or not) of either
    list, the stretches cover all sizes from 0 bytes on. They are sorted by collective, in
    place first, then by size. The list is empty if both lists are.
    """
    rows = [*declared, *actual]
    calls = [(row.kind, mode) for row in rows for mode in (True, False) if _has(row, mode)]
    kinds = sorted(set(calls), key=lambda call: (list(CollectiveKind).index(call[0]), not call[1]))
    stretches = []
    for kind, mode in kinds:
        calls_of_kind = _select(declared, kind, mode), _select(actual, kind, mode)
        stretches += _divide(*calls_of_kind, kind, mode)
    return stretches


def format_sizes(min_bytes: int, max_bytes: int | None) -> str:
    """Return a range of sizes in bytes as text; `min_bytes` and `max_bytes` belong to the range.

    `max_bytes` None means no limit: `from 1 MiB`, or `all sizes` from 0. If the maximum is a
    multiple of 1 KiB above 0, it is the limit in the text: `up to 16 KiB`, `4 KiB up to 16 KiB`.
    Otherwise the limit is one byte more: `below 16 KiB`, `16 KiB to below 1 MiB`.
    """
    if max_bytes is None:
        return f"from {format_bytes(min_bytes)}" if min_bytes else "all sizes"
    includes_end = max_bytes and not max_bytes % 1024
    limit = format_bytes(max_bytes if includes_end else max_bytes + 1)
    if includes_end:
        return f"{format_bytes(min_bytes)} up to {limit}" if min_bytes else f"up to {limit}"
    return f"{format_bytes(min_bytes)} to below {limit}" if min_bytes else f"below {limit}"


def format_server(calls: ServedCalls) -> str:
    """Return the name of the algorithm of calls, then the required multiples in brackets.

    The multiple of elements comes first, then that of bytes, joined by `, `. A multiple of 1
    is omitted; without any other, the result is only the name. Kind, modes and limits of the
    sizes are not shown. Example: `ring (multiples of 8 elements, multiples of 64 bytes)`.
    """
    conditions = [
        f"multiples of {number} {unit}"
        for number, unit in ((calls.element_multiple, "elements"), (calls.byte_multiple, "bytes"))
        if number > 1
    ]
    return f"{calls.by} ({', '.join(conditions)})" if conditions else calls.by


def _select(rows: Sequence[ServedCalls], kind: CollectiveKind, mode: bool) -> list[ServedCalls]:
    return [row for row in rows if row.kind is kind and _has(row, mode)]


def _has(calls: ServedCalls, in_place: bool) -> bool:
    """Whether these calls include calls in place, or without `in_place` those out of place."""
    return calls.in_place if in_place else calls.out_of_place


def _divide(
    declared: Sequence[ServedCalls],
    actual: Sequence[ServedCalls],
    kind: CollectiveKind,
    mode: bool,
) -> list[Stretch]:
    """Divide all sizes into the fewest ranges with equal servers; return them by ascending size.

    The ranges begin at 0 bytes and have no gaps. Both ends of a range are included; the last
    one has no end (None). Without calls there is one range of all sizes. A range has:

    - the server of the first of the `declared` calls that covers it, or ""
    - the servers of all `actual` calls that cover it, in their order
    - `kind` and `mode` (True for in place), which all calls must have; this is not checked
    """
    rows = [*declared, *actual]
    borders = {0, *(row.min_bytes for row in rows)}
    borders |= {row.max_bytes + 1 for row in rows if row.max_bytes is not None}
    limits: list[int | None] = [*sorted(borders), None]
    stretches: list[Stretch] = []
    for first, limit in pairwise(limits):
        assert first is not None
        last = None if limit is None else limit - 1
        names = [format_server(row) for row in declared if _covers(row, first)]
        servers = tuple(format_server(row) for row in actual if _covers(row, first))
        promised = names[0] if names else ""
        previous = stretches[-1] if stretches else None
        if previous is not None and (previous.declared, previous.servers) == (promised, servers):
            stretches[-1] = replace(previous, max_bytes=last)
        else:
            stretches.append(Stretch(kind, mode, first, last, promised, servers))
    return stretches


def _covers(calls: ServedCalls, size: int) -> bool:
    return calls.min_bytes <= size and (calls.max_bytes is None or size <= calls.max_bytes)


def parse_served_calls(document: object) -> ServedCalls:
    """Parse one object of served calls in a document `report-tune-1`.

    The fields are `collective`, `in_place`, `out_of_place`, `min_bytes`, `max_bytes` (null: no
    limit), `by`, `element_multiple`, and `byte_multiple`, which may be missing and is 1 then. Other
    fields are ignored. Values are converted as Python does, also texts such as "8" for a number,
    and their ranges are not checked here. Raises `TypeError` if it is not an object, `KeyError` for
    a missing field, and `ValueError` or `TypeError` for a value that cannot be converted, such as
    an unknown collective.
    """
    if not isinstance(document, dict):
        raise TypeError("no object")
    return ServedCalls(
        CollectiveKind(document["collective"]),
        bool(document["in_place"]),
        bool(document["out_of_place"]),
        int(document["min_bytes"]),
        None if document["max_bytes"] is None else int(document["max_bytes"]),
        str(document["by"]),
        int(document["element_multiple"]),
        # Missing in folders of earlier releases.
        int(document.get("byte_multiple", 1)),
    )


def list_served_calls(served: Sequence[ServedCalls]) -> list[ServedCallsItem]:
    """Return the records of served calls in reports, in the same order."""
    return [
        ServedCallsItem(
            collective=str(calls.kind),
            in_place=calls.in_place,
            out_of_place=calls.out_of_place,
            min_bytes=calls.min_bytes,
            max_bytes=calls.max_bytes,
            by=calls.by,
            element_multiple=calls.element_multiple,
            byte_multiple=calls.byte_multiple,
        )
        for calls in served
    ]


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """Calls that a runtime serves with a file, and findings sorted by line.

    `served`: calls of the first communicator that the file states, else of any communicator.
    `runtimes`: products and versions that read files of the format.
    """

    file: str
    format: str
    served: tuple[ServedCalls, ...]
    runtimes: tuple[str, ...]
    findings: tuple[Diagnostic, ...]

    @property
    def ok(self) -> bool:
        """True if no finding is an error or a warning; notes are allowed."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)


def check_files(
    context: CommandContext, files: Sequence[str], format: str | None
) -> list[CheckedFile]:
    """Check files in the order given.

    `format`: name of a selection format; by default that of the suffix and content of each file.
    A file with errors serves no calls; the errors are among its findings, which are sorted by line
    (without a line first). Raises `UsageError` for the first file that cannot be read: missing,
    above `MAX_BYTES`, of no or several known formats, or one of measurements.
    """
    folders = context.selection_folders()
    checked = []
    for file in files:
        try:
            with open(file, "rb") as stream:
                content = stream.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise _unreadable(file, f"cannot be read: {reason}", "name a tuner file") from None
        if len(content) > MAX_BYTES:
            raise _unreadable(file, f"has more than {MAX_BYTES >> 20} MiB", "name a tuner file")
        name = format or _choose_format(context, file, content)
        findings: list[Diagnostic] = []
        part = SourcePart(file, partial(bytes, content), None, len(content))
        served: tuple[ServedCalls, ...] = ()
        try:
            served = tuple(folders.served_calls(Source(file, (part,), findings.append), name))
        except UsageError:
            raise
        except HubError as error:
            findings += error.diagnostics
        findings.sort(key=lambda finding: finding.location.line or 0)
        runtimes = tuple(folders.runtimes_of(name))
        checked.append(CheckedFile(file, name, served, runtimes, tuple(findings)))
    return checked


def create_file_rows(checked: Sequence[CheckedFile]) -> list[list[str]]:
    """Return the rows (file, format, collective, sizes, server) of checked files, for
    `FILES_HEADER`.

    There is one row per entry of `served`, in its order, by file in the given order. A
    file that serves no call has one row: all calls have the runtime's own choice, as with the
    file that MPICH is released with. With an error, the row says only that no call is served.
    """
    rows = []
    for one in checked:
        rows += [
            [
                *(one.file, one.format, str(calls.kind)),
                *(format_sizes(calls.min_bytes, calls.max_bytes), format_server(calls)),
            ]
            for calls in one.served
        ]
        if any(finding.severity is Severity.ERROR for finding in one.findings):
            no_calls = ("no call, because of errors", "", "")
        else:
            no_calls = ("all", "all sizes", RUNTIME)
        if not one.served:
            rows.append([one.file, one.format, *no_calls])
    return rows


def create_files_report(checked: Sequence[CheckedFile]) -> TuneFilesReport:
    """Return the JSON report of the check of tuner files, in order: format, runtimes, served calls
    and findings of each. `ok` is true only if all files are (also without any file).
    """
    return TuneFilesReport(
        ok=all(one.ok for one in checked),
        files=[
            CheckedFileItem(
                file=one.file,
                format=one.format,
                ok=one.ok,
                runtimes=one.runtimes,
                served=list_served_calls(one.served),
                findings=list_findings(one.findings),
            )
            for one in checked
        ],
    )


def _choose_format(context: CommandContext, file: str, content: bytes) -> str:
    """Return the format of a file of tuner rules, by its content and name.

    1. If the signature of a measurement reader is in the content, `UsageError` is raised.
    2. Candidates are the selection formats with a suffix of `file`, and those without suffixes. If
       none has the suffix, all formats are candidates.
    3. The candidates whose signature is in the first 64 KiB remain. If there are none, those with
       the suffix remain.
    4. If exactly one remains, it is the result. Otherwise `UsageError` is raised.

    Each error has the code `unreadable` and a cure, such as to name the format with `--to`.
    """
    known = ", ".join(
        provided.name
        for provided in context.registry().all(SelectionWriter)
        if provided.offer.format.signature
    )
    for provided in context.registry().all(MeasurementReader):
        if re.search(provided.offer.format.signature, content, re.MULTILINE):
            message = f"is no tuner file but {provided.offer.format.description}"
            raise _unreadable(file, message, "give it to tune --measured")
    names = context.selection_folders().formats_of(file, content)
    if len(names) == 1:
        return names[0]
    if names:
        message = f"may be of the formats {', '.join(names)}, which interpret it differently"
        raise _unreadable(file, message, f"name one: --to {names[0]}")
    raise _unreadable(file, f"is of no known format ({known})", "name its format with --to")


def _unreadable(file: str, message: str, cure: str) -> UsageError:
    return UsageError(message, location=Location(file), cure=cure, code="unreadable")
