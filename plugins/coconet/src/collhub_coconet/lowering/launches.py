"""Launches of kernels that communicate, as nodes of a flat graph.

A rank launches its communication kernels one after another, each when its operands are ready, as
the stream of an NCCL communicator does. The order is that in which their operands become ready if
collectives take no time: by the last kernel with computations on which they depend, then as in the
program. Other kernels contain their launch in their first computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from collhub_coconet.lowering.flat_program import Launch, Part
from collhub_coconet.lowering.nodes import NodeList
from collhub_coconet.program.operations import Operation
from collhub_coconet.program.program import Program
from hub_core.columns import distinct
from hub_core.model import NodeKind


@dataclass(frozen=True, slots=True)
class _CommunicationKernel:
    """Kernel that communicates; fused ones contain computations, too.

    `level`: number of the last kernel with computations on which it depends. `nodes`: numbers of
    its nodes, with MARKERs. `is_early`: it is a member of a chain, so that it is launched before
    its operand is complete.
    """

    operations: tuple[Operation, ...]
    kernel: int
    level: int
    nodes: range
    is_early: bool


@dataclass(slots=True)
class LaunchList:
    """Kernels that communicate, collected in the order of execution.

    `levels`: by value, the number of the last kernel with computations on which it depends.
    """

    kernels: list[_CommunicationKernel] = field(default_factory=list)
    levels: dict[str, int] = field(default_factory=dict)

    def add(
        self, program: Program, operations: Sequence[Operation], kernel: int, nodes: range
    ) -> None:
        """Record a kernel, which has the number `kernel`; call this in the order of execution.

        Values of a kernel that computes get its number as level; values of other kernels get the
        largest level of the operands, 0 for none. A kernel with a communication and nodes is also
        stored with the level of its operands. It is marked as early if a chain contains its first
        operation or the stage of that operation.
        """
        inside = {operation.name for operation in operations}
        read = {name for operation in operations for name in operation.reads} - inside
        level = max((self.levels.get(name, 0) for name in read), default=0)
        is_computing = not all(entry.is_communication or entry.is_free for entry in operations)
        self.levels |= dict.fromkeys(
            (operation.name for operation in operations), kernel if is_computing else level
        )
        if not nodes or not any(entry.is_communication for entry in operations):
            return
        chained = {member for chain in program.chains for member in chain.members}
        labels = {stage.name for stage in program.stages if operations[0].name in stage.members}
        is_early = not chained.isdisjoint(labels | {operations[0].name})
        self.kernels.append(_CommunicationKernel(tuple(operations), kernel, level, nodes, is_early))

    def add_nodes(
        self,
        nodes: NodeList,
        parts: list[Part],
        add_name: Callable[[Sequence[Operation]], int],
    ) -> None:
        """Add one node per kernel and rank, with a part per kernel, and their dependencies.

        The node waits for the operands and for the previous launch of its rank; nodes of the kernel
        that wait for no other node of it wait for the launch.
        """
        if not self.kernels:
            return
        rank, kind = nodes.column("rank"), nodes.column("kind")
        kernel_of = np.full(nodes.count, -1, np.int64)
        for index, kernel in enumerate(self.kernels):
            kernel_of[kernel.nodes.start : kernel.nodes.stop] = index
        parents, children = nodes.edges("data")
        # A MARKER for a value of another kernel is not a node of the kernel that reads the value.
        is_foreign = (kind == NodeKind.MARKER) & (kernel_of >= 0)
        is_foreign[children[kernel_of[parents] == kernel_of[children]]] = False
        kernel_of[is_foreign] = -1
        num_ranks = int(rank.max()) + 1
        inside = np.flatnonzero(kernel_of >= 0)
        keys = distinct(kernel_of[inside] * num_ranks + rank[inside])
        launch_of = np.full(len(self.kernels) * num_ranks, -1, np.int64)
        for index, kernel in enumerate(self.kernels):
            ranks = keys[keys // num_ranks == index] % num_ranks
            numbers = nodes.add(
                ranks, len(parts), np.zeros_like(ranks),
                kind=NodeKind.COMPUTE, name=add_name(kernel.operations),
            )  # fmt: skip
            parts.append(Launch(kernel.kernel))
            launch_of[index * num_ranks + ranks] = numbers
        has_parent = np.zeros(len(kernel_of), np.bool_)
        is_early = np.array([kernel.is_early for kernel in self.kernels])
        # Collected first, since the loop adds edges.
        for parents, children in [nodes.edges(entry) for entry in ("data", "control")]:
            is_inside = kernel_of[children] >= 0
            parents, children = parents[is_inside], children[is_inside]
            is_own = kernel_of[parents] == kernel_of[children]
            has_parent[children[is_own]] = True
            parents, children = parents[~is_own], children[~is_own]
            is_late = ~is_early[kernel_of[children]]
            parents, children = parents[is_late], children[is_late]
            keys_of_children = kernel_of[children] * num_ranks + rank[children]
            nodes.control.append((parents, launch_of[keys_of_children]))
        starts = inside[~has_parent[inside]]
        nodes.control.append((launch_of[kernel_of[starts] * num_ranks + rank[starts]], starts))
        levels = np.array([kernel.level for kernel in self.kernels])
        kernel_numbers, ranks = np.divmod(keys, num_ranks)
        order = np.lexsort((kernel_numbers, levels[kernel_numbers], ranks))
        ordered, ranks = launch_of[keys][order], ranks[order]
        is_next = ranks[1:] == ranks[:-1]
        nodes.control.append((ordered[:-1][is_next], ordered[1:][is_next]))
