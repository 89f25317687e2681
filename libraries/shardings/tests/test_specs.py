"""Specs in three notations, ragged tiles, and one clear line for every wrong input."""

from __future__ import annotations

import pytest
from collhub_shardings import parse_mesh, parse_move, parse_placement

from hub_core.model import InputError

MESH = parse_mesh("mesh(x=2,y=3)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("S0 R S1", "S0 R S1"),
        ("('x', None, 'y')", "S0 R S1"),
        ("PartitionSpec('x', None, 'y')", "S0 R S1"),
        ("P('x')", "S0 R R"),
        ("(('x', 'y'), None, None)", "S01 R R"),
        ("Shard(0), Shard(2)", "S0 R S1"),
        ("(Shard(dim=1), Replicate())", "R S0 R"),
        ("Shard(-1), Partial()", "R R S0 P1"),
        ("S10 R R", "S10 R R"),
    ],
)
def test_three_notations_are_one_spec(text: str, expected: str) -> None:
    assert parse_placement(text, 3, MESH).text() == expected


def test_tiles_are_blocks_of_the_ceiling_and_later_ones_empty() -> None:
    placement = parse_placement("S01", 1, MESH)
    assert placement.boundaries([7], MESH)[0].tolist() == [0, 2, 4, 6, 7, 7, 7]


def test_dtensor_cuts_tile_by_tile() -> None:
    mesh = parse_mesh("mesh(2,2)")
    nested = parse_placement("Shard(0), Shard(0)", 1, mesh)
    at_once = parse_placement("S01", 1, mesh)
    assert nested.boundaries([10], mesh)[0].tolist() == [0, 3, 5, 8, 10]
    assert at_once.boundaries([10], mesh)[0].tolist() == [0, 3, 6, 9, 10]


@pytest.mark.parametrize(
    ("tensor", "source", "message"),
    [
        ("8x8:float32", "mesh(2,3): S0 S0", "names the mesh axis '0' twice"),
        ("8x8:float32", "mesh(2,3): S2 R", "the mesh has no axis '2'"),
        ("8x8:float32", "mesh(9): S0 R", "cuts dimension 0 of 8 elements in 9 tiles"),
        ("8x8:float32", "mesh(2,3): S0", "places 1 dimensions, the tensor has 2"),
        ("8x8:float32", "mesh(2,3): Q R", "'Q' is neither R nor S"),
        ("8x8:float32", "mesh(2,3): Shard(0)", "for each of the 2 mesh axes"),
        ("8x8:float32", "mesh(2,3): Shard(4), Replicate()", "names no dimension"),
        ("8x8:float32", "mesh(2,3): Partial(max), Replicate()", "only sums"),
        ("8x8:float32", "mesh(2,3): ('z', None)", "the mesh has no axis 'z'"),
        ("8x8:float32", "mesh(2,3): (nothing", "is no tuple"),
        ("8x8:float32", "mesh(0,3): R R", "at least one device"),
        ("8x8:float32", "mesh(2,3)@0-3: R R", "4 devices are named for 6 places"),
        ("8x8:float32", "mesh(2,3) R R", "has no spec behind its mesh"),
        ("8x8:float32", "grid(2,3): R R", "is no mesh"),
        ("8x8:float33", "mesh(2): R R", "there is no dtype 'float33'"),
        ("8,8:float32", "mesh(2): R R", "is no tensor"),
    ],
)
def test_wrong_input_is_one_clear_line(tensor: str, source: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_move(tensor, source, "mesh(2): R R")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_partial_destination_is_refused() -> None:
    with pytest.raises(InputError, match="is Partial"):
        parse_move("8:float32", "mesh(2): R", "mesh(2): R P0")
