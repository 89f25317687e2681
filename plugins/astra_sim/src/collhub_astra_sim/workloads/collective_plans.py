"""Plans of collectives: the phases of native ones, and tables of custom algorithms.

A phase is one algorithm in one dimension; the methods of ASTRA-sim are `Sys::generate_collective`
and `generate_collective_phase`. Tables for compiled code follow the order of ASTRA-sim's sets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

import numpy as np
from collhub_kernels.event_queue import Records

from collhub_astra_sim.simulating.set_order import ELEMENT
from collhub_astra_sim.workloads.machine_state import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    ANY_QUEUE,
    CUSTOM,
    CUSTOM_RANK,
    DIRECT,
    FIRST_QUEUES,
    HALVING_DOUBLING,
    LAST_QUEUES,
    REDUCE_SCATTER,
    RING,
    TREE,
)
from collhub_astra_sim.workloads.system import NATIVE_TYPES, Optimization, System
from hub_core import NodeTable, NodeType
from hub_core.columns import Int32Array, Int64Array, UInt64Array, first_positions
from hub_core.model import InputError, Location

_NAMES = {"ring": RING, "halvingdoubling": HALVING_DOUBLING, "doublebinarytree": TREE}


class CollectivePhase(NamedTuple):
    """One phase, with the fields of `machine_state.PHASE`."""

    type: int
    algorithm: int
    width: int
    level: int
    stride: int
    size: int
    half: int


def build_system_phases(
    kind: int, system: System, sizes: Sequence[int], dimensions: int
) -> tuple[CollectivePhase, ...]:
    """Return the phases of a native collective of all ranks: one algorithm per network dimension.

    `kind`: index in `NATIVE_TYPES`. `sizes`: NPUs of each dimension. `dimensions`: bit d is set if
    dimension d takes part. The d-th algorithm of the system runs in dimension d. A dimension has no
    phase if it has one NPU, no algorithm, or a bit of 0. Without phases the result is ().

    If the name of the first algorithm begins with `one` (lower case), only this algorithm counts.
    It runs over all ranks, as if they were dimension 0; there is no phase if bit 0 is 0.

    Phases ascend with the dimension, those of an all-gather descend. An all-reduce is divided into
    reduce-scatters, an all-reduce and all-gathers, unless its optimization is `baseline`
    (`_order_phases`).

    Raises `KeyError` for an unknown algorithm name of a phase, and `InputError`
    (`no-implementation`) if:

    - the system has no algorithm for the collective, or more algorithms than dimensions
    - an all-reduce has several phases and the system has no `collective-optimization`
    - an all-to-all has a phase of halvingDoubling
    - a doubleBinaryTree runs over a number of ranks that is no power of two
    """
    names = _get_algorithm_names(kind, system)
    if names[0].startswith("one"):
        names, sizes = names[:1], (math.prod(sizes),)
    if len(names) > len(sizes):
        _refuse(kind, f"{len(names)} algorithms for {len(sizes)} dimensions")
    parts = [
        # Neighbours in a dimension differ by the product of the sizes of all lower ones.
        _build_phase(kind, name, level, math.prod(sizes[:level]), sizes[level])
        for level, name in enumerate(names)
        if sizes[level] > 1 and dimensions >> level & 1
    ]
    phases = tuple(_order_phases(kind, parts, system))
    for phase in phases:
        _check_phase(kind, phase)
    return phases


def build_group_phases(kind: int, system: System, size: int) -> tuple[CollectivePhase, ...]:
    """Return the phases of a native collective of a process group that is smaller than the system.

    `size`: its number of ranks. The first rule that applies:

    1. The system has no algorithm for this kind: `InputError`, also for one rank.
    2. One rank: no phase.
    3. The system has one algorithm for this kind: one phase with it. `InputError` for a double
       binary tree, on which ASTRA-sim crashes, and for a halving-doubling all-to-all.
    4. The system has several (one per dimension): one phase with a ring.

    If the system splits all-reduces, an all-reduce uses only the first half of the queues.
    """
    names = _get_algorithm_names(kind, system)
    if size == 1:
        return ()
    phase = _build_phase(kind, names[0] if len(names) == 1 else "ring", 0, 0, size)
    if phase.algorithm == TREE:
        _refuse(kind, "ASTRA-sim crashes on doubleBinaryTree in a group")
    half = FIRST_QUEUES if _is_split(kind, system) else ANY_QUEUE
    phase = phase._replace(half=half)
    _check_phase(kind, phase)
    return (phase,)


def _get_algorithm_names(kind: int, system: System) -> tuple[str, ...]:
    """Return the system's native algorithms of a collective, one per dimension.

    `kind`: index in `NATIVE_TYPES`. Raises `InputError` if there is none.
    """
    names = system.algorithms.get(NATIVE_TYPES[kind])
    if not names:
        _refuse(kind, "the system names no algorithm for it")
    return names


def _build_phase(kind: int, name: str, level: int, stride: int, size: int) -> CollectivePhase:
    """Return the phase of collective `kind` with algorithm `name` in network dimension `level`.

    A prefix `one` in lower case is removed from `name`; the case of the rest is ignored. `direct4`
    is the direct algorithm with at most 4 concurrent messages; all other names have no limit (width
    -1). `stride`: difference between neighbouring ranks; `size`: ranks in the dimension. The phase
    may use any queue. Raises `KeyError` for an unknown name.
    """
    name = name.removeprefix("one").lower()
    direct = re.fullmatch(r"direct(\d*)", name)
    if direct:
        width = int(direct[1]) if direct[1] else -1
        return CollectivePhase(kind, DIRECT, width, level, stride, size, ANY_QUEUE)
    return CollectivePhase(kind, _NAMES[name], -1, level, stride, size, ANY_QUEUE)


def _is_split(kind: int, system: System) -> bool:
    """Return whether an all-reduce is divided into reduce-scatters and all-gathers."""
    return kind == ALL_REDUCE and system.optimization is not Optimization.BASELINE


def _order_phases(
    kind: int, parts: Sequence[CollectivePhase], system: System
) -> Iterator[CollectivePhase]:
    """Yield the phases of a collective in the order of execution, with the queues that they use.

    `parts`: one phase per dimension, ascending. Without any, nothing is yielded. The first rule
    that applies:

    1. All-gather: the phases in reverse order, unchanged.
    2. All-reduce of several phases, `system.optimization` None: `InputError` (`no-implementation`)
       when the first phase is requested.
    3. All-reduce, optimization not `baseline`: all phases but the last become reduce-scatters, in
       order. Then the last phase follows. Then all phases but the last become all-gathers, in
       reverse order. The all-gathers use the last half of the queues, all others the first half.
       A single phase thus is unchanged except for the first half, also with None.
    4. Otherwise: the phases in the given order, unchanged.
    """
    if kind == ALL_GATHER:
        yield from reversed(parts)
        return
    if kind == ALL_REDUCE and len(parts) > 1 and system.optimization is None:
        _refuse(kind, "collective-optimization is missing, and ASTRA-sim guesses")
    if not parts or not _is_split(kind, system):
        yield from parts
        return
    for part in parts[:-1]:
        yield part._replace(type=REDUCE_SCATTER, half=FIRST_QUEUES)
    yield parts[-1]._replace(half=FIRST_QUEUES)
    for part in reversed(parts[:-1]):
        yield part._replace(type=ALL_GATHER, half=LAST_QUEUES)


def _check_phase(kind: int, phase: CollectivePhase) -> None:
    """Raise `InputError` for a phase that ASTRA-sim cannot execute.

    These are halvingDoubling of an all-to-all, and doubleBinaryTree of a number of ranks that is no
    power of two. `kind`: collective in the message.
    """
    if phase.algorithm == HALVING_DOUBLING and phase.type == ALL_TO_ALL:
        _refuse(kind, "ASTRA-sim has no halvingDoubling for it")
    if phase.algorithm == TREE and phase.size & (phase.size - 1):
        _refuse(kind, f"ASTRA-sim crashes on doubleBinaryTree of {phase.size} ranks")


def _refuse(kind: int, reason: str) -> NoReturn:
    """Raise the `InputError` (`no-implementation`) that ASTRA-sim cannot run a collective.

    `kind`: index in `NATIVE_TYPES`; `reason`: clause for the message. The cure names the key of the
    system configuration.
    """
    name = NATIVE_TYPES[kind].label
    cure = f"choose another {name}-implementation in the system JSON"
    raise InputError(f"{name}: {reason}", cure=cure, code="no-implementation")


class CustomTables(NamedTuple):
    """The fields of `Machine` that describe custom algorithms; `most_nodes`: maximum of a rank."""

    custom: Records
    custom_rank: Records
    custom_first: Int64Array
    custom_root: Int64Array
    custom_child: Int32Array
    identity: UInt64Array
    element: Records
    before: Int64Array
    most_nodes: int


def build_custom_tables(algorithms: Sequence[NodeTable]) -> CustomTables:
    """Return the tables of several custom algorithms, concatenated, for the simulation kernel.

    Nodes, ranks, roots, children and `identity` of the algorithms follow each other in the given
    order. Indices of nodes, roots and children refer to the concatenation. `custom_first`
    (int64[algorithms + 1]) has the index of each algorithm's first rank in `custom_rank`, then the
    number of all ranks.

    `most_nodes` is the largest number of nodes of one rank. The work array `element` is that of
    the algorithm with the longest one; with equal lengths, that of the first. The same rule
    applies to `before`. Without algorithms, `custom_first` is [0], `most_nodes` is 0, `element`
    has 1 entry, `before` has 16 entries of -1, and all other arrays are empty.

    Raises `InputError` for an algorithm that cannot be simulated (see `build_world`).
    """
    parts = [_build_tables(nodes) for nodes in algorithms]
    node_first = np.cumsum([0, *(len(part.custom) for part in parts)])
    root_first = np.cumsum([0, *(len(part.custom_root) for part in parts)])
    child_first = np.cumsum([0, *(len(part.custom_child) for part in parts)])
    for part, nodes, roots, children in zip(
        parts, node_first, root_first, child_first, strict=False
    ):
        part.custom["first_child"] += children
        part.custom_rank["first"] += nodes
        part.custom_rank["first_root"] += roots
        part.custom_root[:] += nodes
        part.custom_child[:] += nodes
    ranks = np.cumsum([0, *(len(part.custom_rank) for part in parts)])
    max_nodes = max((part.most_nodes for part in parts), default=0)
    empty = np.zeros(0, np.int64)
    return CustomTables(
        np.concatenate([np.zeros(0, CUSTOM), *(part.custom for part in parts)]),
        np.concatenate([np.zeros(0, CUSTOM_RANK), *(part.custom_rank for part in parts)]),
        ranks.astype(np.int64),
        np.concatenate([empty, *(part.custom_root for part in parts)]),
        np.concatenate([empty.astype(np.int32), *(part.custom_child for part in parts)]),
        np.concatenate([empty.astype(np.uint64), *(part.identity for part in parts)]),
        max((part.element for part in parts), key=len, default=np.zeros(1, ELEMENT)),
        max((part.before for part in parts), key=len, default=np.full(16, -1)),
        max_nodes,
    )


def _build_tables(nodes: NodeTable) -> CustomTables:
    """Return the tables of one custom algorithm (nodes, roots, children) for the simulation kernel.

    - `custom`: one record per row of `nodes`. Its `work` is the size in bytes for a SEND or RECV,
      for other nodes the duration in ns, at least 1. It also has kind, peer, tag, the number of
      distinct parents (`unmet`), and first index and number of its children.
    - `custom_rank`: one record per rank, with its first node and number of nodes, its first root
      and number of roots, and its number of hash buckets.
    - `custom_root`: rows of nodes without parents, rank by rank. `custom_child`: rows of the
      children, node by node. Both are in the order in which ASTRA-sim starts them (kernel
      `write_orders`). The order does not depend on a network.
    - `identity`: ids of the nodes. `most_nodes`: the largest number of nodes of a rank.
    - `custom_first`: empty. `element`, `before`: work arrays of `write_orders`.

    Raises the `InputError` of `build_world` for traces that cannot be simulated, with the row as
    step.
    """
    # Imported here, because most jobs have no custom algorithms.
    from collhub_astra_sim.simulating.kernel import get_parents, write_orders
    from collhub_astra_sim.simulating.simulated_network import TimingModel, get_trace_durations_ns
    from collhub_astra_sim.simulating.starting_world import build_world
    from hub_core import parse_topology

    ranks = nodes.num_ranks
    # The order of nodes does not depend on the network.
    topology = parse_topology(f"switch:{ranks}")
    durations = get_trace_durations_ns(nodes)
    world, _ = build_world(
        nodes, durations, topology, TimingModel(), lambda row: Location(step=row), np.arange(ranks)
    )
    roots = np.zeros(len(nodes), np.int64)
    counts = np.zeros(ranks, np.int64)
    write_orders(world, get_parents(nodes), roots, counts, events=len(nodes))
    custom = np.zeros(len(nodes), CUSTOM)
    for name in ("first_child", "children", "unmet", "kind"):
        custom[name] = world.node[name]
    is_message = (nodes.type == NodeType.COMM_SEND) | (nodes.type == NodeType.COMM_RECV)
    custom["work"] = np.where(is_message, nodes.size, durations)
    custom["peer"], custom["tag"] = nodes.peer, nodes.tag
    custom_rank = np.zeros(ranks, CUSTOM_RANK)
    custom_rank["first"], custom_rank["count"] = nodes.rank_indptr[:-1], np.diff(nodes.rank_indptr)
    custom_rank["first_root"], custom_rank["roots"] = first_positions(counts), counts
    custom_rank["buckets"] = world.rank["buckets"][:-1]
    return CustomTables(
        custom,
        custom_rank,
        np.zeros(0, np.int64),
        roots[: counts.sum()],
        world.child[: int(custom["children"].sum())],
        nodes.node_id,
        world.element,
        world.before,
        int(custom_rank["count"].max(initial=0)),
    )
