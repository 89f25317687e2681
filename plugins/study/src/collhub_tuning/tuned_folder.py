"""A folder that `collhub tune` has written: what is put into it, and whether it still is so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from pathlib import Path

from collhub_tuning.coverage import RUNTIME, Stretch, sizes_text, stretches
from collhub_tuning.tuning_report import (
    PAGE_FILE,
    REPORT_FILE,
    SCHEMA,
    TuningOutcome,
    WrittenFormat,
    served_of_object,
    tuning_document,
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
from hub_core.plugin_api import (
    Artifact,
    Selection,
    ServedCalls,
    Source,
    SourcePart,
)

# Of float32, the type of most gradients.
_ELEMENT_BYTES = 4
# From this number on only the first and the last size are named.
_MOST_SIZES = 4


@dataclass(frozen=True, slots=True)
class StatedFormat:
    """What a report says of the files of a format."""

    name: str
    files: tuple[str, ...]
    served: tuple[ServedCalls, ...]
    sizes: tuple[int, ...]
    num_ranks: int


@dataclass(frozen=True, slots=True)
class CheckedFormat:
    """Stretches of sizes of a format, and what else is wrong with its files."""

    name: str
    stretches: tuple[Stretch, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def findings(self) -> tuple[Diagnostic, ...]:
        """Everything that is wrong or worth knowing."""
        wrong = [
            Diagnostic(one.defect.partition(":")[0], f"{self.name}: {one}: {one.defect}")
            for one in self.stretches
            if one.defect
        ]
        return (*self.diagnostics, *wrong)

    @property
    def ok(self) -> bool:
        """Whether all sizes are served as the report says."""
        # Warnings leave sizes served.
        return all(one.severity is not Severity.ERROR for one in self.findings)


def written_format(
    context: CommandContext, selection: Selection, name: str, options: Mapping[str, str]
) -> WrittenFormat:
    """The files of a format, read back as the runtime reads them. Raises `HubError`."""
    folders = context.selection_folders()
    result = folders.files(selection, name, options)
    contents = {artifact.name: artifact.content() for artifact in result.artifacts}
    served, found = _served(context, name, contents)
    errors = [one for one in found if one.severity is Severity.ERROR]
    if errors:
        raise InputError(errors)
    return WrittenFormat(name, result, tuple(contents), served)


def put(context: CommandContext, folder: str, outcome: TuningOutcome, *, force: bool) -> list[Path]:
    """Write everything or nothing; files that an earlier report alone names are removed."""
    place = Path(folder)
    stale = _stated_files(place) if force else set()
    written = context.selection_folders().put(folder, _artifacts(outcome), force=force)
    for file in sorted(stale - {path.relative_to(place).as_posix() for path in written.paths}):
        # A runtime would load them beside the new ones.
        try:
            (place / file).unlink(missing_ok=True)
        except OSError as error:
            reason = error.strerror or str(error)
            cure = "remove it: the files beside it are new"
            raise UsageError(f"{place / file} cannot be removed: {reason}", cure=cure) from None
    return list(written.paths)


def checked_folder(context: CommandContext, folder: str) -> list[CheckedFormat]:
    """Every format that the report names, as its files are now. Raises `InputError`."""
    return [
        _checked(context, Path(folder) / stated.name, stated)
        for stated in stated_formats(Path(folder))
    ]


def stated_formats(folder: Path) -> list[StatedFormat]:
    """What the report of a folder states. Raises `InputError` for what is none of ours."""
    file = folder / REPORT_FILE
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        reason = f"{file} cannot be read: {error.strerror or error}"
    except (ValueError, RecursionError):
        reason = f"{file} is no JSON"
    else:
        try:
            return _formats_of(document)
        except (ValueError, TypeError, KeyError):
            reason = f"{file} is no report of {SCHEMA}"
    cure = "name a folder that 'collhub tune -o FOLDER' has written"
    raise InputError(reason, cure=cure, code="not-a-tuned-folder")


def _formats_of(document: object) -> list[StatedFormat]:
    if not isinstance(document, dict) or document["schema"] != SCHEMA:
        raise ValueError("another document")
    return [
        StatedFormat(
            _plain_name(one["name"]),
            tuple(_plain_name(name) for name in one["files"]),
            tuple(served_of_object(served) for served in one["served"]),
            tuple(int(size) for size in document["sizes"]),
            int(document["num_ranks"]),
        )
        for one in document["formats"]
    ]


def _plain_name(name: object) -> str:
    """A relative path that leads nowhere else. Raises `ValueError`."""
    if not isinstance(name, str) or not name or set(name.split("/")) & {"", ".", ".."}:
        raise ValueError("no name of a file")
    return name


def _stated_files(folder: Path) -> set[str]:
    """Files of the formats that an earlier report of this folder names; none without one."""
    try:
        return {f"{one.name}/{file}" for one in stated_formats(folder) for file in one.files}
    except InputError:
        return set()


def _artifacts(outcome: TuningOutcome) -> Iterator[Artifact]:
    text = json.dumps(tuning_document(outcome), indent=2) + "\n"
    yield Artifact(REPORT_FILE, text.encode())
    yield Artifact(PAGE_FILE, tuning_page(outcome).encode())
    for written in outcome.formats:
        for artifact in written.result.artifacts:
            yield _renamed(artifact, f"{written.name}/{artifact.name}")


def _renamed(artifact: Artifact, name: str) -> Artifact:
    """The same file under another name."""
    return Artifact(name, artifact.content, artifact.executable)


def _checked(context: CommandContext, folder: Path, stated: StatedFormat) -> CheckedFormat:
    contents = _contents(folder)
    missing = [name for name in stated.files if name not in contents]
    diagnostics = [
        Diagnostic("missing-file", "the file is gone", location=Location(str(folder / name)))
        for name in missing
    ]
    served: Sequence[ServedCalls] = ()
    try:
        served, found = _served(context, stated.name, contents)
    except HubError as error:
        found = list(error.diagnostics)
    diagnostics += [_below(one, folder) for one in found]
    diagnostics += _kept_by_runtime(stated, served)
    return CheckedFormat(stated.name, tuple(stretches(stated.served, served)), tuple(diagnostics))


def _contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder by their relative paths. Raises `InputError`."""
    try:
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
    except OSError as error:
        place = error.filename or folder
        raise InputError(f"{place} cannot be read: {error.strerror or error}") from None


def _kept_by_runtime(stated: StatedFormat, served: Sequence[ServedCalls]) -> Iterator[Diagnostic]:
    """Measured sizes that files serve not, since their chunks do not divide them."""
    for one in served:
        # Buffers of parts for all ranks have as many elements in each.
        part = stated.num_ranks * _ELEMENT_BYTES if one.kind.traits.is_split else 1
        multiple = lcm(one.element_multiple * _ELEMENT_BYTES, one.byte_multiple)
        kept = [
            format_bytes(size)
            for size in stated.sizes
            if one.min_bytes <= size <= (size if one.max_bytes is None else one.max_bytes)
            and (size - size % part) % multiple
        ]
        if kept:
            sizes = ", ".join(kept) if len(kept) < _MOST_SIZES else f"{kept[0]} to {kept[-1]}"
            what = f"{one.kind}, {sizes} of float32: {RUNTIME}, as {one.by} is for"
            message = f"{what} multiples of {multiple // _ELEMENT_BYTES} elements"
            yield Diagnostic("falls-back", f"{stated.name}: {message}", Severity.NOTE)


def _served(
    context: CommandContext, name: str, contents: Mapping[str, bytes]
) -> tuple[Sequence[ServedCalls], list[Diagnostic]]:
    found: list[Diagnostic] = []
    parts = tuple(
        SourcePart(file, _returning(content), None, len(content))
        for file, content in contents.items()
    )
    source = Source(name, parts, found.append)
    return context.selection_folders().served_calls(source, name), found


def _returning(content: bytes) -> Callable[[], bytes]:
    """A function that returns `content` on every call."""
    return lambda: content


def _below(found: Diagnostic, folder: Path) -> Diagnostic:
    """The finding with the path of its file as the user knows it."""
    if found.location.file is None:
        return found
    # Readers know names within the folder.
    place = replace(found.location, file=str(folder / found.location.file))
    return replace(found, location=place)


def checked_rows(checked: Sequence[CheckedFormat]) -> list[list[str]]:
    """A line a stretch: which calls, and who serves them; in and out of place where alike."""
    rows = []
    for form in checked:
        modes: dict[Stretch, list[bool]] = {}
        for one in form.stretches:
            modes.setdefault(replace(one, in_place=True), []).append(one.in_place)
        rows += [_row(form.name, one, found) for one, found in modes.items()]
    return rows


def _row(name: str, one: Stretch, modes: Sequence[bool]) -> list[str]:
    """Cells of a stretch in the format `name`; `modes`: in place or not, for each alike."""
    calls = "in place" if modes[0] else "out of place"
    return [
        name,
        str(one.kind),
        "all" if len(modes) > 1 else calls,
        sizes_text(one.min_bytes, one.max_bytes),
        " and ".join(one.found) or ("nobody" if one.stated else RUNTIME),
    ]
