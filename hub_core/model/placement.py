"""Which NPUs the ranks of an algorithm run on, where its source says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import InputError

PLACEMENT = "npus"
"""Key of `Algorithm.extensions` for the NPU of every rank, a list; without it rank r is on NPU r.

An extension, so that every format that keeps extensions keeps it, and every other one says so.
"""


def placement_of(algorithm: Algorithm) -> tuple[int, ...] | None:
    """The NPU of every rank, None where rank r runs on NPU r.

    Raises `InputError` where what the source says is no list of one NPU a rank.
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
    """The algorithm on these NPUs, one a rank; without a word of it where rank r is on NPU r."""
    extensions = {key: value for key, value in algorithm.extensions.items() if key != PLACEMENT}
    if tuple(npus) != tuple(range(algorithm.num_ranks)):
        extensions[PLACEMENT] = list(npus)
    return replace(algorithm, extensions=extensions)
