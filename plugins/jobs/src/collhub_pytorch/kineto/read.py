"""Read Kineto profiles as a workload: what each rank did, when, and what waited for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from collhub_pytorch.analysis import fitted_clocks, has_times, matched, measured_timeline
from collhub_pytorch.job import fact_list, has_device, is_host_group, joined
from collhub_pytorch.kineto.device import device_profile
from collhub_pytorch.kineto.events import RankEvents, read_events
from collhub_pytorch.kineto.graph import nodes_of
from collhub_pytorch.kineto.host import add_host_calls, host_profile
from collhub_pytorch.options import KINETO, ProfileOptions
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
    """Read one profile a rank.

    What is assumed goes to `source.report` and stands in `extensions`. Raises `InputError` for
    damaged files, missing ranks, collectives that do not match, and clocks that do not align.
    """
    provenance = Provenance(KINETO, "", source.name, source.sha256())
    workload = workload_of(files_of(source), options, provenance)
    for line in notes(workload):
        source.report(Diagnostic("profile", line, Severity.NOTE, Location(source.name)))
    return workload


def workload_of(
    files: Sequence[TraceFile], options: ProfileOptions, provenance: Provenance
) -> Workload:
    """The workload of these files, one of which is in memory at a time.

    Clocks are aligned where the files record the times of their collectives.
    """
    parts = [_rank_nodes(file, order, options) for order, file in enumerate(files)]
    lines: list[JsonValue] = [*_fact_lines(parts)]
    assumptions: list[JsonValue] = list(ASSUMPTIONS)
    said: dict[str, JsonValue] = {"assumptions": assumptions, "notes": lines}
    workload = joined(parts, options, provenance, said)
    return _with_one_clock(workload, options)


def notes(workload: Workload) -> list[str]:
    """What the user should know of how the files were read."""
    said = workload.extensions["pytorch"]
    assert isinstance(said, dict)
    found = [str(line) for line in said["notes"] if line] if isinstance(said["notes"], list) else []
    assumed = len(workload.nodes.control_indices)
    if assumed:
        found.append(f"{assumed} dependencies between streams are assumed")
    missing = said["assumed_ranks"]
    if isinstance(missing, list) and missing:
        ranks = format_ranks([int(str(rank)) for rank in missing])
        found.append(f"ranks {ranks} have no file and are assumed to do what others do")
    residual = said.get("clock_residual_ns")
    if isinstance(residual, int):
        found.append(
            f"clocks aligned; ends of a collective differ by up to {format_time(residual)}"
        )
    return found


def _rank_nodes(file: TraceFile, order: int, options: ProfileOptions) -> RankNodes:
    events = read_events(file, order)
    window = None if options.step is None else _window(events, options.step)
    has_device = bool(events.device.start)
    if has_device:
        delay_ns = KERNEL_DELAY_NS * options.kernel_delay_factor
        profile = add_host_calls(device_profile(events, window, delay_ns), events, window)
    else:
        profile = host_profile(events, window)
    nodes = nodes_of(profile)
    is_recorded = profile.is_recorded
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


def _fact_lines(parts: Sequence[RankNodes]) -> list[str]:
    """Notes on the files: what is counted how, and which data they lack."""
    facts = [(part.rank, part.facts) for part in parts]
    lines = [
        _counted_line(
            "kernels of communication count as communication of an unknown collective",
            {rank: fact.unknown_kernels for rank, fact in facts},
        ),
        _counted_line(
            "collectives of libraries of the host, next to its device, form a group of all ranks",
            {rank: fact.host_calls for rank, fact in facts},
        ),
        _counted_line(
            "annotations of communication name no known collective and are left out",
            {rank: sum(fact.unknown_calls.values()) for rank, fact in facts},
        ),
        _counted_line(
            "collectives have no kernels in the profile: their times, waiting, overlap and idle "
            "time are not recorded; profile with ProfilerActivity.CUDA (XPU, MTIA) as well",
            {rank: fact.unrecorded for rank, fact in facts},
        ),
    ]
    silent = [part.rank for part in parts if not part.calls]
    if silent:
        lines.append(f"{_ranks_text(silent)}: no collectives are recorded")
    hosts = [rank for rank, fact in facts if not fact.has_device]
    if hosts:
        missing = "overlap, idle time of streams and memory copies"
        lines.append(
            f"{_ranks_text(hosts)}: no work of a device is recorded: {missing} are missing"
        )
    return [line for line in lines if line]


def _counted_line(text: str, counts: Mapping[int, int]) -> str:
    """`ranks 0-1: 5 TEXT` for the ranks with a count, empty without."""
    ranks = [rank for rank, count in counts.items() if count]
    return f"{_ranks_text(ranks)}: {sum(counts.values())} {text}" if ranks else ""


def _ranks_text(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {format_ranks(sorted(ranks))}"


def _window(events: RankEvents, step: int) -> tuple[int, int]:
    """Begin and end of an iteration. Raises `InputError` where the file has no such one."""
    if step in events.steps:
        return events.steps[step]
    have = ", ".join(map(str, sorted(events.steps))) or "none"
    message = f"there is no ProfilerStep#{step}: it has {have}"
    place = Location(events.file)
    raise InputError(message, location=place, cure="name another step", code="step")


def _with_one_clock(workload: Workload, options: ProfileOptions) -> Workload:
    """The workload with time 0 at the earliest begin of a rank, by clocks that agree."""
    meetings = matched(workload)
    bases = np.array(workload.nodes.duration_ns[workload.nodes.rank_indptr[:-1]])
    offsets = np.zeros(workload.num_ranks, np.int64)
    said: dict[str, JsonValue] = dict(workload.extensions["pytorch"])  # type: ignore[arg-type]
    clock_count = len(set(map(str, fact_list(workload, "files"))))
    if options.clocks == "align" and clock_count > 1 and has_times(workload):
        # Ranks that are assumed have the clock of the file that they are taken from.
        most_ns = _most_residual_ns(workload, options)
        fit = fitted_clocks(workload, measured_timeline(workload), meetings, most_ns)
        offsets = fit.offset_ns
        said["clock_offsets_ns"] = [*map(int, offsets)]
        said["clock_residual_ns"] = fit.residual_ns
    begins = bases - offsets
    return replace(_beginning_at(workload, begins - begins.min()), extensions={"pytorch": said})


def _beginning_at(workload: Workload, begins_ns: Int64Array) -> Workload:
    """The workload whose ranks begin at these times."""
    nodes = workload.nodes
    duration = nodes.duration_ns.copy()
    duration[nodes.rank_indptr[:-1]] = begins_ns
    return replace(workload, nodes=replace(nodes, duration_ns=duration))


def _most_residual_ns(workload: Workload, options: ProfileOptions) -> float:
    """By how much ends of a collective may differ."""
    if options.clock_residual is not None:
        return options.clock_residual * 1e9
    # The ranks of a device end with its network; threads of the host end when they get a core.
    nodes = workload.nodes
    is_on_device = np.array([has_device(workload, rank) for rank in range(workload.num_ranks)])
    is_of_device = nodes.is_kind(NodeKind.COLLECTIVE) & is_on_device[nodes.rank]
    is_of_device &= ~is_host_group(workload)
    return _DEVICE_RESIDUAL_NS if is_of_device.any() else _HOST_RESIDUAL_NS
