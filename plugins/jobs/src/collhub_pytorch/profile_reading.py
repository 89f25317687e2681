"""Steps that the readers of profiles and records share: files, notes and clocks of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from collhub_pytorch.analysis import fit_clocks, has_times, match_communications, measured_timeline
from collhub_pytorch.formats import NCCL_CALLS, ClockOptions
from collhub_pytorch.job import EXTENSION, fact_list, has_device, is_host_group
from collhub_pytorch.trace_files import TraceFile, files_of
from hub_core.model import (
    Diagnostic,
    JsonValue,
    Location,
    NodeKind,
    Provenance,
    Severity,
    Workload,
    format_ranks,
    format_time,
)
from hub_core.plugin_api import Source

Options = TypeVar("Options")

# Default maximum differences between the ends of a collective.
_DEVICE_RESIDUAL_NS = 1e6
_HOST_RESIDUAL_NS = 1e8


def read_source(
    source: Source,
    format_name: str,
    read_files: Callable[[Sequence[TraceFile], Options, Provenance], Workload],
    options: Options,
) -> Workload:
    """Read all files of a source as one job with `read_files`, and report its notes.

    `read_files` gets the files, the options and the provenance: format, name and SHA-256 of the
    source. The notes are reported to `source` as findings. Raises the errors of `read_files`.
    """
    provenance = Provenance(format_name, "", source.name, source.sha256())
    workload = read_files(files_of(source), options, provenance)
    report_notes(workload, source)
    return workload


def report_notes(workload: Workload, source: Source) -> None:
    """Report assumptions and missing data of a workload to the user who named the source."""
    for line in notes(workload):
        source.report(Diagnostic("profile", line, Severity.NOTE, Location(source.name)))


def notes(workload: Workload) -> list[str]:
    """List the assumptions and missing data of a profile as lines for the user.

    The data are in the extension `EXTENSION` of the workload, which must be present with the keys
    `notes` and `assumed_ranks`. The lines are, in this order:

    1. the texts of `notes` that are not empty
    2. `N dependencies between streams are assumed`: N is the number of all control dependencies.
       Not without such dependencies, and not for logs of NCCL.
    3. `ranks R have no file and are assumed to do what others do`: R lists `assumed_ranks`, such as
       `1-3`. Not if that is empty.
    4. `clocks aligned; ends of a collective differ by up to T`: T is `clock_residual_ns` with its
       unit. Not without this key, but also for 0.

    The result is empty if none applies.
    """
    extension = workload.extensions[EXTENSION]
    assert isinstance(extension, dict)
    messages = (
        [str(line) for line in extension["notes"] if line]
        if isinstance(extension["notes"], list)
        else []
    )
    assumed = len(workload.nodes.control_indices)
    # In logs of NCCL, the order of the lines is the order of the calls.
    if assumed and workload.provenance.producer != NCCL_CALLS:
        messages.append(f"{assumed} dependencies between streams are assumed")
    missing = extension["assumed_ranks"]
    if isinstance(missing, list) and missing:
        ranks = format_ranks([int(str(rank)) for rank in missing])
        messages.append(f"ranks {ranks} have no file and are assumed to do what others do")
    residual = extension.get("clock_residual_ns")
    if isinstance(residual, int):
        messages.append(
            f"clocks aligned; ends of a collective differ by up to {format_time(residual)}"
        )
    return messages


def align_clocks(
    workload: Workload, options: ClockOptions, *, has_common_clock: bool = False
) -> Workload:
    """Return a workload with the times of all ranks on a common clock, 0 at the earliest start.

    The start of a rank (ns) is stored as the duration of its first node, which each rank must have.
    Only these durations change: minus the offset of the rank, then minus the minimum of all ranks.
    `fit_clocks` gives the offsets, and the extension gets `clock_offsets_ns` (list by rank) and
    `clock_residual_ns`. The offsets are 0, without these entries, if `has_common_clock`, the option
    `clocks` is `stated`, `mismatches` is `keep`, the list `files` has fewer than two different
    names, or a node other than a marker has no duration.

    The result has only the extension `EXTENSION`. Raises `InputError`, first, for collectives that
    differ or lack on a rank, unless `mismatches` is `keep`. Fitting raises it for cyclic
    dependencies, and (`clocks`) for a clock without common communication or a residual above the
    limit: the option `clock_residual`, by default 1 ms, or 100 ms without device collectives.
    """
    is_kept = options.mismatches == "keep"
    meetings = None if is_kept else match_communications(workload)
    bases = np.array(workload.nodes.duration_ns[workload.nodes.rank_indptr[:-1]])
    offsets = np.zeros(workload.num_ranks, np.int64)
    extension: dict[str, JsonValue] = dict(workload.extensions[EXTENSION])  # type: ignore[arg-type]
    clock_count = len(set(map(str, fact_list(workload, "files"))))
    is_aligned = has_common_clock or options.clocks == "stated"
    if meetings is not None and not is_aligned and clock_count > 1 and has_times(workload):
        # Assumed ranks have the clock of the file that they copy.
        max_residual_ns = _max_residual_ns(workload, options)
        fit = fit_clocks(workload, measured_timeline(workload), meetings, max_residual_ns)
        offsets = fit.offset_ns
        extension["clock_offsets_ns"] = [*map(int, offsets)]
        extension["clock_residual_ns"] = fit.residual_ns
    begins = bases - offsets
    # The start of a rank is stored as the duration of its first node; every rank has one.
    begins_ns = begins - begins.min()
    nodes = workload.nodes
    duration = nodes.duration_ns.copy()
    duration[nodes.rank_indptr[:-1]] = begins_ns
    return replace(
        replace(workload, nodes=replace(nodes, duration_ns=duration)),
        extensions={EXTENSION: extension},
    )


def _max_residual_ns(workload: Workload, options: ClockOptions) -> float:
    """Return the largest accepted difference in ns between the ends of a collective on its ranks.

    It is the option `clock_residual` (in s), also if it is 0. If the option is None, some
    collective on a device gives 1 ms (`_DEVICE_RESIDUAL_NS`). Otherwise it is 100 ms
    (`_HOST_RESIDUAL_NS`), because host threads end when they get a core.

    A collective runs on a device if two conditions hold: the file of its rank records work of a
    device (`has_device`), and its group is not one of a host library (`is_host_group`). Raises
    `InputError` (`invalid-json`) as `has_device` if the option is None.
    """
    if options.clock_residual is not None:
        return options.clock_residual * 1e9
    # Device collectives end with the network; host threads end when they get a core.
    nodes = workload.nodes
    is_on_device = np.array([has_device(workload, rank) for rank in range(workload.num_ranks)])
    is_of_device = nodes.is_kind(NodeKind.COLLECTIVE) & is_on_device[nodes.rank]
    is_of_device &= ~is_host_group(workload)
    return _DEVICE_RESIDUAL_NS if is_of_device.any() else _HOST_RESIDUAL_NS
