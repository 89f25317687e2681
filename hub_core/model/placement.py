"""NPUs on which the ranks of an algorithm run, if its source specifies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import InputError

PLACEMENT = "npus"
"""Key of `Algorithm.extensions`: list of the NPU of every rank. Without it rank r runs on NPU r.

Formats that preserve extensions preserve it; the others report it as a loss.
"""


def placement_of(algorithm: Algorithm) -> tuple[int, ...] | None:
    """Return the NPU of every rank; None if the algorithm has no placement (rank r on NPU r).

    Raises `InputError` unless the extension is a list of different NPUs, one per rank.
    """
    stated = algorithm.extensions.get(PLACEMENT)
    if stated is None:
        return None
    named = stated if isinstance(stated, list) else []
    npus = tuple(npu for npu in named if type(npu) is int and npu >= 0)
    if not len(named) == len(set(npus)) == algorithm.num_ranks:
        raise InputError(
            f"the extension {PLACEMENT!r} is no list of {algorithm.num_ranks} different NPUs",
            cure="state the NPU of every rank, as [0, 2, 4]",
            code="invalid-placement",
        )
    return npus


def placed(algorithm: Algorithm, npus: Sequence[int]) -> Algorithm:
    """Return the algorithm with a placement, one NPU per rank; with none if rank r is on NPU r."""
    extensions = {key: value for key, value in algorithm.extensions.items() if key != PLACEMENT}
    if tuple(npus) != tuple(range(algorithm.num_ranks)):
        extensions[PLACEMENT] = list(npus)
    return replace(algorithm, extensions=extensions)
