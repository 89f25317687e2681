"""Selections as folders: made by the writer of a format, put on disk, and read back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hub_core.pipeline.artifacts import Content, Destination, destination, name_defect
from hub_core.pipeline.calls import blame, bound_options, call, misfit
from hub_core.pipeline.outputs import Written
from hub_core.plugin_api import (
    Artifact,
    Format,
    Layout,
    Selection,
    SelectionWriter,
    ServedCalls,
    Source,
    WriteResult,
    resolve,
)
from hub_core.registry.plugins import Registry


@dataclass(frozen=True, slots=True)
class SelectionFolders:
    """Folders of selections, by the selection writers of a registry."""

    registry: Registry

    def files(self, selection: Selection, format: str, options: Mapping[str, str]) -> WriteResult:
        """What the selection writer of a format makes, each file made and its name checked."""
        writer = self.registry.find(SelectionWriter, format)
        result = call(writer, WriteResult, selection, bound_options(writer, options))
        with blame(writer):
            made = [Artifact(one.name, one.content(), one.executable) for one in result.artifacts]
        for artifact in made:
            if reason := name_defect(artifact.name, Layout.FOLDER):
                raise misfit(writer, f"returned an artifact whose name {reason}")
        return WriteResult(made, tuple(result.losses), (), tuple(result.notes))

    def served_calls(self, source: Source, format: str) -> Sequence[ServedCalls]:
        """What files of a format serve."""
        writer = self.registry.find(SelectionWriter, format)
        with blame(writer):
            found = resolve(writer.offer.read)(source)
        if not isinstance(found, list | tuple):
            raise misfit(writer, f"reads {type(found).__name__}, expected a list of ServedCalls")
        return found

    def admit(self, folder: str, *, force: bool) -> None:
        """Raise `UsageError` for a folder that `put` would refuse, before any work is done."""
        _place(folder, force)

    def put(self, folder: str, files: Iterable[Artifact], *, force: bool) -> Written:
        """Write all files or none; `force` for a folder that is not empty."""
        return Written(_place(folder, force).put(_contents(files)), ())


def _place(folder: str, force: bool) -> Destination:
    return destination(folder, Format("tuned", "", (), layout=Layout.FOLDER), force=force)


def _contents(files: Iterable[Artifact]) -> Iterator[Content]:
    for file in files:
        yield Content(file.name, bytes(file.content()), file.executable)
