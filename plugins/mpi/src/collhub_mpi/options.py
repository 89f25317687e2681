"""The options of the executor `mpi`; nothing of MPI is imported."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option


@dataclass(frozen=True, slots=True)
class MpiOptions:
    """How ranks are started."""

    launcher: str | None = option(
        OptionType.TEXT,
        None,
        "program that starts the ranks, with its arguments "
        "(default: the mpiexec beside this Python, else on the path)",
    )
