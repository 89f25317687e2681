"""Folders of tuned selections: build their files with a writer, write them, and read them back."""

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
    """Access to folders of selections with the selection writers of a registry."""

    registry: Registry

    def files(self, selection: Selection, format: str, options: Mapping[str, str]) -> WriteResult:
        """Build the files of a selection in a format; contents are loaded and names are checked.

        Raises `PluginError` if the writer returns a name that leaves the folder.
        """
        writer = self.registry.find(SelectionWriter, format)
        result = call(writer, WriteResult, selection, bound_options(writer, options))
        with blame(writer):
            artifacts = [
                Artifact(artifact.name, artifact.content(), artifact.executable)
                for artifact in result.artifacts
            ]
        for artifact in artifacts:
            if reason := name_defect(artifact.name, Layout.FOLDER):
                raise misfit(writer, f"returned an artifact whose name {reason}")
        return WriteResult(artifacts, tuple(result.losses), (), tuple(result.notes))

    def served_calls(self, source: Source, format: str) -> Sequence[ServedCalls]:
        """Read files of a format and return the calls that a runtime serves with them."""
        writer = self.registry.find(SelectionWriter, format)
        with blame(writer):
            calls = resolve(writer.offer.read)(source)
        if not isinstance(calls, list | tuple):
            raise misfit(writer, f"reads {type(calls).__name__}, expected a list of ServedCalls")
        return calls

    def admit(self, folder: str, *, force: bool) -> None:
        """Raise `UsageError` for a folder that `put` would refuse, before any work."""
        _get_destination(folder, force)

    def put(self, folder: str, files: Iterable[Artifact], *, force: bool) -> Written:
        """Write all files or none; a folder that is not empty needs `force`."""
        return Written(_get_destination(folder, force).put(_to_contents(files)), ())


def _get_destination(folder: str, force: bool) -> Destination:
    return destination(folder, Format("tuned", "", (), layout=Layout.FOLDER), force=force)


def _to_contents(files: Iterable[Artifact]) -> Iterator[Content]:
    for file in files:
        yield Content(file.name, bytes(file.content()), file.executable)
