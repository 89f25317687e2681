"""The replay finds every way in which a schedule can be wrong, in schedules and in logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.link_schedule import ArrivalLog, LinkSchedule
from collhub_tacos.schedules.replay import replay, replay_log
from collhub_tacos.spreading.homogeneous import all_gather

from hub_core import InputError, parse_topology
from hub_core.network import Links, Topology

Int64Array = npt.NDArray[np.int64]


def one_way_ring() -> Topology:
    node = np.arange(3, dtype=np.int64)
    return Links.uniform(node, (node + 1) % 3, 1e9, 0.0).topology("ring", 3, 3)


NETWORK = LinkNetwork.of(one_way_ring())
ORIGIN = np.arange(3)
TIMES = LinkTimes(np.full(3, 10), np.full(3, 12))


def schedule(rows: list[tuple[int, int, int]], reduces: bool = False) -> LinkSchedule:
    """(chunk, destination, start) each; links have the number of their end and take 12 ps."""
    columns = np.asarray(rows, np.int64).reshape(-1, 3).T
    chunk, link, start = columns[0], columns[1], columns[2]
    return LinkSchedule(NETWORK, chunk, link, start, start + 12, np.full(len(chunk), reduces))


GATHER = [(0, 1, 0), (1, 2, 0), (2, 0, 0), (0, 2, 12), (1, 0, 12), (2, 1, 12)]
# Node v + 1 adds v's part of chunk v + 2's sum first; what it has then goes on to the sum's end.
SCATTER = [(2, 1, 0), (0, 2, 0), (1, 0, 0), (2, 2, 12), (0, 0, 12), (1, 1, 12)]


def test_the_time_is_the_last_arrival() -> None:
    assert replay(schedule(GATHER), TIMES, ORIGIN) == 24
    assert replay(schedule(SCATTER, reduces=True), TIMES, ORIGIN) == 24


def test_an_all_reduce_is_a_reduction_and_a_spread_of_what_is_done() -> None:
    both = schedule(GATHER).append_to(schedule(SCATTER, reduces=True))
    assert replay(both, TIMES, ORIGIN) == 48


def test_nothing_to_do_takes_no_time() -> None:
    lone = LinkNetwork.of(parse_topology("ring:1"))
    empty = np.zeros(0, np.int64)
    assert (
        replay(
            LinkSchedule(lone, empty, empty, empty, empty, empty.astype(np.bool_)),
            LinkTimes(empty, empty),
            np.zeros(2, np.int64),
        )
        == 0
    )


def changed(
    rows: list[tuple[int, int, int]], row: int, to: tuple[int, int, int]
) -> list[tuple[int, int, int]]:
    return [*rows[:row], to, *rows[row + 1 :]]


@pytest.mark.parametrize(
    ("rows", "reduces", "message"),
    [
        (
            changed(GATHER, 3, (0, 2, 11)),
            False,
            r"chunk 0 on link 1 -> 2 at 11 ps is sent before it is there",
        ),
        (
            changed(GATHER, 1, (1, 2, 5)),
            False,
            r"chunk 0 on link 1 -> 2 at 12 ps starts while the link is busy",
        ),
        (
            [*GATHER, (0, 1, 40)],
            False,
            r"chunk 0 on link 0 -> 1 at 40 ps is one transfer of it too many there",
        ),
        (
            [*GATHER, (0, 0, 40)],
            False,
            r"chunk 0 on link 2 -> 0 at 40 ps is one transfer of it too many there",
        ),
        (GATHER[:-1], False, r"chunk 2 never arrives at NPU 1"),
        ([], False, r"chunk 0 never arrives at NPU 1"),
        (changed(GATHER, 0, (7, 1, 0)), False, r"transfer 0 names chunk 7, there are 3"),
        (changed(GATHER, 0, (0, -1, 0)), False, r"transfer 0 names link -1, there are 3"),
        (
            changed(GATHER, 0, (0, 1, -2)),
            False,
            r"chunk 0 on link 0 -> 1 at -2 ps arrives at 10 ps",
        ),
        (
            changed(SCATTER, 3, (2, 2, 11)),
            True,
            r"chunk 2 on link 0 -> 1 at 0 ps misses the sum that goes on",
        ),
        (SCATTER[1:], True, r"chunk 2 is never added from NPU 0"),
        (
            [*SCATTER, (2, 1, 40)],
            True,
            r"chunk 2 on link 0 -> 1 at 40 ps is one transfer of it too many there",
        ),
    ],
)
def test_the_first_offence_is_named(
    rows: list[tuple[int, int, int]], reduces: bool, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        replay(schedule(rows, reduces), TIMES, ORIGIN)


def test_transfers_take_the_time_of_their_link() -> None:
    found = schedule(GATHER)
    with pytest.raises(
        InputError, match=r"chunk 0 on link 0 -> 1 at 0 ps arrives at 13 ps, not 12 ps later"
    ):
        replay(replace(found, finish=found.finish + 1), TIMES, ORIGIN)


def test_a_result_is_not_spread_before_it_is_done() -> None:
    sums, spread = schedule(SCATTER, reduces=True), schedule(GATHER)
    early = replace(spread, start=spread.start + 20, finish=spread.finish + 20)
    columns = {
        name: np.concatenate([getattr(sums, name), getattr(early, name)])
        for name in LinkSchedule.__dataclass_fields__
        if name != "network"
    }
    late_links = LinkTimes(np.full(3, 1), np.full(3, 12))
    with pytest.raises(
        InputError, match=r"chunk 0 on link 0 -> 1 at 20 ps is sent before it is there"
    ):
        replay(LinkSchedule(NETWORK, **columns), late_links, ORIGIN)


def test_only_what_is_wanted_must_arrive() -> None:
    wanted = (np.asarray([0, 1]), np.asarray([2, 2]))
    assert replay(schedule([(0, 1, 0), (1, 2, 0), (0, 2, 12)]), TIMES, ORIGIN, wanted) == 24


MESH = LinkNetwork.of(parse_topology("mesh:3x3"))
MESH_TIMES = LinkTimes(np.full(MESH.num_links, 10), np.full(MESH.num_links, 15))


def a_log() -> ArrivalLog:
    return all_gather(MESH, 10, np.arange(9), arrival_ps=15)


def swapped(log: ArrivalLog) -> ArrivalLog:
    changed_log = log.log.copy()
    changed_log[4, [1, 8]] = changed_log[4, [8, 1]]
    return replace(log, log=changed_log)


def doubled(log: ArrivalLog) -> ArrivalLog:
    changed_log = log.log.copy()
    changed_log[0, 2] = changed_log[0, 1]
    return replace(log, log=changed_log)


def without_link(log: ArrivalLog) -> ArrivalLog:
    carried = log.carried.copy()
    carried[-1] = 0
    return replace(log, carried=carried)


def foreign_start(log: ArrivalLog) -> ArrivalLog:
    changed_log = log.log.copy()
    changed_log[3, 0] = 4
    return replace(log, log=changed_log)


def no_such_chunk(log: ArrivalLog) -> ArrivalLog:
    changed_log = log.log.copy()
    changed_log[3, 4] = 9
    return replace(log, log=changed_log)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swapped, "is sent before it is there"),
        (doubled, "is there already|is sent before"),
        (without_link, r"NPU 0 gets 8 of 9 chunks|gets \d of 9 chunks"),
        (foreign_start, "do not begin with the chunks that start at their nodes"),
        (no_such_chunk, "names no chunk"),
        (lambda log: replace(log, busy_ps=9), "not what the links take"),
        (lambda log: replace(log, arrival_ps=14), "not what the links take"),
    ],
)
def test_a_wrong_log_is_refused(change: Callable[[ArrivalLog], ArrivalLog], message: str) -> None:
    assert replay_log(a_log(), MESH_TIMES, np.arange(9)) == a_log().time_ps
    with pytest.raises(InputError, match=message):
        replay_log(change(a_log()), MESH_TIMES, np.arange(9))


def test_bits_behind_the_last_link_are_refused() -> None:
    ring = LinkNetwork.of(parse_topology("line:3"))
    log = all_gather(ring, 10, np.arange(3))
    carried = log.carried.copy()
    carried[0] |= 1 << ring.num_links
    with pytest.raises(InputError, match="is no link"):
        replay_log(
            replace(log, carried=carried), LinkTimes(np.full(4, 10), np.full(4, 10)), np.arange(3)
        )


def test_progress_of_a_replay_ends_at_one() -> None:
    seen: list[float] = []
    replay_log(a_log(), MESH_TIMES, np.arange(9), seen.append)
    assert seen[-1] == 1.0
