"""Stages on meshes: what is handed over covers every tile once, and a step runs as a whole."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from collhub_pipeline.job import generate
from collhub_pipeline.layouts import MeshLayout
from collhub_pipeline.plugin import HAND_OVERS, PipelineOptions
from hypothesis import given
from hypothesis import strategies as st

from hub_core import HubError
from hub_core.model import JobCollective, NodeKind

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "pipeline_step.py"
TENSOR = "12x10:float32"
SPECS = ("R R", "S0 R", "R S1", "S0 S1", "S1 S0", "S01 R", "R S10")
MESHED = PipelineOptions(
    schedule="1f1b",
    stages=2,
    micro_batches=2,
    activation_tensor="4x8:float32",
    meshes="mesh(2,2): S0 R; mesh(1,4): R S1",
)


@st.composite
def layouts(draw: st.DrawFn) -> MeshLayout:
    """Two stages on any meshes and specs."""
    sizes = st.integers(1, 3)
    sides = [f"mesh({draw(sizes)},{draw(sizes)}): {draw(st.sampled_from(SPECS))}" for _ in "ab"]
    return MeshLayout.of(TENSOR, "; ".join(sides), 2, 1, draw(st.sampled_from(HAND_OVERS)))


@given(layouts())
def test_every_rank_gets_the_bytes_of_its_tile(layout: MeshLayout) -> None:
    for sender, receiver in ((0, 1), (1, 0)):
        arrived: Counter[int] = Counter()
        forwarded: Counter[int] = Counter()
        direct: Counter[int] = Counter()
        for leg in layout.legs(sender, receiver):
            arrived[leg.destination] += leg.bytes
            (forwarded if leg.is_forwarded else direct)[leg.source] += leg.bytes
        width = layout.ranks.widths[receiver]
        side = layout.sides[receiver]
        cuts = side.placement.boundaries(layout.tensor.shape, side.mesh)
        for member, at in enumerate(side.placement.tile_coordinates(side.mesh).tolist()):
            rows, columns = (int(cut[i + 1] - cut[i]) for cut, i in zip(cuts, at, strict=True))
            assert arrived[layout.ranks.rank(receiver, member)] == 4 * rows * columns
        # What is passed on has arrived, and goes to fewer ranks than there are.
        for rank, size in forwarded.items():
            assert size <= (width - 1) * arrived[rank]
        ranks = range(layout.ranks.rank(sender, 0), layout.ranks.rank(sender, 0) + 9)
        assert set(direct) <= set(ranks)


@given(layouts())
def test_a_host_gets_every_box_once_unless_sent_to_each(layout: MeshLayout) -> None:
    legs = layout.legs(0, 1)
    crossing = sum(leg.bytes for leg in legs if not leg.is_forwarded)
    to_each = replace(layout, hand_over="send-recv")
    assert crossing <= sum(leg.bytes for leg in to_each.legs(0, 1))
    if layout.sides[1].mesh.shape[0] == 1 and layout.hand_over != "send-recv":
        # One host: the tensor once.
        assert crossing == layout.tensor.num_bytes


def test_ranks_of_one_tile_add_up_results_and_those_of_one_weight_gradients() -> None:
    job = generate(replace(MESHED, data=2, gradients=4096))
    groups = {group.ranks for group in job.groups}
    # Stage 0: devices (0, 1) and (2, 3) have a half of the batch each; two replicas of 8 ranks.
    assert {(0, 1), (2, 3), (8, 9), (0, 2, 8, 10), (1, 3, 9, 11)} <= groups
    # Stage 1 splits the width: nobody shares a tile, and replicas alone share weights.
    assert {(4, 12), (7, 15)} <= groups
    assert not any(set(ranks) == {4, 5, 6, 7} for ranks in groups)
    nodes = job.nodes
    sums = Counter(nodes.bytes[nodes.collective == JobCollective.ALL_REDUCE].tolist())
    # Half of 128 bytes behind 2 forward and 2 backward passes on 8 ranks; gradients on all 16.
    assert sums == {64: 32, 4096: 16}


def test_messages_pair_up_between_stages() -> None:
    nodes = generate(MESHED).nodes
    ends = []
    for kind in (NodeKind.SEND, NodeKind.RECV):
        rows = nodes.is_kind(kind)
        pair = (nodes.rank[rows], nodes.peer[rows])
        source, destination = pair if kind is NodeKind.SEND else pair[::-1]
        columns = (source, destination, nodes.tag[rows], nodes.bytes[rows])
        ends.append(sorted(zip(*(column.tolist() for column in columns), strict=True)))
    assert ends[0] == ends[1]


@pytest.mark.needs_plugins
@pytest.mark.parametrize("hand_over", HAND_OVERS)
@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1", "two-directions"])
def test_a_whole_step_is_verified_and_simulated(
    collhub, tmp_path: Path, schedule: str, hand_over: str
) -> None:
    step, flat = tmp_path / "step", tmp_path / "flat"
    options = {
        "schedule": schedule,
        "stages": 2,
        "micro_batches": 4,
        "activation_tensor": "4x64:float32",
        "meshes": MESHED.meshes,
        "hand_over": hand_over,
    }
    pairs = [text for key, value in options.items() for text in ("-O", f"{key}={value}")]
    assert collhub("generate", "pipeline", *pairs, "-o", step).code == 0
    rule = ("--collective", "all-reduce=ring", "--topology", "switch:8")
    assert collhub("expand", step, *rule, "-o", flat).code == 0
    assert collhub("verify", flat).code == 0
    drawn = tmp_path / "timeline.json"
    run = collhub("simulate", flat, "--topology", "switch:8", "--json", "--timeline", drawn)
    # 4 micro-batches of 3 ms on each stage.
    assert run.report()["time_ns"] > 12_000_000
    assert drawn.stat().st_size > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"meshes": None}, "need -O activation_tensor and -O meshes"),
        ({"activation_tensor": None}, "need -O activation_tensor and -O meshes"),
        ({"tensor": "2"}, "take the place of -O tensor"),
        ({"meshes": "mesh(2): S0 R; mesh(2): S0 R; mesh(2): S0 R"}, "for each of 2 stages"),
        ({"meshes": "mesh(2)@0-1: S0 R"}, "for each of 2 stages"),
        ({"meshes": "mesh(2): S0 R P0"}, "names the mesh axis '0' twice"),
        ({"meshes": "mesh(2,2): S0 R P1"}, "are summands"),
        ({"meshes": "mesh(2): S0"}, "places 1 dimensions, the tensor has 2"),
        ({"activation_tensor": "4,8"}, "is no tensor"),
    ],
)
def test_wrong_meshes_are_refused(changes, message: str) -> None:
    with pytest.raises(HubError, match=message):
        generate(replace(MESHED, **changes))


@pytest.mark.slow
@pytest.mark.needs_plugins
@pytest.mark.skipif(not EXAMPLE.is_file(), reason="only in a checkout")
def test_the_example_compares_ways_to_hand_over(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    times = [float(line.split()[1]) for line in run.stdout.splitlines()]
    # To every receiver, once to a host, and over all of its cards.
    assert times == sorted(times, reverse=True)
    assert len(list(tmp_path.glob("*/timeline.json"))) == 3
