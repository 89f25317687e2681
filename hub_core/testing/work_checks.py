"""Rules for simulators, executors, passes, checks, builders and commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial

import click
import numpy as np
import numpy.typing as npt

from hub_core.columns import Int64Array
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Contributions
from hub_core.model.diagnostics import HubError
from hub_core.network.links import Occupancy
from hub_core.network.topology import Topology
from hub_core.pipeline.topology_input import parse_topology, read_topology
from hub_core.plugin_api.algorithm_pass import AlgorithmPass, PassReport
from hub_core.plugin_api.artifacts import WriteResult
from hub_core.plugin_api.check import Check, CheckReport, CheckRequest, Subject
from hub_core.plugin_api.command import Command
from hub_core.plugin_api.engine import Engine, EngineRequest
from hub_core.plugin_api.executor import ExecutionResult, Executor
from hub_core.plugin_api.lower_bound import BoundRequest, BoundResult, LowerBound
from hub_core.plugin_api.offers import Offer
from hub_core.plugin_api.references import resolve
from hub_core.plugin_api.simulator import SimulationResult, Simulator
from hub_core.plugin_api.sources import Source
from hub_core.plugin_api.topology_builder import TopologyBuilder
from hub_core.plugin_api.topology_reader import TopologyReader
from hub_core.plugin_api.topology_writer import TopologyWriter
from hub_core.testing.checked_plugin import CheckedPlugin, Rendering, Skip, call, title
from hub_core.testing.declared import loss_problem
from hub_core.testing.isolation import output_of
from hub_core.testing.message_times import time_of_messages
from hub_core.testing.sampled_work import (
    ELEMENTS_PER_UNIT,
    RANKS,
    TOPOLOGY,
    executed,
    inputs_of,
    results_on_samples,
    simulated,
)
from hub_core.testing.samples import all_samples
from hub_core.verification import verify

_NETWORKS = ("ring:4", "switch:4", "ring:2*switch:2", "mesh:2x3?bandwidth=1GB/s&latency=3us")

_OCCUPANCY = Occupancy.SERIALIZATION
_BOUND_SIZES = (1 << 10, 1 << 20, 1 << 26)
_Place = tuple[int, int]
"""(rank, unit of its output)."""
_Data = npt.NDArray[np.generic]


def simulators_simulate(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Finish times are not negative, one a rank, the same in every run.

    The algorithm stays as it is.
    """
    for simulator in subject.offers(Simulator):
        results, refusals = results_on_samples(simulator, simulated)
        yield from refusals
        for sample, (algorithm, result) in results.items():
            again = simulated(simulator, algorithm)
            problem = _simulation_problem(algorithm, result, again)
            if problem:
                yield f"{title(simulator)}, sample {sample}: {problem}"


def executors_compute(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Outputs hold what the collective promises, for random whole numbers.

    Inputs stay as they are.
    """
    for executor in subject.offers(Executor):
        results, refusals = results_on_samples(executor, executed)
        yield from refusals
        for sample, (algorithm, result) in results.items():
            problem = _execution_problem(algorithm, result)
            if problem:
                yield f"{title(executor)}, sample {sample}: {problem}"


def passes_keep_the_promise(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """What a pass makes of a correct algorithm is correct, and it leaves its input as it is."""
    for algorithm_pass in _algorithm_passes(subject):
        results, refusals = results_on_samples(algorithm_pass, call)
        # A pass may refuse what it is not for.
        yield from refusals
        for sample, (_, result) in results.items():
            problem = _pass_problem(result)
            if problem:
                yield f"{title(algorithm_pass)}, sample {sample}: {problem}"


def _algorithm_passes(subject: CheckedPlugin) -> list[AlgorithmPass]:
    """Its passes over algorithms; those over workloads have a rule of their own."""
    passes = subject.offers(AlgorithmPass)
    return [found for found in passes if found.subject is Subject.ALGORITHM]


def checks_answer(subject: CheckedPlugin) -> Iterator[str | Skip]:
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
        for line in report.lines:
            if not line.is_ok and not line.cure:
                yield f"{title(check)}: {line.subject}: no cure"


def builders_build_their_example(subject: CheckedPlugin) -> Iterator[str]:
    """Every topology builder builds its example, the same twice, under the example's name."""
    for builder in subject.offers(TopologyBuilder):
        one = read_topology(builder.example, registry=subject.registry)
        other = read_topology(builder.example, registry=subject.registry)
        if one.name != builder.example:
            yield f"{title(builder)}: the example {builder.example!r} is named {one.name!r}"
        if one.differences(other):
            yield f"{title(builder)}: {builder.example} built twice differs"


def topologies_come_back(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """What a topology writer writes has the same nodes and links when it is read back.

    Losses may say otherwise.
    """
    for writer in subject.offers(TopologyWriter):
        written = 0
        for text in _NETWORKS:
            topology = parse_topology(text)
            try:
                result = call(writer, topology)
            except HubError:
                # A format need not hold every network.
                continue
            written += 1
            problem = _topology_problem(subject, writer, topology, result)
            if problem:
                yield f"{title(writer)}, {text}: {problem}"
        if not written:
            yield Skip(f"{title(writer)} refuses every network of the kit")


def _topology_problem(
    subject: CheckedPlugin, writer: TopologyWriter, topology: Topology, result: object
) -> str | None:
    """What is wrong with the file of a network, or None."""
    if not isinstance(result, WriteResult):
        return f"returned {type(result).__name__}, expected WriteResult"
    artifacts = list(result.artifacts)
    if [artifact.name for artifact in artifacts] != [""]:
        return "one artifact without a name was expected"
    readers = [found.offer for found in subject.registry.all(TopologyReader)]
    reader = next((offer for offer in readers if offer.name == writer.name), None)
    if reader is None:
        return None
    suffix = writer.format.suffixes[0] if writer.format.suffixes else ""
    back = call(reader, Source.of_bytes(f"sample{suffix}", artifacts[0].content()))
    written = Rendering({}, tuple(result.losses), tuple(result.restated))
    return loss_problem(topology, back, written)


def commands_are_click_commands(subject: CheckedPlugin) -> Iterator[str]:
    """Every command is a click command that describes itself and whose help can be shown."""
    for command in subject.offers(Command):
        found = resolve(command.function)
        if not isinstance(found, click.Command):
            kind = type(found).__name__
            yield f"{title(command)}: {command.function} is {kind}, no click command"
        elif not (found.help or "").strip():
            yield f"{title(command)} has no help"
        else:
            # What showing it raises is a problem of the rule.
            found.get_help(click.Context(found, info_name=command.name))


def work_is_silent(subject: CheckedPlugin) -> Iterator[str]:
    """Nothing is printed."""
    for offer, work in _works(subject):
        # Standard output belongs to the data of the commands that call it.
        printed = output_of(work).strip()
        if printed:
            yield f"{title(offer)} prints {printed!r:.60}"


def _works(subject: CheckedPlugin) -> Iterator[tuple[Offer, Callable[[], object]]]:
    """Everything that a plugin's workers can be asked for."""
    for simulator in subject.offers(Simulator):
        yield simulator, partial(results_on_samples, simulator, simulated)
    for executor in subject.offers(Executor):
        yield executor, partial(results_on_samples, executor, executed)
    for algorithm_pass in _algorithm_passes(subject):
        yield algorithm_pass, partial(results_on_samples, algorithm_pass, call)
    for check in subject.offers(Check):
        request = _check_request(check)
        if request is not None:
            yield check, partial(call, check, request)


# --- simulations ---


def _simulation_problem(
    algorithm: Algorithm,
    result: SimulationResult,
    again: SimulationResult,
) -> str | None:
    """What is wrong with the results of two equal simulations."""
    finish_ns = result.rank_finish_ns
    if len(finish_ns) != algorithm.num_ranks:
        return f"{len(finish_ns)} finish times for {algorithm.num_ranks} ranks"
    if not all(_is_time(time) for time in finish_ns):
        return f"finish times {finish_ns!r:.80} are not whole numbers of at least 0"
    if finish_ns != again.rank_finish_ns or result.link_loads != again.link_loads:
        return "two runs differ"
    return _step_time_problem(result.step_start_ns, result.step_end_ns, len(algorithm.steps))


def _is_time(time: object) -> bool:
    """Whether this is a time of a rank, None for one that never finishes."""
    # Not an instance check: True is an int, and numpy's integers do not print as JSON.
    return time is None or (type(time) is int and time >= 0)


def _step_time_problem(
    starts: Int64Array | None,
    ends: Int64Array | None,
    num_steps: int,
) -> str | None:
    """What is wrong with the times of the steps, where they are told."""
    for times in (starts, ends):
        if times is not None and len(times) != num_steps:
            return f"{len(times)} step times for {num_steps} steps"
    if starts is None or ends is None:
        return None
    # -1 stands for steps that never ended.
    is_backwards = (ends >= 0) & (ends < starts)
    return "a step ends before it starts" if np.any(is_backwards) else None


# --- executions ---


def _execution_problem(algorithm: Algorithm, result: ExecutionResult) -> str | None:
    """The first unit of the outputs that is wrong."""
    if len(result.outputs) != algorithm.num_ranks:
        return f"{len(result.outputs)} outputs for {algorithm.num_ranks} ranks"
    contract = algorithm.collective.postcondition()
    # A custom collective may leave open what it promises.
    if contract is None:
        return None
    for (rank, unit), values in _expected(algorithm, contract).items():
        output = result.outputs[rank].ravel()
        if not np.array_equal(output[_elements(unit)], values):
            return f"rank {rank}, unit {unit} of the output is wrong"
    return None


def _expected(algorithm: Algorithm, contract: Contributions) -> dict[_Place, _Data]:
    """What every unit of the outputs must hold: the sum of its contributions."""
    inputs = inputs_of(algorithm)
    expected: dict[_Place, _Data] = {}
    places = zip(contract.rank.tolist(), contract.offset.tolist(), strict=True)
    shares = zip(contract.source_rank.tolist(), contract.source_unit.tolist(), strict=True)
    for place, (source_rank, unit) in zip(places, shares, strict=True):
        # A negative rank stands for all ranks.
        sources = range(algorithm.num_ranks) if source_rank < 0 else (source_rank,)
        for source in sources:
            share = inputs[source][_elements(unit)]
            so_far = expected.get(place, np.zeros_like(share))
            expected[place] = np.add(so_far, share)
    return expected


def _elements(unit: int) -> slice:
    """The elements of a unit in a buffer."""
    first = unit * ELEMENTS_PER_UNIT
    return slice(first, first + ELEMENTS_PER_UNIT)


# --- passes, checks and topologies ---


def _pass_problem(result: object) -> str | None:
    """What is wrong with what a pass returns."""
    pair = result if isinstance(result, tuple) else ()
    if len(pair) != 2 or not isinstance(pair[1], PassReport):
        return f"returned {type(result).__name__}, not (Algorithm, PassReport)"
    if not isinstance(pair[0], Algorithm) or not verify(pair[0]).ok:
        return "the result is no correct algorithm"
    return None


def _check_request(check: Check) -> CheckRequest | None:
    """A subject for a check, None where the kit has none: certificates, and files for runtimes."""
    # Any sample will do: a check answers, right or wrong.
    if check.subject is Subject.ALGORITHM:
        algorithm = next(iter(all_samples(RANKS).values()))
        return CheckRequest("sample", algorithm=algorithm)
    if check.subject is Subject.TOPOLOGY:
        return CheckRequest(TOPOLOGY, topology=parse_topology(TOPOLOGY))
    if check.subject is Subject.INSTALLATION:
        return CheckRequest("installation", environment=dict(os.environ))
    return None


def engines_run_tasks(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Every engine runs tasks, and its futures have what they return or raise."""
    for engine in subject.offers(Engine):
        try:
            executor = call(engine, EngineRequest(2))
        except HubError as error:
            yield Skip(f"{title(engine)} does not start here: {error}")
            continue
        if not isinstance(executor, futures.Executor):
            yield f"{title(engine)} returned {type(executor).__name__}, expected Executor"
            continue
        with executor:
            powers = [executor.submit(pow, 2, number) for number in range(8)]
            wrong = executor.submit(divmod, 1, 0)
            if [task.result() for task in powers] != [2**number for number in range(8)]:
                yield f"{title(engine)}: results of tasks are not theirs"
            if not isinstance(wrong.exception(), ZeroDivisionError):
                yield f"{title(engine)}: what a task raises is lost"


def bounds_hold(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """No lower bound is above the time of a correct algorithm; a larger size has no lower one.

    Every size of the request has a time, or none has one.
    """
    for offer in subject.offers(LowerBound):
        for sample, algorithm in all_samples(RANKS).items():
            collective = algorithm.collective
            for text in _NETWORKS:
                topology = parse_topology(text)
                if collective.kind not in offer.kinds or topology.num_npus != RANKS:
                    continue
                place = f"{title(offer)}, {sample} on {text}"
                result = call(offer, BoundRequest(collective, topology, _BOUND_SIZES))
                if not isinstance(result, BoundResult):
                    yield f"{place}: returned {type(result).__name__}, expected BoundResult"
                    continue
                if len(result.times_ps) not in (0, len(_BOUND_SIZES)):
                    yield f"{place}: {len(result.times_ps)} times for {len(_BOUND_SIZES)} sizes"
                if list(result.times_ps) != sorted(result.times_ps):
                    yield f"{place}: a larger size has a lower bound"
                for size, bound_ps in zip(_BOUND_SIZES, result.times_ps, strict=False):
                    time_ps = 1000 * (time_of_messages(algorithm, topology, size, _OCCUPANCY) or 0)
                    if bound_ps > time_ps + 1:
                        yield f"{place}: {bound_ps} ps at {size} bytes, an algorithm {time_ps} ps"
