"""The script for clusters: `mpirun -n 64 python -m collhub_mpi ring.xml --size 64MiB`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from collhub_execution import StartedRun, print_findings, run_script, script_command, script_rank
from mpi4py import MPI

from collhub_mpi.rank import Array, mpi_engine
from hub_core.model import Diagnostic, HubError


@dataclass(frozen=True, slots=True)
class MpiChannel:
    """Communication between all ranks that mpirun has started."""

    world: MPI.Intracomm

    @property
    def rank(self) -> int:
        """Rank of this process."""
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


@script_command
def main(algorithm: str, as_json: bool, **values: Any) -> None:
    """Run the rank of this process, which mpirun has started, and exit.

    `algorithm`: its file; `values`: the run options. Rank 0 prints the report, with
    `as_json` as JSON. The status is 0, but 1 on rank 0 for a wrong result. For an error
    while reading, all ranks exit with the status of the error, which rank 0 prints. Any
    later error aborts all ranks with status 1.
    """
    world = MPI.COMM_WORLD
    run_script(partial(_run, algorithm, values, world, as_json), is_first=world.rank == 0)


def _run(name: str, values: dict[str, Any], world: MPI.Intracomm, as_json: bool) -> int:
    """Run this rank and return its exit status: 1 on rank 0 for a wrong result, otherwise 0.

    `name`: algorithm file; `values`: options of the run. Rank 0 prints the report, as JSON with
    `as_json`.

    Errors of reading the algorithm and the options are raised without an abort, because all ranks
    have them. For any later exception, also `SystemExit`, the diagnostics of a `HubError`, or one
    with the code `rank-died`, are printed. Then all ranks are aborted with status 1, because they
    would wait for this one. The same happens with the diagnostics of an exceeded time limit.
    """
    run = StartedRun.read(name, values, world.size)
    try:
        engine_of = partial(mpi_engine, communicator=world)
        return script_rank(run, MpiChannel(world), engine_of, _stop_all, as_json=as_json)
    except BaseException as error:
        # Without this, MPI would wait for the other ranks when the process exits.
        _stop_all(
            error.diagnostics
            if isinstance(error, HubError)
            else [Diagnostic("rank-died", f"{type(error).__name__}: {error}")]
        )
        raise


def _stop_all(findings: Sequence[Diagnostic]) -> None:
    """Print the diagnostics of this rank on standard error, and abort all ranks with status 1.

    This also ends ranks that wait inside MPI. It does not return.
    """
    # Abort, unlike exit, also ends ranks that wait inside MPI.
    print_findings(findings)
    MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    main(prog_name="mpirun ... -m collhub_mpi")
