"""Random jobs with one kind of fault, and the truth that follows from the fault."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulated_job import STOP, Call, SimulatedJob, batch, receive, send

Groups = dict[str, tuple[str, tuple[int, ...]]]

FAULTS = (
    "late",
    "several-late",
    "order",
    "type",
    "size",
    "dtype",
    "all-to-all",
    "device",
    "network",
    "skew",
    "none",
)


@dataclass(frozen=True)
class Truth:
    """Culprits that every verdict must name, and those that it may name.

    `is_hang`: whether ranks wait. `kinds`: verdicts that are correct.
    """

    kinds: frozenset[str]
    must: frozenset[int]
    may: frozenset[int]
    is_hang: bool


def random_job(seed: int) -> tuple[SimulatedJob, Truth, str]:
    """Return a job, its truth and the name of its fault. The same seed gives the same job."""
    choose = random.Random(seed)
    fault = FAULTS[seed % len(FAULTS)]
    while True:
        job, truth = _job_with_fault(choose, fault)
        # Faults that no call meets, such as a stop after the last call, are drawn again.
        if truth is not None:
            return job, truth, fault


def mesh_groups(shape: tuple[int, ...]) -> Groups:
    """Return the group of all ranks, and the groups along every dimension of a mesh."""
    size = 1
    for extent in shape:
        size *= extent
    groups = {"0": ("default_pg", tuple(range(size)))}
    stride = 1
    for dimension, extent in enumerate(shape):
        if extent > 1:
            for first in range(size):
                if first // stride % extent == 0:
                    ranks = tuple(first + number * stride for number in range(extent))
                    groups[str(len(groups))] = (f"dim{dimension}", ranks)
        stride *= extent
    # A group within the group of all ranks, across the groups of the mesh.
    if len(shape) == 2 and size >= 8:
        groups[str(len(groups))] = ("first_half", tuple(range(size // 2)))
    return groups


def _programs(choose: random.Random, groups: Groups) -> list[list[Call]]:
    """Return correct programs: all ranks issue the calls of one global order."""
    size = len(groups["0"][1])
    programs: list[list[Call]] = [[] for _ in range(size)]
    operations = ("all_reduce", "broadcast", "reduce", "all_reduce_barrier")
    for _ in range(choose.randrange(3, 12)):
        description = choose.choice(sorted({one[0] for one in groups.values()}))
        kind = choose.randrange(10)
        length = choose.choice((8, 64, 4096))
        operation = choose.choice(operations)
        for name, (its_description, ranks) in groups.items():
            if its_description != description:
                continue
            if kind == 0 and len(ranks) > 1:
                _add_pipeline(programs, name, ranks, length, is_eager=choose.randrange(2) == 0)
            elif kind == 1 and len(ranks) > 1:
                _add_exchange(programs, name, ranks, length)
            else:
                call = _collective(choose, operation, name, len(ranks), length)
                for rank in ranks:
                    programs[rank].append(call)
    return programs


def _collective(choose: random.Random, operation: str, group: str, count: int, length: int) -> Call:
    kind = choose.randrange(6)
    if kind == 0:
        return Call("_all_gather_base", group, ((length,),), ((length * count,),))
    if kind == 1:
        return Call("_reduce_scatter_base", group, ((length * count,),), ((length,),))
    if kind == 2:
        return Call("all_to_all_single", group, ((length * count,),), ((length * count,),))
    if kind == 3:
        return Call("all_to_all", group, ((length,),) * count, ((length,),) * count)
    return Call(operation, group, ((length,),), ((length,),))


def _add_pipeline(
    programs: list[list[Call]],
    group: str,
    ranks: tuple[int, ...],
    length: int,
    *,
    is_eager: bool,
) -> None:
    """Every rank receives from the one before and sends to the one after, twice."""
    for _ in range(2):
        for position, rank in enumerate(ranks):
            if position:
                programs[rank].append(receive(ranks[position - 1], length, group))
            if position + 1 < len(ranks):
                programs[rank].append(send(ranks[position + 1], length, group, eager=is_eager))


def _add_exchange(
    programs: list[list[Call]], group: str, ranks: tuple[int, ...], length: int
) -> None:
    """Every rank exchanges messages with both neighbours of a ring in one batch."""
    count = len(ranks)
    for position, rank in enumerate(ranks):
        after, before = ranks[(position + 1) % count], ranks[position - 1]
        programs[rank].append(batch(send(after, length, group), receive(before, length, group)))


def _job_with_fault(choose: random.Random, fault: str) -> tuple[SimulatedJob, Truth | None]:
    shape = choose.choice(((2,), (4,), (7,), (2, 2), (2, 4), (4, 4), (2, 2, 2)))
    groups = mesh_groups(shape)
    programs = _programs(choose, groups)
    launch = choose.choice(("blocking", "streams", "one-stream"))
    size = len(programs)
    rank = choose.randrange(size)
    if not programs[rank]:
        return SimulatedJob(groups, programs, launch), None
    position = choose.randrange(len(programs[rank]))
    chosen = programs[rank][position]
    members = groups[chosen.group][1]
    if fault in ("late", "several-late"):
        stopped = {rank: position}
        if fault == "several-late":
            for one in choose.sample(range(size), min(3, size - 1)):
                stopped[one] = choose.randrange(len(programs[one]) + 1)
        for one, at in stopped.items():
            programs[one].insert(at, STOP)
        job = SimulatedJob(groups, programs, launch)
        return job, late_truth(job, frozenset(stopped))
    if fault == "order":
        later = [
            one
            for one in range(position + 1, len(programs[rank]))
            if programs[rank][one].group != chosen.group
        ]
        if not later or chosen.is_p2p:
            return SimulatedJob(groups, programs, launch), None
        other = choose.choice(later)
        calls = programs[rank]
        correct = list(calls)
        calls[position], calls[other] = calls[other], calls[position]
        job = SimulatedJob(groups, programs, launch)
        return job, order_truth(job, rank, correct, calls)
    if fault in ("type", "size", "dtype", "all-to-all"):
        is_exchange = chosen.operation.startswith("all_to_all")
        if chosen.is_p2p or is_exchange != (fault == "all-to-all"):
            return SimulatedJob(groups, programs, launch), None
        limit = max(1, (len(members) - 1) // 2)
        wrong = choose.sample(members, min(choose.randrange(1, 4), limit))
        for one in wrong:
            programs[one] = change_call(programs[one], programs[one].index(chosen), fault)
        job = SimulatedJob(groups, programs, launch)
        # Two ranks: either may be wrong.
        is_clear = 2 * len(wrong) < len(members) or chosen.operation == "all_to_all"
        blamed = frozenset(wrong if is_clear else members)
        return job, Truth(frozenset([fault]), blamed, blamed, True)
    return _job_with_broken_part(fault, (groups, programs, launch), (rank, position))


def _job_with_broken_part(
    fault: str,
    job_parts: tuple[Groups, list[list[Call]], str],
    place: tuple[int, int],
) -> tuple[SimulatedJob, Truth | None]:
    """Return a job of which a device or the network fails at one call of a rank, or nothing."""
    groups, programs, launch = job_parts
    rank, position = place
    chosen = programs[rank][position]
    members = groups[chosen.group][1]
    if fault == "device":
        job = SimulatedJob(groups, programs, launch, broken_devices=frozenset([place]))
        return job, device_truth(job, rank)
    if fault == "network":
        if chosen.is_p2p or len(members) < 2:
            return SimulatedJob(groups, programs, launch), None
        number = sum(
            one.group == chosen.group and not one.is_p2p for one in programs[rank][: position + 1]
        )
        broken = frozenset([(chosen.group, number)])
        job = SimulatedJob(groups, programs, launch, broken_network=broken)
        return job, Truth(frozenset(["network"]), frozenset(), frozenset(), True)
    job = SimulatedJob(groups, programs, launch)
    if fault == "skew":
        if chosen is not programs[rank][-1] or len(members) < 2:
            return job, None
        job.issued[rank][-1].state = "started"
    return job, Truth(frozenset([fault]), frozenset(), frozenset(), False)


def change_call(program: Sequence[Call], position: int, fault: str) -> list[Call]:
    """Return a program with one call that other ranks do not expect."""
    call = program[position]
    sizes = tuple(shape[0] for shape in call.sent + call.received)
    fields: dict[str, Any] = {
        "type": {"operation": "gather_v"},
        "size": {"sent": ((sizes[0] + 3,),), "received": ((sizes[-1] + 3,),)},
        "dtype": {"dtype": "Float"},
        "all-to-all": {"sent": ((sizes[0] + 1,),) * len(call.sent)},
    }
    calls = list(program)
    calls[position] = replace(call, **fields[fault])
    return calls


def late_truth(job: SimulatedJob, stopped: frozenset[int]) -> Truth | None:
    """A stopped rank is late if a rank waits in a call that the stopped rank has not issued.

    A stopped rank with an incomplete call waits in it, as far as dumps can show.
    """
    late, blocking = set(), set()
    for rank in range(job.size):
        for number, one in enumerate(job.hanging(rank)):
            for partner in job.partners(one) & stopped:
                if any(partner not in job.met[meeting] for meeting in one.meetings):
                    late.add(partner)
                    if number == 0 or one.state == "started":
                        blocking.add(partner)
    must = frozenset(blocking - job.stuck_ranks())
    if not must:
        return None
    return Truth(frozenset(["late"]), must, frozenset(late), True)


def order_truth(
    job: SimulatedJob, rank: int, correct: Sequence[Call], wrong: Sequence[Call]
) -> Truth | None:
    """The rank with another order, and the ranks that wait for it and for which it waits.

    If the order within one group differs, calls of one number differ.
    """
    if not job.stuck_ranks():
        return None
    reached = job.waits()
    may = {one for one in range(job.size) if rank in reached[one] and one in reached[rank]}
    kinds = {"order"}
    for name, (_, ranks) in job.groups.items():
        orders = [[call for call in program if call.group == name] for program in (correct, wrong)]
        if orders[0] != orders[1]:
            kinds |= {"type", "size"}
            # Two ranks: either may be wrong.
            may |= set(ranks) if len(ranks) == 2 else set()
    return Truth(frozenset(kinds), frozenset([rank]), frozenset(may | {rank}), True)


def device_truth(job: SimulatedJob, rank: int) -> Truth | None:
    """The device is named if another rank has started the call; else the order of streams."""
    broken = next((one for one in job.hanging(rank)), None)
    if broken is None:
        return None
    has_started = any(
        one.state == "started"
        for meeting in broken.meetings
        for other, one in job.met[meeting].items()
        if other != rank
    )
    must = frozenset([rank]) if has_started else frozenset()
    kinds = {"device"}
    if any(part.eager for part in job.partner_calls(broken)):
        # The send completed: as long as no time passes, the receive may be about to complete.
        kinds.add("skew")
        return Truth(frozenset(kinds), frozenset(), frozenset([rank]), False)
    return Truth(frozenset(kinds), must, frozenset([rank]), True)
