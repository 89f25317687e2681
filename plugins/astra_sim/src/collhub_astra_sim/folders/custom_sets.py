"""Algorithms that single collectives of a job name, as custom algorithms of ASTRA-sim.

ASTRA-sim maps numbers of nodes to traces, regardless of the rank, and traces have one size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from collhub_astra_sim.folders.configurations import NODE_LIMIT
from collhub_astra_sim.folders.workload_traces import COMM_TYPES
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Algorithm, InputError, JobCollective, NodeKind, Workload


@dataclass(frozen=True, slots=True)
class CustomSets:
    """The algorithms of a job by name, each with the bytes of its collective.

    `per_node`: names by identity of the collective nodes of `workload`, whose numbers are
    unambiguous.
    """

    workload: Workload
    programs: Mapping[str, tuple[Algorithm, int]] = field(default_factory=dict)
    per_node: Mapping[int, str] = field(default_factory=dict)


def collect_custom_sets(workload: Workload) -> CustomSets:
    """Return the algorithms that nodes name; nodes are renumbered if their numbers are ambiguous.

    Raises `InputError` for an algorithm that does not fit the group or the kind of a node.
    """
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.algorithm >= 0))
    if not len(rows):
        return CustomSets(workload)
    sizes = np.array([*(len(group.ranks) for group in workload.groups), workload.num_ranks])
    ranks = sizes[nodes.group[rows]]
    # An all-gather counts the input of a rank, algorithms the entire output.
    is_gather = nodes.collective[rows] == JobCollective.ALL_GATHER
    total_bytes = nodes.bytes[rows] * np.where(is_gather, ranks, 1)
    _check_fits(workload, rows, ranks)
    # One set of traces for each algorithm and size.
    keys = np.stack([nodes.algorithm[rows].astype(np.int64), total_bytes])
    distinct_keys, key_of_row = np.unique(keys, axis=1, return_inverse=True)
    programs = {}
    for number, (index, size) in enumerate(distinct_keys.T.tolist()):
        algorithm = workload.algorithms[index]
        programs[f"{algorithm.collective.kind}-{number}"] = algorithm, size
    names = list(programs)
    workload = _make_numbers_unambiguous(workload, rows, key_of_row)
    identities = workload.nodes.identity[rows].tolist()
    per_node = {
        node: names[index] for node, index in zip(identities, key_of_row.tolist(), strict=True)
    }
    return CustomSets(workload, programs, per_node)


def _check_fits(workload: Workload, rows: Int64Array, ranks: Int64Array) -> None:
    """Raise `InputError` if an algorithm's number of ranks or collective is not its node's."""
    nodes = workload.nodes
    # Positions in the group are ranks of the algorithm.
    rank_counts = [algorithm.num_ranks for algorithm in workload.algorithms]
    types = [COMM_TYPES.get(algorithm.collective.kind, -1) for algorithm in workload.algorithms]
    used = nodes.algorithm[rows]
    for is_wrong, reason in (
        (np.array(rank_counts)[used] != ranks, "has another number of ranks than its group"),
        (np.array(types)[used] != nodes.collective[rows], "is of another collective"),
    ):
        if is_wrong.any():
            row = int(rows[np.argmax(is_wrong)])
            message = f"the algorithm of node {nodes.identity[row]} {reason}"
            raise InputError(message, location=nodes.location(row), code="algorithm")


def _make_numbers_unambiguous(
    workload: Workload, rows: Int64Array, key_of_row: Int64Array
) -> Workload:
    """Renumber all nodes if a number is used for several algorithms, or exceeds ASTRA-sim's limit.

    Also if a number is used with and without an algorithm. The order of the numbers within a rank,
    which determines the order of execution, is preserved.
    """
    nodes = workload.nodes
    choice = np.full(len(nodes), -1, np.int64)
    choice[rows] = key_of_row
    is_collective: BoolArray = nodes.is_kind(NodeKind.COLLECTIVE)
    identity = nodes.identity[is_collective].astype(np.int64)
    # Include native collectives: ASTRA-sim would run the algorithm for their numbers as well.
    pairs = np.unique(np.stack([identity, choice[is_collective]]), axis=1)
    is_in_range = nodes.identity[rows].max() < NODE_LIMIT
    if len(np.unique(identity)) == pairs.shape[1] and is_in_range:
        return workload
    order = np.lexsort((nodes.identity, nodes.rank))
    position = np.empty(len(nodes), np.int64)
    position[order] = np.arange(len(nodes)) - nodes.rank_indptr[nodes.rank[order]]
    numbers = position * workload.num_ranks + nodes.rank
    return replace(workload, nodes=replace(nodes, identity=numbers.astype(np.uint64)))
