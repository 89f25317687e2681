"""Variations of a network, and the sensitivity of the winners to them.

A variation has other bandwidths, other latencies or failed links. It differs from the base network
in one parameter, so that a change of the winner has one cause. `FailureTimes` are the times of one
algorithm over failures of single links, repaired where messages need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from collhub_tuning.comparison_records import RobustnessItem, VariationItem
from collhub_tuning.comparison_report import ComparisonOutcome, list_results
from hub_core import Registry, simulate
from hub_core.columns import Float64Array, group_of_entry
from hub_core.model import (
    Algorithm,
    UsageError,
    format_bandwidth,
    format_bytes,
    format_time,
    message_bytes,
    parse_bandwidth,
    parse_time,
)
from hub_core.network import (
    LinkChanges,
    Topology,
    find_separation,
    group_failures,
    list_failures,
    remove_rows,
)
from hub_core.plugin_api import SynthesisRequest
from hub_core.schedules import MessageRoutes, repair_messages

_CURE = "write for example bandwidth=10GB/s..100GB/s or latency=100ns..10us"
# The simulator of times without a link if that of the request is unknown.
_SIMULATOR = "analytical"


@dataclass(frozen=True, slots=True)
class Variation:
    """A network that differs from the base network in one parameter.

    `name`: the difference, as `bandwidth=20 GB/s` or `without 3-4`.
    """

    name: str
    topology: Topology


def create_variations(
    topology: Topology,
    ranges: Sequence[str],
    failures: Sequence[str],
    slow_links: Sequence[str] = (),
) -> list[Variation]:
    """Create the networks of all ranges, then of all failures, then of all sets of slow links.

    - `ranges`: `bandwidth=10GB/s..100GB/s` scales all links so that the fastest has the value;
      `latency=100ns..10us` so that the slowest has it. There is one network per value. Each
      value is twice the previous one, and the last is the upper limit.
    - `failures`: links that fail together, `3-4` (both directions) or `3->4,5-6`.
    - `slow_links`: fractions of the bandwidth, above 0 and at most 1: `3-4=0.5,5-6=0.25`.

    Each network is a separate change of `topology`, which is not changed and not in the
    result. Of equal names the first position remains. Raises `UsageError` for invalid texts,
    unknown links, and failures that disconnect NPUs.
    """
    variants = [variant for text in ranges for variant in _create_from_range(topology, text)]
    for text in failures:
        changes = LinkChanges(failed=_split_links(text))
        variants.append(_create_variation(changes.apply(topology), f"without {text}"))
    for text in slow_links:
        changes = LinkChanges(slow=_split_links(text))
        variants.append(_create_variation(changes.apply(topology), f"degraded {text}"))
    # Duplicates are compared once.
    return list({variant.name: variant for variant in variants}.values())


def _create_from_range(topology: Topology, text: str) -> Iterator[Variation]:
    parameter, equals, values = text.partition("=")
    if not equals or parameter not in ("bandwidth", "latency"):
        raise UsageError(f"--vary {text!r} varies neither bandwidth nor latency", cure=_CURE)
    if parameter == "bandwidth":
        for rate in _parse_range(values, parse_bandwidth):
            yield _create_variation(
                _scale_bandwidths(topology, rate), f"bandwidth={format_bandwidth(rate)}"
            )
        return
    for latency_s in _parse_range(values, parse_time):
        name = f"latency={format_time(latency_s * 1e9)}"
        yield _create_variation(_scale_latencies(topology, latency_s), name)


def _create_variation(topology: Topology, name: str) -> Variation:
    return Variation(name, replace(topology, name=f"{topology.name}, {name}"))


def _parse_range(text: str, parse: Callable[[str], float]) -> list[float]:
    """Parse a value, or a range `A..B` into the values A, 2A, 4A and so on below B, and B.

    If `parse` is `float`, `10..35` gives 10, 20, 35, and `10..40` gives 10, 20, 40. A text without
    `..`, and `A..A` with A above 0, give one value. `parse` converts the texts before and after the
    first `..`. Its errors are raised first.

    Raises `UsageError` if B is below A, then if A is 0 (also for `0..0`). A single value may be 0.
    A must not be negative in a range (not checked).
    """
    first, dots, last = text.partition("..")
    values = [parse(first)]
    if not dots:
        return values
    end = parse(last)
    if end < values[0]:
        raise UsageError(f"the range {text!r} ends below its start", cure=_CURE)
    if not values[0]:
        raise UsageError(f"the range {text!r} begins at 0, which cannot be doubled", cure=_CURE)
    while values[-1] * 2 < end:
        values.append(values[-1] * 2)
    return values if values[-1] == end else [*values, end]


def _scale_bandwidths(topology: Topology, bytes_per_s: float) -> Topology:
    """Return a new topology with all bandwidths scaled; the fastest link gets `bytes_per_s`.

    The bandwidths of the dimensions are scaled by the same factor; latencies are kept. At least one
    link must have a bandwidth above 0, which is not checked. Raises `ZeroDivisionError` without
    links if the topology has dimensions.
    """
    fastest = float(topology.bandwidth_bytes_per_s.max(initial=0.0))
    dimensions = []
    for dimension in topology.dimensions:
        rate = dimension.bandwidth_bytes_per_s / fastest * bytes_per_s
        dimensions.append(replace(dimension, bandwidth_bytes_per_s=rate))
    return replace(
        topology,
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s / fastest * bytes_per_s,
        dimensions=tuple(dimensions),
    )


def _scale_latencies(topology: Topology, latency_s: float) -> Topology:
    """Return a new topology with all latencies scaled; the largest becomes `latency_s` (in s).

    The largest latency is that of the links. The latencies of the dimensions are scaled by the same
    factor. If all latencies of links are 0, or there are no links, those of all links and
    dimensions become `latency_s`.
    """
    slowest = float(topology.latency_s.max(initial=0.0))
    latencies: Float64Array = np.full(topology.num_links, latency_s)
    if slowest:
        latencies = topology.latency_s / slowest * latency_s
    dimensions = []
    for dimension in topology.dimensions:
        scaled_s = dimension.latency_s / slowest * latency_s if slowest else latency_s
        dimensions.append(replace(dimension, latency_s=scaled_s))
    return replace(topology, latency_s=latencies, dimensions=tuple(dimensions))


def _split_links(text: str) -> tuple[str, ...]:
    return tuple(link.strip() for link in text.split(","))


@dataclass(frozen=True)
class VariedOutcome:
    """The outcome of a comparison on a variation, and the variation's name."""

    name: str
    outcome: ComparisonOutcome


@dataclass(frozen=True, slots=True)
class Robustness:
    """Performance of the base network's winner of a size on all variations.

    `wins`: number of variations on which no algorithm is faster. `worst_ratio`: maximum of its time
    divided by the best time, reached in `worst_variation`. `missing`: variations without its time.
    """

    size: int
    winner: str
    wins: int
    worst_ratio: float
    worst_variation: str
    missing: tuple[str, ...]


def evaluate_robustness(
    base: ComparisonOutcome, varied: Sequence[VariedOutcome], size: int
) -> Robustness | None:
    """Evaluate on all variations how good the base network's winner of a size is; None without one.

    The winner is the first of `base.ranking(size)`, i.e. the algorithm with the fewest messages
    within 1 % of the best time. Its slowdown on a variation is its time there / the time of the
    first in that variation's ranking. The latter may be slower, so the slowdown may be below 1.

    - `wins`: number of variations with a slowdown of at most 1; 0 without variations.
    - `worst_ratio`, `worst_variation`: the largest slowdown and the name of the variation, the
      first one of equal ones; 1.0 and "" if none is above 1.
    - `missing`: names, in order, of variations without a time of the winner, or with a time of 0 of
      the winner or of the first. They do not count otherwise.
    """
    ranking = base.ranking(size)
    if not ranking:
        return None
    winner = ranking[0].algorithm
    wins, worst, where = 0, 1.0, ""
    missing = []
    for variation in varied:
        ratio = _compute_slowdown(variation.outcome, size, winner)
        if ratio is None:
            missing.append(variation.name)
            continue
        wins += ratio <= 1.0
        if ratio > worst:
            worst, where = ratio, variation.name
    return Robustness(size, winner, wins, worst, where, tuple(missing))


def sensitivity_header(varied: Sequence[VariedOutcome]) -> list[str]:
    """Return the column names of `sensitivity_rows`: size, as given, then one per variation in
    order.
    """
    return ["size", "as given", *(variation.name for variation in varied)]


def sensitivity_rows(base: ComparisonOutcome, varied: Sequence[VariedOutcome]) -> list[list[str]]:
    """Return one row of texts per size: the winner on the base network and on each variation.

    The first text is the size; the variations are in the order of `varied`. The winner is
    the first of `ranking`, "none" without a time. But on a variation, the winner of the
    base network is the winner if it is not slower than this one.
    """
    rows = []
    for size in base.question.sizes:
        ranking = base.ranking(size)
        chosen = ranking[0].algorithm if ranking else ""
        row = [format_bytes(size), chosen or "none"]
        for variation in varied:
            slowdown = _compute_slowdown(variation.outcome, size, chosen)
            if slowdown is not None and slowdown <= 1.0:
                row.append(chosen)
                continue
            ranking = variation.outcome.ranking(size)
            row.append(ranking[0].algorithm if ranking else "none")
        rows.append(row)
    return rows


def sensitivity_lines(base: ComparisonOutcome, varied: Sequence[VariedOutcome]) -> list[str]:
    """Return one line per size about how robust its winner is against variations.

    For example `1 MiB: ring wins in 4 of 5, at most 12.0 % behind (latency=10.00 us)`: of 5
    variations, the winner of the base network is not slower than the winner in 4. The part
    from `at most` on is missing if it is never slower. Variations in which it has no time
    are named last. A size without a winner has no line.
    """
    lines = []
    for size in base.question.sizes:
        row = evaluate_robustness(base, varied, size)
        if row is None:
            continue
        text = f"{format_bytes(row.size)}: {row.winner} wins in {row.wins} of {len(varied)}"
        if row.worst_variation:
            slowdown_percent = 100 * (row.worst_ratio - 1)
            text += f", at most {slowdown_percent:.1f} % behind ({row.worst_variation})"
        if row.missing:
            text += f", does not take part in {', '.join(row.missing)}"
        lines.append(text)
    return lines


def list_variations(
    base: ComparisonOutcome, varied: Sequence[VariedOutcome]
) -> list[VariationItem]:
    """Return the record of every variation for reports, in the order of `varied`.

    It has the variation's name, the results of all its measurements in order, and one entry per
    size of the base comparison in `bounds_ns` and `winners`. A bound is in ns, None if unknown. A
    winner is the algorithm with the fewest messages within 1 % of the best time on the variation
    (`ranking`), None if no algorithm has a time. The list is empty without variations. Raises
    `KeyError` for a size that a variation does not have.
    """
    items = []
    for variation in varied:
        outcome, sizes = variation.outcome, base.question.sizes
        rankings = [outcome.ranking(size) for size in sizes]
        items.append(
            VariationItem(
                name=variation.name,
                bounds_ns=[outcome.bounds_ns[size] for size in sizes],
                winners=[ranking[0].algorithm if ranking else None for ranking in rankings],
                results=list_results(outcome),
            )
        )
    return items


def list_robustness(
    base: ComparisonOutcome, varied: Sequence[VariedOutcome]
) -> list[RobustnessItem | None]:
    """Return the records of how the winner of every size performs on all variations of the network.

    One entry per size of `base`, in its order; None for a size at which no algorithm has a time.
    Otherwise the winner is that of `base`. Its slowdown on a variation is its time divided by the
    time of the winner there. The fields of a record:

    - `wins`: number of variations on which the slowdown is at most 1.
    - `worst_ratio`, `worst_variation`: the largest slowdown, and the name of the first variation
      with it. They are 1.0 and None if no slowdown is above 1.
    - `missing`: names of the variations on which it has no slowdown, because it has no time or a
      time is 0. They do not count for the other fields.
    """
    rows = [evaluate_robustness(base, varied, size) for size in base.question.sizes]
    return [
        None
        if row is None
        else RobustnessItem(
            size=row.size,
            winner=row.winner,
            wins=row.wins,
            worst_ratio=row.worst_ratio,
            worst_variation=row.worst_variation or None,
            missing=row.missing,
        )
        for row in rows
    ]


def _compute_slowdown(outcome: ComparisonOutcome, size: int, name: str) -> float | None:
    """Return an algorithm's time at a size divided by the winner's time; 1.0 for the winner.

    The winner has the fewest messages within 1 % of the best time, so the result may be slightly
    below 1. None if the algorithm has no time there, or if a time is 0.
    """
    ranking = outcome.ranking(size)
    times = [measurement.time_ns for measurement in ranking if measurement.algorithm == name]
    if not times or not ranking[0].time_ns or not times[0]:
        return None
    return times[0] / ranking[0].time_ns


@dataclass(frozen=True, slots=True)
class FailureTimes:
    """Times of one algorithm over all failures of single links.

    `worst_ns`: the largest time, at least that on the complete network. `worst_link`: the failed
    link of it, "" if no failure is slower. `tried`: number of simulated failures, one for each
    class of equal ones. `total`: all failures. `separating`: failures that separate NPUs, which no
    algorithm survives; they do not count. `is_complete`: False if a time above the limit ended the
    evaluation.
    """

    worst_ns: int
    worst_link: str
    tried: int
    total: int
    separating: int
    is_complete: bool = True

    def describe(self) -> str:
        """Return one line about the failures of links.

        It has the worst time with the failed link (or that no failure is slower), the numbers of
        simulated and of all failures, and the number of failures that separate NPUs, if any.
        """
        worst = f"{format_time(self.worst_ns)} without {self.worst_link}"
        if not self.worst_link:
            worst = f"{format_time(self.worst_ns)}: no failure is slower"
        excluded = f", {self.separating} separate NPUs" if self.separating else ""
        return f"{worst}; {self.tried} of {self.total} failures simulated{excluded}"


def evaluate_failures(
    algorithm: Algorithm,
    request: SynthesisRequest,
    registry: Registry,
    time_ns: int,
    limit_ns: int | None = None,
) -> FailureTimes:
    """Simulate an algorithm without each link of the network, with blocked messages rerouted.

    A failure takes all links between two nodes, in both directions. Failures that are equal
    by a symmetry of the network and of the algorithm's traffic form a class. The first
    failure of each class is examined, in the order of the links:

    1. If it separates NPUs, all failures of its class are added to `separating`.
    2. If no message uses its links, it is skipped.
    3. Otherwise the repaired algorithm is simulated (`tried` + 1). The worst time in ns is
       at first `time_ns`, with the link "". A longer time replaces it; a simulation without
       a time does not.
    4. If the worst time is then above `limit_ns`, the evaluation stops, with `is_complete`
       False. None means no limit.

    `total` is the number of all failures. The simulator is that of the request, otherwise
    the default. Raises the `HubError` of the repair or of the simulation, for example for a
    message without a path.
    """
    topology, size = request.topology, request.collective_bytes
    messages = MessageRoutes.of(algorithm, topology)
    steps = algorithm.steps
    counts = steps.count[steps.sends]
    sizes = message_bytes(size, algorithm.collective.unit_count, counts)
    # Bytes and number of the messages on every link.
    routes, pairs = messages.routes, messages.pair_of_message
    pair_of_entry = group_of_entry(routes.indptr)
    weights = []
    for values in (sizes, np.ones_like(sizes)):
        per_pair = np.zeros(len(messages.sources), np.int64)
        np.add.at(per_pair, pairs, values)
        per_link = np.zeros(topology.num_links, np.int64)
        np.add.at(per_link, routes.links, per_pair[pair_of_entry])
        weights.append(per_link)
    failures = list_failures(topology)
    worst_ns, worst_link, tried, separating = time_ns, "", 0, 0
    for failure in group_failures(topology, failures, weights):
        if find_separation(topology, failure.fails) is not None:
            separating += failure.num_equal
            continue
        if not len(messages.using(failure.fails)):
            continue
        failed = remove_rows(topology, failure.fails)
        repaired = repair_messages(algorithm, topology, failure.fails, size).algorithm
        result = simulate(
            repaired,
            failed,
            size,
            backend=request.backend or _SIMULATOR,
            options={"occupancy": str(request.occupancy)},
            registry=registry,
        )
        tried += 1
        if result.time_ns is not None and result.time_ns > worst_ns:
            worst_ns, worst_link = result.time_ns, failure.name
        if limit_ns is not None and worst_ns > limit_ns:
            return FailureTimes(worst_ns, worst_link, tried, len(failures), separating, False)
    return FailureTimes(worst_ns, worst_link, tried, len(failures), separating)
