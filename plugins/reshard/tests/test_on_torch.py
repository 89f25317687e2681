"""Weights of a running torch job from mesh to mesh, bit by bit."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

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
