"""Checks on synthesizers.

Results keep the request's promise, state honest times, and come in parts that fit together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import HubError
from hub_core.model.kinds import ROOTED, CollectiveKind
from hub_core.model.rank_lists import format_ranks
from hub_core.model.steps import COLUMN_DTYPES, StepTable
from hub_core.network.links import Occupancy
from hub_core.pipeline.topology_input import parse_topology
from hub_core.plugin_api.synthesizer import SynthesisRequest, SynthesisResult, Synthesizer
from hub_core.testing.subject import Subject, call, title
from hub_core.transfers import collective_among
from hub_core.verification import verify

_RANKS = 4
_COLLECTIVE_BYTES = 1 << 20
_TOPOLOGIES = ("fully-connected:4", "ring:4", "switch:4", "mesh:2x2")
_TOPOLOGY_OF_PARTS = "ring:4"


def synthesizers_synthesize(subject: Subject) -> Iterator[str]:
    """At least one collective on one small topology works.

    Results are correct, above their bounds, the same in every run.
    """
    for synthesizer in subject.offers(Synthesizer):
        made = 0
        for request in _requests():
            try:
                result = call(synthesizer, request)
            except HubError:
                continue
            made += 1
            again = call(synthesizer, request)
            if problem := _synthesis_problem(request, result, again) or _parts_problem(
                synthesizer, request
            ):
                npus = f"NPUs {format_ranks(request.npus)} of {request.topology.name}"
                what = f"{request.collective.kind} among {npus}"
                yield f"{title(synthesizer)}, {what}: {problem}"
        if not made:
            yield f"{title(synthesizer)} refuses every collective on {', '.join(_TOPOLOGIES)}"


def _requests() -> Iterator[SynthesisRequest]:
    """Every collective on every topology, and one between two NPUs that need others as relays."""
    for kind in CollectiveKind:
        if kind is not CollectiveKind.CUSTOM:
            for topology in _TOPOLOGIES:
                yield _request(kind, topology, range(_RANKS))
    yield _request(CollectiveKind.ALL_GATHER, "ring:4", (0, 2))


def _request(kind: CollectiveKind, topology: str, npus: Sequence[int]) -> SynthesisRequest:
    collective = Collective(
        kind, len(npus), len(npus), root=0 if kind in ROOTED else None, in_place=True
    )
    return SynthesisRequest(
        collective,
        parse_topology(topology),
        _COLLECTIVE_BYTES,
        tuple(npus),
        Occupancy.SERIALIZATION,
    )


def _synthesis_problem(request: SynthesisRequest, result: object, again: object) -> str | None:
    if not isinstance(result, SynthesisResult) or not isinstance(again, SynthesisResult):
        return f"returned {type(result).__name__}, expected SynthesisResult"
    if problem := _promise_problem(request, result.algorithm):
        return problem
    if differences := result.algorithm.differences(again.algorithm):
        return f"two runs differ in {', '.join(differences)}"
    if type(result.time_ns) is not int or result.time_ns < 1:
        return f"the time {result.time_ns!r} is no positive whole number of nanoseconds"
    if early := [
        name for name, bound in sorted(result.bounds_ns.items()) if bound > result.time_ns
    ]:
        bound = f"the lower bound {early[0]!r}, {result.bounds_ns[early[0]]} ns"
        return f"the time {result.time_ns} ns is below {bound}"
    if result.is_partial:
        return "the result is partial, though all ranks are wanted"
    report = verify(result.algorithm)
    return None if report.ok else f"verification fails: {report.diagnostics[0]}"


def _promise_problem(request: SynthesisRequest, algorithm: Algorithm) -> str | None:
    wanted = collective_among(request.collective, request.npus, request.topology.num_npus)
    made = algorithm.collective
    if (made.kind, made.root, made.num_ranks) != (wanted.kind, wanted.root, wanted.num_ranks):
        return f"made {made.kind} of {made.num_ranks} ranks, root {made.root}"
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
        if not part.is_partial:
            return None
        if np.any(part.algorithm.steps.rank != npu):
            return f"a partial result for rank {npu} holds steps of other ranks"
        parts.append(part.algorithm)
    report = verify(_joined(parts))
    return (
        None
        if report.ok
        else f"the steps made for each rank alone do not fit together: {report.diagnostics[0]}"
    )


def _joined(parts: Sequence[Algorithm]) -> Algorithm:
    """One algorithm of partial ones, where part r holds the steps of rank r."""
    tables = [part.steps for part in parts]
    first = np.cumsum([0, *map(len, tables)])
    columns = {
        name: np.concatenate([getattr(table, name) for table in tables]) for name in COLUMN_DTYPES
    }
    edges = [table.edges() for table in tables]
    parents, children = (
        np.concatenate([pair[end] + row for pair, row in zip(edges, first, strict=False)])
        for end in (0, 1)
    )
    scratch = np.asarray(
        [int(part.scratch_units[rank]) for rank, part in enumerate(parts)], np.int64
    )
    steps = StepTable.from_columns(len(parts), columns, (parents, children))
    return replace(parts[0], steps=steps, scratch_units=scratch)
