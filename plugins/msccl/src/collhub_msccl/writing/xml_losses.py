"""List what MSCCL-IR XML, or the runtime that a file is written for, cannot express of an algorithm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collhub_msccl.reading.roots import possible_roots
from collhub_msccl.writing.emission_header import Target
from hub_core.algorithm import Algorithm
from hub_core.collectives import Collective, ReduceOp
from hub_core.losses import Loss
from hub_core.steps import COLUMN_DTYPES

_HEADER_KEPT = frozenset(
    "name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes".split()  # noqa: SIM905
)


def losses_of(
    algorithm: Algorithm, coarse: Algorithm, target: Target, largest: int | None
) -> list[Loss]:
    """The losses in a fixed order. `coarse`: the algorithm in the units of the file."""
    return [
        *_of_collective(algorithm.collective, coarse, target),
        *_of_steps(algorithm, coarse),
        *_of_header(algorithm, target, largest),
    ]


def _of_collective(collective: Collective, coarse: Algorithm, target: Target) -> Iterator[Loss]:
    written = target.collective
    for name, had, has in (
        ("in_place", collective.in_place, written.in_place),
        ("out_of_place", collective.out_of_place, written.out_of_place),
    ):
        if had and not has:
            consequence = "write a second file with -O mode for calls of this kind"
            yield Loss(
                name,
                f"a file for {target.runtime.title} or with -O mode serves one mode",
                consequence,
            )
    if target.spelling not in (
        target.runtime.spelling.get(collective.kind),
        target.imported.get("coll"),
    ):
        yield Loss(
            "kind",
            f"{collective.kind} is written as coll={target.spelling!r}",
            "only calls of that collective use it",
        )
    if collective.contract is not None and not _is_plain(collective):
        yield Loss("contract", "the custom collective", "what it must do is not in the file")
    if not np.array_equal(target.declared_chunks[0], written.input_units()) or not np.array_equal(
        target.declared_chunks[1], written.output_units()
    ):
        yield Loss(
            "contract",
            "buffers of uneven sizes",
            f"{target.runtime.title} takes no other size than nchunksperloop",
        )
    if collective.reduce_op is not ReduceOp.SUM:
        yield Loss(
            "reduce_op",
            str(collective.reduce_op),
            "the file serves calls with every operator that the runtime knows",
        )
    if collective.root is not None and not _names_root(coarse):
        yield Loss(
            "root",
            f"rank {collective.root}",
            "it cannot be told from the steps; reading back asks for it",
        )


def _is_plain(collective: Collective) -> bool:
    contract = collective.contract
    return contract is not None and contract.expected is None and bool(np.all(contract.defined))


def _names_root(algorithm: Algorithm) -> bool:
    collective, steps = algorithm.collective, algorithm.steps
    columns = {name: getattr(steps, name).astype(np.int64) for name in COLUMN_DTYPES}
    is_aliased = collective.in_place and not collective.out_of_place
    return possible_roots(collective.kind, columns, collective.num_ranks, is_aliased) == [
        collective.root
    ]


def _of_steps(algorithm: Algorithm, coarse: Algorithm) -> Iterator[Loss]:
    if algorithm is not coarse:
        units = f"{algorithm.collective.unit_count} to {coarse.collective.unit_count}"
        yield Loss(
            "unit_count and offsets and counts of steps", units, "the same program in larger units"
        )
    timed = int(np.count_nonzero(algorithm.steps.duration_ns >= 0))
    if timed:
        yield Loss("durations", f"{timed} steps", "the file states no times")
    if algorithm.collective_bytes is not None:
        yield Loss(
            "collective bytes", str(algorithm.collective_bytes), "the file serves a range of sizes"
        )


def _of_header(algorithm: Algorithm, target: Target, largest: int | None) -> Iterator[Loss]:
    foreign = sorted(set(algorithm.extensions) - {"msccl"})
    if foreign:
        yield Loss(
            "extensions", ", ".join(foreign), "the file has no place for data of other formats"
        )
    kept = _HEADER_KEPT if target.runtime.has_both_modes else _HEADER_KEPT | {"nthreads"}
    dropped = sorted(set(target.imported) - kept)
    if dropped:
        yield Loss(
            "extensions",
            f"attributes {', '.join(dropped)} of <algo>",
            f"{target.runtime.title} does not know them",
        )
    if largest is not None and (target.max_bytes is None or largest < target.max_bytes):
        consequence = "the runtime does not use the file above, where the FIFOs of connections could fill up and deadlock"
        yield Loss("extensions: maxBytes", f"{largest} bytes", consequence)
