"""Measure one algorithm at several sizes: synthesize or read it, verify it, and simulate it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import hub_core
from collhub_tuning.questions import (
    ANY_MODE,
    AlgorithmAtSize,
    ComparedAlgorithm,
    ComparisonQuestion,
)
from hub_core import (
    Algorithm,
    ExactTime,
    HubError,
    Registry,
    TimingSource,
    Topology,
    UsageError,
    choose_timing,
    describe_unserved,
    exact_time,
    find_runtimes,
    run_registry,
)
from hub_core.model import JsonValue, has_equal_counts, placement_of
from hub_core.plugin_api import SearchBudget, SynthesisRequest
from hub_core.verification import VerificationInput, verify_input


class Stopwatch:
    """Times of algorithms by `simulate`; the fastest algorithm is not simulated again.

    Times are in nanoseconds, None if a rank never finishes.
    """

    def __init__(self, simulate: Callable[[Algorithm], int | None]) -> None:
        self._simulate = simulate
        self._fastest: tuple[int, Algorithm] | None = None

    def time_ns(self, algorithm: Algorithm) -> int | None:
        """Return the simulated time of an algorithm in ns; None if it never finishes.

        If it has the schedule of the fastest algorithm so far (the same object as steps, equal
        collective and placement of ranks), the stored time is returned without a simulation.
        Otherwise it is simulated, and remembered if it is faster than the fastest so far.
        Raises the errors of the simulator.
        """
        if self._fastest is not None:
            fastest_ns, fastest = self._fastest
            if (
                algorithm.steps is fastest.steps
                and algorithm.collective == fastest.collective
                and placement_of(algorithm) == placement_of(fastest)
            ):
                return fastest_ns
        time_ns = self._simulate(algorithm)
        if time_ns is not None and (self._fastest is None or time_ns < self._fastest[0]):
            self._fastest = time_ns, algorithm
        return time_ns


# Options of simulators of machines for algorithms in the form that a runtime executes.
_AS_WRITTEN = {"instances": "1", "pieces": "1"}
# An algorithm scales to a smaller size if its time decreases in proportion up to this factor.
_MAX_SCALING_SLOWDOWN = 1.01
_NO_REPORTS: Callable[[object], None] = lambda found: None  # noqa: E731


def measured(
    compared: ComparedAlgorithm,
    question: ComparisonQuestion,
    network: Topology | None = None,
    algorithm: Algorithm | None = None,
    registry: Registry | None = None,
    budget: SearchBudget | None = None,
) -> list[AlgorithmAtSize]:
    """Return the measurements of one algorithm, one per size in the order of the question's sizes.

    `network` replaces the network that the question names. `algorithm` is used instead of reading
    the file `compared.name`. `registry`: by default `run_registry()`. `budget`: no limits by
    default; each search that a limit ends is added to its `cuts`. Measurement 0 has all `cuts`.

    Sizes are measured from the largest down. A synthesized algorithm is reused for smaller sizes
    while its time is in proportion to the size. A failed measurement has no time, and the reason as
    text: for one size, if a `HubError` occurs (no algorithm, incorrect, no simulation); for the
    remaining sizes, if a limit of `budget` is reached; for all sizes, if the file cannot be read or
    does not answer the question. An algorithm that never finishes has no time either.

    Raises `HubError` for an unreadable network or an unknown runtime or machine, and `ValueError`
    if there are no sizes.
    """
    budget = budget or SearchBudget()
    registry = registry or run_registry()
    if network is None:
        topology = hub_core.read_topology(question.topology, registry=registry)
    else:
        # Arrays from another process are writable; the copy makes them read-only. In this process
        # all algorithms share one network, so that its bounds and routes are computed once.
        topology = replace(network) if network.source.flags.writeable else network
    simulations = _Simulations(topology, question, registry, needs_time=False)
    try:
        if algorithm is None:
            algorithm_at = _create_source(compared, question, simulations, budget)
        else:
            local = replace(algorithm, steps=replace(algorithm.steps))
            algorithm_at = _fit_file(compared.name, local, question, simulations)
    except HubError as error:
        return _create_failures(compared, question, error)
    measurements = _measure_sizes(compared, question, simulations, algorithm_at, budget)
    by_size = {measurement.size: measurement for measurement in measurements}
    first, *later = (by_size[size] for size in question.sizes)
    return [replace(first, cuts=tuple(budget.cuts)), *later]


def read_file(
    compared: ComparedAlgorithm, question: ComparisonQuestion, registry: Registry | None = None
) -> Algorithm | list[AlgorithmAtSize]:
    """Read the algorithm of a file, to send it to workers that cannot access the file.

    Returns failed measurements of all sizes instead of raising `HubError`. `registry` None: that of
    the run.
    """
    try:
        return _read(compared.name, registry or run_registry())
    except HubError as error:
        return _create_failures(compared, question, error)


def create_verified_algorithm(
    compared: ComparedAlgorithm,
    question: ComparisonQuestion,
    size: int,
    topology: Topology,
    registry: Registry,
    instances: int = 1,
    pieces: int = 1,
    served_sizes: tuple[int, ...] = (),
) -> Algorithm:
    """Create and verify the algorithm for one size in bytes, as the measurement does.

    It is synthesized or read from its file, without a limit of time. With `instances` above 1, it
    is then replicated: each of so many copies has a part of the data. With `pieces` above 1, each
    copy then divides its data into so many pieces. `served_sizes`: further sizes in bytes that the
    algorithm must serve on the runtimes of the question. Raises `HubError` if the algorithm cannot
    be created or is wrong.
    """
    simulations = _Simulations(topology, question, registry, served_sizes, needs_time=True)
    algorithm = _create_source(compared, question, simulations, SearchBudget())(size)
    for name, option, count in (
        ("replicate", "instances", instances),
        ("pipeline", "pieces", pieces),
    ):
        if count > 1:
            options = {option: str(count)}
            algorithm, _ = hub_core.transform(algorithm, name, options=options, registry=registry)
    _verify(algorithm)
    return algorithm


class _Simulations:
    """Simulates algorithms at one size after the other, and each repeated algorithm once.

    With runtimes, algorithms already consist of the copies and pieces that the runtimes execute.
    `served_sizes`: further sizes that each of them must serve. `needs_time`: whether synthesizers
    must state the times of their results, which are simulated again here.
    """

    def __init__(
        self,
        topology: Topology,
        question: ComparisonQuestion,
        registry: Registry,
        served_sizes: tuple[int, ...] = (),
        *,
        needs_time: bool,
    ) -> None:
        self.topology = topology
        self.question = question
        self.backend = question.backend
        self.options = dict(question.simulator_options)
        self.registry = registry
        self.runtimes = [one.runtime for one in find_runtimes(question.runtime, registry)]
        self._served_sizes = served_sizes
        self._needs_time = needs_time
        if self.options and self.runtimes:
            machine = self.options["machine"]
            self.timing = replace(
                choose_timing(machine, self.backend, topology, registry), options=self.options
            )
            self.options = {**self.options, **_AS_WRITTEN}
        else:
            self.timing = TimingSource(self.backend, self.options)
        self._at: tuple[int, Stopwatch] | None = None
        # Details of the simulator at the current size, by the identity of the steps, which the
        # stopwatch and the callers keep alive.
        self._details: dict[int, Mapping[str, JsonValue]] = {}
        self._shares_links = True

    def create_request(self, size: int, budget: SearchBudget) -> SynthesisRequest:
        """Create the request for an algorithm of a size in bytes, whose candidates are judged by
        their simulated time in ns at this size. Raises `HubError`.
        """
        return hub_core.create_synthesis_request(
            self.question.collective,
            self.topology,
            size,
            judge=lambda algorithm: self.judge_ns(algorithm, size),
            registry=self.registry,
            budget=budget,
            runtime=self.question.runtime,
            sizes=self._served_sizes,
            timing=self.timing,
            needs_time=self._needs_time,
            is_quick=True,
        )

    def serves(self, algorithm: Algorithm, size: int) -> bool:
        """Whether every runtime of the question serves a size in bytes with the units of this
        algorithm; True without runtimes.
        """
        return not any(describe_unserved(algorithm, one, size) for one in self.runtimes)

    def time_ns(
        self,
        algorithm: Algorithm,
        size: int,
    ) -> int | None:
        """Return the simulated time in ns at a size in bytes; None if a rank never finishes.

        Only the fastest algorithm since the last change of the size is not simulated again
        (`Stopwatch`). A new size discards this time, and the details for `variant`. Raises
        `HubError` if the simulation fails.
        """
        if self._at is None or self._at[0] != size:
            self._at = size, Stopwatch(lambda each: self._simulate_ns(each, size))
            self._details = {}
        return self._at[1].time_ns(algorithm)

    def judge_ns(self, algorithm: Algorithm, size: int) -> int | None:
        """Return the time in ns by which synthesizers judge their trials, at a size in bytes.

        Returns None if a rank never finishes. The time is that of nominal links: the time of
        `time_ns` if the comparison has no machine (no options of the simulator), otherwise that of
        the default simulator. Reason: trials of a synthesizer differ in their use of links, and a
        machine would try several variants of each. Raises `HubError` if the simulation fails.
        """
        if not self.options:
            return self.time_ns(algorithm, size)
        result = hub_core.simulate(algorithm, self.topology, size, registry=self.registry)
        return result.time_ns

    def exact(self, algorithm: Algorithm, size: int, time_ns: int | None) -> ExactTime:
        """Return the time of a simulation in ps with its slack (largest error), for bounds.

        The first rule that applies decides:

        1. If messages did not share the rate of a link in the last simulation, lower bounds do
           not apply. The time is None and the slack 0.
        2. If `time_ns` is None (a rank never finishes), the time is None and the slack 0.
        3. Otherwise the result is that of `exact_time`, which may simulate again.

        `time_ns`: simulated time of `algorithm` at `size` bytes. Raises `HubError` if the further
        simulation fails.
        """
        if not self._shares_links:
            return ExactTime(None)
        return exact_time(
            algorithm,
            self.topology,
            size,
            time_ns,
            backend=self.backend,
            options=self.options,
            registry=self.registry,
        )

    def variant(self, algorithm: Algorithm) -> tuple[int, int, str]:
        """Return instances, pieces and protocol of `time_ns`'s last simulation of an algorithm.

        The algorithm is recognized by its table of steps (by identity). The result is (1, 1, "") if
        it was not simulated at the size of the last call of `time_ns`, or if the simulator did not
        report instances and protocol. Pieces are 1 if only they are missing.
        """
        details = self._details.get(id(algorithm.steps), {})
        instances, protocol = details.get("instances"), details.get("protocol")
        pieces = details.get("pieces", 1)
        if isinstance(instances, int) and isinstance(pieces, int) and isinstance(protocol, str):
            return instances, pieces, protocol
        return 1, 1, ""

    def _simulate_ns(self, algorithm: Algorithm, size: int) -> int | None:
        topology, registry = self.topology, self.registry
        result = hub_core.simulate(
            algorithm,
            topology,
            size,
            backend=self.backend,
            options=self.options,
            registry=registry,
        )
        self._details[id(algorithm.steps)] = result.details
        self._shares_links = result.shares_links
        return result.time_ns


@dataclass(frozen=True, slots=True)
class _Timed:
    """An algorithm and its time at a size."""

    algorithm: Algorithm
    size: int
    time_ns: int

    def scales_to(self, size: int, time_ns: int | None) -> bool:
        """Return whether `time_ns` at a smaller `size` is at most 1 % above the proportional time.

        The proportional time is `self.time_ns` times `size` / `self.size`. If so, no new
        algorithm is needed for the smaller size. Reason: the minimum time of a fraction f of the
        bytes is at least f times the minimum time of all bytes. Otherwise the faster algorithm,
        with all bandwidths and latencies slowed down by 1/f, would transfer all bytes in less
        than their minimum time. False for a time of None (a rank never finishes).
        """
        limit = _MAX_SCALING_SLOWDOWN * self.time_ns * size
        return time_ns is not None and time_ns * self.size <= limit


def _measure_sizes(
    compared: ComparedAlgorithm,
    question: ComparisonQuestion,
    simulations: _Simulations,
    algorithm_at: Callable[[int], Algorithm],
    budget: SearchBudget,
) -> Iterator[AlgorithmAtSize]:
    """Yield one measurement per size, the largest first; reuse an algorithm while its time scales.

    For each size: 1. If `budget` has a reason to stop, this size and all smaller ones get failed
    measurements, and one cut is added to the budget. 2. The previous algorithm is reused if the
    runtimes serve this size and its time is at most 1 % above that in proportion to the size for
    which it was created (`_Timed.scales_to`). 3. Otherwise `algorithm_at` creates one, which is
    verified unless its steps equal those of the last verified one.

    An algorithm is not reused if it is of a file, never finishes, or was created when the previous
    measurement without error had a new one too; every smaller size then gets a new one.
    A `HubError` in 2 or 3 gives a failed measurement and does not change which algorithm is the
    previous one. `made_for` is the size for which the algorithm was created, None for a file.
    Other exceptions pass through.
    """
    verified: Algorithm | None = None
    previous: _Timed | None = None
    is_new = False
    sizes = sorted(question.sizes, reverse=True)
    for index, size in enumerate(sizes):
        if reason := budget.reason:
            budget.cut(compared.name, f"{len(sizes) - index} of {len(sizes)} sizes")
            yield from (
                AlgorithmAtSize(compared.name, left, None, reason) for left in sizes[index:]
            )
            return
        try:
            if previous is not None and simulations.serves(previous.algorithm, size):
                time_ns = simulations.time_ns(previous.algorithm, size)
                if previous.scales_to(size, time_ns):
                    is_new = False
                    yield _create_measurement(
                        compared, simulations, previous.algorithm, size, time_ns, previous.size
                    )
                    continue
            algorithm = algorithm_at(size)
            # Equal steps need not be verified again for another size.
            if verified is None or algorithm.steps.differences(verified.steps):
                _verify(algorithm)
            elif algorithm.collective == verified.collective:
                # Simulators keep what does not depend on the size by the identity of the algorithm.
                algorithm = verified
            verified = algorithm
            time_ns = simulations.time_ns(algorithm, size)
            made_for = None if compared.is_file else size
            measurement = _create_measurement(
                compared, simulations, algorithm, size, time_ns, made_for
            )
        except HubError as error:
            yield _create_failure(compared, size, error)
            continue
        yield measurement
        # If an algorithm does not scale to the next size, latency dominates, and no algorithm
        # scales to smaller sizes.
        is_last = is_new or compared.is_file
        previous = None if is_last or time_ns is None else _Timed(algorithm, size, time_ns)
        is_new = True


def _create_measurement(
    compared: ComparedAlgorithm,
    simulations: _Simulations,
    algorithm: Algorithm,
    size: int,
    time_ns: int | None,
    made_for: int | None,
) -> AlgorithmAtSize:
    """Create the measurement of an algorithm at `size` bytes with the time `time_ns`.

    A time of None gives the failure "a rank never finishes"; otherwise the failure is "". The time
    in ps and its slack are determined by simulation; they are None and 0 if the timing does not
    share links among messages. Instances, pieces and protocol are those with which the algorithm
    was last timed (1, 1 and "" if not recorded). Messages: the messages in the steps of the
    algorithm times instances times pieces. `made_for`: size in bytes for which the algorithm was
    created, None for a file; it is stored unchanged. Raises `HubError` if the simulation for the
    time in ps fails.
    """
    exact = simulations.exact(algorithm, size, time_ns)
    instances, pieces, protocol = simulations.variant(algorithm)
    return AlgorithmAtSize(
        compared.name,
        size,
        time_ns,
        "a rank never finishes" if time_ns is None else "",
        made_for,
        exact.time_ps,
        exact.slack_ps,
        instances=instances,
        pieces=pieces,
        protocol=protocol,
        messages=algorithm.steps.num_messages * instances * pieces,
    )


def _create_source(
    compared: ComparedAlgorithm,
    question: ComparisonQuestion,
    simulations: _Simulations,
    budget: SearchBudget,
) -> Callable[[int], Algorithm]:
    """Return a function that gives the algorithm for a size in bytes.

    The algorithm of a file is read and checked now; if the question names runtimes, the
    function fits it to them at every call (`_fit_file`). A synthesizer is executed at every
    call; its limit of work is the remaining work of `budget`. Raise `HubError` for a file that
    cannot be read, and `UsageError` for one that does not answer the question. The function
    raises `HubError` if there is no algorithm for the size, or if a synthesized one lacks a mode
    (in place, out of place) that the question requires.
    """
    if compared.is_file:
        algorithm = _read(compared.name, simulations.registry)
        return _fit_file(compared.name, algorithm, question, simulations)

    def synthesize(size: int) -> Algorithm:
        request = simulations.create_request(size, budget.part())
        result = hub_core.run_synthesizer(request, compared.name)
        _check_modes(compared.name, result.algorithm, question)
        return result.algorithm

    return synthesize


def _read(name: str, registry: Registry) -> Algorithm:
    """Read the algorithm of a file; findings of the reader are dropped.

    Raises `HubError` if it cannot be read.
    """
    return hub_core.read(name, registry=registry, report=_NO_REPORTS)


def _fit_file(
    name: str, algorithm: Algorithm, question: ComparisonQuestion, simulations: _Simulations
) -> Callable[[int], Algorithm]:
    """Check that the algorithm of a file answers the question; return it as a function of the size.

    Raises `UsageError` for the first difference from the question: `other-collective` for another
    kind, number of ranks or root, or counts that only one has or that differ by more than a common
    factor; `other-mode` for a required mode (first in place) that the algorithm does not claim.

    If the question names no runtimes, the function returns the algorithm for every size in
    bytes. With runtimes, it returns the best form that the first of them executes at this
    size, or the next runtime if the first executes none. It raises `InputError` if no
    runtime executes any form. `name`: the file, for messages.
    """
    required, actual = question.collective, algorithm.collective
    if (actual.kind, actual.num_ranks, actual.root) != (
        required.kind,
        required.num_ranks,
        required.root,
    ):
        raise UsageError(
            f"{name} is {actual.kind} of {actual.num_ranks} ranks, not {required.kind} of "
            f"{required.num_ranks}",
            code="other-collective",
        )
    if not has_equal_counts(required.counts, actual.counts):
        raise UsageError(f"{name} has other counts than --counts", code="other-collective")
    _check_modes(name, algorithm, question)

    def fit(size: int) -> Algorithm:
        target = simulations.create_request(size, SearchBudget()).target
        return algorithm if target is None else target.fit(algorithm).algorithm

    return fit


def _check_modes(name: str, algorithm: Algorithm, question: ComparisonQuestion) -> None:
    """Raise `UsageError` (`other-mode`) if an algorithm lacks a required mode.

    No mode is required if the mode of the question is `ANY_MODE`. Otherwise those are
    required that the question's collective claims. In place is checked first, then out of
    place. Further modes of the algorithm are allowed. `name`: its name, for the message.
    """
    if question.mode == ANY_MODE:
        return
    required, actual = question.collective, algorithm.collective
    for mode, is_missing in (
        ("in place", required.in_place and not actual.in_place),
        ("out of place", required.out_of_place and not actual.out_of_place),
    ):
        if is_missing:
            raise UsageError(f"{name} does not claim to be usable {mode}", code="other-mode")


def _verify(algorithm: Algorithm) -> None:
    """Verify an algorithm in the modes (in place, out of place) that it supports.

    Raise `UsageError` (`not-verified`) with the first diagnostic of the verification if it
    is incorrect, or could not be verified, for example because it is too large.
    """
    report = verify_input(VerificationInput(algorithm), claimed_only=True)
    if not report.ok:
        raise UsageError(f"not correct as claimed: {report.diagnostics[0]}", code="not-verified")


def _create_failures(
    compared: ComparedAlgorithm, question: ComparisonQuestion, error: HubError
) -> list[AlgorithmAtSize]:
    return [_create_failure(compared, size, error) for size in question.sizes]


def _create_failure(compared: ComparedAlgorithm, size: int, error: HubError) -> AlgorithmAtSize:
    reason = error.diagnostics[0].message if error.diagnostics else str(error)
    return AlgorithmAtSize(compared.name, size, None, " ".join(reason.split()))
