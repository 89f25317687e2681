"""Choose algorithm and members of every collective, and find the communicating pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_kernels.event_queue import Records

from collhub_astra_sim.simulating.trace_nodes import compute_dense_codes
from collhub_astra_sim.workloads.collective_plans import (
    CollectivePhase,
    build_group_phases,
    build_system_phases,
)
from collhub_astra_sim.workloads.machine_state import (
    DIRECT,
    HALVING_DOUBLING,
    MEMBER,
    NO_CHOICE,
    PHASE,
    PLAN,
    RING,
    TYPES,
)
from collhub_astra_sim.workloads.system import MAX_GROUP, NATIVE_TYPES, System
from hub_core import NodeTable, NodeType
from hub_core.columns import Int64Array, distinct, first_positions, group_of_entry
from hub_core.model import InputError, Workload, parse_whole

# The streams of a group are numbered from a multiple of this number.
_STREAMS_OF_A_GROUP = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """The choices for all collectives.

    `choice`, `member`: by node, as in `machine_state.NODE`. `members`, `group_rank`: members of
    groups, and the ranks of all groups. `plan`, `phase`: native plans with their phases.
    `algorithms`: custom ones, by -2 - choice. `pairs`: source * ranks + destination of all pairs
    that may communicate in native or custom algorithms, ascending.
    """

    choice: Int64Array
    member: Int64Array
    members: Records
    group_rank: Int64Array
    plan: Records
    phase: Records
    algorithms: tuple[NodeTable, ...]
    pairs: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class NamedAlgorithms:
    """Algorithms that nodes name explicitly: `number`: index of `names` by row, -1 for none."""

    names: tuple[str, ...]
    number: Int64Array


class _Chooser:
    """Collects plans, custom algorithms and communicating pairs of the kinds of collectives.

    `dimensions`: sizes of the network's dimensions.
    """

    def __init__(
        self,
        workload: Workload,
        system: System,
        dimensions: Sequence[int],
        algorithms: Mapping[str, NodeTable],
    ) -> None:
        self.workload, self.system, self.dimensions = workload, system, dimensions
        self.available = algorithms
        self.plans: list[tuple[CollectivePhase, ...]] = []
        self.custom: dict[str, int] = {}
        self.pairs: list[Int64Array] = []

    @property
    def num_ranks(self) -> int:
        return self.workload.num_ranks

    def native(self, kind: int, group: int, mask: int) -> int:
        """Add the plan of a native collective, a phase per network dimension; return its index.

        `kind`: number of the collective; `group`: its process group, -1 for all ranks; `mask`: bit
        d is set if the collective uses network dimension d. A group with fewer ranks than the job
        ignores the mask and has at most one phase; for a group of all ranks the mask counts. The
        plan is appended to `plans`, and the pairs of ranks that communicate to `pairs`. Raises
        `InputError` if ASTRA-sim cannot run the collective.
        """
        ranks = np.array(self.workload.members(group), np.int64)
        if len(ranks) < self.num_ranks:
            phases = build_group_phases(kind, self.system, len(ranks))
            lists = [ranks[None, :]] * len(phases)
        else:
            phases = build_system_phases(kind, self.system, self.dimensions, mask)
            # The ranks along every line of a phase's dimension, ascending by first rank.
            all_ranks = np.arange(self.num_ranks)
            lists = []
            for phase in phases:
                starts = all_ranks[all_ranks // phase.stride % phase.size == 0]
                lists.append(starts[:, None] + np.arange(phase.size) * phase.stride)
        for phase, members in zip(phases, lists, strict=True):
            self.pairs.append(_find_native_pairs(phase, members, self.num_ranks))
        self.plans.append(phases)
        return len(self.plans) - 1

    def of_traces(self, prefix: str, group: int) -> int:
        """Add a custom algorithm (traces) that a group runs; return its choice, -2 minus its index.

        `group`: index of the process group, -1 for all ranks of the job. `prefix`: that of the
        traces; each distinct prefix gets the next index in `custom`. Every call appends to `pairs`
        the ranks of the job that communicate, in both directions, as codes source * num_ranks +
        destination.

        Raises `InputError`, in this order, if `available` has no such prefix (`no-algorithm`), if
        the system divides collectives into several splits (`invalid-system`), if the group has
        another number of ranks than the traces (`no-algorithm`), and if its ranks do not ascend
        (`group`).
        """
        if prefix not in self.available:
            cure = "provide the traces that the system JSON names"
            raise InputError(f"no algorithm {prefix!r}", cure=cure, code="no-algorithm")
        if self.system.splits != 1:
            message = "custom algorithms need preferred-dataset-splits 1: else no rank finishes"
            raise InputError(message, cure="set it to 1", code="invalid-system")
        nodes, ranks = self.available[prefix], self.workload.members(group)
        if nodes.num_ranks != len(ranks):
            message = f"algorithm {prefix!r} has {nodes.num_ranks} ranks, it runs on {len(ranks)}"
            raise InputError(message, code="no-algorithm")
        if list(ranks) != sorted(ranks):
            name = self.workload.groups[group].name
            message = f"process group {name!r}: ASTRA-sim confuses unsorted ranks"
            raise InputError(message, cure="list its ranks in ascending order", code="group")
        is_message = (nodes.type == NodeType.COMM_SEND) | (nodes.type == NodeType.COMM_RECV)
        rows = np.flatnonzero(is_message)
        rank_of_member = np.array(ranks)
        rank = rank_of_member[group_of_entry(nodes.rank_indptr)[rows]]
        peer = rank_of_member[nodes.peer[rows]]
        codes = [rank * self.num_ranks + peer, peer * self.num_ranks + rank]
        self.pairs.append(distinct(np.concatenate(codes)))
        return -2 - self.custom.setdefault(prefix, len(self.custom))


def choose_algorithms(
    workload: Workload,
    system: System,
    kind: Int64Array,
    is_running: Int64Array,
    dimensions: Sequence[int],
    algorithms: Mapping[str, NodeTable],
    per_node: Mapping[int, str],
    named: NamedAlgorithms | None = None,
) -> Choices:
    """Choose the algorithm of each collective node in the rows `is_running`.

    `is_running`: ascending row numbers of collectives, not a mask. `kind`: index in
    `NATIVE_TYPES` by node. `dimensions`: sizes of the network's dimensions. `algorithms`:
    custom ones by prefix of their traces. The first of these that exists is chosen for a
    node:

    1. Its entry in `named`, whose `number` has one entry per node of the job.
    2. The prefix in `per_node` for its identity.
    3. The system's custom algorithm of its kind.
    4. The native algorithm of its kind.

    `choice` of the result has one entry per node of the job. A value of 0 or more is an
    index of `plan`, the native plans with their `phase`. -2 - i is entry i of the result's
    `algorithms`, the used custom ones. Nodes outside of `is_running` have `NO_CHOICE`.
    Nodes with equal kind, group, mask of dimensions and prefix have one choice; plans and
    algorithms are in ascending order of these. `member`, `members` and `group_rank` are
    those of `_collect_members`. `pairs` are the distinct codes source * num_ranks +
    destination of ranks that may communicate, ascending.

    Raises `InputError` if ASTRA-sim has no implementation of a native collective
    (`no-implementation`), or if a group lacks the rank of its node (`group`). A custom
    algorithm that is missing or does not fit raises the errors of `_Chooser.of_traces`.
    """
    nodes, rows = workload.nodes, is_running
    chooser = _Chooser(workload, system, dimensions, algorithms)
    choice = np.full(len(nodes), NO_CHOICE, np.int64)
    prefix = _find_prefixes(workload, system, kind, rows, per_node, named)
    # Determined by: type, group, dimensions, prefix.
    columns = (kind[rows], nodes.group[rows], nodes.dimensions[rows], prefix.number)
    example, of_row = _group_combinations(columns)
    settings = zip(*(column[example].tolist() for column in columns), strict=True)
    numbers = [
        chooser.native(native_kind, group, mask)
        if name < 0
        else chooser.of_traces(prefix.names[name], group)
        for native_kind, group, mask, name in settings
    ]
    choice[rows] = np.array(numbers, np.int64)[of_row]
    member, members, group_rank = _collect_members(workload, rows)
    used = tuple(algorithms[name] for name in chooser.custom)
    pairs = distinct(np.concatenate([np.zeros(0, np.int64), *chooser.pairs]))
    plans = chooser.plans
    counts = np.array([len(plan) for plan in plans], np.int64)
    plan = np.zeros(len(plans), PLAN)
    plan["first"], plan["count"] = first_positions(counts), counts
    phase = np.array([tuple(phase) for phases in plans for phase in phases], PHASE)
    return Choices(choice, member, members, group_rank, plan, phase, used, pairs)


def _group_combinations(
    columns: Sequence[npt.NDArray[np.integer[Any]]],
) -> tuple[Int64Array, Int64Array]:
    """Number the distinct combinations of values of rows; return an example row of each.

    `columns`: at least one column of integers by row. Returns (first row of each combination,
    number of the combination of every row). Combinations are numbered from 0 in ascending order,
    where the first column is the most significant. Without rows both arrays are empty. Cost:
    linear, unless values are distributed over a large range.
    """
    rows = len(columns[0])
    combination_of_row, count = np.zeros(rows, np.int64), 1
    for column in columns:
        low = int(column.min(initial=0))
        span = int(column.max(initial=0)) - low + 1
        combination_of_row, count = compute_dense_codes(
            combination_of_row * span + (column.astype(np.int64) - low), count * span
        )
    example = np.zeros(count if rows else 0, np.int64)
    # If several rows are assigned, the last assignment counts.
    example[combination_of_row[::-1]] = np.arange(rows - 1, -1, -1)
    return example, combination_of_row


def _find_prefixes(
    workload: Workload,
    system: System,
    kind: Int64Array,
    rows: Int64Array,
    per_node: Mapping[int, str],
    named: NamedAlgorithms | None,
) -> NamedAlgorithms:
    """Determine the custom algorithm of each collective node, or that it has none.

    `kind`: native type of every node; `rows`: the collective nodes. Returns the sorted names
    (prefixes of files) of all algorithms that are configured, used or not, and for each entry of
    `rows` an index in these names, -1 for a native algorithm. An algorithm in `named` (by row of
    the job, -1 for none) takes precedence over that of the node's identity (`per_node`), and that
    over the system's one for the type.
    """
    explicit_names = () if named is None else named.names
    names = tuple(sorted({*system.custom.values(), *per_node.values(), *explicit_names}))
    number_of = {name: number for number, name in enumerate(names)}
    by_type = np.full(TYPES, -1, np.int64)
    for collective, name in system.custom.items():
        by_type[NATIVE_TYPES.index(collective)] = number_of[name]
    number = by_type[kind[rows]]
    for identity, name in per_node.items():
        number[workload.nodes.identity[rows] == np.uint64(identity)] = number_of[name]
    if named is not None:
        chosen = np.array([*(number_of[name] for name in named.names), -1])[named.number[rows]]
        number = np.where(chosen >= 0, chosen, number)
    return NamedAlgorithms(names, number)


def get_dimension_sizes(dimensions: Sequence[int], num_ranks: int) -> tuple[int, ...]:
    """Return the sizes of a network's dimensions; one of all ranks if it is not regular."""
    return tuple(dimensions) if prod(dimensions) == num_ranks and dimensions else (num_ranks,)


def _collect_members(
    workload: Workload, rows: Int64Array
) -> tuple[Int64Array, Records, Int64Array]:
    """Collect the pairs of a process group and a rank that run its collectives.

    `rows`: row numbers of collectives. The results are:

    1. The index of the pair by node of the job; -1 for nodes without a group or not in `rows`.
    2. The records of the pairs (`MEMBER`), sorted by index of the group, then rank. Without pairs
       there is one record of zeros.
    3. The ranks of all groups of the job, concatenated.

    A record has the base of the group's stream numbers, 0 (streams so far), the index of the
    group's first rank in result 3, the position of the rank in the group, the size of the group,
    and whether the group is smaller than the job. The base is `_STREAMS_OF_A_GROUP` * n:

    - If the name of the group is a decimal number up to `MAX_GROUP`, n is this number.
    - Otherwise n is the index of the group + 1 + the largest such name of any group (0 without).

    Raises `InputError` (`group`) if a group lacks the rank of its node. The error is for the first
    such pair and located at one of its nodes, the first in `rows`.
    """
    nodes = workload.nodes
    groups = workload.groups
    first = np.cumsum([0, *(len(group.ranks) for group in groups)])
    group_rank = np.array([rank for group in groups for rank in group.ranks], np.int64)
    position_of = {
        (number, rank): position
        for number, group in enumerate(groups)
        for position, rank in enumerate(group.ranks)
    }
    grouped = rows[nodes.group[rows] >= 0]
    code = nodes.group[grouped].astype(np.int64) * workload.num_ranks + nodes.rank[grouped]
    example, index_of_row = _group_combinations([code])
    member = np.full(len(nodes), -1, np.int64)
    member[grouped] = index_of_row
    # At least one record, because compiled code may read the first one in any case.
    members = np.zeros(max(len(example), 1), MEMBER)
    # ASTRA-sim's numbers of groups: decimal names, otherwise numbers above all names.
    named_numbers = [parse_whole(group.name, MAX_GROUP) for group in groups]
    above = max([0, *(number for number in named_numbers if number is not None)]) + 1
    group_numbers = [
        above + index if number is None else number for index, number in enumerate(named_numbers)
    ]
    for index, member_code in enumerate(code[example].tolist()):
        number, rank = divmod(member_code, workload.num_ranks)
        position = position_of.get((number, rank))
        if position is None:
            message = f"a collective of process group {groups[number].name!r}, which lacks its rank"
            raise InputError(
                message, location=nodes.location(int(grouped[example[index]])), code="group"
            )
        size = len(groups[number].ranks)
        base = group_numbers[number] * _STREAMS_OF_A_GROUP
        members[index] = (base, 0, first[number], position, size, size < workload.num_ranks)
    return member, members, group_rank


# --- pairs that communicate ---


def _find_native_pairs(phase: CollectivePhase, members: Int64Array, num_ranks: int) -> Int64Array:
    """Return the ordered pairs of ranks that may communicate in a native phase, as codes.

    A phase is one algorithm in one network dimension. A code is source * num_ranks + destination;
    both directions are included; codes are distinct and ascend. `members`: ranks of each line of
    the dimension, int64[lines, size]. The algorithm determines the distances of communicating
    positions, modulo the size: 1 for a ring; all for direct; powers of two for halving-doubling;
    powers of two, and these minus one, for trees.
    """
    if phase.algorithm == RING:
        shifts = [1]
    elif phase.algorithm == DIRECT:
        shifts = list(range(1, phase.size // 2 + 1))
    elif phase.algorithm == HALVING_DOUBLING:
        shifts = [1 << power for power in range(phase.size.bit_length() - 1)]
    else:
        # Parents and children differ by a power of two, counted cyclically from the root.
        powers = [1 << power for power in range(phase.size.bit_length())]
        shifts = sorted({step % phase.size for power in powers for step in (power, power - 1)})
    codes = []
    for shift in shifts:
        ahead = np.roll(members, -shift, axis=1)
        codes += [members * num_ranks + ahead, ahead * num_ranks + members]
    return distinct(np.concatenate(codes).ravel()) if codes else np.zeros(0, np.int64)
