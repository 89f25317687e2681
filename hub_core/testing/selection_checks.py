"""Conformance rules for writers of tuned selections and for readers of measured times."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import Diagnostic, Severity
from hub_core.pipeline.artifacts import name_defect
from hub_core.plugin_api.formats import Layout, Source, SourcePart
from hub_core.plugin_api.measurements import MeasurementReader, MeasurementRequest, MeasurementSet
from hub_core.plugin_api.options import resolve
from hub_core.plugin_api.outputs import (
    SelectedCollective,
    SelectedWindow,
    Selection,
    SelectionWriter,
    ServedCalls,
    WriteResult,
)
from hub_core.testing.checked_plugin import CheckedPlugin, Skip, call, title
from hub_core.testing.format_checks import damage_source, find_refusal_problems, generate_nonsense
from hub_core.testing.samples import halving_doubling_all_reduce, ring_all_gather, ring_all_reduce

_SIZES = (1 << 10, 1 << 14, 1 << 20)


def sample_selection(num_ranks: int = 4, num_nodes: int = 1) -> Selection:
    """Build a selection for tests on the network `ring:NUM_RANKS`: an all-reduce and an all-gather.

    All have times for the sizes 1 KiB, 16 KiB and 1 MiB. The all-reduce, which is only in place,
    has two algorithms: for the first two sizes halving and doubling is the fastest, for the last
    one the ring. The all-gather, for both modes, has only the ring. `num_ranks`: a power of two,
    not checked. `num_nodes`: only stored in the selection.
    """
    samples = {
        "halving-doubling": halving_doubling_all_reduce(num_ranks),
        "ring": ring_all_reduce(num_ranks),
    }
    gather = ring_all_gather(num_ranks)
    reduced = selected(
        samples["ring"].collective,
        _SIZES,
        {"halving-doubling": (10, 20, 900), "ring": (20, 21, 300)},
        lambda name, size: samples[name],
    )
    gathered = selected(
        gather.collective,
        _SIZES,
        {"ring": (20, 21, 300)},
        lambda name, size: gather,
    )
    return Selection(f"ring:{num_ranks}", num_ranks, num_nodes, (reduced, gathered))


def selected(
    collective: Collective,
    sizes: Sequence[int],
    times_ns: Mapping[str, Sequence[int]],
    get_algorithm: Callable[[str, int], Algorithm],
) -> SelectedCollective:
    """Build a `SelectedCollective` that selects the fastest algorithm at every size.

    `sizes`: ascending, in bytes. `times_ns`: by name of the algorithm, its time at every size.
    `get_algorithm(name, size)` returns the algorithm.

    `windows(names)` of the result compares the algorithms in `names` (None for all) and returns ()
    without any. Of equally fast ones the first in `times_ns` is selected. Neighbouring sizes with
    the same fastest algorithm form a window, i.e. a range of sizes. The first window starts at 0
    bytes, each other one at its first size. A window ends one byte before the next one, the last
    one has no end. `slowdowns(sizes)` returns by algorithm its mean time / fastest time over these
    sizes.
    """

    def slowdowns(requested_sizes: Collection[int]) -> dict[str, float]:
        """Return by algorithm the mean of its time divided by the fastest time, ascending.

        The mean is over the measured sizes in `requested_sizes`, each counted once; other sizes
        are ignored. Algorithms with equal means are in the order of `times_ns`. Raise
        `ZeroDivisionError` if no requested size is measured.
        """
        indices = [i for i, size in enumerate(sizes) if size in requested_sizes]
        best = [min(times[i] for times in times_ns.values()) for i in indices]
        means = {
            name: sum(times[i] / fastest for i, fastest in zip(indices, best, strict=True))
            / len(indices)
            for name, times in times_ns.items()
        }
        return dict(sorted(means.items(), key=lambda item: item[1]))

    def windows(names: Collection[str] | None) -> tuple[SelectedWindow, ...]:
        """Return the windows of sizes of the fastest algorithms among `names` (None for all).

        Names without times are ignored; without any other name the result is (). Of equally fast
        algorithms, the first in `times_ns` is used. Neighbouring sizes with the same fastest
        algorithm form a window, which lists them. The first window begins at 0 bytes. A window
        ends one byte before the first size of the next one; the last has no end (None).
        """
        candidates = [name for name in times_ns if names is None or name in names]
        if not candidates:
            return ()
        winners = [min(candidates, key=lambda name: times_ns[name][i]) for i in range(len(sizes))]
        starts = [i for i in range(len(winners)) if not i or winners[i] != winners[i - 1]]
        result = []
        for start, end in zip(starts, [*starts[1:], len(winners)], strict=True):
            min_bytes = sizes[start] if start else 0
            max_bytes = sizes[end] - 1 if end < len(sizes) else None
            window_sizes = tuple(sizes[start:end])
            result.append(SelectedWindow(min_bytes, max_bytes, winners[start], window_sizes))
        return tuple(result)

    return SelectedCollective(collective, windows, slowdowns, get_algorithm)


def selections_come_back(subject: CheckedPlugin) -> Iterator[str]:
    """The files of a selection writer, read back, serve every selected window exactly once.

    Windows may be unserved if losses are declared. Writing twice gives the same files.
    """
    for writer in subject.offers(SelectionWriter):
        for problem in _check_writer(writer):
            yield f"{title(writer)}: {problem}"


def measurement_readers_read_samples(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """The signature of a reader of measurements is in its samples; they give equal, valid points.

    A sample gives at least one point. Every point is within its limits and names its file.
    """
    for reader in subject.offers(MeasurementReader):
        samples = _samples(reader)
        if not samples:
            yield Skip(f"{title(reader)}: it declares no samples, or cannot make them here")
        for request in samples:
            place = f"{title(reader)}, {request.source.name}"
            content = request.source.content()
            if not re.search(reader.format.signature, content, re.MULTILINE):
                yield f"{place}: the signature of the format is not in the sample"
            result, repetition = call(reader, request), call(reader, request)
            if not isinstance(result, MeasurementSet):
                yield f"{place}: returned {type(result).__name__}, expected MeasurementSet"
                continue
            if result != repetition:
                yield f"{place}: two readings differ"
            if not result.points:
                yield f"{place}: no point is read"
            yield from (f"{place}: {problem}" for problem in _find_defects(request, result))


def measurement_readers_refuse_bad_input(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Readers of measurements refuse random content with a `HubError` that names the file.

    Damaged samples give valid points or such an error.
    """
    for reader in subject.offers(MeasurementReader):
        for description, content in generate_nonsense():
            bad_request = MeasurementRequest(Source.of_bytes("bad-input", content))
            read = partial(call, reader, bad_request)
            yield from find_refusal_problems(
                read, f"{title(reader)}, {description}", must_refuse=True
            )
        for sample in _samples(reader):
            for damage, source in damage_source(sample.source):
                request = replace(sample, source=source)
                yield from find_refusal_problems(
                    partial(call, reader, request),
                    f"{title(reader)}, {source.name}, {damage}",
                    must_refuse=False,
                    find_defects=partial(_find_defects, request),
                )


def _check_writer(writer: SelectionWriter) -> Iterator[str]:
    """Write a sample selection twice, read it back, and yield all problems.

    The problems, in this order:

    1. The writer returns no `WriteResult`; this ends the check.
    2. The files of both outputs differ.
    3. A file has an invalid name.
    4. The reader returns no list or tuple of `ServedCalls`; this ends the check.
    5. Errors that the reader reports; warnings are no problems.
    6. By collective and size: sizes that are served twice and, if no loss is declared, sizes that
       are not served (`_check_coverage`).

    Exceptions of writer and reader are not caught.
    """
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
    """Yield a problem for each size and mode that two entries of `served`, or none, serve.

    Checked are the modes of the collective, and in each of its size windows the selected sizes,
    the first size, and the last size if the window has one (bytes, each once). The order is by
    window, then by ascending size, then in place before out of place.

    An entry serves a size if it has this kind of collective and this mode, and
    `min_bytes` <= size <= `max_bytes` (None: no upper limit). Its multiples of elements and
    bytes are ignored.

    - Two or more entries serve the size: one problem, always.
    - No entry serves the size: one problem, unless `has_losses`.
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
                    if calls.kind is kind
                    and getattr(calls, mode)
                    and calls.min_bytes <= size
                    and (calls.max_bytes is None or size <= calls.max_bytes)
                ]
                label = f"{kind}, {mode.replace('_', ' ')}, {size} bytes"
                if len(serving) > 1:
                    yield f"{label}: served twice"
                if not serving and not has_losses:
                    yield f"{label}: not served, and no loss is declared"


def _load_files(result: WriteResult) -> dict[str, bytes]:
    return {artifact.name: bytes(artifact.content()) for artifact in result.artifacts}


def _samples(reader: MeasurementReader) -> Sequence[MeasurementRequest]:
    """Call a measurement reader's function `samples` and return its samples.

    The result is [] if the reader declares no such function. Raise `AssertionError` if the
    function returns neither a list nor a tuple. The type of the members is not checked, and
    exceptions of the function are not caught.
    """
    samples = resolve(reader.samples)() if reader.samples else []
    message = f"{reader.samples} returned {type(samples).__name__}, expected requests"
    assert isinstance(samples, list | tuple), message
    return samples


def _find_defects(request: MeasurementRequest, result: object) -> Iterator[str]:
    """Yield the first point that is not valid or does not name its file."""
    for point in result.points if isinstance(result, MeasurementSet) else ():
        reason = point.defect()
        if reason is None and point.file != request.source.name:
            reason = f"the file of a point is {point.file!r}, expected {request.source.name!r}"
        if reason is not None:
            yield reason
            return
