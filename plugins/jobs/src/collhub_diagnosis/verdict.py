"""The verdict on a hung job: its cause, the ranks responsible, and the ranks that only wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from collhub_waits.matching import Arrival, Matching
from collhub_waits.mismatches import Mismatch, RankSizes
from collhub_waits.records import OperationState
from collhub_waits.waiting import Wait, WaitGraph, walk_cycle

from collhub_diagnosis.dump_entries import describe_calls
from collhub_diagnosis.nccl_evidence import NcclEvidence
from collhub_diagnosis.read_evidence import Evidence

# The first kind of which there is a finding is the verdict.
KINDS = (
    "type",
    "size",
    "dtype",
    "all-to-all",
    "order",
    "late",
    "device",
    "network",
    "undecided",
    "skew",
    "none",
)
NO_FAULT = ("none", "skew")
MAX_MISMATCHES = 100
MAX_STEPS = 8
SHOWN_FRAMES = 3


@dataclass(frozen=True)
class VerdictFinding:
    """One cause, or one reason why a question is undecided.

    `culprits`: ranks responsible. `group`, `description`, `sequence`, `operation` and `frames`
    describe the operation; `frames`: the stack of its first rank, innermost frame first. `sizes`:
    the different sizes, if sizes differ. `is_past`: the operation completed nevertheless.
    """

    kind: str
    text: str
    culprits: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    description: str = ""
    sequence: int | None = None
    operation: str = ""
    frames: tuple[str, ...] = ()
    is_past: bool = False
    sizes: tuple[RankSizes, ...] = ()


@dataclass(frozen=True)
class WaitLine:
    """Ranks that wait in one operation, and the ranks that they wait for there."""

    ranks: tuple[int, ...]
    awaited: tuple[int, ...]
    group: tuple[int, ...]
    description: str
    sequence: int
    operation: str
    frames: tuple[str, ...]


@dataclass(frozen=True)
class JobVerdict:
    """Result of a diagnosis. Ranks are sorted; `findings` begins with the causes."""

    kind: str
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    group: tuple[int, ...]
    sequence: int | None
    missing_dumps: tuple[int, ...]
    findings: tuple[VerdictFinding, ...]
    waits: tuple[WaitLine, ...]
    notes: tuple[str, ...]
    dumps: int
    operations: int

    @property
    def has_fault(self) -> bool:
        """Whether there is a fault, or ranks hang and the evidence does not decide the cause."""
        return self.kind not in NO_FAULT and (self.kind != "undecided" or bool(self.waiting))


def diagnose_evidence(evidence: Evidence) -> JobVerdict:
    """Diagnose a hung job from the operations of all ranks and the evidence of NCCL.

    The first of these sets that is not empty decides:

    1. Faults of the present (operations that are not completed).
    2. Faults of completed operations; skipped if an open question has the number of an
       operation.
    3. Open questions (evidence is missing) and skews (a rank completes an operation later
       than other ranks, without a fault).

    The verdict has

    - kind: the first in the order of `KINDS` in the deciding set; `none` without findings
    - culprits: ranks, ascending, of all findings in the deciding set, also of other kinds
    - waiting ranks: ascending, without culprits; empty for the kinds `none` and `skew`
    - findings: the deciding ones first, then all remaining ones
    """
    graph = WaitGraph(Matching(evidence.records))
    return _Diagnosis(graph, evidence.nccl).verdict()


class _Diagnosis:
    """Collects findings of every kind. The first kind by `KINDS` with a finding is the verdict."""

    def __init__(self, graph: WaitGraph, nccl: NcclEvidence) -> None:
        self.graph = graph
        self.nccl = nccl
        self.records = graph.records
        self.mismatched_rows: set[int] = set()
        # Awaited ranks by row; for every awaited rank one row per operation.
        self.awaited: dict[int, set[int]] = {}
        self.awaiting_rows: dict[int, list[int]] = {}
        seen: set[int] = set()
        for front in graph.fronts.values():
            for row in front.rows:
                # The ranks that wait in an operation share one tuple: the row of the first counts.
                partners = graph.awaited(row)
                if not partners or id(partners) in seen:
                    continue
                seen.add(id(partners))
                self.awaited[row] = {partner.rank for partner in partners}
                for rank in sorted(self.awaited[row]):
                    self.awaiting_rows.setdefault(rank, []).append(row)

    def verdict(self) -> JobVerdict:
        """Return the verdict on the findings of all kinds.

        A finding on the past concerns a completed operation, every other finding the present. The
        findings of the first set that is not empty decide:

        1. Faults: findings on the present of all kinds except `skew`, without the open questions
           (`find_open_questions`).
        2. Findings on the past. They are skipped if a finding `undecided` has a sequence number,
           because its operation may be the cause of the hang.
        3. The other findings on the present: open questions and skews.
        4. One finding of the kind `none`, which is not in the list of findings.

        The kind of the verdict is the first one in `KINDS` that the deciding findings have. Group
        and sequence number are those of the first deciding finding of this kind. The culprits are
        those of all deciding findings, ascending.

        The waiting ranks are, without the culprits and ascending, those that wait in an operation
        of the dumps; without any dump, those that wait according to NCCL's RAS report. For the
        kinds `none` and `skew` there are none. The list of findings has the deciding ones in the
        order of `KINDS`, then the others on the present, then those on the past. Rows of mismatches
        are added to `self.mismatched_rows`.
        """
        findings = [
            *self.find_mismatches(),
            *self.find_order_deadlocks(),
            *self.find_late_ranks(),
            *self.find_ras_problems(),
            *self.find_blocked_collectives(),
            *self.find_skews(),
        ]
        causes = [
            finding for finding in findings if finding.kind not in NO_FAULT and not finding.is_past
        ]
        past = [finding for finding in findings if finding.is_past]
        findings += self.find_open_questions(causes)
        if not causes:
            # Without a cause of the hang, evidence that is missing counts.
            hangs = any(
                finding.kind == "undecided" and finding.sequence is not None for finding in findings
            )
            causes = [] if hangs else past
        causes = causes or [finding for finding in findings if not finding.is_past] or [_NO_FINDING]
        causes.sort(key=lambda finding: KINDS.index(finding.kind))
        main = causes[0]
        culprits = sorted({rank for finding in causes for rank in finding.culprits})
        waiting_in_ras = {rank for lagging in self.nccl.behind for rank in lagging.waiting}
        waiting = sorted(
            {rank for rank, front in self.graph.fronts.items() if front.rows}
            | (set() if self.records.dumps else waiting_in_ras)
        )
        waiting = [rank for rank in waiting if rank not in culprits]
        others = [finding for finding in findings if finding not in causes]
        others.sort(key=lambda finding: finding.is_past)
        return JobVerdict(
            main.kind,
            tuple(culprits),
            tuple(waiting) if main.kind not in NO_FAULT else (),
            main.group,
            main.sequence,
            self.records.missing_dumps,
            tuple(finding for finding in causes if finding is not _NO_FINDING) + tuple(others),
            tuple(self.list_waits()),
            tuple(self.list_notes()),
            len(self.records.dumps),
            len(self.records.columns["group"]),
        )

    def find_mismatches(self) -> list[VerdictFinding]:
        """Return findings on groups whose ranks made different calls of one operation.

        There are two kinds of mismatches: of operations that are not completed, and of completed
        ones. A group has at most one finding per kind, its first mismatch, because ranks may be
        out of step after it. The first kind comes first. Within a kind, collectives come first,
        ordered by group and number, then messages.

        At most `MAX_MISMATCHES` (100) findings are returned, of both kinds together; [] without
        mismatches. The rows of all mismatches are added to `self.mismatched_rows`, also those
        without a finding.
        """
        mismatches = list(self.graph.matching.mismatches())
        mismatches.sort(key=lambda one: one.is_completed)
        findings: list[VerdictFinding] = []
        seen: set[tuple[int, bool]] = set()
        for mismatch in mismatches:
            # After the first difference of a group, its ranks may be out of step.
            key = (int(self.records.columns["group"][mismatch.rows[0]]), mismatch.is_completed)
            self.mismatched_rows.update(mismatch.rows)
            if key not in seen and len(findings) < MAX_MISMATCHES:
                seen.add(key)
                findings.append(self.create_mismatch_finding(mismatch))
        return findings

    def create_mismatch_finding(self, mismatch: Mismatch) -> VerdictFinding:
        """Return the finding on an operation whose calls differ or contradict themselves.

        Kind, culprits and sizes are those of `mismatch.difference`. The text is a phrase, `: ` and
        `detail`. The phrase is by kind: `operations differ` for `type`, `sizes differ` for `size`,
        `dtypes differ` for `dtype`, otherwise `the sums differ`. Group, number, name and frames are
        those of `mismatch.rows[0]`. `is_past` is `mismatch.is_completed`, i.e. all compared ranks
        completed the operation. If true, ` (the operation completed)` is added to the text.
        """
        difference = mismatch.difference
        noun = {"type": "operations", "size": "sizes", "dtype": "dtypes"}.get(difference.kind)
        problem = f"{noun} differ" if noun else "the sums differ"
        text = f"{problem}: {difference.detail}"
        if mismatch.is_completed:
            text += " (the operation completed)"
        finding = self.create_finding(
            difference.kind,
            mismatch.rows[0],
            text,
            difference.culprits,
            is_past=mismatch.is_completed,
        )
        return replace(finding, sizes=difference.sizes)

    def find_order_deadlocks(self) -> list[VerdictFinding]:
        """Return a finding `order` for each cycle of ranks that wait for each other.

        A cycle is a set of at least two ranks, each of which waits, directly or over others, for
        all others, and certainly for no rank outside. Cycles are those of `order_cycles` of the
        graph, in its order. A cycle is left out if one of its waits is in an operation with a
        mismatch (`mismatched_rows`).

        Culprits are the ranks that do not wait in the same collectives as the majority of the
        cycle. Without a majority all ranks of the cycle are culprits (`find_deviating_ranks`). The
        operation of the finding is that of the first wait of a culprit, in the order of the graph's
        waits. The text follows one closed chain of waits (a rank that waits for several others
        counts once). It lists at most `MAX_STEPS` (8) of them and the number of the others. Without
        cycles the list is empty.
        """
        findings = []
        for ranks in self.graph.order_cycles():
            inside = set(ranks)
            waits = [
                wait for wait in self.graph.waits if wait.rank in inside and wait.awaited in inside
            ]
            if any(wait.row in self.mismatched_rows for wait in waits):
                continue
            culprits = self.find_deviating_ranks(ranks, waits)
            steps = walk_cycle(waits)
            text = "ranks wait for each other: " + "; ".join(
                f"rank {step.rank} waits in {self.describe(step.row)} for rank {step.awaited}"
                for step in steps[:MAX_STEPS]
            )
            text += f"; and {len(steps) - MAX_STEPS} more" * (len(steps) > MAX_STEPS)
            row = next((w.row for w in waits if w.rank in culprits), waits[0].row)
            findings.append(self.create_finding("order", row, text, culprits))
        return findings

    def find_deviating_ranks(self, ranks: Sequence[int], waits: Sequence[Wait]) -> tuple[int, ...]:
        """Return the ranks of a cycle that wait in other collectives than its majority.

        `ranks`: ranks of the cycle, at least one, whose order is kept; `waits`: their waits.
        For each rank, the set of the collectives in which it waits is determined; messages are
        ignored. If more than half of the ranks have the same set and it is not empty, the ranks
        with any other set are returned. Otherwise all ranks are returned.
        """
        keys: dict[int, set[tuple[int, int]]] = {rank: set() for rank in ranks}
        for wait in waits:
            if not self.records.columns["is_p2p"][wait.row]:
                operation = self.records.operation(wait.row)
                keys[wait.rank].add((operation.group, operation.sequence))
        fronts = {rank: frozenset(rank_keys) for rank, rank_keys in keys.items()}
        (common, count), *_ = Counter(fronts.values()).most_common(1)
        if not common or 2 * count <= len(ranks):
            return tuple(ranks)
        return tuple(rank for rank in ranks if fronts[rank] != common)

    def find_late_ranks(self) -> list[VerdictFinding]:
        """Return findings on ranks that wait for no rank although other ranks wait for them.

        An operation that a rank has issued and not completed, but other ranks completed, is stuck
        if it is overdue, otherwise skewed. Overdue: it timed out, is older than its timeout, or
        another rank completed it more than 60 s before the latest time in the dumps. For each rank,
        the first case that applies:

        1. It has a skewed operation, and no wait of another rank for it is overdue: no finding.
        2. It has a stuck or skewed operation: `device`, with the rank as culprit, at its first
           stuck operation, or without one at its first skewed one.
        3. Otherwise `late` at the operation of `find_awaiting_row`, which waits for the rank. Ranks
           with the same operation share one finding as its culprits. If there is one, the text adds
           the operation that it issued last. Findings `late` come after all `device`, by row.
        """
        by_row: dict[int, list[int]] = {}
        findings = []
        for rank, front in self.graph.sources.items():
            if front.skewed and not self.graph.has_waited_long(rank):
                continue
            row = self.find_awaiting_row(rank)
            if front.skewed or front.stuck:
                row = (front.stuck + front.skewed)[0]
                operation = self.describe(row)
                text = f"rank {rank} has not completed {operation}, which other ranks completed"
                findings.append(self.create_finding("device", row, text, (rank,)))
            else:
                by_row.setdefault(row, []).append(rank)
        for row, ranks in sorted(by_row.items()):
            last = self.describe_last_operation(ranks[0]) if len(ranks) == 1 else ""
            verb = "has" if len(ranks) == 1 else "have"
            text = f"{format_ranks(ranks)} {verb} not issued {self.describe(row)}{last}"
            findings.append(self.create_finding("late", row, text, tuple(ranks)))
        return findings

    def find_ras_problems(self) -> list[VerdictFinding]:
        """Return findings `late` from the reports of NCCL's RAS subsystem, empty without reports.

        1. One finding per rank in `nccl.unresponsive` (its process does not respond, is dead or is
           missing), ascending by rank. It has no group.
        2. One finding per communicator in `nccl.behind`, in this order: its ranks had different
           counts of collectives, unchanged between two queries. Its culprits are the ranks with
           fewer collectives than the maximum. Ranks that have the maximum in any such communicator
           are no culprits. Its group is the communicator. It is omitted without culprits.

        With Flight Recorder dumps rule 2 gives nothing, because dumps show more. No finding names
        an operation.
        """
        evidence = self.nccl
        findings = [
            VerdictFinding("late", f"RAS: rank {rank}: {reason}", (rank,))
            for rank, reason in sorted(evidence.unresponsive.items())
        ]
        waiting = {rank for lagging in evidence.behind for rank in lagging.waiting}
        for lagging in evidence.behind:
            culprits = tuple(rank for rank in lagging.ranks if rank not in waiting)
            # Flight Recorder dumps show more than the counts of RAS.
            if culprits and not self.records.dumps:
                text = (
                    f"RAS: {format_ranks(culprits)} stay behind in communicator"
                    f" {lagging.communicator}"
                )
                findings.append(VerdictFinding("late", text, culprits, lagging.group))
        return findings

    def find_awaiting_row(self, rank: int) -> int:
        """Return the row of the operation that shows best who waits for the late rank `rank`.

        Of the operations that wait for it, those are preferred that wait only for ranks at which a
        hang starts (`sources` of the graph). Then the earliest creation time counts, then the
        lowest row. For a collective, the row of the lowest rank in it is returned. Raise `KeyError`
        if no operation waits for the rank.
        """
        sources = set(self.graph.sources)
        rows = self.awaiting_rows[rank]
        keys = self.records.columns["created_ns"]
        chosen = min(rows, key=lambda row: (not self.awaited[row] <= sources, int(keys[row]), row))
        # One operation has one row for all ranks that wait in it.
        if self.records.columns["is_p2p"][chosen]:
            return chosen
        same = self.graph.matching.rows_of_key(chosen)
        return same[min(same)]

    def describe_last_operation(self, rank: int) -> str:
        """Return a clause on the operation that a rank issued last, to append to a sentence.

        It is `; its last operation is OPERATION`, followed by `, issued by FRAME` with the
        innermost stack frame if a stack is recorded; or `; it has issued no operation`. Raise
        `KeyError` for a rank without a dump.
        """
        rows = self.records.rows_of(rank)
        if not rows:
            return "; it has issued no operation"
        text = f"; its last operation is {self.describe(rows[-1])}"
        frames = self.list_frames(rows[-1])
        return f"{text}, issued by {frames[0]}" if frames else text

    def find_blocked_collectives(self) -> list[VerdictFinding]:
        """Return a finding for each incomplete operation that all of its ranks have issued.

        The order is that of `rows_issued_by_all`; `mismatched_rows` are skipped. The first rule
        that applies gives the kind and the culprits (none in rules 1, 2 and 5):

        1. `undecided`: no other rank of the operation is known, but there may be some: the members
           of the group are not recorded, or it is a message in a group of more than one rank.
        2. `undecided`: the ring buffers may have lost entries that explain it
           (`has_lost_evidence`).
        3. No rank is in the state SCHEDULED (not started), or the backend is gloo. With other
           ranks: `network`, culprits are its ranks that do not respond to RAS. Without: `device`,
           the rank itself.
        4. `device`: some ranks have not started it; these are the culprits, ascending.
        5. `device`: no rank has started it. If no dump of its ranks records starts, the text says
           so.
        """
        findings = []
        for row in self.graph.rows_issued_by_all():
            states = self.graph.states(row)
            if row in self.mismatched_rows:
                continue
            rank_of_row = self.records.rank(row)
            participants = self.graph.matching.participants(row)
            partners = [entry.rank for entry in participants if entry.rank != rank_of_row]
            group = self.records.tables.groups[int(self.records.columns["group"][row])]
            is_p2p = bool(self.records.columns["is_p2p"][row])
            # Ranks that the dumps do not name.
            may_have_others = group.ranks is None or (is_p2p and len(group.ranks) > 1)
            waiting = [rank for rank, state in states.items() if state is OperationState.SCHEDULED]
            backend = self.records.tables.calls[int(self.records.columns["calls"][row])][0].backend
            if not partners and may_have_others:
                text = f"the other ranks of {self.describe(row)} are not known"
                findings.append(self.create_finding("undecided", row, text))
            elif self.graph.has_lost_evidence(row):
                text = f"the ring buffers lost the operations before {self.describe(row)}"
                findings.append(self.create_finding("undecided", row, text))
            elif not waiting or backend == "gloo":
                text = f"all ranks are in {self.describe(row)}, and none completes it"
                kind = "network" if partners else "device"
                dead = tuple(sorted(self.nccl.unresponsive.keys() & states))
                culprits = dead if partners else tuple(states)
                findings.append(self.create_finding(kind, row, text, culprits))
            elif len(waiting) < len(states):
                verb = "has" if len(waiting) == 1 else "have"
                text = (
                    f"{format_ranks(waiting)} {verb} not started {self.describe(row)}, others have"
                )
                findings.append(self.create_finding("device", row, text, tuple(sorted(waiting))))
            else:
                text = (
                    f"all ranks have issued {self.describe(row)}, and none has started it: an "
                    "earlier kernel or the order of streams blocks it"
                )
                if not any(self.records.dumps[rank].records_starts for rank in states):
                    text += ", or the dumps do not record starts"
                findings.append(self.create_finding("device", row, text))
        return findings

    def find_skews(self) -> list[VerdictFinding]:
        """Return findings on operations that a rank has not completed although other ranks have.

        A collective counts if another rank completed it and every rank has issued it. Messages
        count if all ranks at their other ends completed them. The operation is `stuck` if it is
        overdue, otherwise `skewed`. Overdue: it timed out, is older than its timeout, or another
        rank completed it more than 60 s before the latest time in the dumps.

        Each rank gives at most two findings, in this order; ranks ascend:

        1. for its first skewed operation, without culprits: `undecided` if it is a message and ring
           buffers may have lost messages between its ranks (`has_lost_partners`), else `skew`
        2. for its first stuck operation: `device`, with the rank as the culprit. Ranks in
           `graph.sources` give none, because `find_late_ranks` reports their stuck operations.
        """
        findings = []
        for rank, front in self.graph.fronts.items():
            for row in front.skewed[:1]:
                text = (
                    f"rank {rank} is about to complete {self.describe(row)}, which others completed"
                )
                kind = "skew"
                if self.graph.matching.has_lost_partners(row):
                    text += ", unless the ring buffers lost a message"
                    kind = "undecided"
                findings.append(self.create_finding(kind, row, text))
            for row in front.stuck[:1]:
                if rank not in self.graph.sources:
                    operation = self.describe(row)
                    text = f"rank {rank} has not completed {operation}, which others completed"
                    findings.append(self.create_finding("device", row, text, (rank,)))
        return findings

    def find_open_questions(self, causes: Sequence[VerdictFinding]) -> list[VerdictFinding]:
        """Return findings `undecided` on waits that the dumps cannot explain, without culprits.

        These are the waits for a rank without a dump or with lost entries, unless `causes` explain
        the waiting rank (`list_explained_ranks`). The operation of a wait is that of
        `find_awaiting_row` for the awaited rank. There is one finding per operation, by ascending
        row. Its text lists the awaited ranks without a dump, then those with lost entries.

        If there are neither such findings nor `causes`, the first rule that applies gives the
        result:

        - There are no dumps: one finding, that NCCL's counts do not show where ranks wait.
        - Members of recorded groups have no dump: one finding that names them.
        - Otherwise: [].
        """
        findings = []
        explained = self.list_explained_ranks(causes)
        by_row: dict[int, list[Wait]] = {}
        for wait in self.graph.undecided:
            if wait.rank not in explained:
                by_row.setdefault(self.find_awaiting_row(wait.awaited), []).append(wait)
        for row, waits in sorted(by_row.items()):
            absent = sorted({w.awaited for w in waits if w.arrival is Arrival.NO_DUMP})
            lost = sorted({w.awaited for w in waits if w.arrival is Arrival.UNKNOWN})
            reasons = [f"{format_ranks(absent)} without a dump"] * bool(absent)
            reasons += [f"entries of {format_ranks(lost)} that would decide it are lost"] * bool(
                lost
            )
            text = f"ranks wait in {self.describe(row)}; undecided: {', '.join(reasons)}"
            findings.append(self.create_finding("undecided", row, text))
        if findings or causes:
            return findings
        if not self.records.dumps:
            findings.append(
                VerdictFinding("undecided", "NCCL's counts do not show where ranks wait")
            )
        elif self.records.missing_dumps:
            text = "no fault in these dumps, but no dump of "
            text += format_ranks(self.records.missing_dumps)
            findings.append(VerdictFinding("undecided", text))
        return findings

    def list_explained_ranks(self, causes: Sequence[VerdictFinding]) -> set[int]:
        """Return the ranks whose state the causes explain; empty without causes.

        A rank is explained in each of these cases:

        - It is a culprit of a cause.
        - It waits in the operation of a cause. Operations are equal if the members and the
          description of the group and the sequence number are.
        - It certainly waits for an explained rank: waits for ranks without a dump or with lost
          entries (`undecided` of the graph) do not count.
        """
        explained = {rank for finding in causes for rank in finding.culprits}
        operations = {(one.group, one.description, one.sequence) for one in causes}
        waiting: dict[int, set[int]] = {}
        for rank, front in self.graph.fronts.items():
            for row in front.rows:
                operation = self.records.operation(row)
                number, sequence = operation.group, operation.sequence
                group = self.records.tables.groups[number]
                if (self.records.members(number), group.description, sequence) in operations:
                    explained.add(rank)
            for awaited in self.graph.decided[rank]:
                waiting.setdefault(awaited, set()).add(rank)
        reached = list(explained)
        while reached:
            added = waiting.get(reached.pop(), set()) - explained
            explained |= added
            reached += added
        return explained

    def list_waits(self) -> list[WaitLine]:
        """Return one line per operation in which ranks wait, ordered by number of the group.

        Waits that are undecided, for ranks without a dump or with lost entries, are included.
        Within a group, collectives come first, then messages, each by ascending sequence number. A
        collective has one line with all waiting and all awaited ranks. Messages have one line per
        waiting rank and sequence number; lines with equal numbers are ordered by rank. The ranks
        and the members of the group ascend. Name and frames of a line are those that its lowest
        waiting rank recorded. The list is empty if no rank waits.
        """
        lines: dict[tuple[int, ...], list[Wait]] = {}
        columns = self.records.columns
        for wait in self.graph.waits:
            is_p2p = bool(columns["is_p2p"][wait.row])
            key = (
                int(columns["group"][wait.row]),
                int(is_p2p),
                int(columns["sequence"][wait.row]),
                wait.rank if is_p2p else -1,
            )
            lines.setdefault(key, []).append(wait)
        return [
            WaitLine(
                tuple(sorted({wait.rank for wait in waits})),
                tuple(sorted({wait.awaited for wait in waits})),
                self.records.members(key[0]),
                self.records.tables.groups[key[0]].description,
                key[2],
                self.describe_operation(waits[0].row),
                self.list_frames(waits[0].row),
            )
            for key, waits in sorted(lines.items())
        ]

    def list_notes(self) -> Iterable[str]:
        """Yield notes on the limits of the evidence; none if it is complete.

        The order is:

        1. all notes of the dumps, by rank
        2. all notes of NCCL's RAS and Inspector
        3. one note with the ranks that recorded groups contain and that have no dump
        4. one note with the ranks whose ring buffer lost its oldest entries
        5. one note with the sorted versions of the dumps, if there are several
        6. one note for each group whose members are not recorded, by number of the group; only the
           first 8 groups, further ones are not mentioned
        """
        for rank in sorted(self.records.dumps):
            yield from self.records.dumps[rank].notes
        yield from self.nccl.notes
        missing = self.records.missing_dumps
        if missing:
            yield f"no dump of {format_ranks(missing)}"
        overwritten = [
            r for r in sorted(self.records.dumps) if self.records.dumps[r].is_overwritten
        ]
        if overwritten:
            yield f"the ring buffer of {format_ranks(overwritten)} lost the oldest entries"
        versions = sorted({dump.version for dump in self.records.dumps.values()})
        if len(versions) > 1:
            yield f"the dumps have different versions: {', '.join(versions)}"
        unknown = [g for g in self.records.tables.groups.values if g.ranks is None]
        for group in unknown[:8]:
            yield f"the members of group {group.name!r} ({group.description}) are not recorded"

    def create_finding(
        self,
        kind: str,
        row: int,
        text: str,
        culprits: tuple[int, ...] = (),
        *,
        is_past: bool = False,
    ) -> VerdictFinding:
        """Return a finding on the operation in a row of the records.

        `kind` (one of `KINDS`), `text`, `culprits` (responsible ranks) and `is_past` (the operation
        has completed) are stored unchanged. The row gives:

        - the members of its group, ascending, and the description of the group
        - the sequence number and the name of the operation (`describe_operation`)
        - at most 3 stack frames, the innermost first (`list_frames`: those of PyTorch only if there
          are no others)

        The sizes of the finding are empty.
        """
        group = int(self.records.columns["group"][row])
        return VerdictFinding(
            kind,
            text,
            culprits,
            self.records.members(group),
            self.records.tables.groups[group].description,
            int(self.records.columns["sequence"][row]),
            self.describe_operation(row),
            self.list_frames(row),
            is_past,
        )

    def describe_operation(self, row: int) -> str:
        """Return the name of an operation, and the number of calls of a batch."""
        return describe_calls(self.records.tables.calls[int(self.records.columns["calls"][row])])

    def describe(self, row: int) -> str:
        """Return the text `NAME of SHAPES (number N of group DESCRIPTION, RANKS)` on a row.

        An example is `all_reduce of [2, 3] [4] (number 7 of group default_pg, ranks 0-3)`.

        - NAME: of `describe_operation`. N: the sequence number.
        - SHAPES: at most three shapes of the first call, without a sign that there are more. A
          receive has those of its outputs. Any other call has those of its inputs, or of its
          outputs if it has no inputs. Without shapes, ` of SHAPES` is absent.
        - RANKS: all members of the group, as `format_ranks` writes them.
        """
        group = int(self.records.columns["group"][row])
        calls = self.records.tables.calls[int(self.records.columns["calls"][row])]
        shapes = calls[0].input_shapes or calls[0].output_shapes
        if calls[0].operation == "recv":
            shapes = calls[0].output_shapes
        size = " of " + " ".join(str(list(shape)) for shape in shapes[:3]) if shapes else ""
        ranks = self.records.members(group)
        description = self.records.tables.groups[group].description
        number = int(self.records.columns["sequence"][row])
        return (
            f"{self.describe_operation(row)}{size} (number {number} of "
            f"group {description}, {format_ranks(ranks)})"
        )

    def list_frames(self, row: int) -> tuple[str, ...]:
        """Return the innermost stack frames of an operation as texts, the innermost first.

        At most `SHOWN_FRAMES` (3) are returned. Frames of PyTorch (with `/torch/` in the path
        of the file) are left out, unless the stack has only these. The result is () without a
        stack.
        """
        stack = self.records.tables.stacks[int(self.records.columns["stack"][row])]
        user_frames = [frame for frame in stack if "/torch/" not in frame.file.replace("\\", "/")]
        return tuple(str(frame) for frame in (user_frames or stack)[:SHOWN_FRAMES])


_NO_FINDING = VerdictFinding("none", "all operations are complete and agree")


def format_ranks(ranks: Sequence[int]) -> str:
    """Format ascending ranks as `rank 3`, `ranks 0-3, 7` or `no ranks`.

    Consecutive ranks form one range. A range of two ranks is written as `0, 1`, a longer one as
    `0-3`. At most the first ten ranges are written. If N more remain, ` and N more ranges` follows,
    also for N = 1.
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    ranges: list[tuple[int, int]] = []
    for rank in ranks:
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1] = (ranges[-1][0], rank)
        else:
            ranges.append((rank, rank))
    texts = [str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in ranges[:10]]
    more = f" and {len(ranges) - 10} more ranges" if len(ranges) > 10 else ""
    return f"ranks {', '.join(texts)}{more}" if ranks else "no ranks"
