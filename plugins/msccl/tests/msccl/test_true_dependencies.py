"""Data dependencies are complete and invent nothing: random programs against a plain closure."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from collhub_msccl import accesses, true_dependencies
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core.model import Algorithm, Buffer, StepKind, StepTable

_READS_SRC = {StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE}
_WRITES_DST = {StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE}


def _reachable(steps: StepTable, *kinds: str) -> np.ndarray:
    """Floyd and Warshall's closure over the dependencies of these kinds: [earlier, later]."""
    reach = np.zeros((len(steps), len(steps)), bool)
    for kind in kinds:
        indptr, indices = getattr(steps, f"{kind}_indptr"), getattr(steps, f"{kind}_indices")
        reach[indices, np.repeat(np.arange(len(steps)), np.diff(indptr))] = True
    for middle in range(len(steps)):
        reach |= np.outer(reach[:, middle], reach[middle])
    return reach


def _touched(
    algorithm: Algorithm, row: int, in_place: bool
) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """(read, written) units of a row, as (buffer, offset)."""
    steps = algorithm.steps

    def region(side: str) -> set[tuple[int, int]]:
        buffer = int(getattr(steps, f"{side}_buffer")[row])
        start = int(getattr(steps, f"{side}_offset")[row])
        shared = Buffer.INPUT if in_place and buffer == Buffer.OUTPUT else buffer
        return {(int(shared), unit) for unit in range(start, start + int(steps.count[row]))}

    kind = StepKind(steps.kind[row])
    reads = region("src") if kind in _READS_SRC else set()
    return (reads | region("dst") if kind is StepKind.REDUCE else reads), region(
        "dst"
    ) if kind in _WRITES_DST else set()


def _conflicts(algorithm: Algorithm, in_place: bool) -> list[tuple[int, int]]:
    touched = [_touched(algorithm, row, in_place) for row in range(len(algorithm.steps))]
    return [
        (one, other)
        for one, other in combinations(range(len(touched)), 2)
        if touched[one][1] & (touched[other][0] | touched[other][1])
        or touched[one][0] & touched[other][1]
    ]


@st.composite
def _programs(draw: st.DrawFn) -> list[list[dict[str, object]]]:
    """Thread blocks of local steps that wait for steps of other blocks, without a cycle."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    blocks: list[list[dict[str, object]]] = [[] for _ in lengths]
    left = [number for number, length in enumerate(lengths) for _ in range(length)]
    for number in draw(st.permutations(left)):
        done = [
            (other, position)
            for other in range(len(blocks))
            if other != number
            for position in range(len(blocks[other]))
        ]
        wait = draw(st.sampled_from([(-1, -1), *done]))
        place = st.tuples(st.sampled_from("ios"), st.integers(0, 3)).map(lambda p: f"{p[0]}{p[1]}")
        blocks[number].append(
            {"type": draw(st.sampled_from(["cpy", "re"])), "src": draw(place), "dst": draw(place)}
            | {"cnt": draw(st.integers(1, 2)), "wait": wait, "flag": True}
        )
    return blocks


def _assert_complete(algorithm: Algorithm, modes: list[bool]) -> None:
    ordered = _reachable(algorithm.steps, "data", "control")
    data = _reachable(algorithm.steps, "data")
    for in_place in modes:
        for one, other in _conflicts(algorithm, in_place):
            if ordered[one, other]:
                assert data[one, other], (
                    f"rows {one} and {other} conflict, but only program order keeps them apart"
                )


@pytest.mark.once
@settings(deadline=None)
@given(_programs(), st.sampled_from([("1", "0"), ("0", "1"), ("1", "1")]))
def test_ordered_conflicts_stay_ordered_without_program_order(
    reader_of, xml, blocks, modes
) -> None:
    text = xml.local(
        *([xml.step(**step) for step in block] for block in blocks),
        inplace=modes[0],
        outofplace=modes[1],
    )
    algorithm = reader_of(text)
    _assert_complete(
        algorithm, [mode for mode, claim in zip([True, False], modes, strict=True) if claim == "1"]
    )


@pytest.mark.once
@settings(deadline=None)
@given(_programs())
def test_nothing_is_ordered_that_the_file_leaves_open(reader_of, xml, blocks) -> None:
    """Also: every new dependency stands between steps that really conflict."""
    algorithm = reader_of(
        xml.local(
            *([xml.step(**step) for step in block] for block in blocks), inplace="1", outofplace="1"
        )
    )
    steps = algorithm.steps
    position = {
        (int(lane), int(line)): row
        for row, (lane, line) in enumerate(zip(steps.lane, steps.source_line, strict=True))
    }
    stated = np.zeros((len(steps), len(steps)), bool)
    by_lane = {
        lane: np.flatnonzero(steps.lane == lane).tolist() for lane in set(steps.lane.tolist())
    }
    for rows in by_lane.values():
        stated[rows[:-1], rows[1:]] = True
    for lane, rows in by_lane.items():
        for row, step in zip(rows, blocks[lane], strict=True):
            if step["wait"] != (-1, -1):
                stated[by_lane[step["wait"][0]][step["wait"][1]], row] = True
    waits = stated.copy()
    for middle in range(len(steps)):
        stated |= np.outer(stated[:, middle], stated[middle])
    conflicts = set(_conflicts(algorithm, True)) | set(_conflicts(algorithm, False))
    children = np.repeat(np.arange(len(steps)), np.diff(steps.data_indptr))
    assert len(position) == len(steps)
    for parent, child in zip(steps.data_indices.tolist(), children.tolist(), strict=True):
        assert stated[parent, child]
        assert waits[parent, child] or (parent, child) in conflicts


@pytest.mark.parametrize(
    ("module", "limit"),
    [
        (accesses, "_MAX_UNITS"),
        (accesses, "_MAX_CLOCK_ENTRIES"),
        (true_dependencies, "_MAX_QUERIES"),
    ],
)
def test_beyond_the_limits_all_program_order_becomes_data(
    reader, xml, monkeypatch, module: object, limit: str
) -> None:
    monkeypatch.setattr(module, limit, -10_000)
    blocks = [
        [xml.step("cpy", "i0", "o0"), xml.step("cpy", "i1", "o1", flag=True)],
        [xml.step("cpy", "o0", "o2", wait=(0, 1))],
    ]
    steps = reader(xml.local(*blocks)).steps
    assert steps.data_indices.tolist() == [0, 1]


def test_data_dependencies_name_only_the_last_conflicts(reader, xml) -> None:
    steps = reader(
        xml.local(
            [
                xml.step("cpy", "i0", "o0"),
                xml.step("cpy", "o0", "o1"),
                xml.step("cpy", "o0", "o2"),
                xml.step("cpy", "i1", "o0"),
            ]
        )
    ).steps
    # The last copy waits for both readers, and through them for the first write.
    assert [
        steps.data_indices[steps.data_indptr[row] : steps.data_indptr[row + 1]].tolist()
        for row in range(4)
    ] == [
        [],
        [0],
        [0],
        [1, 2],
    ]


def test_in_place_input_and_output_are_one_memory(reader, xml) -> None:
    block = [xml.step("cpy", "i0", "s0"), xml.step("cpy", "s1", "o0")]
    apart = reader(xml.local(block, coll="allreduce", inplace="0", outofplace="1")).steps
    shared = reader(xml.local(block, coll="allreduce", inplace="1", outofplace="0")).steps
    assert (apart.data_indices.tolist(), shared.data_indices.tolist()) == ([], [0])
