"""Make all-gathers that pass every part around the ring of all ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hub_core import (
    Algorithm,
    Buffer,
    CollectiveKind,
    InputError,
    Provenance,
    StepKind,
    StepTable,
    StepTableBuilder,
)
from hub_core.network import lower_bound_ns
from hub_core.plugin_api import NoOptions, SynthesisRequest, SynthesisResult


def synthesize(request: SynthesisRequest, options: NoOptions) -> SynthesisResult:
    """Return the algorithm with its time. Raises `InputError` for other collectives."""
    wanted, topology = request.collective, request.topology
    if wanted.kind is not CollectiveKind.ALL_GATHER:
        raise InputError(f"example makes no {wanted.kind}", cure="ask for an all-gather")
    if request.npus != tuple(range(topology.num_npus)):
        raise InputError("example needs a rank on every NPU, in order")
    ranks = wanted.num_ranks
    collective = replace(wanted, unit_count=ranks, in_place=True, out_of_place=False)
    provenance = Provenance("collhub-example", "0.1.0")
    algorithm = Algorithm(collective, _steps(ranks), np.zeros(ranks, np.int64), provenance)
    time_ns = request.simulate(algorithm)
    if time_ns is None:
        raise InputError("example tells times by a simulator, and none is installed")
    bound_ns = lower_bound_ns(wanted, topology, request.collective_bytes)
    bounds = {} if bound_ns is None else {"traffic": int(bound_ns)}
    return SynthesisResult(algorithm, time_ns, bounds)


def _steps(ranks: int) -> StepTable:
    """Every rank sends on what it had, or got last, and gets what its neighbour had."""
    builder = StepTableBuilder(ranks)
    for rank in range(ranks):
        got: list[int] = []
        for turn in range(ranks - 1):
            own, other = (rank - turn) % ranks, (rank - turn - 1) % ranks
            builder.add(
                rank,
                StepKind.SEND,
                data=got,
                peer=(rank + 1) % ranks,
                src_buffer=Buffer.OUTPUT,
                src_offset=own,
                count=1,
            )
            receive = builder.add(
                rank,
                StepKind.RECV,
                peer=(rank - 1) % ranks,
                dst_buffer=Buffer.OUTPUT,
                dst_offset=other,
                count=1,
            )
            got = [receive]
    return builder.build()
