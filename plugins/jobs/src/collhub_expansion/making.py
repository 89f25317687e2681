"""Create the algorithms of collectives, each once, and their nodes once per size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from collhub_templates import Template, marker, template_of

from collhub_expansion.composed import PhaseSteps, StreamPhase, composed
from collhub_expansion.native import (
    NATIVE_KINDS,
    NativePhase,
    NativeSystem,
    native_choice,
    native_phases,
    tree_root,
)
from collhub_expansion.plan import spread
from hub_core import (
    DEFAULT_UNEVEN,
    NATIVE,
    CollectiveRule,
    HubError,
    InputError,
    Registry,
    TimingSource,
    simulate,
    synthesize,
)
from hub_core.model import (
    Algorithm,
    CollectiveKind,
    NodeKind,
    UnitCounts,
    collective_of_call,
    format_bytes,
    full_buffer_bytes,
    has_equal_counts,
)
from hub_core.network import GroupNetwork, Topology, group_network
from hub_core.plugin_api import Synthesizer

# Verification of more ranks (steps have one unit, ranks one unit) would dominate the time.
_MAX_VERIFIED_RANKS = 256


@dataclass(frozen=True, slots=True)
class CollectiveRequest:
    """Request of an algorithm for a collective, or for a piece of one.

    `size`: bytes in the workload. `members`: ranks in group order. `root`: a position. `index`:
    position among collectives of its kind on all ranks. `counts`: bytes of an uneven one.
    """

    kind: CollectiveKind
    size: int
    members: tuple[int, ...]
    root: int
    index: int
    counts: UnitCounts | None = None

    @property
    def full_bytes(self) -> int:
        """Bytes of the full buffer of its algorithm."""
        return full_buffer_bytes(self.kind, self.size, len(self.members))


@dataclass(frozen=True, slots=True)
class AlgorithmRecord:
    """Algorithm of a kind, number of ranks and size; `maker`: synthesizer, file or job."""

    maker: str
    kind: CollectiveKind
    num_ranks: int
    size: int
    steps: int


class Maker:
    """Creates algorithms by rules; each new one is appended to `templates` and `algorithms`."""

    def __init__(
        self,
        topology: Topology,
        system: NativeSystem,
        num_ranks: int,
        registry: Registry,
        *,
        read: Callable[[str], Algorithm],
        admit: Callable[[Algorithm, str], object],
        timing: TimingSource | None = None,
    ) -> None:
        """Prepare the templates of a job with `num_ranks` ranks; there are none at first.

        `read`: reads and verifies an algorithm file by its name. `admit`: verifies an algorithm,
        with a description for its messages, and raises `InputError`. `timing`: machine on which
        synthesizers time their candidates; default: the nominal link times.
        """
        self._timing = timing or TimingSource()
        self._topology, self._system, self._registry = topology, system, registry
        self._read, self._admit = read, admit
        self._num_ranks = num_ranks
        self.templates: list[Template] = []
        self.algorithms: list[AlgorithmRecord] = []
        self._numbers: dict[Hashable, int] = {}
        self._places: dict[tuple[int, ...], GroupNetwork] = {}
        self._files: dict[str, Algorithm] = {}
        self._turns: Counter[tuple[CollectiveKind, int]] = Counter()
        # Template of a phase -> its identity without bytes, its algorithm and NPUs.
        self._judged: dict[int, tuple[Hashable, tuple[Algorithm, tuple[int, ...]]]] = {}
        self._series: set[Hashable] = set()

    def template(self, rule: CollectiveRule, request: CollectiveRequest) -> int:
        """Return the template number of a collective. Raises `HubError` that names the rule."""
        return self._placed(
            f"--collective {rule.text}", request, lambda: self._template(rule, request)
        )

    def own(self, index: int, algorithm: Algorithm, request: CollectiveRequest) -> int:
        """Return the template number of an algorithm that is part of the workload.

        A template is the pattern of nodes that replaces a collective. `index`: number of the
        algorithm, for messages and as key of the cache; equal requests return the same number. The
        ranks of the algorithm are positions in the group of `request`; a group of one rank gets an
        empty template. Raises `InputError` (`algorithm-does-not-fit`) if the algorithm does not fit
        the request.
        """
        name = f"algorithm {index} of the job"
        return self._placed(name, request, lambda: self._own(name, algorithm, request))

    def _placed(self, chosen: str, request: CollectiveRequest, make: Callable[[], int]) -> int:
        """Return the template number of `make()`; its errors name the collective and `chosen`.

        A template is the pattern of nodes that replaces a collective. A group of a single rank
        exchanges no messages: all these groups share one empty template, and `make` is not called.
        """
        if len(request.members) == 1:
            record = AlgorithmRecord("nothing", request.kind, 1, request.size, 0)
            return self._numbered(("nothing",), lambda: (record, marker(1)))
        with _prefix_errors(chosen, request):
            return make()

    def streams(
        self, rule: CollectiveRule, request: CollectiveRequest, sizes: Sequence[int], mask: int
    ) -> list[list[StreamPhase]]:
        """Return the phases of each stream of a collective that ASTRA-sim runs by dimension.

        `sizes`: bytes of each stream; `mask`: bit d selects dimension d. The result is empty unless
        all of this holds: the rule is `NATIVE` without options, the job specifies its system, the
        group has all ranks of the job and at least two, the kind is native, and the system has no
        custom algorithm for it. New phases are synthesized and verified, and their templates are
        added to `templates`. Raises `HubError` that names the rule if this fails, and for
        configurations that `native_phases` refuses.
        """
        is_native = rule.algorithm == NATIVE and not rule.options and self._system.is_stated
        # ASTRA-sim ignores dimensions in smaller groups.
        is_of_all = 1 < len(request.members) == self._num_ranks
        is_custom = request.kind in self._system.custom
        is_known = request.kind in NATIVE_KINDS
        if not is_known or is_custom:
            return []
        if not (is_native and is_of_all):
            return []
        with _prefix_errors(f"--collective {rule.text}", request):
            return [self._stream(replace(request, size=size), mask) for size in sizes]

    def _stream(self, request: CollectiveRequest, mask: int) -> list[StreamPhase]:
        """Return the phases of one stream of `request.size` bytes in the dimensions of `mask`.

        That the phases together perform the collective is verified once per series: the kind, and
        for each phase its kind, dimension and algorithm, regardless of bytes. It is not verified
        for a single phase, for more than `_MAX_VERIFIED_RANKS` (256) ranks, and for a series that
        was refused before. Raises the errors of `native_phases`, `_phase` and `admit`.
        """
        sizes = [dimension.size for dimension in self._topology.dimensions]
        if prod(sizes) != self._num_ranks:
            # ASTRA-sim supports only regular networks.
            sizes = [self._num_ranks]
        native = native_phases(self._system, request.kind, request.size, sizes, mask)
        phases = [self._phase(phase, request) for phase in native]
        ranks = prod({phase.level: phase.ranks for phase in native}.values())
        judged = [self._judged[phase.template] for phase in phases]
        phase_keys = tuple(
            (phase.kind, phase.level, identity)
            for phase, (identity, _) in zip(native, judged, strict=True)
        )
        series = request.kind, phase_keys
        if len(phases) > 1 and ranks <= _MAX_VERIFIED_RANKS and series not in self._series:
            self._series.add(series)
            steps = [
                PhaseSteps(phase.kind, phase.level, *algorithm)
                for phase, (_, algorithm) in zip(native, judged, strict=True)
            ]
            name = f"native phases ({request.kind}, {ranks} ranks)"
            self._admit(composed(request.kind, steps), name)
        return phases

    def _phase(self, phase: NativePhase, job_request: CollectiveRequest) -> StreamPhase:
        """Return template number, dimension and estimated time in ns of a native phase.

        A phase runs in several groups of `job_request.members` at the same time. The algorithm is
        synthesized and verified for the first group (ranks 0, stride, 2 x stride, ...). Its nodes,
        copied to all groups, are the template. Equal phases share one template. With
        `phase.choice.alternates`, the option `root` is "highest" and "lowest" in turn, counted by
        the kind of `job_request` and the dimension.

        The time is the sum over the nodes of the first rank: durations of computations, and for
        each sent message its bytes by the bandwidth of the dimension plus one latency. The sum over
        the messages is rounded down. The time is 1 if the network has no dimensions. Raises errors
        of synthesis and verification, and `UsageError` (`invalid-subset`) if the topology lacks
        ranks of the group. After an error there is no new template, but the turn of `root` counts.
        """
        members = tuple(rank * phase.stride for rank in range(phase.ranks))
        request = CollectiveRequest(phase.kind, phase.size, members, -1, 0)
        name, options = phase.choice.synthesizer, phase.choice.options
        if phase.choice.alternates:
            # ASTRA-sim alternates between two trees per collective and dimension.
            tree_index = self._turns[job_request.kind, phase.level]
            self._turns[job_request.kind, phase.level] += 1
            options = {**options, "root": tree_root(tree_index)}

        def make() -> tuple[AlgorithmRecord, Template]:
            network = self._locate_group(members)
            algorithm = self._synthesize_admitted(name, options, request, network)
            self._judged[len(self.templates)] = (
                (synthesizer_key, phase.ranks),
                (algorithm, network.npus),
            )
            template = template_of(algorithm, network.npus, request.full_bytes)
            return _algorithm_record(name, request, algorithm), spread(
                template, job_request.members, phase.stride
            )

        synthesizer_key = name, *sorted(options.items())
        key: Hashable = (
            "phase",
            synthesizer_key,
            phase.kind,
            phase.size,
            members,
            job_request.members,
        )
        number = self._numbered(key, make)
        if not self._topology.dimensions:
            return StreamPhase(number, phase.level, 1)
        template = self.templates[number]
        dimension = self._topology.dimensions[phase.level]
        first_rank = slice(int(template.first[0]), int(template.first[1]))
        sent = template.bytes[first_rank][template.kind[first_rank] == NodeKind.SEND]
        waited_ns = int(np.maximum(template.duration_ns[first_rank], 0).sum())
        seconds = sent.sum() / dimension.bandwidth_bytes_per_s + len(sent) * dimension.latency_s
        return StreamPhase(number, phase.level, waited_ns + int(seconds * 1e9))

    def _template(self, rule: CollectiveRule, request: CollectiveRequest) -> int:
        """Return the template number of a collective of several ranks; equal ones share a template.

        `NATIVE` without options takes the custom algorithm of the system for the kind, if it has
        one. Otherwise it means `DEFAULT_UNEVEN` for a collective with counts and without the option
        `algorithm`, else `native_choice`, with the root of `request.index` if that alternates. A
        name that no synthesizer has is the path of a file.

        Raises the `HubError` of reading, synthesis and verification, and if a file does not fit.
        """
        maker, options = rule.algorithm, rule.options
        if maker == NATIVE:
            # The folder of a job may contain an algorithm for a kind.
            if request.kind in self._system.custom and not options:
                algorithm = self._system.custom[request.kind]
                return self._own("the job's own", algorithm, request)
            name = options.get("algorithm")
            if request.counts is not None and name is None:
                maker, options = DEFAULT_UNEVEN, {}
            else:
                # ASTRA-sim has special rules for groups smaller than the job.
                is_small = len(request.members) < self._num_ranks
                choice = native_choice(self._system, request.kind, name, is_small=is_small)
                maker, options = choice.synthesizer, choice.options
                if choice.alternates:
                    options = {**options, "root": tree_root(request.index)}
        # All names that no synthesizer has are files.
        if maker not in {provided.name for provided in self._registry.all(Synthesizer)}:
            return self._fit(maker, self._file(maker), request, request.full_bytes)
        # Groups with equal networks share algorithms.
        size, network = request.full_bytes, self._locate_group(request.members)
        synthesizer_key = maker, *sorted(options.items())
        key = (
            synthesizer_key,
            request.kind,
            size,
            len(request.members),
            request.root,
            request.counts,
            network.identity,
        )

        def make() -> tuple[AlgorithmRecord, Template]:
            algorithm = self._synthesize_admitted(maker, options, request, network)
            nodes = template_of(algorithm, network.npus, size)
            return _algorithm_record(maker, request, algorithm), nodes

        return self._numbered(key, make)

    def _numbered(self, key: Hashable, make: Callable[[], tuple[AlgorithmRecord, Template]]) -> int:
        """Return the template number of a key; call `make` for a new key only.

        `make` returns the record of the algorithm and the template, which are appended to
        `self.algorithms` and `self.templates`; the number is their position. If `make` raises an
        exception, the key remains new.
        """
        if key not in self._numbers:
            summary, template = make()
            self._numbers[key] = len(self.templates)
            self.templates.append(template)
            self.algorithms.append(summary)
        return self._numbers[key]

    def _file(self, name: str) -> Algorithm:
        """Return the verified algorithm of a file; each name is read once and cached.

        If reading fails, a name without `/` and `.` may be a misspelt synthesizer: if there is no
        synthesizer of this name, the error of `Registry.find` with the closest names is raised. In
        all other cases the `HubError` of the reader is raised.
        """
        if name not in self._files:
            try:
                self._files[name] = self._read(name)
            except HubError:
                if not {"/", "."} & set(name):
                    self._registry.find(Synthesizer, name)
                raise
        return self._files[name]

    def _own(self, name: str, algorithm: Algorithm, request: CollectiveRequest) -> int:
        """Return the template number of an algorithm of the workload, checked for the request.

        A template describes the nodes that replace a call. Its size in bytes is that of the
        request, with one exception: an algorithm whose messages do not identify their data (a
        trace, without `has_contents`) keeps its size `collective_bytes` if it has one, as in
        ASTRA-sim.

        An equal combination of name, kind, size, root and counts gives the earlier number. A new
        one adds a template (`_fit`). Raises `InputError` (`algorithm-does-not-fit`) if the
        algorithm does not fit, for example for another number of ranks.
        """
        size = request.full_bytes
        if not algorithm.has_contents:
            # Messages have the bytes of the trace, not of the job, as in ASTRA-sim.
            size = algorithm.collective_bytes or size
        return self._fit(name, algorithm, request, size)

    def _fit(self, name: str, algorithm: Algorithm, request: CollectiveRequest, size: int) -> int:
        """Check that an existing algorithm fits a request, and return its template number.

        The check comes first, in every call. It raises `InputError` (`algorithm-does-not-fit`)
        for the reasons of `_check_compatibility`, for example another number of ranks. Then an
        equal combination of name, kind, size, root and counts gives the earlier number. A new
        combination adds a template and a record.

        `name`: identifies the algorithm. `size`: bytes of the collective, to which the template
        is scaled. Ranks of the algorithm are positions in the group.
        """
        _check_compatibility(algorithm, request, size)
        # Ranks of the algorithm are positions in the group.
        ranks = range(algorithm.num_ranks)
        return self._numbered(
            (name, request.kind, size, request.root, request.counts),
            lambda: (
                _algorithm_record(name, request, algorithm),
                template_of(algorithm, ranks, size),
            ),
        )

    def _locate_group(self, members: tuple[int, ...]) -> GroupNetwork:
        """Return the network of a group of ranks, cached by its members.

        It is cached because subsets of large networks are expensive to build. Raises `UsageError`
        (`invalid-subset`) if `members` is empty, or has a rank twice or one without an NPU.
        """
        if members not in self._places:
            self._places[members] = group_network(self._topology, members)
        # Cached: subsets of a large network are slow to build.
        return self._places[members]

    def _synthesize_admitted(
        self,
        maker: str,
        options: Mapping[str, str],
        request: CollectiveRequest,
        network: GroupNetwork,
    ) -> Algorithm:
        """Synthesize an algorithm for a collective in its group, verify it, and return it.

        `maker`: name of the synthesizer; `options`: its options as text; `network`: that of the
        group, whose `npus` are the NPUs of the ranks. The size is `request.full_bytes` bytes, and a
        negative root counts as rank 0. The synthesizer compares candidates by the times of
        `_create_timer`; if the timing has no machine, by the default simulator with nominal link
        times. Nothing is cached or added to `templates`.

        Raises the `HubError` of `synthesize`, for example for an unknown synthesizer or option, an
        unsupported collective, a size below 1 byte, or NPUs that data cannot reach. Then raises the
        error of `admit` for an algorithm that is refused.
        """
        ranks = len(request.members)
        algorithm = synthesize(
            collective_of_call(request.kind, ranks, request.root, request.counts),
            network.topology,
            request.full_bytes,
            name=maker,
            options=options,
            npus=network.npus,
            judge=self._create_timer(network.topology, request.full_bytes),
            registry=self._registry,
        ).algorithm
        self._admit(algorithm, f"{maker} ({request.kind}, {ranks} ranks)")
        return algorithm

    def _create_timer(
        self, topology: Topology, size: int
    ) -> Callable[[Algorithm], int | None] | None:
        """Return a function that simulates an algorithm and returns its time in ns.

        Returns `None` instead of a function if the timing has no machine. The function simulates a
        collective of `size` bytes on `topology`, with the simulator and the options of the timing.
        It returns `None` for an algorithm that never finishes.

        Errors are raised only when the function is called: the `HubError` of `simulate`, for
        example for an unknown simulator or a failed simulation.
        """
        timing = self._timing
        if timing.machine is None:
            return None

        def time_ns(algorithm: Algorithm) -> int | None:
            result = simulate(
                algorithm,
                topology,
                size,
                backend=timing.backend,
                options=timing.options,
                registry=self._registry,
            )
            return result.time_ns

        return time_ns


@contextmanager
def _prefix_errors(chosen: str, request: CollectiveRequest) -> Iterator[None]:
    """Add the collective and the choice to errors in the body."""
    try:
        yield
    except HubError as error:
        size = format_bytes(request.size)
        # A rule may match many collectives: name the one with the error.
        subject = f"{request.kind} of {size} on {len(request.members)} ranks"
        diagnostics = [
            replace(diagnostic, message=f"{chosen}: {subject}: {diagnostic.message}")
            for diagnostic in error.diagnostics
        ]
        raise type(error)(diagnostics) from None


def _algorithm_record(
    name: str, request: CollectiveRequest, algorithm: Algorithm
) -> AlgorithmRecord:
    return AlgorithmRecord(
        name, request.kind, len(request.members), request.size, len(algorithm.steps)
    )


def _check_compatibility(algorithm: Algorithm, request: CollectiveRequest, size: int) -> None:
    """Raise `InputError` (`algorithm-does-not-fit`) if an algorithm does not fit a request.

    The error has no location. It names the first difference, in this order:

    1. The algorithm is for another number of ranks than `request.members` has.
    2. The algorithm is of another kind. An algorithm of kind `CUSTOM` fits every requested kind.
    3. The request has counts, and the algorithm has none, or counts that are not proportional to
       them.
    4. The request and the algorithm have different roots. A negative requested root, and the root
       None of an algorithm, fit every root.
    5. The algorithm has no contents (a trace of times only), and its bytes differ from `size` or
       are not known. An algorithm with contents can be scaled to every size.
    """
    collective = algorithm.collective
    if collective.num_ranks != len(request.members):
        reason = f"it is for {collective.num_ranks} ranks"
    elif collective.kind not in (request.kind, CollectiveKind.CUSTOM):
        reason = f"it is an algorithm of {collective.kind}"
    elif request.counts is not None and not has_equal_counts(collective.counts, request.counts):
        reason = "it has other counts"
    elif request.root >= 0 and collective.root not in (None, request.root):
        reason = f"its root is rank {collective.root}, not {request.root}"
    elif not algorithm.has_contents and algorithm.collective_bytes != size:
        stated = algorithm.collective_bytes or 0
        reason = f"it is a trace of {format_bytes(stated)}, whose sizes cannot be changed"
    else:
        return
    cure = "name another algorithm, or narrow the rule by @SIZE or /GROUP"
    raise InputError(reason, cure=cure, code="algorithm-does-not-fit")
