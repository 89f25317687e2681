"""The rule for selection writers: what is written serves what was selected, read as written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from hub_core.model.diagnostics import Diagnostic, Severity
from hub_core.pipeline.artifacts import name_defect
from hub_core.plugin_api.artifacts import WriteResult
from hub_core.plugin_api.formats import Layout
from hub_core.plugin_api.references import resolve
from hub_core.plugin_api.selection_writer import SelectedCollective, SelectionWriter, ServedCalls
from hub_core.plugin_api.sources import Source, SourcePart
from hub_core.testing.checked_plugin import CheckedPlugin, call, title
from hub_core.testing.selection_samples import sample_selection


def selections_come_back(subject: CheckedPlugin) -> Iterator[str]:
    """What a selection writer writes serves every window once when it is read back.

    Losses may say otherwise. Written twice it is the same.
    """
    for writer in subject.offers(SelectionWriter):
        for problem in _problems(writer):
            yield f"{title(writer)}: {problem}"


def _problems(writer: SelectionWriter) -> Iterator[str]:
    selection = sample_selection()
    result, again = call(writer, selection), call(writer, selection)
    if not isinstance(result, WriteResult) or not isinstance(again, WriteResult):
        yield f"returned {type(result).__name__}, expected WriteResult"
        return
    files = _files(result)
    if files != _files(again):
        yield "written twice, the files differ"
    yield from filter(None, (name_defect(name, Layout.FOLDER) for name in files))
    found: list[Diagnostic] = []
    parts = [SourcePart(name, partial(bytes, data)) for name, data in files.items()]
    served = resolve(writer.read)(Source("sample", tuple(parts), found.append))
    if not isinstance(served, list | tuple) or not all(isinstance(s, ServedCalls) for s in served):
        yield f"{writer.read} returned {type(served).__name__}, expected a list of ServedCalls"
        return
    yield from (str(one) for one in found if one.severity is Severity.ERROR)
    for selected in selection.collectives:
        yield from _coverage(selected, served, has_losses=bool(result.losses))


def _coverage(
    selected: SelectedCollective, served: Sequence[ServedCalls], *, has_losses: bool
) -> Iterator[str]:
    kind = selected.collective.kind
    modes = [mode for mode in ("in_place", "out_of_place") if getattr(selected.collective, mode)]
    for window in selected.windows(None):
        ends = {window.min_bytes, *window.sizes}
        if window.max_bytes is not None:
            ends.add(window.max_bytes)
        for size in sorted(ends):
            for mode in modes:
                takers = [one for one in served if getattr(one, mode) and _takes(one, kind, size)]
                place = f"{kind}, {mode.replace('_', ' ')}, {size} bytes"
                if len(takers) > 1:
                    yield f"{place}: served twice"
                if not takers and not has_losses:
                    yield f"{place}: not served, and no loss says so"


def _takes(one: ServedCalls, kind: object, size: int) -> bool:
    is_within = one.max_bytes is None or size <= one.max_bytes
    return one.kind is kind and one.min_bytes <= size and is_within


def _files(result: WriteResult) -> dict[str, bytes]:
    return {artifact.name: bytes(artifact.content()) for artifact in result.artifacts}
