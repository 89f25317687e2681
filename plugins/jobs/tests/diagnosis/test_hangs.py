"""Verdicts on hangs that the tests build: the culprits are named, ranks that only wait are not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from collhub_diagnosis.read_evidence import read_evidence
from collhub_diagnosis.verdict import JobVerdict, diagnose_evidence
from dump_variants import Change, write_dumps

START_NS = 1_700_000_000_000_000_000
Groups = dict[str, tuple[str, tuple[int, ...]]]


@dataclass
class Job:
    """A job that records its operations as PyTorch's Flight Recorder does."""

    size: int
    groups: Groups = field(default_factory=dict)
    backend: str = "nccl"
    entries: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    numbers: dict[tuple[int, str, str], int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self.groups.setdefault("0", ("default_pg", tuple(range(self.size))))

    def call(
        self,
        ranks: Sequence[int],
        operation: str = "all_reduce",
        group: str = "0",
        state: str = "completed",
        sizes: tuple[list[list[int]], list[list[int]]] | None = None,
        dtype: str = "BFloat16",
        **fields: object,
    ) -> None:
        """Issue a call on several ranks, after their earlier calls."""
        sent, received = sizes or ([[1024]], [[1024]])
        for rank in ranks:
            is_p2p = fields.get("is_p2p", operation.startswith(("send", "recv")))
            kind = "p2p_seq_id" if is_p2p else "collective_seq_id"
            if not fields.get("is_in_batch"):
                self.numbers[rank, group, kind] += 1
            created = START_NS + len(self.entries[rank]) * 10**6 + rank * 10**3
            entry = {
                "record_id": len(self.entries[rank]),
                "pg_id": list(self.groups).index(group),
                "process_group": (group, self.groups[group][0]),
                "collective_seq_id": self.numbers[rank, group, "collective_seq_id"],
                "p2p_seq_id": self.numbers[rank, group, "p2p_seq_id"],
                "op_id": len(self.entries[rank]),
                "profiling_name": f"{self.backend}:{operation}",
                "time_created_ns": created,
                "time_discovered_started_ns": None if state == "scheduled" else created + 5000,
                "time_discovered_completed_ns": created + 90000 if state == "completed" else None,
                "input_sizes": sent,
                "output_sizes": received,
                "input_dtypes": [dtype] if sent else [],
                "output_dtypes": [dtype] if received else [],
                "state": state,
                "retired": state == "completed",
                "timeout_ms": 600000,
                "is_p2p": is_p2p,
                "frames": [
                    {"name": "step", "filename": "train.py", "line": len(self.entries[rank])}
                ],
            }
            entry |= {key: value for key, value in fields.items() if key != "is_in_batch"}
            self.entries[rank].append(entry)

    def message(
        self, source: int, destination: int, states: tuple[str | None, str | None], size: int = 64
    ) -> None:
        """Send from rank to rank of the default group; a state of None: not issued."""
        sent = f"send {source}->{destination}", ([[size]], [[]])
        received = f"recv {destination}<-{source}", ([[]], [[size]])
        for rank, state, (operation, sizes) in zip(
            (source, destination), states, (sent, received), strict=True
        ):
            if state is not None:
                self.call([rank], operation, state=state, sizes=sizes)

    def dump(self, rank: int) -> dict[str, Any]:
        """The values of the dump of a rank."""
        entries = self.entries[rank]
        status = {}
        for name, (_, ranks) in self.groups.items():
            own = [e for e in entries if e["process_group"][0] == name and not e["is_p2p"]]
            if rank in ranks:
                status[str(list(self.groups).index(name))] = {
                    "last_enqueued_collective": _last(own, ("scheduled", "started", "completed")),
                    "last_started_collective": _last(own, ("started", "completed")),
                    "last_completed_collective": _last(own, ("completed",)),
                }
        config = {
            name: {"name": name, "desc": description, "ranks": str(list(ranks))}
            for name, (description, ranks) in self.groups.items()
            if rank in ranks
        }
        return {
            "version": "2.10",
            "comm_lib_version": "2.27.5",
            "pg_config": config,
            "pg_status": status,
            "entries": entries,
        }

    def verdict(
        self,
        folder: Path,
        without: Sequence[int] = (),
        change: Change | None = None,
        as_json: bool = False,
    ) -> JobVerdict:
        """Write the dumps, read them, and diagnose them."""
        dumps = {rank: self.dump(rank) for rank in range(self.size) if rank not in without}
        write_dumps(folder, dumps, change, as_json=as_json)
        return diagnose_evidence(read_evidence([str(folder)]))


def _last(entries: Sequence[dict[str, Any]], states: tuple[str, ...]) -> int:
    numbers = [e["collective_seq_id"] for e in entries if e["state"] in states]
    return max(numbers, default=-1)


def summary(verdict: JobVerdict) -> tuple[str, list[int], list[int]]:
    return verdict.kind, list(verdict.culprits), list(verdict.waiting)


def grid() -> Job:
    """Two replicas of a tensor-parallel pair: ranks 0 1, 2 3; data parallel 0 2, 1 3."""
    groups: Groups = {
        "0": ("default_pg", (0, 1, 2, 3)),
        "1": ("tp", (0, 1)),
        "2": ("tp", (2, 3)),
        "3": ("dp", (0, 2)),
        "4": ("dp", (1, 3)),
    }
    return Job(4, groups)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_late_rank_is_the_culprit(tmp_path: Path, as_json: bool) -> None:
    job = Job(8)
    job.call(range(8))
    job.call([0, 1, 2, 3, 4, 6, 7], state="started")
    verdict = job.verdict(tmp_path, as_json=as_json)
    assert summary(verdict) == ("late", [5], [0, 1, 2, 3, 4, 6, 7])
    assert (verdict.group, verdict.sequence) == (tuple(range(8)), 2)
    assert verdict.has_fault


def test_several_late_ranks_are_all_named(tmp_path: Path) -> None:
    job = Job(4)
    job.call([0, 3], state="started")
    assert summary(job.verdict(tmp_path)) == ("late", [1, 2], [0, 3])


def test_the_late_rank_is_followed_through_groups(tmp_path: Path) -> None:
    job = grid()
    job.call(range(4))
    job.call([2], group="2", state="started")
    job.call([0, 1], group="1")
    job.call([0], group="3", state="started")
    job.call([1], group="4", state="started")
    verdict = job.verdict(tmp_path)
    assert summary(verdict) == ("late", [3], [0, 1, 2])
    assert (verdict.group, verdict.sequence) == ((2, 3), 1)
    assert verdict.findings[0].frames == ("step (train.py:1)",)


def test_other_record_numbers_do_not_disturb_the_matching(tmp_path: Path) -> None:
    job = grid()
    for _ in range(5):
        job.call([0, 1], group="1")
    job.call(range(4))
    job.call([0, 1, 2], state="started")
    assert summary(job.verdict(tmp_path)) == ("late", [3], [0, 1, 2])


def two_groups() -> Job:
    return Job(2, {"0": ("default_pg", (0, 1)), "1": ("a", (0, 1)), "2": ("b", (0, 1))})


def test_opposite_orders_of_blocking_calls_are_a_deadlock(tmp_path: Path) -> None:
    job = two_groups()
    job.call([0], group="1", state="started")
    job.call([1], group="2", state="started")
    verdict = job.verdict(tmp_path)
    assert summary(verdict) == ("order", [0, 1], [])
    assert "rank 0 waits in all_reduce" in verdict.findings[0].text


def test_opposite_orders_of_asynchronous_calls_are_a_deadlock(tmp_path: Path) -> None:
    job = two_groups()
    job.call([0], group="1", state="started")
    job.call([0], group="2", state="scheduled")
    job.call([1], group="2", state="started")
    job.call([1], group="1", state="scheduled")
    assert summary(job.verdict(tmp_path)) == ("order", [0, 1], [])


def test_a_deadlock_of_three_groups_names_its_ranks_only(tmp_path: Path) -> None:
    groups: Groups = {
        "0": ("default_pg", (0, 1, 2, 3)),
        "1": ("a", (0, 1)),
        "2": ("b", (1, 2)),
        "3": ("c", (0, 2, 3)),
    }
    job = Job(4, groups)
    job.call([0], group="1", state="started")
    job.call([1], group="2", state="started")
    job.call([2, 3], group="3", state="started")
    assert summary(job.verdict(tmp_path)) == ("order", [0, 1, 2], [3])


def test_the_rank_with_another_order_than_most_is_named(tmp_path: Path) -> None:
    groups: Groups = {"0": ("default_pg", (0, 1, 2, 3)), "1": ("b", (0, 1, 2, 3))}
    job = Job(4, groups)
    job.call([0, 1, 2], group="0", state="started")
    job.call([0, 1, 2], group="1", state="scheduled")
    job.call([3], group="1", state="started")
    job.call([3], group="0", state="scheduled")
    assert summary(job.verdict(tmp_path)) == ("order", [3], [0, 1, 2])


def test_the_size_of_the_minority_is_wrong(tmp_path: Path) -> None:
    job = Job(4)
    job.call([0, 1, 3], state="started")
    job.call([2], state="started", sizes=([[512]], [[512]]))
    assert summary(job.verdict(tmp_path)) == ("size", [2], [0, 1, 3])


def test_of_two_sizes_none_is_chosen(tmp_path: Path) -> None:
    job = Job(2)
    job.call([0], state="started")
    job.call([1], state="started", sizes=([[1023]], [[1023]]))
    assert summary(job.verdict(tmp_path)) == ("size", [0, 1], [])


def test_an_output_that_contradicts_its_input_is_wrong(tmp_path: Path) -> None:
    job = Job(2)
    gathered = [[16]], [[32]]
    job.call([0, 1], "all_gather_into_tensor_coalesced", sizes=gathered)
    job.call([0], "_all_gather_base", state="started", sizes=([[16]], [[32]]))
    job.call([1], "_all_gather_base", state="started", sizes=([[16]], [[48]]))
    verdict = job.verdict(tmp_path)
    assert verdict.kind == "size"
    assert verdict.sequence == 2


def test_the_operation_of_the_minority_is_wrong(tmp_path: Path) -> None:
    job = Job(4)
    job.call(range(4))
    job.call([0, 2, 3], state="started")
    job.call([1], "broadcast", state="started")
    verdict = job.verdict(tmp_path)
    assert summary(verdict) == ("type", [1], [0, 2, 3])
    assert verdict.sequence == 2


def test_the_dtype_of_the_minority_is_wrong(tmp_path: Path) -> None:
    job = Job(3)
    job.call([0, 2], state="started")
    job.call([1], state="started", dtype="Float")
    assert summary(job.verdict(tmp_path)) == ("dtype", [1], [0, 2])


def test_uneven_all_to_all_is_judged_by_its_sums(tmp_path: Path) -> None:
    job = Job(3)
    for rank, (sent, received) in enumerate([(6, 9), (9, 3), (3, 6)]):
        job.call([rank], "all_to_all_single", sizes=([[sent]], [[received]]))
    assert job.verdict(tmp_path).kind == "none"
    job.call([0], "all_to_all_single", state="started", sizes=([[6]], [[8]]))
    job.call([1, 2], "all_to_all_single", state="started", sizes=([[6]], [[6]]))
    # Two of three ranks send as much as they receive.
    assert summary(job.verdict(tmp_path)) == ("all-to-all", [0], [1, 2])


def test_uneven_all_to_all_without_a_majority_blames_no_rank(tmp_path: Path) -> None:
    job = Job(3)
    for rank, (sent, received) in enumerate([(6, 9), (9, 3), (3, 7)]):
        sizes = [[sent]], [[received]]
        job.call([rank], "all_to_all_single", state="started", sizes=sizes)
    assert summary(job.verdict(tmp_path)) == ("all-to-all", [], [0, 1, 2])


def test_segments_of_an_all_to_all_show_the_wrong_ranks(tmp_path: Path) -> None:
    # Rank r sends r + 1 elements to every rank, and the sums agree.
    job = Job(4)
    received = [[1], [2], [3], [4]]
    for rank in range(4):
        sent = [[rank + 1]] * 4
        job.call([rank], "all_to_all", sizes=(sent, received))
    assert job.verdict(tmp_path).kind == "none"
    for rank in range(4):
        sent = [[rank + 1]] * 4
        if rank == 2:
            sent = [[3], [4], [3], [2]]
        job.call([rank], "all_to_all", state="started", sizes=(sent, received))
    verdict = job.verdict(tmp_path)
    assert summary(verdict) == ("all-to-all", [2], [0, 1, 3])
    assert "rank 2 sends 4 elements to rank 1, which receives 3" in verdict.findings[0].text
    assert len(verdict.findings[0].sizes) == 4


def test_without_the_dump_of_the_only_absent_rank_the_cause_is_undecided(tmp_path: Path) -> None:
    job = Job(3)
    job.call([0, 1], state="started")
    verdict = job.verdict(tmp_path, without=[2])
    assert summary(verdict) == ("undecided", [], [0, 1])
    assert verdict.missing_dumps == (2,)
    assert verdict.has_fault


def test_a_late_rank_is_named_although_another_dump_is_missing(tmp_path: Path) -> None:
    job = Job(4)
    job.call([0, 1], state="started")
    verdict = job.verdict(tmp_path, without=[3])
    assert summary(verdict) == ("late", [2], [0, 1])
    assert verdict.missing_dumps == (3,)


def test_complete_dumps_of_some_ranks_are_no_proof(tmp_path: Path) -> None:
    job = Job(3)
    job.call(range(3))
    verdict = job.verdict(tmp_path, without=[1])
    assert summary(verdict) == ("undecided", [], [])
    assert not verdict.has_fault


def overwritten(rank: int, kept: int) -> Change:
    """Keep the newest entries of one rank."""

    def change(changed: int, dump: dict[str, Any]) -> None:
        if changed == rank:
            dump["entries"] = dump["entries"][-kept:]

    return change


def test_overwritten_entries_are_not_recorded_rather_than_not_issued(tmp_path: Path) -> None:
    job = grid()
    job.call(range(4))
    job.call([0, 1, 2], state="started")
    for _ in range(4):
        job.call([2, 3], group="2")
    # The ring buffer of rank 3 has no entry of the default group; `pg_status` has.
    assert summary(job.verdict(tmp_path, change=overwritten(3, 2))) == ("late", [3], [0, 1, 2])

    def without_status(rank: int, dump: dict[str, Any]) -> None:
        overwritten(3, 2)(rank, dump)
        del dump["pg_status"]

    verdict = job.verdict(tmp_path, change=without_status)
    assert summary(verdict) == ("undecided", [], [0, 1, 2])


def test_older_entries_than_a_buffer_holds_are_no_fault(tmp_path: Path) -> None:
    job = Job(2)
    for _ in range(8):
        job.call([0, 1])
    assert job.verdict(tmp_path, change=overwritten(1, 3)).kind == "none"


def test_lost_incomplete_operations_blame_no_device(tmp_path: Path) -> None:
    job = two_groups()
    job.call([0, 1])
    job.call([0], group="1", state="started")
    for _ in range(3):
        job.call([0, 1], group="2", state="scheduled")
    verdict = job.verdict(tmp_path, change=overwritten(0, 3))
    assert summary(verdict) == ("undecided", [], [0, 1])


def batch(job: Job, rank: int, operations: Sequence[str], state: str) -> None:
    """A coalesced batch of messages; the entry `coalesced` alone has the state."""
    for position, operation in enumerate(operations):
        sizes = ([[8]], [[]]) if operation.startswith("send") else ([[]], [[8]])
        job.call([rank], operation, state="scheduled", sizes=sizes, is_in_batch=position > 0)
    fields = {"is_p2p": True, "is_in_batch": True}
    job.call([rank], "coalesced", state=state, sizes=([], []), **fields)


def test_coalesced_messages_match_in_any_order(tmp_path: Path) -> None:
    job = Job(3)
    batch(job, 0, ["send 0->1", "recv 0<-1", "send 0->2"], "completed")
    batch(job, 1, ["recv 1<-0", "send 1->0"], "completed")
    batch(job, 2, ["recv 2<-0"], "completed")
    assert job.verdict(tmp_path).kind == "none"


def test_the_rank_without_its_batch_is_late(tmp_path: Path) -> None:
    job = Job(3)
    batch(job, 0, ["send 0->1", "recv 0<-2"], "started")
    batch(job, 1, ["recv 1<-0", "send 1->2"], "started")
    verdict = job.verdict(tmp_path)
    assert summary(verdict) == ("late", [2], [0, 1])
    assert verdict.findings[0].operation == "batch of 2 calls (send 0->1, ...)"


def test_a_batch_without_one_of_its_calls_is_the_culprit(tmp_path: Path) -> None:
    job = Job(2)
    batch(job, 0, ["send 0->1", "recv 0<-1"], "started")
    batch(job, 1, ["recv 1<-0"], "started")
    assert summary(job.verdict(tmp_path)) == ("late", [1], [0])


def test_the_stage_that_stops_a_pipeline_is_named(tmp_path: Path) -> None:
    job = Job(4)
    for stage in range(3):
        job.message(stage, stage + 1, ("completed", "completed"))
    job.message(0, 1, ("completed", "completed"))
    # Stage 1 neither sends the second micro-batch on nor receives the third one.
    job.message(0, 1, ("started", None))
    job.message(1, 2, (None, "started"))
    job.message(2, 3, (None, "started"))
    verdict = job.verdict(tmp_path)
    assert summary(verdict) == ("late", [1], [0, 2, 3])
    assert verdict.sequence is not None


def test_a_pending_send_does_not_hide_the_rank_for_which_a_receive_waits(tmp_path: Path) -> None:
    job = Job(3)
    # Ranks 1 and 2 send to each other without blocking; rank 1 then receives from rank 0.
    job.message(1, 2, ("started", None))
    job.message(2, 1, ("started", None))
    job.message(0, 1, (None, "started"))
    assert summary(job.verdict(tmp_path)) == ("late", [0], [1, 2])


def test_two_ranks_that_send_first_wait_for_each_other(tmp_path: Path) -> None:
    job = Job(2)
    job.message(0, 1, ("started", None))
    job.message(1, 0, ("started", None))
    assert summary(job.verdict(tmp_path)) == ("order", [0, 1], [])


def test_a_message_of_another_size_names_both_ends(tmp_path: Path) -> None:
    job = Job(3)
    job.call([0], "send 0->1", state="started", sizes=([[64]], [[]]))
    job.call([1], "recv 1<-0", state="started", sizes=([[]], [[32]]))
    assert summary(job.verdict(tmp_path)) == ("size", [0, 1], [])


def test_a_collective_that_only_some_ranks_completed_is_skew(tmp_path: Path) -> None:
    job = Job(4)
    job.call(range(4))
    job.call([0, 3])
    job.call([1, 2], state="started")
    verdict = job.verdict(tmp_path)
    assert summary(verdict) == ("skew", [], [])
    assert not verdict.has_fault


def test_a_rank_that_is_one_collective_behind_is_skew(tmp_path: Path) -> None:
    job = Job(2)
    job.call([0, 1])
    job.call([0])
    job.call([1], state="started")
    job.call([0], state="started")
    assert summary(job.verdict(tmp_path)) == ("skew", [], [])


def test_a_rank_whose_operation_timed_out_after_others_completed_it_is_named(
    tmp_path: Path,
) -> None:
    job = Job(4)
    job.call([0, 1, 3])
    job.call([2], state="started", retired=True)
    assert summary(job.verdict(tmp_path)) == ("device", [2], [])


def test_a_rank_that_has_not_started_is_a_matter_of_its_device(tmp_path: Path) -> None:
    job = Job(4)
    job.call(range(4))
    job.call([0, 1, 3], state="started")
    job.call([2], state="scheduled")
    assert summary(job.verdict(tmp_path)) == ("device", [2], [0, 1, 3])


def test_all_ranks_in_a_collective_are_a_matter_of_the_network(tmp_path: Path) -> None:
    job = Job(4)
    job.call(range(4))
    job.call(range(4), state="started")
    verdict = job.verdict(tmp_path)
    assert summary(verdict) == ("network", [], [0, 1, 2, 3])
    assert verdict.sequence == 2


def test_a_collective_that_no_rank_started_is_blocked_on_devices(tmp_path: Path) -> None:
    job = Job(2)
    job.call([0, 1])
    job.call([0, 1], state="scheduled")
    assert summary(job.verdict(tmp_path)) == ("device", [], [0, 1])


def test_gloo_is_judged_by_retired_entries(tmp_path: Path) -> None:
    job = Job(3, backend="gloo")
    job.call(range(3), state="scheduled", retired=True)
    job.call([0, 2], state="scheduled")
    assert summary(job.verdict(tmp_path, as_json=True)) == ("late", [1], [0, 2])


def test_gloo_without_members_names_ranks_that_used_the_group(tmp_path: Path) -> None:
    job = Job(3, backend="gloo")
    job.call(range(3), state="scheduled", retired=True)
    job.call([0, 2], state="scheduled")

    def change(rank: int, dump: dict[str, Any]) -> None:
        dump["pg_config"] = {"": {"name": "", "desc": "default_pg", "ranks": "[0, 1]"}}

    verdict = job.verdict(tmp_path, change=change)
    assert summary(verdict) == ("late", [1], [0, 2])
    assert "the members of group '0' (default_pg) are not recorded" in verdict.notes


def test_entries_of_old_releases_are_read(tmp_path: Path) -> None:
    job = Job(2, backend="hccl")
    job.call([0, 1])
    job.call([0], state="started")

    def change(rank: int, dump: dict[str, Any]) -> None:
        dump["version"] = "1.2"
        dump["pg_config"] = [[0, 1]]
        for entry in dump["entries"]:
            entry["seq_id"] = entry.pop("collective_seq_id")
            for key in ("process_group", "is_p2p", "p2p_seq_id", "input_dtypes", "op_id"):
                del entry[key]

    assert summary(job.verdict(tmp_path, change=change)) == ("late", [1], [0])


def test_dumps_of_active_operations_only_are_judged_by_the_status(tmp_path: Path) -> None:
    job = Job(3)
    job.call(range(3))
    job.call([0, 2], state="started")

    def change(rank: int, dump: dict[str, Any]) -> None:
        dump["entries"] = [one for one in dump["entries"] if one["state"] != "completed"]

    assert summary(job.verdict(tmp_path, change=change)) == ("late", [1], [0, 2])


def test_an_empty_job_has_no_fault(tmp_path: Path) -> None:
    verdict = Job(2).verdict(tmp_path)
    assert summary(verdict) == ("none", [], [])
    assert verdict.operations == 0


def test_one_difference_after_another_is_reported_once(tmp_path: Path) -> None:
    job = Job(2)
    for _ in range(3):
        job.call([0])
        job.call([1], dtype="Half")
    verdict = job.verdict(tmp_path)
    assert (verdict.kind, verdict.sequence, len(verdict.findings)) == ("dtype", 1, 1)
