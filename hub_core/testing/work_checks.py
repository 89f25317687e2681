"""Conformance rules for simulators, executors, passes, checks, bounds, engines and commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial

import click
import numpy as np
import numpy.typing as npt

from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import HubError
from hub_core.network.links import Occupancy
from hub_core.network.topology import Topology
from hub_core.pipeline.inputs import parse_topology, read_topology
from hub_core.plugin_api.formats import Source, TopologyBuilder, TopologyReader, TopologyWriter
from hub_core.plugin_api.offers import Command, Offer
from hub_core.plugin_api.options import resolve
from hub_core.plugin_api.outputs import WriteResult
from hub_core.plugin_api.runs import ExecutionResult, Executor, SimulationResult, Simulator
from hub_core.plugin_api.subjects import (
    AlgorithmPass,
    Check,
    CheckReport,
    CheckRequest,
    PassReport,
    Subject,
)
from hub_core.plugin_api.synthesis import (
    BoundRequest,
    BoundResult,
    Engine,
    EngineRequest,
    LowerBound,
)
from hub_core.testing.checked_plugin import (
    CheckedPlugin,
    Rendering,
    Skip,
    call,
    find_loss_problem,
    title,
)
from hub_core.testing.isolation import capture_output
from hub_core.testing.reference_results import simulate_time_ns
from hub_core.testing.sampled_work import (
    ELEMENTS_PER_UNIT,
    RANKS,
    TOPOLOGY,
    build_inputs,
    execute_sample,
    run_on_samples,
    simulate_sample,
)
from hub_core.testing.samples import all_samples
from hub_core.verification import verify

_TOPOLOGY_TEXTS = ("ring:4", "switch:4", "ring:2*switch:2", "mesh:2x3?bandwidth=1GB/s&latency=3us")

_OCCUPANCY = Occupancy.SERIALIZATION
_BOUND_SIZES = (1 << 10, 1 << 20, 1 << 26)
_OutputUnit = tuple[int, int]
"""(rank, unit of its output)."""
_Values = npt.NDArray[np.generic]


def simulators_simulate(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Finish times are not negative, one per rank, and equal in every run.

    The algorithm is not changed.
    """
    for simulator in subject.offers(Simulator):
        results, refusals = run_on_samples(simulator, simulate_sample)
        yield from refusals
        for sample, (algorithm, result) in results.items():
            repetition = simulate_sample(simulator, algorithm)
            problem = _find_simulation_problem(algorithm, result, repetition)
            if problem:
                yield f"{title(simulator)}, sample {sample}: {problem}"


def executors_compute(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Outputs contain the result of the collective for random integers.

    The algorithm is not changed.
    """
    for executor in subject.offers(Executor):
        results, refusals = run_on_samples(executor, execute_sample)
        yield from refusals
        for sample, (algorithm, result) in results.items():
            problem = _find_execution_problem(algorithm, result)
            if problem:
                yield f"{title(executor)}, sample {sample}: {problem}"


def passes_keep_the_promise(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """A pass turns a correct algorithm into a correct one and does not change its input."""
    for algorithm_pass in _find_algorithm_passes(subject):
        results, refusals = run_on_samples(algorithm_pass, call)
        yield from refusals
        for sample, (_, result) in results.items():
            problem = _find_pass_problem(result)
            if problem:
                yield f"{title(algorithm_pass)}, sample {sample}: {problem}"


def _find_algorithm_passes(subject: CheckedPlugin) -> list[AlgorithmPass]:
    """Return the passes of the plugin whose subject is an algorithm, in the plugin's order.

    Passes over workloads are omitted. The list is empty if no pass remains.
    """
    passes = subject.offers(AlgorithmPass)
    return [offer for offer in passes if offer.subject is Subject.ALGORITHM]


def checks_answer(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Checks return a report; every line that is not ok has a cure."""
    for check in subject.offers(Check):
        request = _build_check_request(check)
        if request is None:
            yield Skip(f"{title(check)} checks a {check.subject}, of which the kit has no sample")
            continue
        report = call(check, request)
        if not isinstance(report, CheckReport):
            yield f"{title(check)} returned {type(report).__name__}, expected CheckReport"
            continue
        for line in report.lines:
            if not line.is_ok and not line.cure:
                yield f"{title(check)}: {line.subject}: no cure"


def builders_build_their_example(subject: CheckedPlugin) -> Iterator[str]:
    """Every topology builder builds its example, named as the example, and equal when repeated."""
    for builder in subject.offers(TopologyBuilder):
        topology = read_topology(builder.example, registry=subject.registry)
        repetition = read_topology(builder.example, registry=subject.registry)
        if topology.name != builder.example:
            yield f"{title(builder)}: the example {builder.example!r} is named {topology.name!r}"
        if topology.differences(repetition):
            yield f"{title(builder)}: {builder.example} built twice differs"


def topologies_come_back(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """A topology that is written and read back is unchanged, except for declared losses."""
    for writer in subject.offers(TopologyWriter):
        num_written = 0
        for text in _TOPOLOGY_TEXTS:
            topology = parse_topology(text)
            try:
                result = call(writer, topology)
            except HubError:
                # A format need not be able to express every topology.
                continue
            num_written += 1
            problem = _find_topology_problem(subject, writer, topology, result)
            if problem:
                yield f"{title(writer)}, {text}: {problem}"
        if not num_written:
            yield Skip(f"{title(writer)} refuses every topology of the kit")


def _find_topology_problem(
    subject: CheckedPlugin, writer: TopologyWriter, topology: Topology, result: object
) -> str | None:
    """Read a written topology back; describe the first problem, or return None.

    The result must be a `WriteResult` with exactly one artifact, whose name is empty. Then, with a
    reader of the writer's name, each part that differs after reading must be named by a loss or an
    entry of `result.restated`, and each loss that names parts must name one that differs. Errors of
    the reader are raised, and `AssertionError` if it returns no topology.
    """
    if not isinstance(result, WriteResult):
        return f"returned {type(result).__name__}, expected WriteResult"
    artifacts = list(result.artifacts)
    if [artifact.name for artifact in artifacts] != [""]:
        return "one artifact without a name was expected"
    readers = [entry.offer for entry in subject.registry.all(TopologyReader)]
    reader = next((offer for offer in readers if offer.name == writer.name), None)
    if reader is None:
        return None
    suffix = writer.format.suffixes[0] if writer.format.suffixes else ""
    read_back = call(reader, Source.of_bytes(f"sample{suffix}", artifacts[0].content()))
    written = Rendering({}, tuple(result.losses), tuple(result.restated))
    return find_loss_problem(topology, read_back, written)


def commands_are_click_commands(subject: CheckedPlugin) -> Iterator[str]:
    """Every command is a click command with a help text that can be shown."""
    for command in subject.offers(Command):
        function = resolve(command.function)
        if not isinstance(function, click.Command):
            kind = type(function).__name__
            yield f"{title(command)}: {command.function} is {kind}, no click command"
        elif not (function.help or "").strip():
            yield f"{title(command)} has no help"
        else:
            # An exception here is reported as a problem.
            function.get_help(click.Context(function, info_name=command.name))


def work_is_silent(subject: CheckedPlugin) -> Iterator[str]:
    """Simulators, executors, passes and checks print no output."""
    for offer, work in _iterate_calls(subject):
        # Commands use standard output for their data.
        printed = capture_output(work).strip()
        if printed:
            yield f"{title(offer)} prints {printed!r:.60}"


def _iterate_calls(subject: CheckedPlugin) -> Iterator[tuple[Offer, Callable[[], object]]]:
    """Yield (offer, function without arguments) for each offer of the plugin that does work.

    The order is simulators, executors, passes over algorithms, checks. The function of a
    check calls it with its sample (`_build_check_request`); checks without a sample are
    omitted. Any other function calls its offer with every sample algorithm
    (`run_on_samples`). The functions are not called here.
    """
    for simulator in subject.offers(Simulator):
        yield simulator, partial(run_on_samples, simulator, simulate_sample)
    for executor in subject.offers(Executor):
        yield executor, partial(run_on_samples, executor, execute_sample)
    for algorithm_pass in _find_algorithm_passes(subject):
        yield algorithm_pass, partial(run_on_samples, algorithm_pass, call)
    for check in subject.offers(Check):
        request = _build_check_request(check)
        if request is not None:
            yield check, partial(call, check, request)


# --- simulations ---


def _find_simulation_problem(
    algorithm: Algorithm, result: SimulationResult, repetition: SimulationResult
) -> str | None:
    """Return the first problem of a simulation in the order of this list, or None.

    1. `rank_finish_ns` has one entry per rank: an `int` (no bool, no numpy integer) of at least 0
       in ns, or None.
    2. Finish times and link loads are equal in `repetition`, the result of a second run.
    3. Starts of steps, then ends of steps, have one entry per step if they are not None.
    4. If both are given, no step ends before it starts. Steps with a negative end, such as -1
       (not finished), are not compared.
    """
    finish_ns = result.rank_finish_ns
    if len(finish_ns) != algorithm.num_ranks:
        return f"{len(finish_ns)} finish times for {algorithm.num_ranks} ranks"
    # `type(...)`, because bool is a subclass of int, and numpy integers cannot be written as JSON.
    if not all(time is None or (type(time) is int and time >= 0) for time in finish_ns):
        return f"finish times {finish_ns!r:.80} are not whole numbers of at least 0"
    if finish_ns != repetition.rank_finish_ns or result.link_loads != repetition.link_loads:
        return "two runs differ"
    num_steps = len(algorithm.steps)
    for times in (result.step_start_ns, result.step_end_ns):
        if times is not None and len(times) != num_steps:
            return f"{len(times)} step times for {num_steps} steps"
    if result.step_start_ns is None or result.step_end_ns is None:
        return None
    # -1: the step never finished.
    is_backwards = (result.step_end_ns >= 0) & (result.step_end_ns < result.step_start_ns)
    return "a step ends before it starts" if np.any(is_backwards) else None


# --- executions ---


def _find_execution_problem(algorithm: Algorithm, result: ExecutionResult) -> str | None:
    """Return the first problem of the outputs of an execution as text; None if there is none.

    There must be one output per rank. Each output unit to which input units contribute must
    equal their sum, with repetitions, as `build_inputs` defines the inputs; a source of all ranks
    counts once per rank. A unit has `ELEMENTS_PER_UNIT` float32 values; units are compared in the
    order of the postcondition. Other units, further elements and the data type are not checked.
    Without a postcondition (custom collectives), only the number of outputs is checked.
    """
    if len(result.outputs) != algorithm.num_ranks:
        return f"{len(result.outputs)} outputs for {algorithm.num_ranks} ranks"
    contract = algorithm.collective.postcondition()
    # A custom collective need not have a postcondition.
    if contract is None:
        return None
    inputs = build_inputs(algorithm)
    expected: dict[_OutputUnit, _Values] = {}
    units = zip(contract.rank.tolist(), contract.offset.tolist(), strict=True)
    sources = zip(contract.source_rank.tolist(), contract.source_unit.tolist(), strict=True)
    for output_unit, (source_rank, source_unit) in zip(units, sources, strict=True):
        # A negative rank means all ranks.
        for rank in range(algorithm.num_ranks) if source_rank < 0 else (source_rank,):
            contribution = inputs[rank][_slice_of_unit(source_unit)]
            partial_sum = expected.get(output_unit, np.zeros_like(contribution))
            expected[output_unit] = np.add(partial_sum, contribution)
    for (rank, unit), values in expected.items():
        output = result.outputs[rank].ravel()
        if not np.array_equal(output[_slice_of_unit(unit)], values):
            return f"rank {rank}, unit {unit} of the output is wrong"
    return None


def _slice_of_unit(unit: int) -> slice:
    """Return the slice of the elements of unit `unit` (0 or more) in the array of a buffer.

    Each unit has `ELEMENTS_PER_UNIT` elements, and unit 0 begins at element 0.
    """
    first = unit * ELEMENTS_PER_UNIT
    return slice(first, first + ELEMENTS_PER_UNIT)


# --- passes, checks and topologies ---


def _find_pass_problem(result: object) -> str | None:
    """Return the problem of the result of a pass over algorithms as text; None if it is valid.

    A valid result is a tuple of two: an `Algorithm` that passes verification, and a `PassReport`.
    """
    pair = result if isinstance(result, tuple) else ()
    if len(pair) != 2 or not isinstance(pair[1], PassReport):
        return f"returned {type(result).__name__}, not (Algorithm, PassReport)"
    if not isinstance(pair[0], Algorithm) or not verify(pair[0]).ok:
        return "the result is no correct algorithm"
    return None


def _build_check_request(check: Check) -> CheckRequest | None:
    """Build a request for a check with a sample of its subject; None without such a sample.

    An algorithm is the first one of `all_samples`. A topology is `TOPOLOGY`. An
    installation is a copy of this process's environment variables. The kit has no sample of
    other subjects (certificates, workloads, files for runtimes).
    """
    if check.subject is Subject.ALGORITHM:
        algorithm = next(iter(all_samples(RANKS).values()))
        return CheckRequest("sample", algorithm=algorithm)
    if check.subject is Subject.TOPOLOGY:
        return CheckRequest(TOPOLOGY, topology=parse_topology(TOPOLOGY))
    if check.subject is Subject.INSTALLATION:
        return CheckRequest("installation", environment=dict(os.environ))
    return None


def engines_run_tasks(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Every engine runs tasks; their futures give the results and the exceptions of the tasks."""
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
            failing = executor.submit(divmod, 1, 0)
            if [task.result() for task in powers] != [2**number for number in range(8)]:
                yield f"{title(engine)}: futures give wrong results"
            if not isinstance(failing.exception(), ZeroDivisionError):
                yield f"{title(engine)}: the exception of a task is lost"


def bounds_hold(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """No lower bound exceeds the simulated time of a correct algorithm.

    Bounds do not decrease with the size; there is one for every requested size, or none at all.
    """
    for offer in subject.offers(LowerBound):
        for sample, algorithm in all_samples(RANKS).items():
            collective = algorithm.collective
            for text in _TOPOLOGY_TEXTS:
                topology = parse_topology(text)
                if collective.kind not in offer.kinds or topology.num_npus != RANKS:
                    continue
                label = f"{title(offer)}, {sample} on {text}"
                result = call(offer, BoundRequest(collective, topology, _BOUND_SIZES))
                if not isinstance(result, BoundResult):
                    yield f"{label}: returned {type(result).__name__}, expected BoundResult"
                    continue
                if len(result.times_ps) not in (0, len(_BOUND_SIZES)):
                    yield f"{label}: {len(result.times_ps)} times for {len(_BOUND_SIZES)} sizes"
                if list(result.times_ps) != sorted(result.times_ps):
                    yield f"{label}: a larger size has a lower bound"
                for size, bound_ps in zip(_BOUND_SIZES, result.times_ps, strict=False):
                    time_ps = 1000 * (simulate_time_ns(algorithm, topology, size, _OCCUPANCY) or 0)
                    if bound_ps > time_ps + 1:
                        yield f"{label}: {bound_ps} ps at {size} bytes, an algorithm {time_ps} ps"
