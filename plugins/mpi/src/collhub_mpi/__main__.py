"""The script for clusters: `mpirun -n 64 python -m collhub_mpi ring.xml --size 64MiB`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
from collhub_execution import (
    SCRIPT_HELP,
    StartedRun,
    StartedRunReport,
    print_findings,
    run_options,
    run_options_of,
    run_rank,
    script_arguments,
    script_status,
)
from mpi4py import MPI

import hub_core
from collhub_mpi.engine import Array, mpi_engine
from hub_core.model import Diagnostic, HubError


@dataclass(frozen=True, slots=True)
class MpiChannel:
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


@click.command(help=SCRIPT_HELP)
@script_arguments
@run_options
def main(algorithm: str, as_json: bool, **values: Any) -> None:
    """Run one rank. The exit status is that of `collhub run`."""
    world = MPI.COMM_WORLD
    try:
        options = run_options_of(values)
        run = StartedRun.of(hub_core.read(algorithm), options, algorithm, world.size)
    except HubError as error:
        # All ranks have read the same and find the same: one says it.
        if world.rank == 0:
            print_findings(error.diagnostics)
        sys.exit(error.exit_code)
    sys.exit(script_status(_run(run, world), as_json))


def _run(run: StartedRun, world: MPI.Intracomm) -> StartedRunReport | None:
    """What rank 0 reports; None at the others."""
    try:
        engine_of = partial(mpi_engine, communicator=world)
        return run_rank(run, MpiChannel(world), engine_of, _end)
    except BaseException as error:
        # Without this, MPI would wait for the other ranks at the end of the process.
        _end(_findings(error))
        raise


def _findings(error: BaseException) -> Sequence[Diagnostic]:
    """What is to be said of an error of any kind."""
    if isinstance(error, HubError):
        return error.diagnostics
    return [Diagnostic("rank-died", f"{type(error).__name__}: {error}")]


def _end(found: Sequence[Diagnostic]) -> None:
    """Say where this rank stands, and end all."""
    # Abort, unlike an exit, also ends ranks that wait inside MPI.
    print_findings(found)
    MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    main(prog_name="mpirun ... -m collhub_mpi")
