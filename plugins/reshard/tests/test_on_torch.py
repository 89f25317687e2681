"""Weights of a running torch job from mesh to mesh, bit by bit."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from collhub_reshard import plan_reshard

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "reshard_transformer.py"
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed: python -m pip install torch",
)


@needs_torch
@pytest.mark.slow
@pytest.mark.skipif(not EXAMPLE.is_file(), reason="only in a checkout")
def test_a_transformer_moves_from_training_to_inference_bit_by_bit() -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "mesh(2,2) -> mesh(1,4): 24 weights equal bit by bit",
        "mesh(2,2) -> mesh(4,1): 24 weights equal bit by bit",
    ]


@needs_torch
@pytest.mark.slow
def test_summands_become_their_sum_bit_by_bit_on_every_rank() -> None:
    ranks = Path(__file__).with_name("partial_ranks.py")
    run = subprocess.run(
        [sys.executable, str(ranks)], capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count(": the sum, bit by bit\n") == 4


@needs_torch
def test_summands_are_added_in_the_order_of_the_mesh() -> None:
    import torch
    from collhub_reshard.on_torch import _Arrivals, _move, _Tiled

    move = _move((2, 2), torch.float32, "mesh(1,3)@0-2: R R P1", "mesh(1,1)@3: R R", None)
    plan = plan_reshard([move], host_bandwidth=1e9)
    output = torch.empty(2, 2)
    arrivals = _Arrivals(plan, _Tiled(output, [(0, 2), (0, 2)]), are_summands=True)
    # Those that come first are not added first.
    for row, value in ((2, 1.0), (0, 1e8), (1, -1e8)):
        arrivals.box(row).fill_(value)
    arrivals.add_up()
    assert torch.equal(output, torch.ones(2, 2))


@needs_torch
def test_a_shard_of_another_shape_is_refused() -> None:
    import torch
    from collhub_reshard.on_torch import _check_shard, _move

    from hub_core.model import InputError

    move = _move((8, 8), torch.float32, "mesh(2,2): S0 R", "mesh(4,1): R S0", None)
    _check_shard(torch.zeros(4, 8), move, 0, torch.float32)
    with pytest.raises(InputError, match=r"rank 0: the shard is \(8, 8\)"):
        _check_shard(torch.zeros(8, 8), move, 0, torch.float32)
    with pytest.raises(InputError, match="the shard is none"):
        _check_shard(None, move, 0, torch.float32)
