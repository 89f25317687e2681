"""Checks on synthesizers.

Results keep the request's promise, state honest times, and come in parts that fit together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int64Array, first_positions
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import HubError
from hub_core.model.kinds import ROOTED, STANDARD_KINDS, CollectiveKind
from hub_core.model.rank_lists import format_ranks
from hub_core.model.steps import COLUMN_DTYPES, StepTable
from hub_core.network.links import Occupancy
from hub_core.pipeline.topology_input import parse_topology
from hub_core.plugin_api.synthesizer import SynthesisRequest, SynthesisResult, Synthesizer
from hub_core.testing.checked_plugin import CheckedPlugin, call, title
from hub_core.testing.message_times import time_of_messages
from hub_core.verification import verify

_RANKS = 4
_COLLECTIVE_BYTES = 1 << 20
_TOPOLOGIES = ("fully-connected:4", "ring:4", "switch:4", "mesh:2x2")
# Parts are asked for on one topology alone: each takes a synthesis per rank.
_TOPOLOGY_OF_PARTS = "ring:4"


def synthesizers_synthesize(subject: CheckedPlugin) -> Iterator[str]:
    """At least one collective on one small topology works.

    Results are correct, above their bounds, the same in every run.
    """
    for synthesizer in subject.offers(Synthesizer):
        made = 0
        for request in _requests():
            try:
                result = call(synthesizer, request)
            # A synthesizer need not know every collective.
            except HubError:
                continue
            made += 1
            problem = _problem(synthesizer, request, result)
            if problem:
                yield f"{title(synthesizer)}, {_named(request)}: {problem}"
        if not made:
            yield f"{title(synthesizer)} refuses every collective on {', '.join(_TOPOLOGIES)}"


def _named(request: SynthesisRequest) -> str:
    """The request as problems name it."""
    # Ranges instead of long lists.
    npus = format_ranks(request.npus)
    return f"{request.collective.kind} among NPUs {npus} of {request.topology.name}"


def _problem(synthesizer: Synthesizer, request: SynthesisRequest, result: object) -> str | None:
    """What is wrong with a result, or with the parts of another one."""
    again = call(synthesizer, request)
    problem = _synthesis_problem(request, result, again)
    # Of a result that is wrong as a whole, the parts tell nothing more.
    if problem:
        return problem
    return _parts_problem(synthesizer, request)


def _requests() -> Iterator[SynthesisRequest]:
    """Every collective on every topology, and one between two NPUs that need others as relays."""
    for kind in STANDARD_KINDS:
        for topology in _TOPOLOGIES:
            yield _request(kind, topology, range(_RANKS))
    yield _request(CollectiveKind.ALL_GATHER, "ring:4", (0, 2))


def _request(kind: CollectiveKind, topology: str, npus: Sequence[int]) -> SynthesisRequest:
    root = 0 if kind in ROOTED else None
    collective = Collective(kind, len(npus), len(npus), root=root, in_place=True)
    network, occupancy = parse_topology(topology), Occupancy.SERIALIZATION

    def simulate(algorithm: Algorithm) -> int | None:
        """The time in ns on the network of the request, None where some steps are never done."""
        return time_of_messages(algorithm, network, _COLLECTIVE_BYTES, occupancy)

    return SynthesisRequest(
        collective, network, _COLLECTIVE_BYTES, tuple(npus), occupancy, simulate=simulate
    )


def _synthesis_problem(request: SynthesisRequest, result: object, again: object) -> str | None:
    """What is wrong with the results of two equal requests."""
    if not isinstance(result, SynthesisResult) or not isinstance(again, SynthesisResult):
        return f"returned {type(result).__name__}, expected SynthesisResult"
    problem = _promise_problem(request, result.algorithm)
    if problem:
        return problem
    differences = result.algorithm.differences(again.algorithm)
    if differences:
        return f"two runs differ in {', '.join(differences)}"
    problem = _time_problem(result)
    if problem:
        return problem
    if result.is_partial:
        return "the result is partial, though all ranks are wanted"
    report = verify(result.algorithm)
    return None if report.ok else f"verification fails: {report.diagnostics[0]}"


def _promise_problem(request: SynthesisRequest, algorithm: Algorithm) -> str | None:
    """Another collective than was asked for."""
    wanted, num_npus = request.collective, request.topology.num_npus
    expected = wanted.kind, wanted.root, wanted.num_ranks
    # With NPUs that only relay, the algorithm has a rank per NPU, and its collective is custom.
    if request.npus != tuple(range(num_npus)):
        expected = CollectiveKind.CUSTOM, None, num_npus
    made = algorithm.collective
    if (made.kind, made.root, made.num_ranks) == expected:
        return None
    return f"made {made.kind} of {made.num_ranks} ranks, root {made.root}"


def _time_problem(result: SynthesisResult) -> str | None:
    """A time that is none, or that is below a bound."""
    time_ns = result.time_ns
    # Not an instance check: True is an int, and numpy's integers do not print as JSON.
    if type(time_ns) is not int or time_ns < 1:
        return f"the time {time_ns!r} is no positive whole number of nanoseconds"
    for name, bound_ns in sorted(result.bounds_ns.items()):
        if bound_ns > time_ns:
            bound = f"the lower bound {name!r}, {bound_ns} ns"
            return f"the time {time_ns} ns is below {bound}"
    return None


def _parts_problem(synthesizer: Synthesizer, request: SynthesisRequest) -> str | None:
    """What is wrong with the steps of every rank, made for it alone.

    A synthesizer may also return the whole.
    """
    if request.topology.name != _TOPOLOGY_OF_PARTS:
        return None
    parts: list[Algorithm] = []
    for npu in range(request.topology.num_npus):
        part = call(synthesizer, replace(request, wanted=(npu,)))
        if not isinstance(part, SynthesisResult):
            return f"for one wanted rank, returned {type(part).__name__}, expected SynthesisResult"
        # The whole has been checked already.
        if not part.is_partial:
            return None
        if np.any(part.algorithm.steps.rank != npu):
            return f"a partial result for rank {npu} holds steps of other ranks"
        parts.append(part.algorithm)
    report = verify(_joined(parts))
    if report.ok:
        return None
    return f"the steps made for each rank alone do not fit together: {report.diagnostics[0]}"


def _joined(parts: Sequence[Algorithm]) -> Algorithm:
    """One algorithm of partial ones, where part r holds the steps of rank r."""
    tables = [part.steps for part in parts]
    columns: dict[str, npt.NDArray[np.generic]] = {}
    for name in COLUMN_DTYPES:
        columns[name] = np.concatenate([getattr(table, name) for table in tables])
    steps = StepTable.from_columns(len(parts), columns, _joined_edges(tables))
    # A part states scratch for all ranks, but knows that of its own alone.
    scratch = [part.scratch_units[rank] for rank, part in enumerate(parts)]
    return replace(parts[0], steps=steps, scratch_units=np.asarray(scratch, np.int64))


def _joined_edges(tables: Sequence[StepTable]) -> tuple[Int64Array, Int64Array]:
    """Dependencies of all tables as (parent, child) in rows of the joined one."""
    parents, children = [], []
    rows = first_positions([len(table) for table in tables])
    for table, first_row in zip(tables, rows, strict=True):
        before, after = table.edges()
        parents.append(before + first_row)
        children.append(after + first_row)
    return np.concatenate(parents), np.concatenate(children)
