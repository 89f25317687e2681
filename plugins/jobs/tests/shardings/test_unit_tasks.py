"""Unit tasks: every destination element exactly once for every replica, whatever the specs."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_shardings import (
    Move,
    ShapedType,
    Side,
    parse_mesh,
    parse_move,
    parse_placement,
    unit_tasks,
)
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import InputError


@st.composite
def sides(draw: st.DrawFn, shape: list[int], first: int) -> Side:
    """Any mesh of up to three axes, each of which splits a dimension or replicates."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    mesh = parse_mesh(f"mesh({','.join(map(str, sizes))})", first, host_size=1)
    words = [""] * len(shape)
    for axis in draw(st.permutations(range(len(sizes)))):
        place = draw(st.integers(-1, len(shape) - 1))
        if place >= 0:
            words[place] += str(axis)
    spec = " ".join(f"S{word}" if word else "R" for word in words)
    return Side(mesh, parse_placement(spec, len(shape), mesh))


@st.composite
def random_moves(draw: st.DrawFn) -> Move:
    """A tensor between two meshes, which may share devices; every device is a host of its own."""
    shape = draw(st.lists(st.integers(27, 40), min_size=1, max_size=2))
    tensor = ShapedType(tuple(shape), "float32")
    start = draw(sides(shape, 0))
    return Move(tensor, start, draw(sides(shape, draw(st.sampled_from((0, 27))))))


def cover(tasks, shape: tuple[int, ...], rows) -> np.ndarray:
    """How often every element of the tensor is in the boxes of some tasks."""
    counts = np.zeros(shape, int)
    for row in rows:
        box = zip(tasks.start[row].tolist(), tasks.stop[row].tolist(), strict=True)
        counts[tuple(slice(a, b) for a, b in box)] += 1
    return counts


@pytest.mark.once
@given(random_moves())
def test_every_destination_element_comes_once_to_every_replica(move: Move) -> None:
    tasks = unit_tasks([move])
    cuts = move.destination.placement.boundaries(move.tensor.shape, move.destination.mesh)
    places = move.destination.placement.tile_coordinates(move.destination.mesh)
    for device, place in zip(move.destination.mesh.devices, places.tolist(), strict=True):
        rows = [row for row in range(len(tasks)) if device in tasks.receivers_of(row)]
        expected = np.zeros(move.tensor.shape, int)
        bounds = zip(cuts, place, strict=True)
        expected[tuple(slice(int(cut[i]), int(cut[i + 1])) for cut, i in bounds)] = 1
        assert np.array_equal(cover(tasks, move.tensor.shape, rows), expected)


@given(random_moves())
def test_senders_hold_the_whole_box(move: Move) -> None:
    tasks = unit_tasks([move])
    cuts = move.source.placement.boundaries(move.tensor.shape, move.source.mesh)
    places = move.source.placement.tile_coordinates(move.source.mesh)
    for row in range(len(tasks)):
        for device in tasks.senders_of(row).tolist():
            at = places[move.source.mesh.devices.index(device)].tolist()
            for dimension, (cut, index) in enumerate(zip(cuts, at, strict=True)):
                assert cut[index] <= tasks.start[row, dimension]
                assert tasks.stop[row, dimension] <= cut[index + 1]


def test_every_summand_is_a_task_of_its_own() -> None:
    move = parse_move("12:float32", "mesh(2,3): Shard(0), Partial()", "mesh(2): S0")
    tasks = unit_tasks([move])
    assert tasks.summand.tolist() == [0, 1, 2, 0, 1, 2]
    assert tasks.senders.tolist() == list(range(6))


def test_an_empty_tensor_has_no_bytes_to_move() -> None:
    move = parse_move("0x8:float32", "mesh(2,4): S0 R", "mesh(2,4): R S1")
    assert len(unit_tasks([move])) == 0


def test_devices_on_two_hosts_are_refused() -> None:
    first = parse_move("8:float32", "mesh(2,2)@0-3: S0", "mesh(1,4)@4-7: S1")
    second = parse_move("8:float32", "mesh(1,4)@0-3: S1", "mesh(1,4)@4-7: S1")
    with pytest.raises(InputError, match="stands on two hosts"):
        unit_tasks([first, second])
