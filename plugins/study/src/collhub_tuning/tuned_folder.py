"""Write the folder of `collhub tune`, and check the files of such a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import lcm
from pathlib import Path

from collhub_tuning.served_calls import (
    RUNTIME,
    Stretch,
    compare_coverage,
    format_sizes,
    parse_served_calls,
)
from collhub_tuning.tuning_records import CheckedCalls, CheckedFormatItem, TuneCheckReport
from collhub_tuning.tuning_report import (
    PAGE_FILE,
    REPORT_FILE,
    SCHEMA,
    TuningOutcome,
    WrittenFormat,
    create_tuning_report,
    tuning_page,
)
from hub_core import CommandContext
from hub_core.model import (
    Diagnostic,
    HubError,
    InputError,
    Location,
    Severity,
    UsageError,
    format_bytes,
)
from hub_core.plugin_api import Artifact, Selection, ServedCalls, Source, SourcePart
from hub_core.reports import list_findings, to_json

# Size of a float32 element, the type of most gradients.
_ELEMENT_BYTES = 4
# With this number of sizes or more, only the first and the last size are named.
_MAX_NAMED_SIZES = 4


@dataclass(frozen=True, slots=True)
class DeclaredFormat:
    """The files and served calls of a format according to the report."""

    name: str
    files: tuple[str, ...]
    served: tuple[ServedCalls, ...]
    sizes: tuple[int, ...]
    num_ranks: int


@dataclass(frozen=True, slots=True)
class CheckedFormat:
    """Stretches of sizes of a format, and further findings about its files."""

    name: str
    stretches: tuple[Stretch, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def findings(self) -> tuple[Diagnostic, ...]:
        """Return the diagnostics of the format, then one error per stretch of sizes with a
        defect.

        The errors are in the order of the stretches. Their code is the text of
        `Stretch.defect` before its first colon: `overlap`, `gap` or `changed`.
        """
        defects = [
            Diagnostic(
                stretch.defect.partition(":")[0], f"{self.name}: {stretch}: {stretch.defect}"
            )
            for stretch in self.stretches
            if stretch.defect
        ]
        return (*self.diagnostics, *defects)

    @property
    def ok(self) -> bool:
        """True if all sizes are served according to the report; warnings are allowed."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


def create_format(
    context: CommandContext, selection: Selection, name: str, options: Mapping[str, str]
) -> WrittenFormat:
    """Create the files of the format `name` in memory, and read them back as the runtime does.

    The result has the files and the calls that they serve. Raises `InputError` with the errors that
    the reader reports, and the `HubError` of the writer or reader. No file is written.
    """
    folders = context.selection_folders()
    result = folders.files(selection, name, options)
    contents = {artifact.name: artifact.content() for artifact in result.artifacts}
    served, findings = _read_served_calls(context, name, contents)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        raise InputError(errors)
    return WrittenFormat(name, result, tuple(contents), served)


def write_folder(
    context: CommandContext, folder: str, outcome: TuningOutcome, *, force: bool
) -> list[Path]:
    """Write all files of the tuning into a folder, or none, and return their paths.

    The paths are those of the report, the page, and `FORMAT/FILE` of all formats in the order of
    `outcome`. A missing folder is created. Without `force`, a folder that is not empty gives
    `UsageError`. With it, existing files of these names are replaced. Afterwards files are removed
    that the previous report of the folder lists and that were not written; other files remain. A
    missing or invalid previous report lists none.

    Raises `UsageError` if the folder cannot be written. It is also raised for the first listed file
    that cannot be removed, in the order of names; the new files are then written, and the
    following ones are not removed.
    """
    target = Path(folder)
    stale: set[str] = set()
    if force:
        with suppress(InputError):
            previous = read_declared_formats(target)
            stale = {f"{form.name}/{file}" for form in previous for file in form.files}
    text = json.dumps(to_json(create_tuning_report(outcome)), indent=2) + "\n"
    artifacts = [
        Artifact(REPORT_FILE, text.encode()),
        Artifact(PAGE_FILE, tuning_page(outcome).encode()),
    ]
    for form in outcome.formats:
        artifacts += [
            replace(artifact, name=f"{form.name}/{artifact.name}")
            for artifact in form.result.artifacts
        ]
    written = context.selection_folders().put(folder, artifacts, force=force)
    for file in sorted(stale - {path.relative_to(target).as_posix() for path in written.paths}):
        # A runtime would load them together with the new files.
        try:
            (target / file).unlink(missing_ok=True)
        except OSError as error:
            reason = error.strerror or str(error)
            cure = "remove it: the files beside it are new"
            raise UsageError(f"{target / file} cannot be removed: {reason}", cure=cure) from None
    return list(written.paths)


def check_folder(context: CommandContext, folder: str) -> list[CheckedFormat]:
    """Check the current files of every format that the folder's report declares, in its order.

    The findings of a format are a `missing-file` per declared file that is gone, the findings of
    reading the current files (an error then leaves no served calls), and the notes of
    `_note_unserved_sizes`. Raises `InputError` if the report is missing or invalid, or if a file
    cannot be read.
    """
    checked = []
    for declared in read_declared_formats(Path(folder)):
        place = Path(folder) / declared.name
        try:
            contents = {
                path.relative_to(place).as_posix(): path.read_bytes()
                for path in sorted(place.rglob("*"))
                if path.is_file()
            }
        except OSError as error:
            path = error.filename or place
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
        diagnostics = [
            Diagnostic("missing-file", "the file is gone", location=Location(str(place / name)))
            for name in declared.files
            if name not in contents
        ]
        served: Sequence[ServedCalls] = ()
        try:
            served, findings = _read_served_calls(context, declared.name, contents)
        except HubError as error:
            findings = list(error.diagnostics)
        for finding in findings:
            location = finding.location
            if location.file is not None:
                location = replace(location, file=str(place / location.file))
            diagnostics.append(replace(finding, location=location))
        diagnostics += _note_unserved_sizes(declared, served)
        stretches = compare_coverage(declared.served, served)
        checked.append(CheckedFormat(declared.name, tuple(stretches), tuple(diagnostics)))
    return checked


def read_declared_formats(folder: Path) -> list[DeclaredFormat]:
    """Read the formats that a folder's report `REPORT_FILE` declares, in the order of the report.

    Only the report is read; the files need not exist. Every format has the sizes and the number of
    ranks of the report. Raises `InputError` (`not-a-tuned-folder`):

    - if the report cannot be read or is not JSON
    - if its schema is not `SCHEMA`, or a member is missing or has a wrong value
    - if the name of a format or file is not a relative path inside its folder (`_check_name`)
    """
    file = folder / REPORT_FILE
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        reason = f"{file} cannot be read: {error.strerror or error}"
    except (ValueError, RecursionError):
        reason = f"{file} is no JSON"
    else:
        try:
            return _parse_formats(document)
        except (ValueError, TypeError, KeyError):
            reason = f"{file} is no report of {SCHEMA}"
    cure = "name a folder that 'collhub tune -o FOLDER' has written"
    raise InputError(reason, cure=cure, code="not-a-tuned-folder")


def _parse_formats(document: object) -> list[DeclaredFormat]:
    if not isinstance(document, dict) or document["schema"] != SCHEMA:
        raise ValueError("another document")
    return [
        DeclaredFormat(
            _check_name(entry["name"]),
            tuple(_check_name(name) for name in entry["files"]),
            tuple(parse_served_calls(served) for served in entry["served"]),
            tuple(int(size) for size in document["sizes"]),
            int(document["num_ranks"]),
        )
        for entry in document["formats"]
    ]


def _check_name(name: object) -> str:
    """Return a name unchanged if it is a relative path that stays inside its folder.

    Raises `ValueError` for other types, an empty text, texts with a NUL character, and paths with
    the components "", `.` or `..`.
    """
    if not isinstance(name, str) or "\0" in name or set(name.split("/")) & {"", ".", ".."}:
        raise ValueError("no name of a file")
    return name


def _note_unserved_sizes(
    declared: DeclaredFormat, served: Sequence[ServedCalls]
) -> Iterator[Diagnostic]:
    """Yield a note `falls-back` per served calls, on measured sizes that the files do not serve.

    A size in the range of the calls is unserved if, as float32 in equal parts per rank, it is no
    multiple of the elements and bytes that the algorithm needs; the runtime decides there.
    `_MAX_NAMED_SIZES` sizes and more are given as first to last.
    """
    for calls in served:
        # Buffers with a part per rank have equally many elements in each part.
        part = declared.num_ranks * _ELEMENT_BYTES if calls.kind.traits.is_split else 1
        multiple = lcm(calls.element_multiple * _ELEMENT_BYTES, calls.byte_multiple)
        unserved = [
            format_bytes(size)
            for size in declared.sizes
            if calls.min_bytes <= size <= (size if calls.max_bytes is None else calls.max_bytes)
            and (size - size % part) % multiple
        ]
        if unserved:
            is_short = len(unserved) < _MAX_NAMED_SIZES
            sizes = ", ".join(unserved) if is_short else f"{unserved[0]} to {unserved[-1]}"
            subject = f"{calls.kind}, {sizes} of float32: {RUNTIME}, as {calls.by} is for"
            message = f"{subject} multiples of {multiple // _ELEMENT_BYTES} elements"
            yield Diagnostic("falls-back", f"{declared.name}: {message}", Severity.NOTE)


def _read_served_calls(
    context: CommandContext, name: str, contents: Mapping[str, bytes]
) -> tuple[Sequence[ServedCalls], list[Diagnostic]]:
    findings: list[Diagnostic] = []
    parts = tuple(
        SourcePart(file, partial(bytes, content), None, len(content))
        for file, content in contents.items()
    )
    source = Source(name, parts, findings.append)
    return context.selection_folders().served_calls(source, name), findings


def create_check_rows(checked: Sequence[CheckedFormat]) -> list[list[str]]:
    """Return one row per stretch of sizes: format, collective, calls, sizes, servers.

    A stretch in place and one out of place with equal collective, sizes and servers
    (declared and actual) share the row of the first, with the calls `all`. Several servers
    are joined by ` and `. Without servers, the last cell is `nobody` if a server was declared,
    otherwise `the runtime's own choice`. The order is that of the formats and stretches.
    """
    rows = []
    for form in checked:
        modes: dict[Stretch, list[bool]] = {}
        for stretch in form.stretches:
            modes.setdefault(replace(stretch, in_place=True), []).append(stretch.in_place)
        for stretch, in_place in modes.items():
            calls = "in place" if in_place[0] else "out of place"
            rows.append(
                [
                    form.name,
                    str(stretch.kind),
                    "all" if len(in_place) > 1 else calls,
                    format_sizes(stretch.min_bytes, stretch.max_bytes),
                    " and ".join(stretch.servers) or ("nobody" if stretch.declared else RUNTIME),
                ]
            )
    return rows


def create_check_report(folder: str, checked: Sequence[CheckedFormat]) -> TuneCheckReport:
    """Return the JSON report of the check of a tuned folder: per format, its stretches of sizes
    (bytes) with the files that serve them, and its findings. `ok` is true only if all formats are.
    """
    return TuneCheckReport(
        folder=folder,
        ok=all(form.ok for form in checked),
        formats=[
            CheckedFormatItem(
                name=form.name,
                ok=form.ok,
                calls=[
                    CheckedCalls(
                        collective=str(stretch.kind),
                        in_place=stretch.in_place,
                        min_bytes=stretch.min_bytes,
                        max_bytes=stretch.max_bytes,
                        served_by=stretch.servers,
                        stated=stretch.declared or None,
                    )
                    for stretch in form.stretches
                ],
                findings=list_findings(form.findings),
            )
            for form in checked
        ],
    )
