"""Specs in three notations, ragged tiles, and one clear line for every wrong input."""

from __future__ import annotations

import pytest
from collhub_shardings import MeshPlacement, parse_mesh, parse_move, parse_placement
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import InputError, UsageError

MESH = parse_mesh("mesh(x=2,y=3)")
LONG = "1" * 5000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("S0 R S1", "S0 R S1"),
        ("('x', None, 'y')", "S0 R S1"),
        ("PartitionSpec('x', None, 'y')", "S0 R S1"),
        ("P('x')", "S0 R R"),
        # The arguments of the call are the entries, as in JAX.
        ("P(('x', 'y'))", "S01 R R"),
        ("P(None, ('y', 'x'),)", "R S10 R"),
        ("('x', 'y')", "S0 S1 R"),
        ("P()", "R R R"),
        ("(('x', 'y'), None, None)", "S01 R R"),
        ("Shard(0), Shard(2)", "S0 R S1"),
        ("(Shard(dim=1), Replicate())", "R S0 R"),
        ("Shard(-1), Partial()", "R R S0 P1"),
        ("S10 R R", "S10 R R"),
    ],
)
def test_three_notations_are_one_spec(text: str, expected: str) -> None:
    assert parse_placement(text, 3, MESH).text(MESH) == expected


def test_tiles_are_blocks_of_the_ceiling_and_later_ones_empty() -> None:
    placement = parse_placement("S01", 1, MESH)
    assert placement.boundaries([7], MESH)[0].tolist() == [0, 2, 4, 6, 7, 7, 7]


def test_dtensor_cuts_tile_by_tile() -> None:
    mesh = parse_mesh("mesh(2,2)")
    nested = parse_placement("Shard(0), Shard(0)", 1, mesh)
    at_once = parse_placement("S01", 1, mesh)
    assert nested.boundaries([10], mesh)[0].tolist() == [0, 3, 5, 8, 10]
    assert at_once.boundaries([10], mesh)[0].tolist() == [0, 3, 6, 9, 10]


def test_more_tiles_than_elements_leave_the_last_devices_empty() -> None:
    # torch.arange(7).chunk(8) gives 7 chunks; DTensor pads them with an empty one.
    move = parse_move("7:float32", "mesh(1): R", "mesh(8): S0")
    side = move.destination
    assert side.placement.boundaries((7,), side.mesh)[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 7]


def test_nested_cuts_may_leave_empty_tiles_between_others() -> None:
    mesh = parse_mesh("mesh(2,3)")
    nested = parse_placement("Shard(0), Shard(0)", 1, mesh)
    # 3 = 2 + 1, then 2 = 1 + 1 + 0 and 1 = 1 + 0 + 0.
    assert nested.boundaries([3], mesh)[0].tolist() == [0, 1, 2, 2, 3, 3, 3]


@pytest.mark.parametrize(
    "spelling",
    [
        "_StridedShard(0, split_factor=2), Shard(0)",
        "(_StridedShard(dim=0, sf=2), Shard(dim=0))",
        "_StridedShard(dim=-1, split_factor=2), Shard(-1)",
    ],
)
def test_strided_shard_is_cut_after_the_later_axis(spelling: str) -> None:
    # FSDP2 over tensor parallelism: mesh (fsdp=3, tp=2); tensor parallelism cuts first.
    mesh = parse_mesh("mesh(fsdp=3,tp=2)")
    placement = parse_placement(spelling, 1, mesh)
    assert placement.axes == ((1, 0),)
    # 7 = 4 + 3, then 4 = 2 + 2 + 0 and 3 = 1 + 1 + 1.
    assert placement.boundaries([7], mesh)[0].tolist() == [0, 2, 4, 4, 5, 6, 7]
    # The device (fsdp, tp) holds tile tp * 3 + fsdp.
    assert placement.tile_coordinates(mesh)[:, 0].tolist() == [0, 3, 1, 4, 2, 5]


def test_strided_shards_of_three_axes_refer_to_the_later_ones() -> None:
    mesh = parse_mesh("mesh(2,3,5)")
    words = "_StridedShard(0, split_factor=15), _StridedShard(0, split_factor=5), Shard(0)"
    assert parse_placement(words, 1, mesh).axes == ((2, 1, 0),)
    words = "_StridedShard(0, split_factor=3), Shard(0), Shard(0)"
    assert parse_placement(words, 1, mesh).axes == ((1, 0, 2),)


@given(st.permutations("012"), st.lists(st.integers(-1, 1), min_size=3, max_size=3))
def test_the_text_of_nested_cuts_gives_the_same_tiles(order: list[str], dims: list[int]) -> None:
    mesh = parse_mesh("mesh(2,3,2)")
    axes = tuple(tuple(int(a) for a in order if dims[int(a)] == d) for d in range(2))
    placement = MeshPlacement(axes, is_nested=True)
    again = parse_placement(placement.text(mesh), 2, mesh)
    assert again.axes == placement.axes
    cuts, others = placement.boundaries((7, 5), mesh), again.boundaries((7, 5), mesh)
    assert [cut.tolist() for cut in cuts] == [cut.tolist() for cut in others]


@pytest.mark.parametrize(
    ("tensor", "source", "message"),
    [
        ("8x8:float32", "mesh(2,3): S0 S0", "names the mesh axis '0' twice"),
        ("8x8:float32", "mesh(2,3): S2 R", "the mesh has no axis '2'"),
        ("8x8:float32", "mesh(2,3): S0", "places 1 dimensions, the tensor has 2"),
        ("8x8:float32", "mesh(2,3): Q R", "'Q' is neither R nor S"),
        ("8x8:float32", "mesh(2,3): Shard(0)", "for each of the 2 mesh axes"),
        ("8x8:float32", "mesh(2,3): Shard(4), Replicate()", "names no dimension"),
        ("8x8:float32", "mesh(2,3): _StridedShard(0), Shard(0)", "has no split factor"),
        (
            "8x8:float32",
            "mesh(2,3): _StridedShard(0, split_factor=2), Shard(0)",
            "split_factor=2 is not the number of tiles of the later mesh axes",
        ),
        (
            "8x8:float32",
            "mesh(2,3): _StridedShard(1, split_factor=3), Shard(0)",
            "shard the same dimension (no later axis)",
        ),
        ("8x8:float32", "mesh(2,3): Partial(max), Replicate()", "only sums"),
        ("8x8:float32", "mesh(2,3): ('z', None)", "the mesh has no axis 'z'"),
        ("8x8:float32", "mesh(2,3): (nothing", "is no tuple"),
        ("8x8:float32", "mesh(0,3): R R", "at least one device"),
        ("8x8:float32", "mesh(3,0)@0-3: R R", "at least one device"),
        ("8x8:float32", "mesh(2,3)@0-3: R R", "4 devices are named for 6 places"),
        ("8x8:float32", "mesh(2,3) R R", "has no spec after its mesh"),
        ("8x8:float32", "grid(2,3): R R", "is no mesh"),
        ("8x8:float33", "mesh(2): R R", "there is no dtype 'float33'"),
        ("8,8:float32", "mesh(2): R R", "is no tensor"),
        ("8x8:float32", "mesh(2,3): S, R", "a comma has no axis on both sides"),
        ("8x8:float32", "mesh(2,3): S0,,1 R", "a comma has no axis on both sides"),
        ("8x8:float32", f"mesh(2,3): ({'-' * 3000}1,)", "is no tuple of axis names"),
        # Python converts at most 4300 digits.
        (f"8x{LONG}:float32", "mesh(2): R R", "is no tensor"),
        ("8x8:float32", f"mesh({LONG}): R R", "an axis is no SIZE"),
        ("8x8:float32", f"mesh(2,3): ('{LONG}', None)", "the mesh has no axis"),
        ("8x8:float32", f"mesh(2,3): Shard({LONG}), Replicate()", "names no dimension"),
        ("8x8:float32", f"mesh(2,3): _StridedShard(0, sf={LONG}), Shard(0)", "has no split factor"),
    ],
)
def test_wrong_input_is_one_clear_line(tensor: str, source: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_move(tensor, source, "mesh(2): R R")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_device_number_with_too_many_digits_is_no_list_of_ranks() -> None:
    with pytest.raises(UsageError, match="is not a list of ranks"):
        parse_mesh(f"mesh(2,3)@{LONG}")


def test_a_partial_destination_is_refused() -> None:
    with pytest.raises(InputError, match="is Partial"):
        parse_move("8:float32", "mesh(2): R", "mesh(2): R P0")
