"""Small jobs by which writers and simulators of workloads are tried."""

from __future__ import annotations

from collections.abc import Mapping

from hub_core.model.kinds import JobCollective, NodeKind
from hub_core.model.workload import NODE_DEFAULTS, NodeColumns, ProcessGroup, Workload


def sample_workloads() -> Mapping[str, Workload]:
    """Jobs by name."""
    return {"training step": training_step(), "pipeline": pipeline()}


def training_step(num_ranks: int = 4) -> Workload:
    """Two layers of a data-parallel step: compute, then reduce the gradients of all ranks."""
    draft = _Draft(num_ranks)
    for rank in range(num_ranks):
        before: list[int] = []
        for duration in (2000, 3000):
            compute = draft.add(rank, NodeKind.COMPUTE, before, duration_ns=duration)
            kind = int(JobCollective.ALL_REDUCE)
            draft.add(rank, NodeKind.COLLECTIVE, [compute], collective=kind, bytes=1 << 16)
            before = [compute]
    return draft.workload()


def pipeline() -> Workload:
    """Two stages of two ranks: activations go to the next stage, whose ranks reduce in a group."""
    draft = _Draft(4)
    for rank in range(4):
        peer, is_first = rank ^ 2, rank < 2
        compute = draft.add(rank, NodeKind.COMPUTE, [], duration_ns=1000)
        kind = NodeKind.SEND if is_first else NodeKind.RECV
        passed = draft.add(rank, kind, [compute], peer=peer, tag=7, bytes=4096)
        code = int(JobCollective.ALL_GATHER)
        group = 0 if is_first else 1
        draft.add(rank, NodeKind.COLLECTIVE, [passed], collective=code, bytes=512, group=group)
    return draft.workload(ProcessGroup("1", (0, 1)), ProcessGroup("2", (2, 3)))


class _Draft:
    """Nodes added one by one."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._columns: dict[str, list[int]] = {
            name: [] for name in NODE_DEFAULTS if name not in ("identity", "on_host")
        }
        self._edges: tuple[list[int], list[int]] = ([], [])

    def add(self, rank: int, kind: NodeKind, parents: list[int], **values: int) -> int:
        """Append a node that waits for others; return its row."""
        row = len(self._columns["rank"])
        stated = {"rank": rank, "kind": int(kind)} | values
        for name, column in self._columns.items():
            column.append(stated.get(name, NODE_DEFAULTS[name]))
        for parent in parents:
            self._edges[0].append(parent)
            self._edges[1].append(row)
        return row

    def workload(self, *groups: ProcessGroup) -> Workload:
        """The job of all nodes."""
        # Grouped by rank, whatever the order of the draft.
        nodes = NodeColumns.from_columns(self._num_ranks, self._columns, self._edges)
        return Workload(nodes, groups=groups)
