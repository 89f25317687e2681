"""All algorithms that the hub offers for the collectives of a program, with their times alone.

An algorithm is built once per kind, size and group of ranks. It is simulated alone on the network
of the group with every protocol. Algorithms are built in the order of their expected times, until
one is proven to be fast enough by the best lower bound of the hub; the remaining ones are reported
as omitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from collhub_coconet.lowering.algorithms import AlgorithmCall, Algorithms
from collhub_coconet.search.collective_times import (
    PROTOCOLS,
    Demand,
    Means,
    Protocol,
    find_slowest_link,
)
from hub_core import (
    HubError,
    Registry,
    Topology,
    best_bounds,
    create_synthesis_request,
    estimate_synthesis,
    parse_topology,
    read,
    run_registry,
    simulate,
    synthesize,
    verify,
)
from hub_core.model import Algorithm, InputError
from hub_core.network import find_unreachable_pair
from hub_core.plugin_api import SearchBudget, Synthesizer

# A time of at most this ratio to the proven bound ends the construction of further algorithms.
_CLOSE_RATIO = 1.01
# Work of one synthesizer for one collective, in steps of simulated algorithms.
SYNTHESIS_WORK = 2_000_000
# Steps of an algorithm above which it is not joined to the computations of a program.
MAX_STEPS = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class OfferedAlgorithm:
    """Algorithm of the hub for one collective: its name, and seconds alone by protocol name."""

    name: str
    algorithm: Algorithm
    seconds: dict[str, float]

    def find_fastest_protocol(self) -> str:
        """Return the protocol with the lowest time; of equal ones the first of `PROTOCOLS`."""
        return min(self.seconds, key=self.seconds.__getitem__)


@dataclass(frozen=True, slots=True)
class Omission:
    """An algorithm that was not compared for a collective, and the reason.

    `is_proven`: no omitted algorithm could be faster by more than 1 %, or it does not exist for
    this collective. Otherwise the search is not complete.
    """

    name: str
    demand: Demand
    reason: str
    is_proven: bool


def change_protocol(topology: Topology, protocol: Protocol) -> Topology:
    """Copy a network as seen by a protocol.

    Every bandwidth is multiplied by `protocol.data_share`, and every latency grows by
    `protocol.step_s` (s), on links and in dimensions.
    """
    dimensions = tuple(
        replace(
            dimension,
            bandwidth_bytes_per_s=dimension.bandwidth_bytes_per_s * protocol.data_share,
            latency_s=dimension.latency_s + protocol.step_s,
        )
        for dimension in topology.dimensions
    )
    return replace(
        topology,
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s * protocol.data_share,
        latency_s=topology.latency_s + protocol.step_s,
        dimensions=dimensions,
    )


@dataclass(slots=True)
class HubAlgorithms:
    """Algorithms of the hub for collectives on a network.

    `named`: files, and synthesizers that are used only by name, which the user adds. `work`: limit
    of every synthesizer for one collective. `contents`: nodes of algorithms in programs.
    `omissions`: by (name, demand), in order of discovery. A copy in another process starts without
    built algorithms but keeps the fastest means.
    """

    topology: Topology
    registry: Registry = field(default_factory=run_registry)
    named: tuple[str, ...] = ()
    work: int = SYNTHESIS_WORK
    omissions: dict[tuple[str, Demand], Omission] = field(default_factory=dict)
    contents: Algorithms = field(init=False)
    _offered: dict[Demand, tuple[OfferedAlgorithm, ...]] = field(default_factory=dict)
    _fastest: dict[Demand, tuple[float, Means]] = field(default_factory=dict)
    _patterns: dict[tuple[str, Demand], Algorithm] = field(default_factory=dict)
    _networks: dict[tuple[int, ...], dict[str, Topology]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.contents = Algorithms(self.topology, self.registry)

    def __reduce__(self) -> tuple[object, ...]:
        arguments = self.topology, self.registry, self.named, self.work
        return _rebuild, (*arguments, self._fastest)

    def find_fastest(self, demand: Demand) -> tuple[float, Means]:
        """Return (time in s, algorithm and protocol) of the fastest collective in isolation.

        Isolation means that only this algorithm runs on the network of its ranks, in one chunk.
        Of equally fast algorithms the first one by name is returned, with the first of its
        fastest protocols. Omitted algorithms (`omissions`) do not count; one that is omitted as
        proven may be up to 1 % faster. The result is cached. Raise `InputError`
        (`algorithm-does-not-fit`) if the hub has no algorithm for the collective.
        """
        if demand not in self._fastest:
            best = self.list_offers(demand)[0]
            protocol = best.find_fastest_protocol()
            self._fastest[demand] = best.seconds[protocol], Means(best.name, protocol)
        return self._fastest[demand]

    def list_offers(self, demand: Demand) -> tuple[OfferedAlgorithm, ...]:
        """Return the algorithms for a collective: by smallest time of all protocols, then by name.

        An algorithm is omitted in these cases, and most are recorded in `self.omissions`:
        - It cannot be built or timed, or has more than `MAX_STEPS` (20000) steps.
        - It has no time, because the bound of each protocol is above the best time so far. This
          case is not recorded.
        - An earlier one is within 1 % of the smallest bound of all protocols. The search then ends.

        The result is cached. If it would be empty, raises `InputError` (`algorithm-does-not-fit`)
        with the first two recorded reasons for this collective, and caches nothing. Errors of the
        bounds and the network are passed on.
        """
        if demand not in self._offered:
            offers = sorted(
                self._build_offers(demand),
                key=lambda offer: (min(offer.seconds.values()), offer.name),
            )
            if not offers:
                reasons = [
                    f"{name}: {omission.reason}"
                    for (name, omitted), omission in self.omissions.items()
                    if omitted == demand
                ]
                message = f"no algorithm of the hub fits {demand}: {'; '.join(reasons[:2])}"
                cure = "install a synthesizer for this collective, or name a file of an algorithm"
                raise InputError(message, cure=cure, code="algorithm-does-not-fit")
            self._offered[demand] = tuple(offers)
        return self._offered[demand]

    def find_offer(self, demand: Demand, name: str) -> OfferedAlgorithm:
        """Return the offer of this name for a collective. Raises `StopIteration` if it has none."""
        return next(offer for offer in self.list_offers(demand) if offer.name == name)

    def check_name(self, name: str) -> None:
        """Read a file that the user names. Raises `HubError` unless it contains an algorithm.

        Names of synthesizers are accepted.
        """
        if name not in {provided.name for provided in self.registry.all(Synthesizer)}:
            read(Path(name), registry=self.registry)

    def find_network(self, members: tuple[int, ...], protocol: str) -> Topology:
        """Return the part of the network that some ranks use, with the rates of a protocol.

        `members`: NPUs. `protocol`: name of an entry of `PROTOCOLS`. The first rule that applies
        decides:

        1. `members` has at least as many entries as the network has NPUs: the entire network with
           its numbers. The entries and their order do not matter.
        2. The members are connected by links among them and to switches: this part of the network.
           NPU `members[i]` has number i, and all switches are kept.
        3. Otherwise, as for an axis of a mesh: links between all pairs of members, each with the
           rates of the slowest link of the entire network.

        Finally the rates are changed to those of the protocol (`change_protocol`). The result is
        cached by `members`. Raises `UsageError` in rules 2 and 3 for no members, and for an NPU
        that does not exist or is listed twice. Raises `KeyError` for another protocol.
        """
        if members not in self._networks:
            network = self.topology
            if len(members) < network.num_npus:
                network = network.subset(members)
                if find_unreachable_pair(network, range(network.num_npus)):
                    bandwidth, latency = find_slowest_link(self.topology)
                    text = f"fully-connected:{len(members)}?bandwidth={bandwidth / 1e9:.9f}GB/s"
                    text += f"&latency={latency * 1e9:.6f}ns"
                    network = parse_topology(text, registry=self.registry)
            self._networks[members] = {
                entry.name: change_protocol(network, entry) for entry in PROTOCOLS
            }
        return self._networks[members][protocol]

    def _build_offers(self, demand: Demand) -> Iterator[OfferedAlgorithm]:
        """Build the algorithms that fit a collective, and yield each with its times by protocol.

        Algorithms are tried in the order of `_sort_names`, and each by these rules:

        - If the best time so far is at most `_CLOSE_RATIO` times the smallest bound over all
          protocols (0 s without a bound), this and all further algorithms are omitted as proven,
          and the search ends.
        - If building or timing it raises `HubError`, it is omitted with the message as reason; it
          counts as proven unless the code is `limit-reached`.
        - If it has more than `MAX_STEPS` steps, it is omitted as not proven, and its time is
          ignored.
        - If it has no time in any protocol, it is skipped without a record.
        - Otherwise it is yielded. Its times lack protocols whose bound is above the best time
          before.

        Omissions are stored in `self.omissions`. Errors of the bounds and the network are passed
        on.
        """
        members = range(len(demand.members))
        call = AlgorithmCall(demand.kind, members, demand.root, demand.size_bytes, demand.counts)
        # Lower bounds of the time in s, 0 without one.
        bounds: dict[str, float] = {}
        for protocol in PROTOCOLS:
            network = self.find_network(demand.members, protocol.name)
            (bound,) = best_bounds(
                call.collective, network, (demand.size_bytes,), registry=self.registry
            )
            bounds[protocol.name] = bound.time_ps / 1e12 if bound else 0.0
        best_s = math.inf
        names = self._sort_names(demand, call)
        for index, name in enumerate(names):
            if best_s <= _CLOSE_RATIO * min(bounds.values()):
                reason = "another algorithm is within 1 % of the proven bound"
                for rest in names[index:]:
                    self._omit(rest, demand, reason, is_proven=True)
                return
            try:
                algorithm = self._build(name, demand, call)
                seconds = self._time(algorithm, demand, bounds, best_s)
            except HubError as error:
                first = error.diagnostics[0]
                self._omit(name, demand, first.message, is_proven=first.code != "limit-reached")
                continue
            if len(algorithm.steps) > MAX_STEPS:
                reason = f"{len(algorithm.steps)} steps, above the limit of {MAX_STEPS}"
                self._omit(name, demand, reason, is_proven=False)
                continue
            if seconds:
                best_s = min(best_s, *seconds.values())
                yield OfferedAlgorithm(name, algorithm, seconds)

    def _sort_names(self, demand: Demand, call: AlgorithmCall) -> list[str]:
        """Return the names of the algorithms for a collective, in the order of their trials.

        1. The files and names that the user gave (`self.named`), in their order. Synthesizers
           that step 2 lists are left out here.
        2. The synthesizers that declare the kind of the collective, except those with
           `only_by_name`. Those with fixed patterns come before those that adapt to the network.
           Within each group they are sorted by estimated synthesis time, then by name. Unknown
           times come last.
        """
        kind = call.collective.kind
        network = self.find_network(demand.members, PROTOCOLS[0].name)
        request = create_synthesis_request(
            call.collective, network, demand.size_bytes, registry=self.registry
        )

        def rank(name: str) -> tuple[bool, float, str]:
            try:
                estimate = estimate_synthesis(name, request, self.registry)
            except HubError:
                estimate = None
            is_search = self.registry.find(Synthesizer, name).offer.adapts
            return is_search, math.inf if estimate is None else estimate, name

        offers = [provided.offer for provided in self.registry.all(Synthesizer)]
        names = [
            offer.name
            for offer in offers
            if offer.collectives and offer.supports(kind) and not offer.only_by_name
        ]
        added = [name for name in self.named if name not in names]
        return [*added, *sorted(names, key=rank)]

    def _build(self, name: str, demand: Demand, call: AlgorithmCall) -> Algorithm:
        """Return the verified algorithm of a synthesizer, or of a file, for one call.

        - `name` is a synthesizer: it gets the collective of `call`, the size of `demand` in bytes,
          and the network of its members with the rates of the first of `PROTOCOLS`. For each search
          that the limit of work ends early, the omitted rest is recorded in `self.omissions`.
        - Otherwise `name` is the path of a file, which is read.

        Algorithms of files, and of synthesizers that do not adapt to the size, are cached by name
        and by demand without its size. A cached algorithm is returned for any size and call without
        checks. Failures are not cached.

        Raises `InputError` for the first of: a file that does not fit the call
        (`algorithm-does-not-fit`), an algorithm without units (`no-contents`), an incorrect one
        (`wrong`). Other errors pass through.
        """
        known = {provided.name: provided.offer for provided in self.registry.all(Synthesizer)}
        is_size_dependent = name in known and known[name].adapts
        key = name, replace(demand, size_bytes=0)
        if key in self._patterns:
            return self._patterns[key]
        if name in known:
            result = synthesize(
                call.collective,
                self.find_network(demand.members, PROTOCOLS[0].name),
                demand.size_bytes,
                name=name,
                registry=self.registry,
                budget=SearchBudget(self.work, work_option="-O search.work="),
            )
            algorithm = result.algorithm
            for cut in result.cuts:
                rest = f"the rest of {name}"
                self._omit(rest, demand, f"{rest}: {cut.reason}", is_proven=False)
        else:
            algorithm = read(Path(name), registry=self.registry)
            call.check_fit(algorithm, name)
        if not algorithm.has_contents:
            raise InputError(f"{name} states no units of data", code="no-contents")
        report = verify(algorithm)
        if not report.ok:
            raise InputError(f"{name} is incorrect: {report.diagnostics[0].message}", code="wrong")
        if not is_size_dependent:
            self._patterns[key] = algorithm
        return algorithm

    def _time(
        self, algorithm: Algorithm, demand: Demand, bounds: dict[str, float], best_s: float
    ) -> dict[str, float]:
        """Simulate an algorithm in isolation; return its times in s by protocol.

        Protocols whose bound is above `best_s` are skipped; those without a time have no entry.
        Raises `InputError` (`size-too-small`) if the collective has fewer bytes than the algorithm
        has units.
        """
        if demand.size_bytes < algorithm.collective.unit_count:
            message = f"too few bytes for its units: {demand.size_bytes}"
            raise InputError(message, code="size-too-small")
        seconds = {}
        for protocol in PROTOCOLS:
            if bounds[protocol.name] > best_s:
                continue
            network = self.find_network(demand.members, protocol.name)
            time_ns = simulate(
                algorithm, network, demand.size_bytes, registry=self.registry
            ).time_ns
            if time_ns is not None:
                seconds[protocol.name] = time_ns / 1e9
        return seconds

    def _omit(self, name: str, demand: Demand, reason: str, *, is_proven: bool) -> None:
        self.omissions[name, demand] = Omission(name, demand, reason, is_proven)


def describe_omissions(omissions: Sequence[Omission]) -> list[str]:
    """Return one line per reason: `omitted for N collectives: NAME, NAME: REASON`.

    An omission is an algorithm that was not compared for a collective, with the reason. If
    the reason begins with the name of the algorithm and a blank, these are removed first. So
    equal reasons of several algorithms share a line.

    N: the omissions are counted for each algorithm of the line; N is the largest count.

    Lines, and the names in a line, are in the order of their first omission. Returns []
    without omissions.
    """
    grouped: dict[str, dict[str, int]] = {}
    for omission in omissions:
        reason = omission.reason.removeprefix(f"{omission.name} ")
        counts = grouped.setdefault(reason, {})
        counts[omission.name] = counts.get(omission.name, 0) + 1
    return [
        f"omitted for {max(counts.values())} collectives: {', '.join(counts)}: {reason}"
        for reason, counts in grouped.items()
    ]


def _rebuild(
    topology: Topology,
    registry: Registry,
    named: Sequence[str],
    work: int,
    fastest: dict[Demand, tuple[float, Means]],
) -> HubAlgorithms:
    """Recreate the object in another process.

    Algorithms are built again at their first use; the fastest means are kept.
    """
    return HubAlgorithms(topology, registry, tuple(named), work, _fastest=dict(fastest))
