"""Read Kineto profiles as a workload: work, times and dependencies of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collhub_pytorch.formats import KINETO, ProfileOptions
from collhub_pytorch.job import join_ranks
from collhub_pytorch.kineto.device import device_profile
from collhub_pytorch.kineto.events import RankEvents, read_events
from collhub_pytorch.kineto.graph import RankProfile, build_nodes
from collhub_pytorch.kineto.host import add_host_calls, host_profile
from collhub_pytorch.profile_reading import align_clocks, read_source
from collhub_pytorch.rank_nodes import KERNEL_DELAY_NS, RankFacts, RankNodes
from collhub_pytorch.trace_files import TraceFile
from hub_core.model import (
    InputError,
    JsonValue,
    Location,
    Provenance,
    Workload,
    format_ranks,
)
from hub_core.plugin_api import Source

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
    return read_source(source, KINETO, workload_of, options)


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
