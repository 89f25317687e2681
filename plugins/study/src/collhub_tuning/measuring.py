"""Measure one algorithm at some sizes: made or read, verified, and timed by the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import hub_core
from collhub_tuning.questions import (
    ANY_MODE,
    ComparedAlgorithm,
    ComparisonQuestion,
    Measurement,
)
from collhub_tuning.stopwatch import Stopwatch
from hub_core import (
    Algorithm,
    ExactTime,
    HubError,
    Registry,
    Topology,
    UsageError,
    exact_time,
    run_registry,
)
from hub_core.plugin_api import SearchBudget
from hub_core.verification import VerificationInput, verify_input

# By so much the share of an algorithm's time may be later than its share of the bytes.
_PROPORTIONATE = 1.01
_NO_REPORTS: Callable[[object], None] = lambda found: None  # noqa: E731


def measured(
    compared: ComparedAlgorithm,
    question: ComparisonQuestion,
    network: Topology | None = None,
    algorithm: Algorithm | None = None,
    registry: Registry | None = None,
    budget: SearchBudget | None = None,
) -> list[Measurement]:
    """The algorithm at every size of the question.

    `network`: in place of what the text of the question names. `algorithm`: what `file_read` read,
    where the file is not seen here. What cannot be made for a size, is wrong, or never ends is a
    failure of that size. May run in a process of its own: `registry`, the plugins of the run,
    arrives there as its settings. None: those of `run_registry`. `budget`: limits of the search;
    what they have cut is in the first measurement.
    """
    budget = budget or SearchBudget()
    registry = registry or run_registry()
    if network is None:
        topology = hub_core.read_topology(question.topology, registry=registry)
    else:
        # What comes from another process can be written to; what is made anew cannot.
        topology = replace(network)
    simulations = _Simulations(topology, question.backend, registry)
    try:
        if algorithm is None:
            algorithm_at = _maker(compared, question, simulations, budget)
        else:
            ours = replace(algorithm, steps=replace(algorithm.steps))
            algorithm_at = _checked(compared.name, ours, question)
    except HubError as error:
        return _failures(compared, question, error)
    measurements = _all_sizes(compared, question, simulations, algorithm_at, budget)
    by_size = {one.size: one for one in measurements}
    found = [by_size[size] for size in question.sizes]
    return [replace(found[0], cuts=tuple(budget.cuts)), *found[1:]]


def file_read(
    compared: ComparedAlgorithm, question: ComparisonQuestion, registry: Registry | None = None
) -> Algorithm | list[Measurement]:
    """The algorithm in a file, to send it to where the file is not; else why there is none."""
    try:
        return _read(compared.name, registry or run_registry())
    except HubError as error:
        return _failures(compared, question, error)


def verified_algorithm(
    compared: ComparedAlgorithm,
    question: ComparisonQuestion,
    size: int,
    topology: Topology,
    registry: Registry,
) -> Algorithm:
    """The algorithm as it was made for one size and measured. Raises `HubError`."""
    simulations = _Simulations(topology, question.backend, registry)
    algorithm = _maker(compared, question, simulations, SearchBudget())(size)
    _check(algorithm)
    return algorithm


class _Simulations:
    """Simulates algorithms at one size after the other."""

    def __init__(
        self,
        topology: Topology,
        backend: str,
        registry: Registry,
    ) -> None:
        self.topology = topology
        self.backend = backend
        self.registry = registry
        self._at: tuple[int, Stopwatch] | None = None
        self._shares_links = True

    def time_ns(
        self,
        algorithm: Algorithm,
        size: int,
    ) -> int | None:
        """Nanoseconds at a size, None where a rank never finishes. Raises `HubError`."""
        if self._at is None or self._at[0] != size:
            self._at = size, Stopwatch(lambda each: self._simulated_ns(each, size))
        return self._at[1].time_ns(algorithm)

    def exact(self, algorithm: Algorithm, size: int, time_ns: int | None) -> ExactTime:
        """The time in picoseconds, None where no lower bound holds for it. Raises `HubError`."""
        if not self._shares_links:
            return ExactTime(None)
        return exact_time(
            algorithm,
            self.topology,
            size,
            time_ns,
            backend=self.backend,
            registry=self.registry,
        )

    def _simulated_ns(self, algorithm: Algorithm, size: int) -> int | None:
        topology, registry = self.topology, self.registry
        result = hub_core.simulate(
            algorithm, topology, size, backend=self.backend, registry=registry
        )
        self._shares_links = result.shares_links
        return result.time_ns


@dataclass(frozen=True, slots=True)
class _Timed:
    """An algorithm and its nanoseconds at a size."""

    algorithm: Algorithm
    size: int
    time_ns: int

    def scales_to(self, size: int, time_ns: int | None) -> bool:
        """Whether it takes in proportion no longer at a smaller size, but for the tolerance.

        No algorithm does better there: the least time of a share of the bytes is at least that
        share of the least time of all, since on wires and latencies that are slowed down alike
        the fastest one of the share would carry all of them.
        """
        return time_ns is not None and time_ns * self.size <= _PROPORTIONATE * self.time_ns * size


def _all_sizes(
    compared: ComparedAlgorithm,
    question: ComparisonQuestion,
    simulations: _Simulations,
    algorithm_at: Callable[[int], Algorithm],
    budget: SearchBudget,
) -> Iterator[Measurement]:
    """From the largest size down; an algorithm that scales is kept."""
    verified: Algorithm | None = None
    kept: _Timed | None = None
    is_new = False
    sizes = sorted(question.sizes, reverse=True)
    for place, size in enumerate(sizes):
        if reason := budget.reason:
            budget.cut(compared.name, f"{len(sizes) - place} of {len(sizes)} sizes")
            yield from (Measurement(compared.name, left, None, reason) for left in sizes[place:])
            return
        try:
            if kept is not None:
                time_ns = simulations.time_ns(kept.algorithm, size)
                if kept.scales_to(size, time_ns):
                    is_new = False
                    exact = simulations.exact(kept.algorithm, size, time_ns)
                    yield _measurement(compared, size, time_ns, kept.size, exact)
                    continue
            algorithm = algorithm_at(size)
            # The same steps at another size are right as well.
            if verified is None or algorithm.steps.differences(verified.steps):
                _check(algorithm)
            verified = algorithm
            time_ns = simulations.time_ns(algorithm, size)
            exact = simulations.exact(algorithm, size, time_ns)
        except HubError as error:
            yield _failure(compared, size, error)
            continue
        yield _measurement(compared, size, time_ns, None if compared.is_file else size, exact)
        # What did not last for one size tells that latency counts: below it nothing scales.
        is_last = is_new or compared.is_file
        kept = None if is_last or time_ns is None else _Timed(algorithm, size, time_ns)
        is_new = True


def _measurement(
    compared: ComparedAlgorithm,
    size: int,
    time_ns: int | None,
    made_for: int | None,
    exact: ExactTime,
) -> Measurement:
    failure = "a rank never finishes" if time_ns is None else ""
    return Measurement(
        compared.name, size, time_ns, failure, made_for, exact.time_ps, exact.slack_ps
    )


def _maker(
    compared: ComparedAlgorithm,
    question: ComparisonQuestion,
    simulations: _Simulations,
    budget: SearchBudget,
) -> Callable[[int], Algorithm]:
    """The algorithm by size. Raises `HubError` for a file that cannot be read or does not fit."""
    if compared.is_file:
        return _checked(compared.name, _read(compared.name, simulations.registry), question)
    return _of_synthesizer(compared.name, question, simulations, budget)


def _of_synthesizer(
    name: str, question: ComparisonQuestion, simulations: _Simulations, budget: SearchBudget
) -> Callable[[int], Algorithm]:
    """Made for a size, since chunks depend on it."""

    def made(size: int) -> Algorithm:
        result = hub_core.synthesize(
            question.collective,
            simulations.topology,
            size,
            name=name,
            judge=lambda algorithm: simulations.time_ns(algorithm, size),
            registry=simulations.registry,
            budget=budget.part(),
        )
        _check_modes(name, result.algorithm, question)
        return result.algorithm

    return made


def _read(name: str, registry: Registry) -> Algorithm:
    """The algorithm of a file; what reading it reports is dropped."""
    return hub_core.read(name, registry=registry, report=_NO_REPORTS)


def _checked(
    name: str,
    algorithm: Algorithm,
    question: ComparisonQuestion,
) -> Callable[[int], Algorithm]:
    """What was read, at every size. Raises `HubError` for another collective than is asked for."""
    wanted, found = question.collective, algorithm.collective
    if (found.kind, found.num_ranks, found.root) != (wanted.kind, wanted.num_ranks, wanted.root):
        raise UsageError(
            f"{name} is {found.kind} of {found.num_ranks} ranks, not {wanted.kind} of "
            f"{wanted.num_ranks}",
            code="other-collective",
        )
    _check_modes(name, algorithm, question)
    return lambda size: algorithm


def _check_modes(name: str, algorithm: Algorithm, question: ComparisonQuestion) -> None:
    """Raise `UsageError` for an algorithm that does not claim all calls that are asked for."""
    if question.mode == ANY_MODE:
        return
    wanted, found = question.collective, algorithm.collective
    for mode, is_missing in (
        ("in place", wanted.in_place and not found.in_place),
        ("out of place", wanted.out_of_place and not found.out_of_place),
    ):
        if is_missing:
            raise UsageError(f"{name} does not claim to be usable {mode}", code="other-mode")


def _check(algorithm: Algorithm) -> None:
    """Raise `UsageError` with the first cause for an algorithm that is wrong."""
    report = verify_input(VerificationInput(algorithm), claimed_only=True)
    if not report.ok:
        raise UsageError(f"not correct as claimed: {report.diagnostics[0]}", code="not-verified")


def _failures(
    compared: ComparedAlgorithm, question: ComparisonQuestion, error: HubError
) -> list[Measurement]:
    return [_failure(compared, size, error) for size in question.sizes]


def _failure(compared: ComparedAlgorithm, size: int, error: HubError) -> Measurement:
    reason = error.diagnostics[0].message if error.diagnostics else str(error)
    return Measurement(compared.name, size, None, " ".join(reason.split()))
