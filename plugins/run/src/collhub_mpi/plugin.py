"""The offers of this plugin: the executor `mpi` and writers of tuned selections."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_mpi.options import MpichOptions, MpiOptions, RulesOptions
from hub_core.plugin_api import (
    Check,
    Executor,
    Format,
    Layout,
    SelectionWriter,
    Subject,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

MPI = Executor(
    "mpi",
    "MPI by mpi4py, a process per rank on this host",
    "collhub_mpi.executor:execute",
    MpiOptions,
)
OPEN_MPI = SelectionWriter(
    Format(
        "openmpi",
        "dynamic rules of Open MPI: which of its own algorithms, by size",
        (),
        layout=Layout.FOLDER,
    ),
    "collhub_mpi.tuned.open_mpi_rules:write",
    "collhub_mpi.tuned.read_open_mpi:read",
    RulesOptions,
)
UCC = SelectionWriter(
    Format(
        "ucc", "tune string of UCC: which of its own algorithms, by size", (), layout=Layout.FOLDER
    ),
    "collhub_mpi.tuned.ucc_tune:write",
    "collhub_mpi.tuned.ucc_tune:read",
)
MPICH = SelectionWriter(
    Format(
        "mpich",
        "selection file of MPICH: which of its own algorithms, by size",
        (),
        layout=Layout.FOLDER,
    ),
    "collhub_mpi.tuned.mpich_selection:write",
    "collhub_mpi.tuned.read_mpich:read",
    MpichOptions,
)
INSTALLATION = Check(
    "mpi",
    Subject.INSTALLATION,
    "whether mpi4py is installed, and an mpiexec for it",
    "collhub_mpi.executor:check",
)


@hookimpl
def collhub_consumers() -> Sequence[Executor | SelectionWriter]:
    """Describe the executor, and the writers of tuned selections."""
    return [MPI, OPEN_MPI, UCC, MPICH]


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Describe the check of the installation."""
    return [INSTALLATION]
