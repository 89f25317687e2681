"""Conformance rule for synthesizers: collective, times, bounds and partial results are correct."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hub_core.columns import first_positions
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import HubError
from hub_core.model.kinds import ROOTED, STANDARD_KINDS, CollectiveKind
from hub_core.model.quantities import format_ranks
from hub_core.model.steps import COLUMN_DTYPES, StepTable
from hub_core.network.links import Occupancy
from hub_core.pipeline.inputs import parse_topology
from hub_core.plugin_api.synthesis import SynthesisRequest, SynthesisResult, Synthesizer
from hub_core.testing.checked_plugin import CheckedPlugin, call, title
from hub_core.testing.reference_results import simulate_time_ns
from hub_core.verification import verify

_RANKS = 4
_COLLECTIVE_BYTES = 1 << 20
_TOPOLOGIES = ("fully-connected:4", "ring:4", "switch:4", "mesh:2x2")
# Partial results are requested on one topology only: each requires a synthesis per rank.
_TOPOLOGY_FOR_PARTS = "ring:4"


def synthesizers_synthesize(subject: CheckedPlugin) -> Iterator[str]:
    """Every synthesizer can synthesize at least one collective on one of four small topologies.

    Results are correct, not faster than their lower bounds, and the same in every run.
    """
    for synthesizer in subject.offers(Synthesizer):
        num_results = 0
        # New ones for every synthesizer, because the budget of a request records its searches.
        requests = [
            _build_request(kind, topology, range(_RANKS))
            for kind in STANDARD_KINDS
            for topology in _TOPOLOGIES
        ]
        # Data of these two NPUs must pass through other NPUs.
        requests.append(_build_request(CollectiveKind.ALL_GATHER, "ring:4", (0, 2)))
        for request in requests:
            # The hub calls a synthesizer for the kinds that it declares only.
            if not synthesizer.supports(request.collective.kind):
                continue
            try:
                result = call(synthesizer, request)
            # It need not support every topology, nor every kind if it declares none.
            except HubError:
                continue
            num_results += 1
            repetition = call(synthesizer, request)
            problem = _find_result_problem(request, result, repetition)
            # After a wrong result, partial results give no further information.
            problem = problem or _find_partial_problem(synthesizer, request)
            if problem:
                npus = format_ranks(request.npus)
                label = f"{request.collective.kind} among NPUs {npus} of {request.topology.name}"
                yield f"{title(synthesizer)}, {label}: {problem}"
        if not num_results:
            yield f"{title(synthesizer)} refuses every collective on {', '.join(_TOPOLOGIES)}"


def _build_request(kind: CollectiveKind, topology: str, npus: Sequence[int]) -> SynthesisRequest:
    """Build a request for a collective of 1 MiB that must be correct in place and out of place.

    The collective has `len(npus)` ranks and as many units. `npus[r]` is the NPU of rank r. The
    root, if the kind has one, is rank 0. `topology`: a text such as `ring:4`; raises the errors
    of `parse_topology`. The link model is SERIALIZATION. `simulate` of the request is the
    simulation of this module (`simulate_time_ns`), which returns None if some steps never finish.
    """
    root = 0 if kind in ROOTED else None
    collective = Collective(kind, len(npus), len(npus), root=root, in_place=True)
    network, occupancy = parse_topology(topology), Occupancy.SERIALIZATION

    def simulate(algorithm: Algorithm) -> int | None:
        """Finish time in ns on the network of the request, None if some steps never finish."""
        return simulate_time_ns(algorithm, network, _COLLECTIVE_BYTES, occupancy)

    return SynthesisRequest(
        collective, network, _COLLECTIVE_BYTES, tuple(npus), occupancy, simulate=simulate
    )


def _find_result_problem(
    request: SynthesisRequest, result: object, repetition: object
) -> str | None:
    """Return the first problem of a result as text, or None.

    `repetition`: the result of an equal request. Problems are checked in this order: a type
    other than `SynthesisResult` (of either); kind, root or number of ranks of the collective;
    differences between both algorithms; a time below 1 ns or of another type than `int` (also bool
    and numpy integers); a time below a bound of the result, the first one by name; a partial
    result; an algorithm that fails verification.

    If the requested NPUs are not all NPUs of the topology in ascending order, the collective must
    be a custom one without a root, with one rank per NPU of the topology.
    """
    if not isinstance(result, SynthesisResult) or not isinstance(repetition, SynthesisResult):
        return f"returned {type(result).__name__}, expected SynthesisResult"
    requested, num_npus = request.collective, request.topology.num_npus
    expected = requested.kind, requested.root, requested.num_ranks
    # With NPUs that only relay, the algorithm has a rank per NPU, and its collective is custom.
    if request.npus != tuple(range(num_npus)):
        expected = CollectiveKind.CUSTOM, None, num_npus
    actual = result.algorithm.collective
    if (actual.kind, actual.root, actual.num_ranks) != expected:
        return f"synthesized {actual.kind} of {actual.num_ranks} ranks, root {actual.root}"
    differences = result.algorithm.differences(repetition.algorithm)
    if differences:
        return f"two runs differ in {', '.join(differences)}"
    time_ns = result.time_ns
    # `type(...)`, because bool is a subclass of int, and numpy integers cannot be written as JSON.
    if type(time_ns) is not int or time_ns < 1:
        return f"the time {time_ns!r} is no positive whole number of nanoseconds"
    for name, bound_ns in sorted(result.bounds_ns.items()):
        if bound_ns > time_ns:
            return f"the time {time_ns} ns is below the lower bound {name!r}, {bound_ns} ns"
    if result.is_partial:
        return "the result is partial, although all ranks were requested"
    report = verify(result.algorithm)
    return None if report.ok else f"verification fails: {report.diagnostics[0]}"


def _find_partial_problem(synthesizer: Synthesizer, request: SynthesisRequest) -> str | None:
    """Request a partial result for every NPU in turn; return the first problem as text, or None.

    Only requests on `_TOPOLOGY_FOR_PARTS` ("ring:4") are checked; for others, None is returned.
    A result must be a `SynthesisResult`. At the first one that is not partial, the check stops
    with None: the synthesizer may return the full algorithm. A partial result must contain only
    steps of its rank, and all of them together must be a correct algorithm. Exceptions of the
    synthesizer propagate.
    """
    if request.topology.name != _TOPOLOGY_FOR_PARTS:
        return None
    parts: list[Algorithm] = []
    for npu in range(request.topology.num_npus):
        part = call(synthesizer, replace(request, wanted=(npu,)))
        if not isinstance(part, SynthesisResult):
            return (
                f"for one requested rank, returned {type(part).__name__}, expected SynthesisResult"
            )
        # A full result has been checked already.
        if not part.is_partial:
            return None
        if np.any(part.algorithm.steps.rank != npu):
            return f"a partial result for rank {npu} holds steps of other ranks"
        parts.append(part.algorithm)
    report = verify(_join_parts(parts))
    if report.ok:
        return None
    return (
        f"the partial results of all ranks do not form a correct algorithm: {report.diagnostics[0]}"
    )


def _join_parts(parts: Sequence[Algorithm]) -> Algorithm:
    """Join partial results, of which part r has the steps and SCRATCH size of rank r.

    The rows of the parts are concatenated. All dependencies become data dependencies. The
    number of ranks of the step table is the number of parts; collective and other fields
    are those of the first part. Raise `ValueError` for no parts.
    """
    tables = [part.steps for part in parts]
    columns: dict[str, npt.NDArray[np.generic]] = {}
    for name in COLUMN_DTYPES:
        columns[name] = np.concatenate([getattr(table, name) for table in tables])
    parents, children = [], []
    rows = first_positions([len(table) for table in tables])
    for table, first_row in zip(tables, rows, strict=True):
        table_parents, table_children = table.edges()
        parents.append(table_parents + first_row)
        children.append(table_children + first_row)
    edges = np.concatenate(parents), np.concatenate(children)
    steps = StepTable.from_columns(len(parts), columns, edges)
    # In part r only the scratch size of rank r is valid.
    scratch = [part.scratch_units[rank] for rank, part in enumerate(parts)]
    return replace(parts[0], steps=steps, scratch_units=np.asarray(scratch, np.int64))
