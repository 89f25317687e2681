"""Calibrate machines: read points, split them by machine and version, build tables, fit models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collhub_machine_profiles.calls import FEW_REPEATS, make_tables, merge_calls, one_place
from collhub_machine_profiles.gpus import Gpu, has_switched_links, known_gpu, machine_label
from collhub_machine_profiles.machine_profile import (
    Constant,
    ErrorEntry,
    ErrorSummary,
    MachineProfile,
    profile_name,
    used_sources,
)
from collhub_machine_profiles.nccl_constants import DEFAULT_VERSION
from collhub_machine_profiles.time_models import NAMES, is_between_nodes, is_modelled

from collhub_machines.fitting import (
    choose_prior,
    every_second_size,
    fit_networks,
    fit_node,
    machine_prior,
    network_deviations,
)
from collhub_machines.reading import refuse
from hub_core import Registry, read_measurements
from hub_core.model import Diagnostic, InputError, Severity, format_count
from hub_core.plugin_api import Library, Measurement, MeasurementSet, OptionValue

MIN_POINTS = 5
MAX_MEDIAN = 0.15

# Points that the constants need: bytes of the full vector.
_NEEDED_SIZES = (
    (1, 64 * 1024, "up to 64 KiB"),
    (2**20, 2**24, "1 to 16 MiB"),
    (2**26, 2**62, "from 64 MiB"),
)
_NEEDED_COLLECTIVES = (
    (frozenset({"all-reduce"}), "all-reduce"),
    (frozenset({"all-gather", "reduce-scatter"}), "all-gather"),
    (frozenset({"all-to-all"}), "all-to-all"),
)


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """Settings of a calibration.

    `like` names the GPU of points without a machine; `label` is the text that the user gave for
    it. `selection` is a part of the label of the chosen machines. `hold_out` is False if the
    errors of the model are not estimated.
    """

    like: Gpu | None = None
    label: str = ""
    selection: str = ""
    hold_out: bool = True


@dataclass(frozen=True, slots=True)
class CalibratedMachine:
    """A profile, and what its points could not determine."""

    profile: MachineProfile
    diagnostics: tuple[Diagnostic, ...]
    model_median: float | None


def calibrate_machines(
    read: MeasurementSet, request: CalibrationRequest
) -> list[CalibratedMachine]:
    """Calibrate one machine per label, and return them sorted by label, upper case first.

    The label of a point is that of its machine (`machine_label`), or that of the request if this is
    empty. Only labels that contain the selection of the request are calibrated. Case is ignored
    here, and an empty selection means all; labels that differ in case are different machines.

    Raises `InputError` (`no-machine`) if any point has neither label, also with a selection, and
    (`no-points`) if no label matches, for example without points.
    """
    groups: dict[str, list[Measurement]] = {}
    for point in read.points:
        label = machine_label(point.machine) or request.label
        if not label:
            message = "the file does not name its GPU"
            cure = "give --like GPU, such as --like H100, or --topology"
            raise InputError(Diagnostic("no-machine", f"{point.file}: {message}", cure=cure))
        groups.setdefault(label, []).append(replace(point, machine=label))
    chosen = {
        label: group
        for label, group in groups.items()
        if request.selection.lower() in label.lower()
    }
    if not chosen:
        known = ", ".join(sorted(groups)[:8]) or "none"
        message = "no point remains for calibration"
        raise InputError(message, cure=f"machines in the input: {known}", code="no-points")
    return [
        _calibrate(label, group, request, read.sources) for label, group in sorted(chosen.items())
    ]


def gpu_of(label: str, like: Gpu | None) -> Gpu | None:
    """Return the GPU that a label names, else `like`, the one that the user named; None if there is
    neither.
    """
    return known_gpu(label) or like


def main_library(points: Iterable[Measurement]) -> Library:
    """Return the library and version with the most points; variants do not count.

    The result has no variant. An unknown version is a version of its own. On a tie, NCCL is
    preferred, then the last text in alphabetical order (2.9 is after 2.28). Raises `ValueError`
    without points.
    """
    counts: dict[Library, int] = {}
    for point in points:
        library = Library(point.library.name, point.library.version)
        counts[library] = counts.get(library, 0) + 1
    return max(counts, key=lambda one: (counts[one], one.name == "NCCL", str(one)))


def _calibrate(
    label: str,
    points: list[Measurement],
    request: CalibrationRequest,
    sources: Mapping[str, Mapping[str, str]],
) -> CalibratedMachine:
    gpu = gpu_of(label, request.like)
    library = main_library(points)
    tables = make_tables(points)
    diagnostics = _version_notes(label, points, library)
    if any(table.repeats < FEW_REPEATS for table in tables):
        message = f"{label}: some sizes have fewer than {FEW_REPEATS} measurements"
        cure = "repeat the run to reduce the influence of outliers"
        diagnostics.append(Diagnostic("few-repeats", message, Severity.NOTE, cure=cure))
    errors = [
        _entry("table", table.collective, table.ranks, table.nodes, table.library, between_knots)
        for table in tables
        if len(between_knots := table.errors_between_knots())
    ]
    constants: dict[str, Constant] = {}
    deviations: list[tuple[Measurement, float]] = []
    fitted_points = _model_points(gpu, label, points, library)
    reason = _without_model(gpu, label, fitted_points)
    if reason is not None:
        diagnostics.append(reason)
    elif gpu is not None:
        prior = machine_prior(gpu)
        if request.hold_out:
            prior, deviations = choose_prior(gpu, fitted_points, library.version)
        fitted = fit_node(gpu, fitted_points, library.version, prior)
        constants = {
            name: Constant(float(value), "fit" if count else fitted.source, count)
            for name, value, count in zip(NAMES, fitted.values, fitted.points, strict=True)
        }
        diagnostics += _missing_notes(label, fitted_points, constants)
    between = one_place(point for point in points if is_between_nodes(point))
    networks = fit_networks(between)
    if networks and request.hold_out:
        deviations += network_deviations(between, every_second_size(between))
    errors += _model_errors(deviations)
    deviation = (
        ErrorSummary.of(relative_error for _, relative_error in deviations) if deviations else None
    )
    profile = MachineProfile(
        profile_name(label),
        label,
        gpu.name if gpu else "",
        library,
        constants,
        tuple(tables),
        tuple(errors),
        used_sources(points, sources),
        max((point.day for point in points), default=""),
        tuple(networks),
    )
    median = deviation.median if deviation else None
    return CalibratedMachine(profile, tuple(diagnostics), median)


def _model_points(
    gpu: Gpu | None, label: str, points: Sequence[Measurement], library: Library
) -> list[Measurement]:
    """Return the points to which the model of a node can be fitted, in the order of `points`.

    These are points that the model covers (`is_modelled`), of the version of `library` or of an
    unknown version. Where a configuration was measured in place and out of place, `one_place`
    keeps only one of the two. The result is empty if the GPU is None, and if `label`, the name of
    the machine, names links without a switch, such as PCIe.
    """
    if gpu is None or not has_switched_links(label):
        return []
    versions = {library.version, ""}
    modelled = [point for point in points if is_modelled(gpu, point)]
    return one_place(point for point in modelled if point.library.version in versions)


def _without_model(gpu: Gpu | None, label: str, points: Sequence[Measurement]) -> Diagnostic | None:
    """Return the note `table-only` that a machine gets only tables; None if it gets a model.

    The first reason that applies is in the message:

    1. `gpu` is None: it is not known.
    2. The GPU has no model, or `label` names links without a switch (`has_switched_links`), such as
       PCIe.
    3. There are fewer than 5 (`MIN_POINTS`) `points`. The caller passes the points of one node to
       which a model can be fitted.

    The severity is NOTE, and the cure names the missing measurements or the option to give.
    """
    if gpu is None:
        message = f"{label}: not a known GPU, so only tables are written"
        cure = "give --like GPU if it equals a known one"
    elif not gpu.has_model or not has_switched_links(label):
        message = f"{label}: {gpu.name} here has no model of its links, so only tables are written"
        cure = "measure each number of ranks that is needed"
    elif len(points) < MIN_POINTS:
        count = format_count(len(points), "point")
        message = f"{label}: {count} of one node, too few for a model"
        missing = "; ".join(_missing(points))
        cure = f"measure at least {MIN_POINTS} points of NCCL's default choice, such as {missing}"
    else:
        return None
    return Diagnostic("table-only", message, Severity.NOTE, cure=cure)


def _missing(points: Sequence[Measurement]) -> list[str]:
    """Return the measurements that a calibration lacks, as texts such as `all-reduce up to 64 KiB`.

    Needed are all-reduce, all-gather (or reduce-scatter) and all-to-all, each with a point in
    every range of `_NEEDED_SIZES` (bytes, both ends included). The order is by collective, then
    by range; [] if the points suffice.
    """
    return [
        f"{name} {text}"
        for kinds, name in _NEEDED_COLLECTIVES
        for minimum_bytes, maximum_bytes, text in _NEEDED_SIZES
        if not any(
            point.collective in kinds and minimum_bytes <= point.size_bytes <= maximum_bytes
            for point in points
        )
    ]


def _missing_notes(
    label: str, points: Sequence[Measurement], constants: dict[str, Constant]
) -> list[Diagnostic]:
    notes = []
    priors = [name for name, constant in constants.items() if constant.source != "fit"]
    if priors:
        message = f"{label}: no point determines {', '.join(priors)}: priors, not measured"
        missing = "; ".join(_missing(points))
        cure = f"measure {missing or 'other numbers of ranks, such as 2 and 4'}"
        notes.append(Diagnostic("prior-constants", message, Severity.NOTE, cure=cure))
    if any(not point.library.version for point in points):
        message = f"{label}: NCCL's version is unknown; choices are those of {DEFAULT_VERSION}"
        cure = "use output of nccl-tests that prints the version"
        notes.append(Diagnostic("unknown-version", message, Severity.NOTE, cure=cure))
    return notes


def _version_notes(label: str, points: Sequence[Measurement], library: Library) -> list[Diagnostic]:
    """Return a list with a warning if points are of several libraries or versions, else [].

    The code is `mixed-versions`. Libraries that differ only in their variant count as one. The
    message begins with `label` and lists each library and version by text in ascending order, with
    its number of points. Message: only `library` is fitted. Cure: the others have separate tables.
    """
    counts: dict[str, int] = {}
    for point in points:
        counts[str(replace(point.library, variant=""))] = (
            counts.get(str(replace(point.library, variant="")), 0) + 1
        )
    if len(counts) < 2:
        return []
    listed = ", ".join(
        f"{name} ({format_count(count, 'point')})" for name, count in sorted(counts.items())
    )
    message = f"{label}: several libraries or versions: {listed}; only {library} is fitted"
    cure = "the others are separate tables; calibrate each version from its own files for a model"
    return [Diagnostic("mixed-versions", message, Severity.WARNING, cure=cure)]


def _model_errors(deviations: Sequence[tuple[Measurement, float]]) -> list[ErrorEntry]:
    """Return the errors of the model at points that its fit did not use, one entry per
    configuration.

    A configuration is collective, ranks, nodes and library (name, variant, version); the
    entries are sorted by these. `deviations`: points with predicted / measured - 1; an
    entry summarizes their absolute values (`ErrorSummary`). Without deviations the list
    is empty.
    """
    groups: dict[tuple[str, int, int, Library], list[float]] = {}
    for point, deviation in deviations:
        key = (point.collective, point.ranks, point.nodes, point.library)
        groups.setdefault(key, []).append(abs(deviation))
    return [
        _entry("model", *key, values)
        for key, values in sorted(groups.items(), key=lambda one: (*one[0][:3], str(one[0][3])))
    ]


def _entry(
    predictor: str,
    collective: str,
    ranks: int,
    nodes: int,
    library: Library,
    errors: Iterable[float],
) -> ErrorEntry:
    error = ErrorSummary.of(errors)
    name = f"{library.name}, {library.variant}" if library.variant else library.name
    return ErrorEntry(
        predictor, collective, ranks, nodes, name, library.version,
        error.points, error.median, error.p90, error.worst,
    )  # fmt: skip


_SEARCHED_BYTES = 2**20
_TUNER_FILE = "a tuner file has choices, not measured times"
_TUNER_CURE = "check it with 'collhub tune --check'; calibrate needs results of a run"
# Files that users confuse with measurements, with the reason and the cure.
_NOT_MEASURED = (
    (
        rb'"schema"\s*:\s*"collhub-machine/',
        "the file is a profile of a machine, not results of a run",
        "give it to --check, with the results of a run as RESULT",
    ),
    (
        rb"\bBytes -> (?:Algo|Kernel)\b",
        "the log has NCCL's predicted times, not measured times",
        "give the output of nccl-tests",
    ),
    (
        rb"^#?\s*collective(?:_type)?,(?:min_bytes|bytesPerRank)|\"rules\"\s*:",
        _TUNER_FILE,
        _TUNER_CURE,
    ),
    (
        rb"^\s*(?:allreduce|allgather|reducescatter|alltoall|broadcast)\s*,\s*\d+\s*,",
        _TUNER_FILE,
        _TUNER_CURE,
    ),
)


def read_points(
    files: Sequence[str],
    *,
    collective: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
    format: str | None = None,
    options: Mapping[str, OptionValue] | None = None,
    registry: Registry | None = None,
) -> MeasurementSet:
    """Read files as `read_measurements` does, and combine the records of ranks to points.

    `collective`, `ranks` and `nodes` are for files that lack them. `format` is the reader (None:
    the one that recognizes the file). `registry` None is the registry of this process.
    `merge_calls` combines the points: points without a call first, unchanged, then one point with
    the median time for all calls with equal collective, ranks, nodes, size, library and machine.
    Skipped lines and sources are unchanged.

    Raises the errors of `read_measurements`, such as `InputError` for a file without usable points.
    If its code is `unknown-measurements`, the first MiB of that file is searched for a machine
    profile, predicted times of NCCL, and rules of a tuner. The first of them in `_NOT_MEASURED`
    is named, with its first line, by the `InputError` instead. Raises `OSError` if the file cannot
    be read again.
    """
    try:
        read = read_measurements(
            files,
            collective=collective,
            ranks=ranks,
            nodes=nodes,
            format=format,
            options=options,
            registry=registry,
        )
    except InputError as error:
        code, file = error.diagnostics[0].code, error.diagnostics[0].location.file
        if code != "unknown-measurements" or file is None or not Path(file).is_file():
            raise
        with open(file, "rb") as opened:
            content = opened.read(_SEARCHED_BYTES)
        for pattern, message, cure in _NOT_MEASURED:
            match = re.search(pattern, content, re.MULTILINE)
            if match:
                line = content.count(b"\n", 0, match.start()) + 1
                raise refuse(file, line, message, cure) from error
        raise
    return MeasurementSet(merge_calls(read.points), read.skipped, read.sources)
