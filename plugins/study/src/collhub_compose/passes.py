"""The functions with a single input algorithm, as passes of `collhub transform`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collhub_compose.inputs import build_provenance, check_composable
from collhub_compose.plugin import (
    EmbedOptions,
    PipelineTransformOptions,
    RelabelOptions,
    RepairOptions,
    ReplicateOptions,
    RescaleOptions,
)
from collhub_compose.ranks import embed, relabel
from collhub_compose.replication import pipeline, replicate, rescale
from hub_core import read_topology, run_registry, simulate
from hub_core.model import Algorithm, UsageError, format_time, parse_ranks, parse_size
from hub_core.network import LinkChanges, Topology, select_links, split_link_changes
from hub_core.plugin_api import PassReport, Simulator

# Paths that the report of a repair lists.
_MAX_PATHS = 8
# The result and the report of its changes.
PassResult = tuple[Algorithm, PassReport]


def run_replicate(algorithm: Algorithm, options: ReplicateOptions) -> PassResult:
    """Distribute the data over `options.instances` copies of the algorithm; return it and a report.

    The report has one line per changed property, and is empty for one instance. The option
    `interleaved` distributes units in turn instead of one part per copy. Errors are those of
    `replicate`, such as `UsageError` (`too-large`).
    """
    result = replicate(algorithm, options.instances, options.interleaved)
    return _report_changes(algorithm, result)


def run_pipeline(algorithm: Algorithm, options: PipelineTransformOptions) -> PassResult:
    """Divide the data into `options.pieces` pieces that are sent one after the other, and report
    the changes. Raises errors for a result that is too large.
    """
    return _report_changes(algorithm, pipeline(algorithm, options.pieces))


def run_relabel(algorithm: Algorithm, options: RelabelOptions) -> PassResult:
    """Renumber the ranks as the option `ranks` specifies; return the result and a report.

    Rank i becomes the i-th number of the option, such as `3,0-2`. The report has one line per
    changed property (`_collect_properties`) and a last line that names dropped extensions. It is
    empty if nothing changed. Without the option the algorithm itself is returned, and the report
    has one line about the missing option.

    Raises the following errors, in this order:

    1. `UsageError` (`invalid-ranks`) if the text is no list of ranks or lists a number twice.
    2. `InputError` if the algorithm cannot be composed (`check_composable`).
    3. `UsageError` (`ranks`) if the number of ranks is wrong, or a rank is too large.
    4. The other errors of `relabel`.
    """
    if options.ranks is None:
        # Not an error, so that the pass works without options.
        return algorithm, PassReport(("unchanged: give ranks, for example -O ranks=3,0-2",))
    result = relabel(algorithm, parse_ranks(options.ranks))
    return _report_changes(algorithm, result)


def run_embed(algorithm: Algorithm, options: EmbedOptions) -> PassResult:
    """Embed the algorithm in `options.num_ranks` ranks; return the result and a report.

    Without the option `num_ranks` the algorithm is returned unchanged, also with the option
    `ranks`, and the report has one line about the missing option. Otherwise the option
    `ranks`, such as `4-7`, names the ranks that do the work of ranks 0, 1, ...; by default
    these are 0, 1, .... The report has one line per changed property.

    Raise `UsageError` for a text that is no list of ranks, for a rank outside of the new
    ranks, and if there is not one rank per rank of the algorithm. Raise `InputError` if the
    algorithm cannot be composed (`check_composable`). Other errors are those of `embed`.
    """
    if options.num_ranks is None:
        return algorithm, PassReport(
            ("unchanged: give a number of ranks, for example -O num_ranks=16",)
        )
    ranks: Sequence[int] = range(algorithm.num_ranks)
    if options.ranks is not None:
        ranks = parse_ranks(options.ranks)
    result = embed(algorithm, ranks, options.num_ranks)
    return _report_changes(algorithm, result)


def run_rescale(algorithm: Algorithm, options: RescaleOptions) -> PassResult:
    """Divide every unit into `options.factor` units; return the result and a report of changes.

    A factor of 1 returns the algorithm itself with an empty report. Raise `UsageError` for a
    factor below 1 and for a result that is too large (`too-large`).
    """
    result = rescale(algorithm, options.factor)
    return _report_changes(algorithm, result)


def run_repair(algorithm: Algorithm, options: RepairOptions) -> PassResult:
    """Reroute the messages that use failed links; return the algorithm and a report.

    Failed links are those of the parameter `without` in the option `topology`, then those of
    the option `without` (names separated by commas). Links slowed down by `topology`
    (`degrade`) stay slow. The size is the option `size`, otherwise that of the algorithm.

    Without a `topology` or failed links, the algorithm itself and one line that says so are
    returned. Otherwise the lines are: the number of rerouted messages of all; the new paths
    (at most 8, then the number of further ones); the times on the complete network and without
    the failed links. The times need an installed simulator and two finished runs. A simulator
    also chooses the faster of two sets of paths (`repair_messages`). If no message changes, the
    algorithm itself is returned; otherwise the new one has the provenance of this pass.

    Raises `UsageError` for unknown links, no size, or links whose failure separates NPUs. The
    errors of `read_topology`, `check_composable`, `repair_messages` and the simulation pass
    through.
    """
    # Imported here: the other passes do not need routes.
    from hub_core.schedules import repair_messages

    text, changes = split_link_changes(options.topology or "")
    failed_links = [*changes.failed, *filter(None, (options.without or "").split(","))]
    if not text or not failed_links:
        lacking = "failed links, for example -O without=0-1" if text else "-O topology=ring:8"
        return algorithm, PassReport((f"unchanged: give {lacking}",))
    complete = LinkChanges(slow=changes.slow).apply(read_topology(text))
    failed = LinkChanges(failed=tuple(failed_links)).apply(complete)
    fails = np.zeros(complete.num_links, np.bool_)
    for link in failed_links:
        fails |= select_links(complete, link)
    size = parse_size(options.size) if options.size else algorithm.collective_bytes
    if size is None:
        raise UsageError("the algorithm has no size", cure="give one: -O repair.size=1MiB")
    can_simulate = bool(run_registry().all(Simulator))

    def measure(candidate: Algorithm, network: Topology = failed) -> int | None:
        return simulate(candidate, network, size).time_ns if can_simulate else None

    check_composable(algorithm)
    result = repair_messages(algorithm, complete, fails, size, measure)
    lines = [f"messages: {result.changed} of {result.messages} rerouted"]
    lines += [f"path: {' -> '.join(map(str, path))}" for path in result.paths[:_MAX_PATHS]]
    if len(result.paths) > _MAX_PATHS:
        lines.append(f"and {len(result.paths) - _MAX_PATHS} more paths")
    before, after = measure(algorithm, complete), measure(result.algorithm)
    if before is not None and after is not None:
        lines.append(f"time: {format_time(before)} -> {format_time(after)} without the links")
    if not result.changed:
        return algorithm, PassReport(tuple(lines))
    provenance = build_provenance("repair", [algorithm])
    return replace(result.algorithm, provenance=provenance), PassReport(tuple(lines))


def _report_changes(before: Algorithm, after: Algorithm) -> PassResult:
    """Return the algorithm `after`, and a report of one line per property that changed.

    A line is "name: old -> new", for the properties of `_collect_properties`. A last line names the
    extensions that only `before` has, if there are any. Otherwise the report is empty if no
    property changed.
    """
    changes = []
    new_properties = _collect_properties(after)
    for name, value in _collect_properties(before).items():
        if value != new_properties[name]:
            changes.append(f"{name}: {value} -> {new_properties[name]}")
    # Extensions of the original algorithm need not be true of the result.
    dropped = sorted(set(before.extensions) - set(after.extensions))
    if dropped:
        changes.append(f"extensions dropped: {', '.join(dropped)}")
    return after, PassReport(tuple(changes))


def _collect_properties(algorithm: Algorithm) -> dict[str, str]:
    """Return the properties of an algorithm that a report of changes compares, as texts by name.

    In this order: `collective` (kind), `root`, `ranks`, `units`, `steps` (of all ranks),
    `channels`, `in place`, `out of place`. `channels` is the number of different channels of sends;
    a number that several pairs of ranks use counts once. A missing root is the text "None". The two
    modes of calls are "claimed" or "not claimed".
    """
    collective, steps = algorithm.collective, algorithm.steps
    messages = steps.channel[steps.sends]
    return {
        "collective": str(collective.kind),
        "root": str(collective.root),
        "ranks": str(collective.num_ranks),
        "units": str(collective.unit_count),
        "steps": str(len(steps)),
        "channels": str(len(np.unique(messages))),
        "in place": _format_claim(collective.in_place),
        "out of place": _format_claim(collective.out_of_place),
    }


def _format_claim(is_claimed: bool) -> str:
    """Return `claimed` or `not claimed`."""
    return "claimed" if is_claimed else "not claimed"
