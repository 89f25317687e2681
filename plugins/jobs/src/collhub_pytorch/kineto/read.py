"""Read Kineto profiles as a workload: work, times and dependencies of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from collhub_pytorch.analysis import fit_clocks, has_times, match_communications, measured_timeline
from collhub_pytorch.job import EXTENSION, fact_list, has_device, is_host_group, join_ranks
from collhub_pytorch.kineto.activities import RankProfile
from collhub_pytorch.kineto.device import device_profile
from collhub_pytorch.kineto.events import RankEvents, read_events
from collhub_pytorch.kineto.graph import build_nodes
from collhub_pytorch.kineto.host import add_host_calls, host_profile
from collhub_pytorch.options import KINETO, NCCL_CALLS, ClockOptions, ProfileOptions
from collhub_pytorch.rank_nodes import KERNEL_DELAY_NS, RankFacts, RankNodes
from collhub_pytorch.trace_files import TraceFile, files_of
from hub_core.columns import Int64Array
from hub_core.model import (
    Diagnostic,
    InputError,
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

_DEVICE_RESIDUAL_NS = 1e6
_HOST_RESIDUAL_NS = 1e8
ASSUMPTIONS = (
    "the host threads of a rank issue their work in the order of the profile",
    "work waits for another stream where a wait or a gap in its own stream tells that it did; "
    "such dependencies are control dependencies",
    "the ranks of a collective end together: their clocks are aligned by it",
)


def read(source: Source, options: ProfileOptions) -> Workload:
    """Read one profile per rank.

    Assumptions are passed to `source.report` and stored in `extensions`. Raises `InputError` for
    damaged files, missing ranks, mismatched collectives, and clocks that cannot be aligned.
    """
    provenance = Provenance(KINETO, "", source.name, source.sha256())
    workload = workload_of(files_of(source), options, provenance)
    for line in notes(workload):
        source.report(Diagnostic("profile", line, Severity.NOTE, Location(source.name)))
    return workload


def workload_of(
    files: Sequence[TraceFile], options: ProfileOptions, provenance: Provenance
) -> Workload:
    """Read these files as a workload, with one file in memory at a time.

    Clocks are aligned if the files record times of collectives.
    """
    parts = [_rank_nodes(file, order, options) for order, file in enumerate(files)]
    lines: list[JsonValue] = [*describe_facts(parts)]
    assumptions: list[JsonValue] = list(ASSUMPTIONS)
    extension: dict[str, JsonValue] = {"assumptions": assumptions, "notes": lines}
    workload = join_ranks(parts, options, provenance, extension)
    return align_clocks(workload, options)


def notes(workload: Workload) -> list[str]:
    """List assumptions and missing data of the files for the user."""
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


def _rank_nodes(file: TraceFile, order: int, options: ProfileOptions) -> RankNodes:
    events = read_events(file, order)
    window = None if options.step is None else _window(events, options.step)
    has_device = bool(events.device.start)
    if has_device:
        delay_ns = KERNEL_DELAY_NS * options.kernel_delay_factor
        profile = add_host_calls(device_profile(events, window, delay_ns), events, window)
    else:
        profile = host_profile(events, window)
    return nodes_of_profile(events, profile)


def nodes_of_profile(events: RankEvents, profile: RankProfile) -> RankNodes:
    """Build the nodes of a rank, with the facts about its file."""
    nodes = build_nodes(profile)
    is_recorded = profile.is_recorded
    has_device = bool(events.device.start)
    nodes.facts = RankFacts(
        has_device,
        profile.unknown,
        0 if is_recorded is None else int((~is_recorded).sum()),
        profile.host_calls,
        events.unknown_calls,
        profile.memory_names,
        profile.communication_names,
        profile.idle if has_device else None,
    )
    return nodes


def describe_facts(parts: Sequence[RankNodes]) -> list[str]:
    """Format notes on the files: treatment of unusual work, and missing data."""
    facts = [(part.rank, part.facts) for part in parts]
    lines = [
        _describe_count(
            "kernels of communication count as communication of an unknown collective",
            {rank: fact.unknown_kernels for rank, fact in facts},
        ),
        _describe_count(
            "collectives of libraries of the host, next to its device, form a group of all ranks",
            {rank: fact.host_calls for rank, fact in facts},
        ),
        _describe_count(
            "annotations of communication name no known collective and are left out",
            {rank: sum(fact.unknown_calls.values()) for rank, fact in facts},
        ),
        _describe_count(
            "collectives have no kernels in the profile: their times, waiting, overlap and idle "
            "time are not recorded; profile with ProfilerActivity.CUDA (XPU, MTIA) as well",
            {rank: fact.unrecorded for rank, fact in facts},
        ),
    ]
    silent = [part.rank for part in parts if not part.calls]
    if silent:
        lines.append(f"{_format_rank_list(silent)}: no collectives are recorded")
    hosts = [rank for rank, fact in facts if not fact.has_device]
    if hosts:
        missing = "overlap, idle time of streams and memory copies"
        lines.append(
            f"{_format_rank_list(hosts)}: no work of a device is recorded: {missing} are missing"
        )
    return [line for line in lines if line]


def _describe_count(text: str, counts: Mapping[int, int]) -> str:
    """Format `ranks 0-1: 5 TEXT` for ranks with a count above 0; empty without such ranks."""
    ranks = [rank for rank, count in counts.items() if count]
    return f"{_format_rank_list(ranks)}: {sum(counts.values())} {text}" if ranks else ""


def _format_rank_list(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {format_ranks(sorted(ranks))}"


def _window(events: RankEvents, step: int) -> tuple[int, int]:
    """Return start and end of an iteration. Raises `InputError` if the file lacks it."""
    if step in events.steps:
        return events.steps[step]
    have = ", ".join(map(str, sorted(events.steps))) or "none"
    message = f"there is no ProfilerStep#{step}: it has {have}"
    location = Location(events.file)
    raise InputError(message, location=location, cure="name another step", code="step")


def align_clocks(
    workload: Workload, options: ClockOptions, *, has_common_clock: bool = False
) -> Workload:
    """Convert to a common clock with time 0 at the earliest start of a rank.

    `has_common_clock`: the times of all ranks already have one clock.
    """
    meetings = match_communications(workload)
    bases = np.array(workload.nodes.duration_ns[workload.nodes.rank_indptr[:-1]])
    offsets = np.zeros(workload.num_ranks, np.int64)
    extension: dict[str, JsonValue] = dict(workload.extensions[EXTENSION])  # type: ignore[arg-type]
    clock_count = len(set(map(str, fact_list(workload, "files"))))
    is_aligned = has_common_clock or options.clocks == "stated"
    if not is_aligned and clock_count > 1 and has_times(workload):
        # Assumed ranks have the clock of the file that they copy.
        max_residual_ns = _max_residual_ns(workload, options)
        fit = fit_clocks(workload, measured_timeline(workload), meetings, max_residual_ns)
        offsets = fit.offset_ns
        extension["clock_offsets_ns"] = [*map(int, offsets)]
        extension["clock_residual_ns"] = fit.residual_ns
    begins = bases - offsets
    return replace(
        _set_rank_starts(workload, begins - begins.min()), extensions={EXTENSION: extension}
    )


def _set_rank_starts(workload: Workload, begins_ns: Int64Array) -> Workload:
    """Set the start times of the ranks."""
    nodes = workload.nodes
    duration = nodes.duration_ns.copy()
    duration[nodes.rank_indptr[:-1]] = begins_ns
    return replace(workload, nodes=replace(nodes, duration_ns=duration))


def _max_residual_ns(workload: Workload, options: ClockOptions) -> float:
    """Return the maximum difference between the ends of a collective."""
    if options.clock_residual is not None:
        return options.clock_residual * 1e9
    # Device collectives end with the network; host threads end when they get a core.
    nodes = workload.nodes
    is_on_device = np.array([has_device(workload, rank) for rank in range(workload.num_ranks)])
    is_of_device = nodes.is_kind(NodeKind.COLLECTIVE) & is_on_device[nodes.rank]
    is_of_device &= ~is_host_group(workload)
    return _DEVICE_RESIDUAL_NS if is_of_device.any() else _HOST_RESIDUAL_NS
