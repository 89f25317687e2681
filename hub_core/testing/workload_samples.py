"""Small sample workloads for the rules on writers and simulators of workloads."""

from __future__ import annotations

from collections.abc import Mapping

from hub_core.model.kinds import JobCollective, NodeKind
from hub_core.model.workload import NODE_DEFAULTS, NodeColumns, ProcessGroup, Workload


def sample_workloads() -> Mapping[str, Workload]:
    """Sample workloads by name."""
    return {"training step": training_step(), "pipeline": pipeline()}


def training_step(num_ranks: int = 4) -> Workload:
    """Data-parallel step with two layers: compute, then all-reduce the gradients of all ranks."""
    builder = _WorkloadBuilder(num_ranks)
    for rank in range(num_ranks):
        parents: list[int] = []
        for duration in (2000, 3000):
            compute = builder.add(rank, NodeKind.COMPUTE, parents, duration_ns=duration)
            kind = int(JobCollective.ALL_REDUCE)
            builder.add(rank, NodeKind.COLLECTIVE, [compute], collective=kind, bytes=1 << 16)
            parents = [compute]
    return builder.workload()


def pipeline() -> Workload:
    """Pipeline with two stages of two ranks: compute, send to stage 2, all-gather per stage."""
    builder = _WorkloadBuilder(4)
    for rank in range(4):
        peer, is_first = rank ^ 2, rank < 2
        compute = builder.add(rank, NodeKind.COMPUTE, [], duration_ns=1000)
        kind = NodeKind.SEND if is_first else NodeKind.RECV
        message = builder.add(rank, kind, [compute], peer=peer, tag=7, bytes=4096)
        code = int(JobCollective.ALL_GATHER)
        group = 0 if is_first else 1
        builder.add(rank, NodeKind.COLLECTIVE, [message], collective=code, bytes=512, group=group)
    return builder.workload(ProcessGroup("1", (0, 1)), ProcessGroup("2", (2, 3)))


class _WorkloadBuilder:
    """Builder of a workload; nodes are added one by one."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._columns: dict[str, list[int]] = {
            name: [] for name in NODE_DEFAULTS if name not in ("identity", "on_host")
        }
        self._edges: tuple[list[int], list[int]] = ([], [])

    def add(self, rank: int, kind: NodeKind, parents: list[int], **values: int) -> int:
        """Append a node that depends on the rows `parents`; return its row. `values`: columns."""
        row = len(self._columns["rank"])
        columns = {"rank": rank, "kind": int(kind)} | values
        for name, column in self._columns.items():
            column.append(columns.get(name, NODE_DEFAULTS[name]))
        for parent in parents:
            self._edges[0].append(parent)
            self._edges[1].append(row)
        return row

    def workload(self, *groups: ProcessGroup) -> Workload:
        """Build the workload of all nodes, sorted by rank, with these process groups."""
        nodes = NodeColumns.from_columns(self._num_ranks, self._columns, self._edges)
        return Workload(nodes, groups=groups)
