"""The algorithms that single collectives of a job name, as custom algorithms of ASTRA-sim.

ASTRA-sim maps numbers of nodes to traces, whatever their rank, and traces are of one size.
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

    `per_node`: names by identity of collective nodes, of `workload`, in which a number means one.
    """

    workload: Workload
    programs: Mapping[str, tuple[Algorithm, int]] = field(default_factory=dict)
    per_node: Mapping[int, str] = field(default_factory=dict)


def custom_sets(workload: Workload) -> CustomSets:
    """The sets of the algorithms that nodes name; nodes are numbered anew where they have to be.

    Raises `InputError` for an algorithm that does not fit the group or the kind of a node.
    """
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.algorithm >= 0))
    if not len(rows):
        return CustomSets(workload)
    sizes = np.array([*(len(group.ranks) for group in workload.groups), workload.num_ranks])
    ranks = sizes[nodes.group[rows]]
    # An all-gather counts the input of a rank, algorithms the whole.
    is_gather = nodes.collective[rows] == JobCollective.ALL_GATHER
    whole = nodes.bytes[rows] * np.where(is_gather, ranks, 1)
    _check_fits(workload, rows, ranks)
    # One set of traces for each algorithm and size.
    keys = np.stack([nodes.algorithm[rows].astype(np.int64), whole])
    found, which = np.unique(keys, axis=1, return_inverse=True)
    programs = {}
    for number, (index, size) in enumerate(found.T.tolist()):
        algorithm = workload.algorithms[index]
        programs[f"{algorithm.collective.kind}-{number}"] = algorithm, size
    names = list(programs)
    workload = _unambiguous(workload, rows, which)
    identities = workload.nodes.identity[rows].tolist()
    per_node = {node: names[one] for node, one in zip(identities, which.tolist(), strict=True)}
    return CustomSets(workload, programs, per_node)


def _check_fits(workload: Workload, rows: Int64Array, ranks: Int64Array) -> None:
    nodes = workload.nodes
    # Positions in the group are ranks of the algorithm.
    own = [each.num_ranks for each in workload.algorithms]
    types = [COMM_TYPES.get(each.collective.kind, -1) for each in workload.algorithms]
    used = nodes.algorithm[rows]
    for is_wrong, reason in (
        (np.array(own)[used] != ranks, "has another number of ranks than its group"),
        (np.array(types)[used] != nodes.collective[rows], "is of another collective"),
    ):
        if is_wrong.any():
            row = int(rows[np.argmax(is_wrong)])
            message = f"the algorithm of node {nodes.identity[row]} {reason}"
            raise InputError(message, location=nodes.location(row), code="algorithm")


def _unambiguous(workload: Workload, rows: Int64Array, which: Int64Array) -> Workload:
    """Number nodes anew where one number means several algorithms, or one and none, or is too high.

    The order of the numbers within a rank, which decides what runs first, stays.
    """
    nodes = workload.nodes
    choice = np.full(len(nodes), -1, np.int64)
    choice[rows] = which
    is_collective: BoolArray = nodes.is_kind(NodeKind.COLLECTIVE)
    identity = nodes.identity[is_collective].astype(np.int64)
    # Native collectives take part: by their number, they would run it as well.
    pairs = np.unique(np.stack([identity, choice[is_collective]]), axis=1)
    is_in_range = nodes.identity[rows].max() < NODE_LIMIT
    if len(np.unique(identity)) == pairs.shape[1] and is_in_range:
        return workload
    order = np.lexsort((nodes.identity, nodes.rank))
    position = np.empty(len(nodes), np.int64)
    position[order] = np.arange(len(nodes)) - nodes.rank_indptr[nodes.rank[order]]
    numbers = position * workload.num_ranks + nodes.rank
    return replace(workload, nodes=replace(nodes, identity=numbers.astype(np.uint64)))
