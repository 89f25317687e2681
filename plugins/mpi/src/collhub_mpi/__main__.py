"""The script for clusters: `mpirun -n 64 python -m collhub_mpi ring.xml --size 64MiB`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from mpi4py import MPI

import hub_core
from collhub_mpi.engine import MpiEngine
from hub_core.execution.rank_tasks import Array
from hub_core.execution.started_ranks import Report, Trial, add_arguments, run_rank
from hub_core.model import Diagnostic, HubError


@dataclass(frozen=True, slots=True)
class _Wire:
    """All ranks that mpirun has started."""

    world: MPI.Intracomm

    @property
    def rank(self) -> int:
        """Of this process."""
        return int(self.world.rank)

    @property
    def num_ranks(self) -> int:
        """Number of processes."""
        return int(self.world.size)

    def send(self, array: Array, peer: int) -> None:
        """Send bytes."""
        self.world.Send((array, MPI.BYTE), peer)

    def receive(self, array: Array, peer: int) -> None:
        """Receive bytes."""
        self.world.Recv((array, MPI.BYTE), peer)


def main() -> int:
    """Run one rank. The exit status is that of `collhub run`."""
    parser = argparse.ArgumentParser(
        prog="mpirun ... -m collhub_mpi", description="Run an algorithm, a process per rank."
    )
    add_arguments(parser)
    wish, world = parser.parse_args(), MPI.COMM_WORLD
    try:
        trial = Trial.of(hub_core.read(wish.algorithm), wish, world.size)
    except HubError as error:
        if world.rank == 0:
            _complain(error.diagnostics)
        return error.exit_code
    report = _run(trial, world, wish.timeout)
    if report is None:
        return 0
    print(json.dumps(report.fields) if wish.json else report.text())
    _complain(report.diagnostics)
    return 0 if report.ok else 1


def _run(trial: Trial, world: MPI.Intracomm, timeout_s: float) -> Report | None:
    try:
        return run_rank(trial, _Wire(world), lambda task: MpiEngine(task, world), timeout_s, _end)
    except BaseException as error:
        # Without this, MPI would wait for the other ranks at the end of the process.
        found = (
            error.diagnostics
            if isinstance(error, HubError)
            else [Diagnostic("rank-died", f"{type(error).__name__}: {error}")]
        )
        _end(found)
        raise


def _end(found: Sequence[Diagnostic]) -> None:
    """Say where this rank stands, and end all."""
    _complain(found)
    MPI.COMM_WORLD.Abort(1)


def _complain(found: Sequence[Diagnostic]) -> None:
    for diagnostic in found:
        print(diagnostic, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
