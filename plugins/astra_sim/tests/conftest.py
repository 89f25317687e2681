"""Fixtures for the tests of folders and runs: a stand-in for the simulator, folders on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hub_core.model import Algorithm, Buffer, Collective, CollectiveKind, StepKind, StepTableBuilder
from hub_core.plugin_api import WriteResult

FAKE = Path(__file__).with_name("fake_astra_sim.py")


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Path]:
    """Make an executable Python program."""

    def make(text: str, name: str = "AstraSim_Analytical_Congestion_Aware") -> Path:
        file = tmp_path / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!{sys.executable}\n{text}")
        file.chmod(0o755)
        return file

    return make


@pytest.fixture
def aware(program: Callable[..., Path]) -> Path:
    """The stand-in for the congestion-aware binary."""
    return program(FAKE.read_text())


@pytest.fixture
def unaware(program: Callable[..., Path]) -> Path:
    """The stand-in for the congestion-unaware binary."""
    return program(FAKE.read_text(), "AstraSim_Analytical_Congestion_Unaware")


@pytest.fixture
def store(tmp_path: Path) -> Callable[..., Path]:
    """Put the artifacts of a folder on disk."""

    def put(result: WriteResult, name: str = "folder") -> Path:
        for artifact in result.artifacts:
            file = tmp_path / name / artifact.name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(artifact.content())
            if artifact.executable:
                file.chmod(0o755)
        return tmp_path / name

    return put


@pytest.fixture
def run_script() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the run.sh of a folder."""

    def run(
        folder: Path, binary: object = None, cwd: Path | None = None, *arguments: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if key != "ASTRA_SIM_BIN"}
        if binary is not None:
            environment["ASTRA_SIM_BIN"] = str(binary)
        command = [str(folder / "run.sh"), *arguments]
        return subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def message() -> Callable[..., Algorithm]:
    """A broadcast to rank 1 of `ranks`.

    `is_received` False: rank 1 waits on a channel on which nothing is sent, too.
    """

    def make(ranks: int = 2, is_received: bool = True) -> Algorithm:
        steps = StepTableBuilder(ranks)
        steps.add(0, StepKind.SEND, peer=1, src_buffer=Buffer.OUTPUT, count=1)
        steps.add(1, StepKind.RECV, peer=0, dst_buffer=Buffer.OUTPUT, count=1)
        if not is_received:
            steps.add(1, StepKind.RECV, peer=0, channel=1, dst_buffer=Buffer.OUTPUT, count=1)
        collective = Collective(
            CollectiveKind.BROADCAST, ranks, 1, root=0, in_place=True, out_of_place=False
        )
        return Algorithm(collective, steps.build(), np.zeros(ranks, np.int64))

    return make
