"""Conformance rule for selection writers: the written files serve every selected window once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from hub_core.model.diagnostics import Diagnostic, Severity
from hub_core.pipeline.artifacts import name_defect
from hub_core.plugin_api.formats import Layout
from hub_core.plugin_api.options import resolve
from hub_core.plugin_api.outputs import (
    SelectedCollective,
    SelectionWriter,
    ServedCalls,
    WriteResult,
)
from hub_core.plugin_api.sources import Source, SourcePart
from hub_core.testing.checked_plugin import CheckedPlugin, call, title
from hub_core.testing.selection_samples import sample_selection


def selections_come_back(subject: CheckedPlugin) -> Iterator[str]:
    """The files of a selection writer, read back, serve every selected window exactly once.

    Windows may be unserved if losses are declared. Writing twice gives the same files.
    """
    for writer in subject.offers(SelectionWriter):
        for problem in _check_writer(writer):
            yield f"{title(writer)}: {problem}"


def _check_writer(writer: SelectionWriter) -> Iterator[str]:
    """Write a sample selection twice, read it back and yield all problems."""
    selection = sample_selection()
    result, repetition = call(writer, selection), call(writer, selection)
    if not isinstance(result, WriteResult) or not isinstance(repetition, WriteResult):
        yield f"returned {type(result).__name__}, expected WriteResult"
        return
    files = _load_files(result)
    if files != _load_files(repetition):
        yield "written twice, the files differ"
    yield from filter(None, (name_defect(name, Layout.FOLDER) for name in files))
    reports: list[Diagnostic] = []
    parts = [SourcePart(name, partial(bytes, data)) for name, data in files.items()]
    served = resolve(writer.read)(Source("sample", tuple(parts), reports.append))
    if not isinstance(served, list | tuple) or not all(isinstance(s, ServedCalls) for s in served):
        yield f"{writer.read} returned {type(served).__name__}, expected a list of ServedCalls"
        return
    yield from (str(report) for report in reports if report.severity is Severity.ERROR)
    for selected in selection.collectives:
        yield from _check_coverage(selected, served, has_losses=bool(result.losses))


def _check_coverage(
    selected: SelectedCollective, served: Sequence[ServedCalls], *, has_losses: bool
) -> Iterator[str]:
    """Yield a problem per size and mode that is served twice, or not served without any loss.

    The sizes are the selected ones and the bounds of their windows.
    """
    kind = selected.collective.kind
    modes = [mode for mode in ("in_place", "out_of_place") if getattr(selected.collective, mode)]
    for window in selected.windows(None):
        sizes = {window.min_bytes, *window.sizes}
        if window.max_bytes is not None:
            sizes.add(window.max_bytes)
        for size in sorted(sizes):
            for mode in modes:
                serving = [
                    calls
                    for calls in served
                    if getattr(calls, mode) and _is_served(calls, kind, size)
                ]
                place = f"{kind}, {mode.replace('_', ' ')}, {size} bytes"
                if len(serving) > 1:
                    yield f"{place}: served twice"
                if not serving and not has_losses:
                    yield f"{place}: not served, and no loss is declared"


def _is_served(calls: ServedCalls, kind: object, size: int) -> bool:
    """Whether these calls include a collective of the kind with `size` bytes."""
    is_within = calls.max_bytes is None or size <= calls.max_bytes
    return calls.kind is kind and calls.min_bytes <= size and is_within


def _load_files(result: WriteResult) -> dict[str, bytes]:
    return {artifact.name: bytes(artifact.content()) for artifact in result.artifacts}
