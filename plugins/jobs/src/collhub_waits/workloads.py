"""Find ranks of a workload that wait for one another, by the wait-for graph of hung jobs.

The workload is executed without times until no node can complete. The calls in which its ranks
then wait are the operations of a hung job, so the graph of `waiting.py` finds who waits for whom.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from collhub_job_traces import collectives_in_order

from collhub_waits.matching import Matching
from collhub_waits.records import (
    Dump,
    Frame,
    Group,
    OperationState,
    RecordedCall,
    Records,
    SharedTables,
    fill_columns,
)
from collhub_waits.waiting import WaitGraph, walk_cycle
from hub_core.columns import (
    BoolArray,
    Int64Array,
    labels,
    ordinals,
    topological_levels,
)
from hub_core.model import JobCollective, NodeKind, Workload


@dataclass(frozen=True)
class BlockedRank:
    """A rank of a deadlock: it waits in node `waits_in` and has not reached node `awaited`.

    The rank before it in the deadlock waits for `awaited`. Both are rows of the workload.
    """

    rank: int
    waits_in: int
    awaited: int


def find_deadlock(workload: Workload) -> tuple[BlockedRank, ...]:
    """Return the ranks of one deadlock in the order in which they wait; () without a deadlock.

    The workload is executed without times: all calls of a collective end together, and a receive
    ends after its send has begun. A send and a receive match if they are the only ones with their
    ranks, tag and bytes. Other messages do not wait for each other. If nodes then cannot complete,
    one cycle of ranks is returned, also if there are several. Each rank waits for the next one, and
    the last rank waits for the first.

    - `waits_in`: row of the node in which the rank waits.
    - `awaited`: row of the node of this rank for which the previous rank waits: the rank's call of
      the same collective, or the send of the receive.

    If a group's collective lacks a call, a message lacks an end, or a node waits for itself, there
    may be blocked ranks without a cycle: `IndexError`.
    """
    calls = _Calls(workload)
    is_stuck, is_front = calls.execute(np.zeros(0, np.int64))
    if not is_stuck.any():
        return ()
    rows = np.flatnonzero(is_front)
    records = calls.build_records(rows, np.full(len(rows), OperationState.STARTED))
    graph = WaitGraph(Matching(records))
    members = set(graph.order_cycles()[0])
    waits = [wait for wait in graph.waits if {wait.rank, wait.awaited} <= members]
    cycle = walk_cycle(waits)
    return tuple(
        BlockedRank(
            wait.rank,
            int(rows[wait.row]),
            calls.node_on(int(rows[previous.row]), wait.rank),
        )
        for previous, wait in zip([cycle[-1], *cycle], cycle, strict=False)
    )


def record_job(workload: Workload) -> Records:
    """Execute a workload without times, and return its operations as those of a hung job.

    - Collectives: the k-th calls of a group on its ranks complete if all its ranks call, with the
      same operation and size. Unknown sizes equal all sizes; sizes of all-to-alls and scatters are
      not compared.
    - Messages: sends and receives of equal ranks, tag and bytes are matched in order. Such a send
      does not wait; its receive completes after it. Then the rest is matched by ranks and tag.
      These messages and unmatched ones never complete.

    Result, by rank and id: operations that complete, and, as started, those that do not although
    all their dependencies do. Left out are operations that depend on one that does not complete,
    calls of ranks outside of their group, and messages to the same rank or to no rank. The frame of
    an operation has the name and id of its node, and the workload's source.
    """
    calls = _Calls(workload, matches_repeated=True)
    rows = np.concatenate([calls.issued, calls.messages])
    rows = rows[np.lexsort((workload.nodes.identity[rows], workload.nodes.rank[rows]))]
    completed = calls.build_records(rows, np.full(len(rows), OperationState.COMPLETED))
    differing = [
        int(rows[row]) for mismatch in Matching(completed).mismatches() for row in mismatch.rows
    ]
    blocked = np.union1d(np.array(differing, np.int64), calls.find_incomplete())
    is_stuck, is_front = calls.execute(blocked)
    rows = rows[~is_stuck[rows] | is_front[rows]]
    return calls.build_records(
        rows, np.where(is_stuck[rows], OperationState.STARTED, OperationState.COMPLETED)
    )


class _Calls:
    """Collectives and messages of a workload: which nodes are calls of one operation.

    `issued`: rows of collectives of members of their group, by rank and issue order. `messages`:
    rows of messages with another rank. `vertex`: the row of every node, or the row of its
    collective's first call. `sends`, `receives`: rows of the matched messages: those with unique
    ranks, tag and bytes, and with `matches_repeated` all that `record_job` matches. `sequence`:
    number of a collective in its group on its rank, from 1; 1 for messages.
    """

    def __init__(self, workload: Workload, *, matches_repeated: bool = False) -> None:
        self.workload = workload
        self.nodes = workload.nodes
        nodes = self.nodes
        self.vertex = np.arange(len(nodes))
        self.sequence = np.ones(len(nodes), np.int64)
        issued = collectives_in_order(nodes)
        # A row without a group means all ranks.
        is_member = np.ones(len(issued), np.bool_)
        for number, group in enumerate(workload.groups):
            of_group = nodes.group[issued] == number
            is_member[of_group] = np.isin(nodes.rank[issued[of_group]], group.ranks)
        self.issued = issued[is_member]
        if len(self.issued):
            groups = nodes.group[self.issued].astype(np.int64)
            ordinal = ordinals((groups + 1) * nodes.num_ranks + nodes.rank[self.issued])
            call = labels(groups + 1, ordinal)
            first = np.full(int(call.max()) + 1, len(nodes))
            np.minimum.at(first, call, self.issued)
            self.vertex[self.issued] = first[call]
            self.sequence[self.issued] = ordinal + 1
        rows = np.flatnonzero(nodes.is_kind(NodeKind.SEND, NodeKind.RECV))
        peer = nodes.peer[rows]
        self.messages = rows[(peer >= 0) & (peer < nodes.num_ranks) & (peer != nodes.rank[rows])]
        self.sends, self.receives = self._match_messages(matches_repeated)

    def _match_messages(self, matches_repeated: bool) -> tuple[Int64Array, Int64Array]:
        """Return the rows of matched sends and of their receives, in the same order.

        Without `matches_repeated`, a send and a receive match if they are the only two messages
        with their sender, receiver, tag and bytes. With it, there are two passes:

        1. The k-th send matches the k-th receive of equal sender, receiver, tag and bytes, in the
           order of the node ids of each rank.
        2. Of the remaining messages, the k-th ones of equal sender, receiver and tag match; their
           bytes may differ.

        The pairs of each pass are ordered by these values, then by k; those of pass 2 are last. A
        surplus is not matched. Empty without messages.
        """
        nodes, rows = self.nodes, self.messages
        if not len(rows):
            return rows, rows
        is_send = nodes.kind[rows] == NodeKind.SEND
        source = np.where(is_send, nodes.rank[rows], nodes.peer[rows])
        destination = np.where(is_send, nodes.peer[rows], nodes.rank[rows])
        key = labels(source, destination, nodes.tag[rows], nodes.bytes[rows])
        if not matches_repeated:
            is_single = np.bincount(key)[key] == 2
            return _pair(rows[is_single], is_send[is_single], key[is_single])
        rows_in_order = np.lexsort((nodes.identity[rows], nodes.rank[rows]))
        rows, is_send, key = rows[rows_in_order], is_send[rows_in_order], key[rows_in_order]
        sends, receives = _pair(rows, is_send, key)
        is_left = ~np.isin(rows, np.concatenate([sends, receives]))
        ends = labels(source, destination, nodes.tag[self.messages])[rows_in_order]
        more = _pair(rows[is_left], is_send[is_left], ends[is_left])
        return np.concatenate([sends, more[0]]), np.concatenate([receives, more[1]])

    def find_incomplete(self) -> Int64Array:
        """Return the rows of incomplete collectives and of unmatched messages: int64.

        A collective is incomplete if a rank of its group does not call it; the rows are those
        of the ranks that do, by rank and issue order. The messages come last. Collectives on a
        cycle of dependencies, or after one, count as not called, as do calls by ranks outside
        of the group.
        """
        size_of_group = np.array(
            [len(self.workload.members(number)) for number in range(-1, len(self.workload.groups))]
        )
        sizes = size_of_group[self.nodes.group[self.issued] + 1]
        callers = np.bincount(self.vertex[self.issued], minlength=len(self.nodes))
        is_lacking = callers[self.vertex[self.issued]] < sizes
        is_alone = ~np.isin(self.messages, np.concatenate([self.sends, self.receives]))
        return np.concatenate([self.issued[is_lacking], self.messages[is_alone]])

    def execute(self, blocked: Int64Array) -> tuple[BoolArray, BoolArray]:
        """Execute all nodes that can complete, and find the nodes that cannot.

        A node completes after all of its dependencies. A collective completes on all of its ranks
        together; a matched receive needs its send too. `blocked`: rows of nodes whose operations
        never complete. A blocked collective completes on none of its ranks. A blocked send or
        receive affects only its own node and the nodes that wait for it.

        Returns bool[nodes] twice: the nodes that do not complete, and those of them whose
        dependencies have all completed. In the latter a rank waits.
        """
        parents, children = self.nodes.edges()
        # A node that waits for itself is never executed.
        before = np.concatenate([parents, self.sends, blocked])
        after = np.concatenate([children, self.receives, blocked])
        order = topological_levels(len(self.nodes), self.vertex[before], self.vertex[after])
        is_stuck = order.position[self.vertex] < 0
        is_front = is_stuck.copy()
        is_front[children[is_stuck[parents]]] = False
        return is_stuck, is_front

    def node_on(self, row: int, rank: int) -> int:
        """Return the row of a rank in the collective of `row`; for a receive, the row of its send.

        For a receive, `rank` is ignored. Raise `IndexError` if the rank does not take part in
        the collective, for a receive without a matched send, and for any other node.
        """
        if self.nodes.kind[row] == NodeKind.COLLECTIVE:
            same = np.flatnonzero(self.vertex == self.vertex[row])
            return int(same[self.nodes.rank[same] == rank][0])
        return int(self.sends[self.receives == row][0])

    def build_records(self, rows: Int64Array, states: Int64Array) -> Records:
        """Convert nodes to operations with the given states; return one dump per rank.

        `rows`: collectives and messages, in ascending order of ranks. `states`: the state of each
        row. A dump has the operations of its rank in the order of `rows`, possibly none. Sends and
        receives are marked as point-to-point.

        - Group: the operations of one call of a collective share a group, which no other call has.
          The same holds for a matched pair of send and receive. An unmatched message has a separate
          group.
        - Sequence number: k for the k-th collective of a rank in its process group, from 1; 1 for
          messages.
        - Call: the name of the collective, `send` or `recv`, and the bytes as its only shape.
        - Stack: one frame that describes the node, if its operation is not completed or is the last
          one of its rank in `rows`. All other stacks are empty.
        """
        tables = SharedTables()
        nodes = self.nodes
        unit = self.vertex.copy()
        unit[self.receives] = self.sends
        # The empty stack has the number 0.
        tables.stacks.number(())
        is_waiting = states != OperationState.COMPLETED
        is_last = np.append(nodes.rank[rows[1:]] != nodes.rank[rows[:-1]], True)[: len(rows)]
        stacks = np.zeros(len(rows), np.int64)
        for index in np.flatnonzero(is_waiting | is_last).tolist():
            row = int(rows[index])
            number = int(nodes.name[row])
            name = self.workload.names[number] if number >= 0 else "node"
            # The id of the node takes the place of the line number.
            source = self.workload.provenance.source_name
            frame = Frame(name, source, int(nodes.identity[row]))
            stacks[index] = tables.stacks.number((frame,))
        columns = fill_columns(
            len(rows),
            group=self._number_groups(unit[rows], tables),
            is_p2p=nodes.kind[rows] != NodeKind.COLLECTIVE,
            sequence=self.sequence[rows],
            calls=self._number_calls(rows, tables),
            state=states,
            stack=stacks,
        )
        bounds = np.searchsorted(nodes.rank[rows], np.arange(nodes.num_ranks + 1)).tolist()
        dumps: dict[int, Dump] = {}
        for rank, (first, end) in enumerate(pairwise(bounds)):
            dumps[rank] = Dump(
                rank,
                file="",
                version="",
                columns={name: column[first:end] for name, column in columns.items()},
                groups=frozenset(),
                status={},
                is_overwritten=False,
                has_completed=True,
                records_starts=True,
            )
        return Records(dumps, tables)

    def _number_groups(self, units: Int64Array, tables: SharedTables) -> Int64Array:
        """Return the number in `tables` of the group of each operation: int64[rows].

        `units`: for each row, the row of the workload that represents its operation (of a matched
        message, the send). Rows with the same unit have the same group. Each operation gets a new
        group, whose `ordinal` is the unit. The group is added to `tables.groups`:

        - collective: members and name of its process group (all ranks and `all ranks` for -1)
        - message: the members (sender, receiver) and the name `messages`
        """
        distinct, of_row = np.unique(units, return_inverse=True)
        nodes = self.nodes
        members = {
            number: Group(
                self.workload.members(number),
                self.workload.groups[number].name if number >= 0 else "all ranks",
                0,
            )
            for number in np.unique(nodes.group[distinct]).tolist()
        }
        numbers = np.zeros(len(distinct), np.int64)
        for index, row in enumerate(distinct.tolist()):
            if nodes.kind[row] == NodeKind.COLLECTIVE:
                group = members[int(nodes.group[row])]._replace(ordinal=row)
            else:
                ends = int(nodes.rank[row]), int(nodes.peer[row])
                if nodes.kind[row] == NodeKind.RECV:
                    ends = ends[1], ends[0]
                group = Group(ends, "messages", row)
            numbers[index] = tables.groups.number(group)
        return numbers[of_row.reshape(-1)]

    def _number_calls(self, rows: Int64Array, tables: SharedTables) -> Int64Array:
        """Return the number in `tables` of the call of each row: int64[rows]; new calls are added.

        `rows`: COLLECTIVE, SEND and RECV nodes. Rows with equal kind, collective and bytes have
        one call. A call that `tables` has already keeps its number. New ones are numbered in
        ascending order of kind, collective and bytes. Fields of a call:

        - operation: for a collective its name in lower case (`unknown` for -1), else `send` or
          `recv`
        - shapes: only (bytes,), an input shape for collectives and sends, an output shape for
          receives; no shape if bytes is negative
        - source and destination: ranks 0 and 1 for a send or receive, -1 for a collective
        - backend and dtypes: empty
        """
        nodes = self.nodes
        keys = np.stack(
            [
                column[rows].astype(np.int64)
                for column in (nodes.kind, nodes.collective, nodes.bytes)
            ]
        )
        distinct, of_row = np.unique(keys, axis=1, return_inverse=True)
        numbers = []
        for kind, collective, size in distinct.T.tolist():
            shapes = ((size,),) if size >= 0 else ()
            if kind == NodeKind.COLLECTIVE:
                name = JobCollective(collective).name.lower()
                call = RecordedCall("", name, shapes, (), (), ())
            elif kind == NodeKind.SEND:
                call = RecordedCall("", "send", shapes, (), (), (), 0, 1)
            else:
                call = RecordedCall("", "recv", (), shapes, (), (), 0, 1)
            numbers.append(tables.calls.number((call,)))
        return np.array(numbers, np.int64)[of_row.reshape(-1)]


def _pair(rows: Int64Array, is_send: BoolArray, key: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Match sends and receives: the k-th send of a key and the k-th receive of this key.

    `rows`: messages; `is_send`, `key` (not negative): of each. k counts in the order of
    `rows`. Returns the rows of the matched sends and of their receives, both ordered by
    key, then by k. A send or receive without a counterpart is dropped.
    """
    sides = []
    for chosen in (is_send, ~is_send):
        keys = key[chosen].astype(np.int64)
        count = len(rows) + 1
        sides.append((rows[chosen], keys * count + ordinals(keys)))
    _, first, second = np.intersect1d(sides[0][1], sides[1][1], return_indices=True)
    return sides[0][0][first], sides[1][0][second]
