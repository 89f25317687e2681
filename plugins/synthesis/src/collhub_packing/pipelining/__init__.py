"""Pipelined schedules of collectives on weighted trees, chunk after chunk.

`Pipelining` prepares a collective on trees, `Pipelining.schedule` builds a `Pipeline` with given
numbers of chunks, and `best_chunks` chooses these numbers.
"""

from __future__ import annotations

from collhub_packing.pipelining.chunk_counts import (
    best_chunks,
    by_multiplicative_increase,
    fitted_chunks,
)
from collhub_packing.pipelining.operations import (
    Operations,
    PrunedTree,
    Stream,
    TreePaths,
    broadcast,
    paths,
    pruned,
    reduction,
    turned_round,
)
from collhub_packing.pipelining.schedules import Pipeline, Pipelining, windows_of

__all__ = [
    "Operations",
    "Pipeline",
    "Pipelining",
    "PrunedTree",
    "Stream",
    "TreePaths",
    "best_chunks",
    "broadcast",
    "by_multiplicative_increase",
    "fitted_chunks",
    "paths",
    "pruned",
    "reduction",
    "turned_round",
    "windows_of",
]
