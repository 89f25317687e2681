"""Hangs whose truth is derived by hand from the programs of the ranks.

Every case is written as pickles and as JSON. The truth has the kind, the culprits and the ranks that
only wait; no finding may blame one of the latter.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from collhub_diagnosis.read_evidence import read_evidence
from collhub_diagnosis.verdict import JobVerdict, diagnose_evidence
from dump_variants import Change, keep_active, write_json_values, write_version
from simulated_job import STOP, Call, SimulatedJob, batch, receive, send

Groups = dict[str, tuple[str, tuple[int, ...]]]
ALL = Call("all_reduce")


def on(group: str, operation: str = "all_reduce", **changes: Any) -> Call:
    return replace(Call(operation, group), **changes)


def world(size: int, **more: tuple[str, tuple[int, ...]]) -> Groups:
    return {"0": ("default_pg", tuple(range(size))), **more}


def grid(rows: int = 2) -> Groups:
    """Pairs 0 1, 2 3, ... as tp0, tp1, ...; even and odd ranks as dp0 and dp1."""
    size = 2 * rows
    pairs = {f"tp{row}": ("tp", (2 * row, 2 * row + 1)) for row in range(rows)}
    sides = {f"dp{side}": ("dp", tuple(range(side, size, 2))) for side in range(2)}
    return {**world(size), **pairs, **sides}


@dataclass(frozen=True)
class Case:
    """Programs by rank, and the truth.

    `more`: further kinds of findings with their culprits, which the verdict blames as well.
    """

    groups: Groups
    programs: Sequence[Sequence[Call]]
    kind: str
    culprits: tuple[int, ...] = ()
    waiting: tuple[int, ...] | None = None
    launch: str = "blocking"
    broken_devices: tuple[tuple[int, int], ...] = ()
    broken_network: tuple[tuple[str, int], ...] = ()
    without: tuple[int, ...] = ()
    change: Change | None = None
    more: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def job(self) -> SimulatedJob:
        return SimulatedJob(
            self.groups,
            [list(program) for program in self.programs],
            self.launch,
            broken_devices=frozenset(self.broken_devices),
            broken_network=frozenset(self.broken_network),
        )


def same(size: int, *calls: Call, **others: Sequence[Call]) -> list[Sequence[Call]]:
    """The same program on all ranks but `r3=...`, which have their own."""
    return [others.get(f"r{rank}", calls) for rank in range(size)]


def stage(rank: int, size: int, count: int) -> list[Call]:
    """A stage of a pipeline: receive, send, `count` times."""
    calls = []
    for _ in range(count):
        calls += [receive(rank - 1)] * (rank > 0) + [send(rank + 1)] * (rank + 1 < size)
    return calls


def ring(rank: int, size: int) -> Call:
    return batch(send((rank + 1) % size), receive((rank - 1) % size))


def one_forward_one_backward(rank: int, size: int) -> list[Call]:
    """Two micro-batches: activations to the next stage, gradients back."""
    forward = stage(rank, size, 2)
    backward = []
    for _ in range(2):
        backward += [receive(rank + 1)] * (rank + 1 < size) + [send(rank - 1)] * (rank > 0)
    return forward + backward


def keep_last(ranks: Sequence[int], count: int, *, with_status: bool = True) -> Change:
    """Keep the last entries of some ranks, as a small ring buffer does."""

    def change(rank: int, dump: dict[str, Any]) -> None:
        if rank in ranks:
            dump["entries"] = dump["entries"][-count:]
        if not with_status:
            dump.pop("pg_status", None)

    return change


def without_group(rank: int, group: str) -> Change:
    """The rank never created the group."""

    def change(changed: int, dump: dict[str, Any]) -> None:
        if changed == rank:
            del dump["pg_config"][group]
            dump["pg_status"].pop(str(list(grid()).index(group)), None)

    return change


def version_by_rank(*versions: str) -> Change:
    changes = [write_version(version) for version in versions]
    return lambda rank, dump: changes[rank % len(changes)](rank, dump)


GATHER = {"sent": ((256,),), "received": ((1024,),)}
SCATTER = {"sent": ((1024,),), "received": ((256,),)}
WRONG = {"sent": ((1000,),), "received": ((1000,),)}
EIGHT_STEPS = [ALL] * 8

CASES: dict[str, Case] = {
    # A rank does not come.
    "late-first-rank": Case(world(4), same(4, ALL, ALL, r0=[ALL, STOP]), "late", (0,), (1, 2, 3)),
    "late-last-rank": Case(world(8), same(8, ALL, ALL, r7=[ALL, STOP]), "late", (7,)),
    "late-before-any-call": Case(world(3), same(3, ALL, r1=[STOP]), "late", (1,), (0, 2)),
    "late-two-ranks": Case(
        world(5), same(5, ALL, ALL, r1=[ALL], r3=[STOP]), "late", (3,), (0, 1, 2, 4)
    ),
    "late-two-ranks-at-once": Case(world(5), same(5, ALL, r1=[STOP], r3=[STOP]), "late", (1, 3)),
    "late-all-but-one": Case(world(4), same(4, STOP, r2=[ALL]), "late", (0, 1, 3), (2,)),
    "late-runs-ahead": Case(
        world(4), same(4, *EIGHT_STEPS, r2=[ALL, ALL, STOP]), "late", (2,), launch="one-stream"
    ),
    "late-through-two-groups": Case(
        grid(),
        [
            [on("tp0"), on("dp0")],
            [on("tp0"), on("dp1")],
            [on("tp1"), on("dp0")],
            [STOP, on("tp1"), on("dp1")],
        ],
        "late",
        (3,),
        (0, 1, 2),
    ),
    "late-through-three-groups": Case(
        grid(3),
        [
            [on("tp0"), on("dp0")],
            [on("tp0"), on("dp1"), ALL],
            [on("tp1"), on("dp0"), ALL],
            [on("tp1"), on("dp1")],
            [on("tp2"), on("dp0"), ALL],
            [STOP, on("tp2"), on("dp1")],
        ],
        "late",
        (5,),
        (0, 1, 2, 3, 4),
    ),
    "late-in-one-of-two-pairs": Case(
        grid(),
        [[on("tp0")], [on("tp0")], [on("tp1"), on("tp1")], [on("tp1"), STOP]],
        "late",
        (3,),
        (2,),
    ),
    "late-in-two-pairs": Case(
        grid(), [[on("tp0")], [STOP], [STOP], [on("tp1")]], "late", (1, 2), (0, 3)
    ),
    "late-with-messages-of-others": Case(
        world(4), [[send(1), ALL], [receive(0), ALL], [STOP], [ALL]], "late", (2,), (0, 1, 3)
    ),
    "late-in-gather": Case(
        world(4), same(4, on("0", "_all_gather_base", **GATHER), r1=[STOP]), "late", (1,)
    ),
    "late-in-barrier": Case(
        world(4), same(4, ALL, on("0", "all_reduce_barrier"), r3=[ALL, STOP]), "late", (3,)
    ),
    # Pipelines.
    "pipeline-first-stage": Case(
        world(4),
        [[send(1), STOP], *(stage(rank, 4, 2) for rank in (1, 2, 3))],
        "late",
        (0,),
        (1, 2, 3),
    ),
    "pipeline-middle-stage": Case(
        world(4),
        [stage(0, 4, 3), stage(1, 4, 3), [*stage(2, 4, 1), STOP], stage(3, 4, 3)],
        "late",
        (2,),
    ),
    "pipeline-last-stage": Case(
        world(3), [stage(0, 3, 3), stage(1, 3, 3), [receive(1), STOP]], "late", (2,), (0, 1)
    ),
    "pipeline-streams": Case(
        world(4),
        [stage(0, 4, 4), [*stage(1, 4, 2), STOP], stage(2, 4, 4), stage(3, 4, 4)],
        "late",
        (1,),
        launch="streams",
    ),
    "pipeline-1f1b-last-stage": Case(
        world(4),
        [*(one_forward_one_backward(rank, 4) for rank in range(3)), [receive(2), receive(2), STOP]],
        "late",
        (3,),
        (0, 1, 2),
    ),
    "pipeline-1f1b-and-all-reduce": Case(
        world(4),
        [
            *([*one_forward_one_backward(rank, 4), ALL] for rank in range(3)),
            [*one_forward_one_backward(3, 4), STOP],
        ],
        "late",
        (3,),
        (0, 1, 2),
    ),
    "pipeline-then-late-in-tp": Case(
        grid(),
        [[on("tp0"), send(2)], [on("tp0")], [receive(0), on("tp1")], [STOP]],
        "late",
        (3,),
        (2,),
    ),
    # Batches.
    "ring-lacks-a-rank": Case(
        world(4), [*([ring(rank, 4)] for rank in range(3)), [STOP]], "late", (3,)
    ),
    "ring-second-round": Case(
        world(4),
        [*([ring(rank, 4), ring(rank, 4)] for rank in range(3)), [ring(3, 4), STOP]],
        "late",
        (3,),
    ),
    "batch-lacks-a-message": Case(
        world(2), [[batch(send(1), receive(1))], [batch(receive(0))]], "late", (1,), (0,)
    ),
    "batch-complete": Case(world(3), [[ring(rank, 3), ALL] for rank in range(3)], "none"),
    # Orders.
    "order-two-groups": Case(
        world(2, a=("a", (0, 1)), b=("b", (0, 1))),
        [[on("a"), on("b")], [on("b"), on("a")]],
        "order",
        (0, 1),
        (),
    ),
    "order-minority": Case(
        world(4, b=("b", (0, 1, 2, 3))),
        same(4, ALL, on("b"), r2=[on("b"), ALL]),
        "order",
        (2,),
        (0, 1, 3),
    ),
    "order-minority-one-stream": Case(
        world(4, b=("b", (0, 1, 2, 3))),
        same(4, ALL, on("b"), r1=[on("b"), ALL]),
        "order",
        (1,),
        launch="one-stream",
    ),
    "order-of-three-groups": Case(
        world(3, a=("a", (0, 1)), b=("b", (1, 2)), c=("c", (0, 2))),
        [[on("a"), on("c")], [on("b"), on("a")], [on("c"), on("b")]],
        "order",
        (0, 1, 2),
        (),
    ),
    "order-and-a-rank-that-waits": Case(
        world(3, a=("a", (0, 1)), b=("b", (0, 1))),
        [[on("a"), on("b"), ALL], [on("b"), on("a"), ALL], [ALL]],
        "order",
        (0, 1),
        (2,),
    ),
    "order-of-sends": Case(
        world(2), [[send(1), receive(1)], [send(0), receive(0)]], "order", (0, 1)
    ),
    "order-of-message-and-collective": Case(
        world(2), [[ALL, send(1)], [receive(0), ALL]], "order", (0, 1), ()
    ),
    "order-of-messages-in-a-ring": Case(
        world(3),
        [[send((rank + 1) % 3), receive((rank - 1) % 3)] for rank in range(3)],
        "order",
        (0, 1, 2),
        (),
    ),
    "order-in-two-groups-of-equal-ranks": Case(
        world(2, a=("x", (0, 1)), b=("x", (0, 1))),
        [[on("a"), on("b")], [on("b"), on("a")]],
        "order",
        (0, 1),
        (),
    ),
    # Calls that differ.
    "type-minority": Case(
        world(4), same(4, ALL, ALL, r1=[ALL, on("0", "broadcast")]), "type", (1,), (0, 2, 3)
    ),
    "type-of-two": Case(world(2), [[ALL], [on("0", "reduce")]], "type", (0, 1), ()),
    "type-tie": Case(
        world(4),
        same(4, ALL, r0=[on("0", "broadcast")], r3=[on("0", "broadcast")]),
        "type",
        (0, 1, 2, 3),
        (),
    ),
    "type-in-a-pair": Case(
        grid(),
        [[on("tp0"), ALL], [on("tp0"), ALL], [on("tp1"), ALL], [on("tp1", "broadcast"), ALL]],
        "type",
        (2, 3),
        (0, 1),
    ),
    "size-minority": Case(
        world(5), same(5, ALL, ALL, r4=[ALL, on("0", **WRONG)]), "size", (4,), (0, 1, 2, 3)
    ),
    "size-two-of-five": Case(
        world(5),
        same(5, ALL, r1=[on("0", **WRONG)], r2=[on("0", **WRONG)]),
        "size",
        (1, 2),
        (0, 3, 4),
    ),
    "size-of-a-scatter": Case(
        world(4),
        same(
            4,
            on("0", "_reduce_scatter_base", **SCATTER),
            r3=[on("0", "_reduce_scatter_base", sent=((2048,),), received=((512,),))],
        ),
        "size",
        (3,),
        (0, 1, 2),
    ),
    "size-of-a-message": Case(world(3), [[send(1, 64)], [receive(0, 32)], []], "size", (0, 1), ()),
    "dtype-minority": Case(
        world(3), same(3, ALL, r2=[on("0", dtype="Float")]), "dtype", (2,), (0, 1)
    ),
    "dtype-of-two": Case(world(2), [[ALL], [on("0", dtype="Half")]], "dtype", (0, 1), ()),
    "dtype-of-a-message": Case(
        world(2), [[send(1)], [replace(receive(0), dtype="Half")]], "dtype", (0, 1), ()
    ),
    "all-to-all-of-two": Case(
        world(2),
        [
            [on("0", "all_to_all_single", sent=((8,),), received=((8,),))],
            [on("0", "all_to_all_single", sent=((8,),), received=((7,),))],
        ],
        "all-to-all",
        (0, 1),
        (),
    ),
    # Devices and networks.
    "device-does-not-start": Case(
        world(4), same(4, ALL, ALL), "device", (2,), (0, 1, 3), broken_devices=((2, 1),)
    ),
    "device-then-more-calls": Case(
        world(4),
        same(4, *EIGHT_STEPS),
        "device",
        (0,),
        launch="one-stream",
        broken_devices=((0, 3),),
    ),
    "network-of-all": Case(world(4), same(4, ALL, ALL), "network", (), broken_network=(("0", 2),)),
    "network-of-a-pair": Case(
        grid(),
        [[on("tp0"), ALL], [on("tp0"), ALL], [on("tp1"), ALL], [on("tp1"), ALL]],
        "network",
        (),
        (0, 1, 2, 3),
        broken_network=(("tp1", 1),),
    ),
    # Evidence with gaps.
    "no-dump-of-the-culprit": Case(
        world(3), same(3, ALL, r2=[STOP]), "undecided", (), (0, 1), without=(2,)
    ),
    "no-dump-of-a-rank-that-waits": Case(
        world(4), same(4, ALL, ALL, r2=[ALL, STOP]), "late", (2,), (1, 3), without=(0,)
    ),
    "no-dump-behind-a-pair": Case(
        grid(),
        [[on("tp0"), on("dp0")], [on("tp0"), on("dp1")], [on("tp1"), on("dp0")], [STOP]],
        "undecided",
        (),
        (0, 1, 2),
        without=(3,),
    ),
    "no-dump-that-could-be-the-majority": Case(
        world(4), same(4, ALL, r1=[on("0", **WRONG)]), "size", (), (0, 1), without=(2, 3)
    ),
    "overwritten-late-rank": Case(
        grid(),
        [
            [*[on("tp0")] * 6, ALL],
            [*[on("tp0")] * 6, ALL],
            [*[on("tp1")] * 6, ALL],
            [*[on("tp1")] * 6],
        ],
        "late",
        (3,),
        (0, 1, 2),
        change=keep_last((3,), 2),
    ),
    "overwritten-ranks-that-wait": Case(
        world(4),
        same(4, *EIGHT_STEPS, r1=[*EIGHT_STEPS[:5], STOP]),
        "late",
        (1,),
        (0, 2, 3),
        change=keep_last((0, 2, 3), 1),
    ),
    "overwritten-without-status": Case(
        grid(),
        [
            [*[on("tp0")] * 6, ALL],
            [*[on("tp0")] * 6, ALL],
            [*[on("tp1")] * 6, ALL],
            [*[on("tp1")] * 6],
        ],
        "undecided",
        (),
        (0, 1, 2),
        change=keep_last((3,), 2, with_status=False),
    ),
    "overwritten-before-the-messages": Case(
        world(2),
        [[*EIGHT_STEPS, send(1), send(1)], [*EIGHT_STEPS, receive(0), STOP]],
        "late",
        (1,),
        (0,),
        change=keep_last((0, 1), 4),
    ),
    "active-operations-only": Case(
        world(4), same(4, ALL, ALL, r2=[ALL, STOP]), "late", (2,), (0, 1, 3), change=keep_active
    ),
    "group-not-created": Case(
        grid(), [[on("dp0")], [], [], []], "late", (2,), (0,), change=without_group(2, "dp0")
    ),
    # Several faults.
    "type-and-late-in-two-pairs": Case(
        grid(),
        [[on("tp0")], [on("tp0", "broadcast")], [on("tp1")], [STOP]],
        "type",
        (0, 1, 3),
        (2,),
        more={"late": (3,)},
    ),
    "order-and-late-in-two-pairs": Case(
        {**grid(), "a": ("a", (0, 1))},
        [[on("tp0"), on("a")], [on("a"), on("tp0")], [on("tp1")], [STOP]],
        "order",
        (0, 1, 3),
        (2,),
        more={"late": (3,)},
    ),
    "late-and-device-in-two-pairs": Case(
        grid(),
        [[on("tp0")], [STOP], [on("tp1")], [on("tp1")]],
        "late",
        (1, 3),
        (0, 2),
        broken_devices=((3, 0),),
        more={"device": (3,)},
    ),
    "late-and-no-dump-in-two-pairs": Case(
        grid(),
        [[on("tp0")], [STOP], [on("tp1")], [STOP]],
        "late",
        (3,),
        (0, 2),
        without=(1,),
        more={"undecided": ()},
    ),
    "two-sizes-in-two-pairs-of-four": Case(
        world(8, a=("a", (0, 1, 2, 3)), b=("b", (4, 5, 6, 7))),
        [
            [on("a")],
            [on("a", **WRONG)],
            [on("a")],
            [on("a")],
            [on("b")],
            [on("b")],
            [on("b")],
            [on("b", **WRONG)],
        ],
        "size",
        (1, 7),
        (0, 2, 3, 4, 5, 6),
    ),
    # Versions and libraries.
    "mixed-versions": Case(
        world(4),
        same(4, ALL, ALL, r2=[ALL, STOP]),
        "late",
        (2,),
        (0, 1, 3),
        change=version_by_rank("2.10", "2.4", "2.7", "2.2"),
    ),
    "first-version": Case(
        world(3),
        same(3, ALL, ALL, r2=[ALL, STOP]),
        "late",
        (2,),
        (0, 1),
        change=write_version("1.1"),
    ),
}


def check(case: Case, verdict: JobVerdict, job: SimulatedJob) -> None:
    """Check the verdict: its findings blame no other ranks than the case."""
    assert (verdict.kind, verdict.culprits) == (case.kind, case.culprits)
    recorded = job.stuck_ranks() - set(case.without)
    waiting = recorded - set(case.culprits) if case.waiting is None else set(case.waiting)
    assert set(verdict.waiting) == waiting
    for finding in verdict.findings:
        assert set(finding.culprits) <= set(case.culprits), finding.text
    for kind, culprits in case.more.items():
        named = [finding.culprits for finding in verdict.findings if finding.kind == kind]
        assert culprits in named


@pytest.mark.parametrize("as_json", [False, True], ids=["pickle", "json"])
@pytest.mark.parametrize("name", CASES)
def test_the_verdict_is_that_of_the_programs(tmp_path: Path, name: str, as_json: bool) -> None:
    case, job = CASES[name], CASES[name].job()
    changes: list[Change] = [] if case.change is None else [case.change]
    if as_json and case.change is None:
        changes.append(write_json_values)

    def change(rank: int, dump: dict[str, Any]) -> None:
        for one in changes:
            one(rank, dump)

    job.write(tmp_path, without=case.without, change=change, as_json=as_json)
    check(case, diagnose_evidence(read_evidence([str(tmp_path)])), job)


@pytest.mark.parametrize("backend", ["hccl", "ncclx", "rccl", "mccl"])
@pytest.mark.parametrize(
    "name", ["late-through-three-groups", "pipeline-middle-stage", "order-minority"]
)
def test_relatives_of_nccl_have_the_same_verdict(tmp_path: Path, backend: str, name: str) -> None:
    case, job = CASES[name], CASES[name].job()
    job.backend = backend

    def change(rank: int, dump: dict[str, Any]) -> None:
        dump[f"{backend}_comm_state"] = {"0x1": {"rank": str(rank)}}

    job.write(tmp_path, change=change)
    check(case, diagnose_evidence(read_evidence([str(tmp_path)])), job)


def test_pickles_and_json_of_one_job_are_read_together(tmp_path: Path) -> None:
    case, job = CASES["late-last-rank"], CASES["late-last-rank"].job()
    for rank in range(job.size):
        dump = job.dump(rank)
        if rank % 2:
            (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(dump, protocol=rank % 3 + 2))
        else:
            write_json_values(rank, dump)
            (tmp_path / f"trace_{rank}.json").write_text(json.dumps(dump))
    check(case, diagnose_evidence(read_evidence([str(tmp_path)])), job)


def test_names_of_groups_may_have_other_ranks_on_other_ranks(tmp_path: Path) -> None:
    """Split groups are numbered per process: "1" is the pair of the rank."""
    case = CASES["late-in-one-of-two-pairs"]
    job = case.job()

    def change(rank: int, dump: dict[str, Any]) -> None:
        name = f"tp{rank // 2}"
        dump["pg_config"]["1"] = dump["pg_config"].pop(name)
        for entry in dump["entries"]:
            entry["process_group"] = ("1" if entry["process_group"][0] == name else "0", "tp")

    job.write(tmp_path, change=change)
    check(case, diagnose_evidence(read_evidence([str(tmp_path)])), job)
