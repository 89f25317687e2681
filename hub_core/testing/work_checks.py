"""Rules for simulators, executors, passes, checks, builders and commands."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import click
import numpy as np
import numpy.typing as npt

from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import HubError, PluginError
from hub_core.model.kinds import ReduceOp
from hub_core.network.topology import Topology
from hub_core.pipeline.topology_input import parse_topology, read_topology
from hub_core.plugin_api.algorithm_pass import AlgorithmPass, PassReport
from hub_core.plugin_api.check import Check, CheckReport, CheckRequest
from hub_core.plugin_api.check import Subject as Judged
from hub_core.plugin_api.command import Command
from hub_core.plugin_api.executor import ExecutionRequest, ExecutionResult, Executor
from hub_core.plugin_api.offers import Offer
from hub_core.plugin_api.references import resolve
from hub_core.plugin_api.simulator import SimulationRequest, SimulationResult, Simulator
from hub_core.plugin_api.topology_builder import TopologyBuilder
from hub_core.testing.isolation import output_of
from hub_core.testing.samples import all_samples
from hub_core.testing.subject import Skip, Subject, call, title
from hub_core.verification import verify

_RANKS = 4
_COLLECTIVE_BYTES = 1 << 20
_TOPOLOGY = "fully-connected:4"
_SEED = 20240229
_ELEMENTS_PER_UNIT = 3

R = TypeVar("R")
Sampled = Simulator | Executor | AlgorithmPass


def simulators_simulate(subject: Subject) -> Iterator[str | Skip]:
    """Finish times are not negative, one a rank, the same in every run.

    The algorithm stays as it is.
    """
    for simulator in subject.offers(Simulator):
        results, refusals = _results(simulator, _simulate)
        yield from refusals
        for sample, (algorithm, result) in results.items():
            again = _simulate(simulator, algorithm)
            problem = _simulation_problem(algorithm, result, again)
            if problem:
                yield f"{title(simulator)}, sample {sample}: {problem}"


def executors_compute(subject: Subject) -> Iterator[str | Skip]:
    """Outputs hold what the collective promises, for random whole numbers.

    Inputs stay as they are.
    """
    for executor in subject.offers(Executor):
        results, refusals = _results(executor, _execute)
        yield from refusals
        for sample, (algorithm, result) in results.items():
            if problem := _execution_problem(algorithm, result):
                yield f"{title(executor)}, sample {sample}: {problem}"


def passes_keep_the_promise(subject: Subject) -> Iterator[str | Skip]:
    """What a pass makes of a correct algorithm is correct, and it leaves its input as it is."""
    for algorithm_pass in subject.offers(AlgorithmPass):
        results, refusals = _results(algorithm_pass, call)
        yield from refusals
        for sample, (_, result) in results.items():
            place = f"{title(algorithm_pass)}, sample {sample}"
            if not (
                isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], PassReport)
            ):
                kind = type(result).__name__
                yield f"{place}: returned {kind}, not (Algorithm, PassReport)"
            elif not isinstance(result[0], Algorithm) or not verify(result[0]).ok:
                yield f"{place}: the result is no correct algorithm"


def checks_answer(subject: Subject) -> Iterator[str | Skip]:
    """Checks return a report; a line that is not ok says what to do."""
    for check in subject.offers(Check):
        request = _check_request(check)
        if request is None:
            yield Skip(f"{title(check)} judges a {check.subject}")
            continue
        report = call(check, request)
        if not isinstance(report, CheckReport):
            yield f"{title(check)} returned {type(report).__name__}, expected CheckReport"
            continue
        curable = [line for line in report.lines if not line.is_ok and not line.cure]
        yield from (f"{title(check)}: {line.subject}: no cure" for line in curable)


def builders_build_their_example(subject: Subject) -> Iterator[str]:
    """Every topology builder builds its example, the same twice, under the example's name."""
    for builder in subject.offers(TopologyBuilder):
        one, other = (read_topology(builder.example, registry=subject.registry) for _ in range(2))
        if one.name != builder.example:
            yield f"{title(builder)}: the example {builder.example!r} is named {one.name!r}"
        if not _are_equal(one, other):
            yield f"{title(builder)}: {builder.example} built twice differs"


def commands_are_click_commands(subject: Subject) -> Iterator[str]:
    """Every command is a click command that describes itself and whose help can be shown."""
    for command in subject.offers(Command):
        found = resolve(command.function)
        if not isinstance(found, click.Command):
            kind = type(found).__name__
            yield f"{title(command)}: {command.function} is {kind}, no click command"
        elif not (found.help or "").strip():
            yield f"{title(command)} has no help"
        else:
            found.get_help(click.Context(found, info_name=command.name))


def work_is_silent(subject: Subject) -> Iterator[str]:
    """Nothing is printed."""
    works: list[tuple[Offer, Callable[[], object]]] = []
    works += [(offer, partial(_results, offer, _simulate)) for offer in subject.offers(Simulator)]
    works += [(offer, partial(_results, offer, _execute)) for offer in subject.offers(Executor)]
    works += [(offer, partial(_results, offer, call)) for offer in subject.offers(AlgorithmPass)]
    for check in subject.offers(Check):
        request = _check_request(check)
        if request is not None:
            works.append((check, partial(call, check, request)))
    for offer, work in works:
        printed = output_of(work).strip()
        if printed:
            yield f"{title(offer)} prints {printed!r:.60}"


def _check_request(check: Check) -> CheckRequest | None:
    """A subject for a check, None where the kit has none: certificates, and files for runtimes."""
    if check.subject is Judged.ALGORITHM:
        return CheckRequest("sample", algorithm=next(iter(all_samples(_RANKS).values())))
    if check.subject is Judged.TOPOLOGY:
        return CheckRequest(_TOPOLOGY, topology=parse_topology(_TOPOLOGY))
    if check.subject is Judged.INSTALLATION:
        return CheckRequest("installation", environment=dict(os.environ))
    return None


def _are_equal(one: Topology, other: Topology) -> bool:
    columns = ("source", "destination", "bandwidth_bytes_per_s", "latency_s", "plane")
    same = (np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)
    return one.num_npus == other.num_npus and one.num_nodes == other.num_nodes and all(same)


def _results(
    offer: Sampled, run: Callable[[Sampled, Algorithm], R]
) -> tuple[dict[str, tuple[Algorithm, R]], Sequence[str | Skip]]:
    """What the work makes of the samples that it takes, and what is wrong where it takes none."""
    found: dict[str, tuple[Algorithm, R]] = {}
    refusals: list[HubError] = []
    for sample, algorithm in all_samples(_RANKS).items():
        before = copy.deepcopy(algorithm)
        try:
            found[sample] = algorithm, run(offer, algorithm)
        except HubError as error:
            refusals.append(error)
        changed = before.differences(algorithm)
        assert not changed, (
            f"{title(offer)}, sample {sample}: the algorithm was changed: {', '.join(changed)}"
        )
    if found:
        return found, ()
    # A program or a device that is not there is no defect of the plugin.
    if all(isinstance(error, PluginError) for error in refusals):
        return found, [Skip(str(refusals[0]))]
    return found, [f"{title(offer)} refuses every sample: {refusals[0]}"]


def _simulate(simulator: Sampled, algorithm: Algorithm) -> SimulationResult:
    request = SimulationRequest(algorithm, parse_topology(_TOPOLOGY), _COLLECTIVE_BYTES)
    result = call(simulator, request)
    assert isinstance(result, SimulationResult), (
        f"returned {type(result).__name__}, expected SimulationResult"
    )
    return result


def _simulation_problem(
    algorithm: Algorithm, result: SimulationResult, again: SimulationResult
) -> str | None:
    if len(result.rank_finish_ns) != algorithm.num_ranks:
        return f"{len(result.rank_finish_ns)} finish times for {algorithm.num_ranks} ranks"
    if any(
        time is not None and (type(time) is not int or time < 0) for time in result.rank_finish_ns
    ):
        return f"finish times {result.rank_finish_ns!r:.80} are not whole numbers of at least 0"
    if result.rank_finish_ns != again.rank_finish_ns or result.link_loads != again.link_loads:
        return "two runs differ"
    starts, ends = result.step_start_ns, result.step_end_ns
    for times in (starts, ends):
        if times is not None and len(times) != len(algorithm.steps):
            return f"{len(times)} step times for {len(algorithm.steps)} steps"
    if starts is not None and ends is not None and bool(np.any((ends >= 0) & (ends < starts))):
        return "a step ends before it starts"
    return None


def _execute(executor: Sampled, algorithm: Algorithm) -> ExecutionResult:
    in_place = not algorithm.collective.out_of_place
    request = ExecutionRequest(algorithm, _inputs(algorithm), in_place, ReduceOp.SUM)
    result = call(executor, request)
    assert isinstance(result, ExecutionResult), (
        f"returned {type(result).__name__}, expected ExecutionResult"
    )
    return result


def _inputs(algorithm: Algorithm) -> tuple[npt.NDArray[np.generic], ...]:
    """Small whole numbers, which every floating-point type adds exactly."""
    generator = np.random.default_rng(_SEED)
    sizes = (algorithm.collective.input_units() * _ELEMENTS_PER_UNIT).tolist()
    inputs = tuple(generator.integers(0, 100, size).astype(np.float32) for size in sizes)
    for array in inputs:
        array.flags.writeable = False
    return inputs


def _execution_problem(algorithm: Algorithm, result: ExecutionResult) -> str | None:
    if len(result.outputs) != algorithm.num_ranks:
        return f"{len(result.outputs)} outputs for {algorithm.num_ranks} ranks"
    inputs = _inputs(algorithm)
    expected: dict[tuple[int, int], npt.NDArray[np.generic]] = {}
    contract = algorithm.collective.postcondition()
    if contract is None:
        return None
    columns = (contract.rank, contract.offset, contract.source_rank, contract.source_unit)
    for rank, offset, source_rank, unit in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        for source in range(algorithm.num_ranks) if source_rank < 0 else (source_rank,):
            share = inputs[source][_elements(unit)]
            expected[rank, offset] = expected.get((rank, offset), np.zeros_like(share)) + share  # type: ignore[operator]
    for (rank, offset), values in expected.items():
        if not np.array_equal(result.outputs[rank].ravel()[_elements(offset)], values):
            return f"rank {rank}, unit {offset} of the output is wrong"
    return None


def _elements(unit: int) -> slice:
    return slice(unit * _ELEMENTS_PER_UNIT, (unit + 1) * _ELEMENTS_PER_UNIT)
