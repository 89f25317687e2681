"""The options of this plugin; does not import MPI."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import choice, optional


@dataclass(frozen=True, slots=True)
class MpiOptions:
    """Options of the executor `mpi`."""

    launcher: str | None = optional(
        "program that starts the ranks, with its arguments "
        "(default: the mpiexec next to this Python, else on the path)"
    )


@dataclass(frozen=True, slots=True)
class RulesOptions:
    """Options of dynamic rules for Open MPI."""

    format: str = choice(
        ("classic", "json"),
        "classic text, which all versions read, or json, which they read from 6.0 on",
    )


@dataclass(frozen=True, slots=True)
class MpichOptions:
    """Options of selection files for MPICH."""

    defaults: str | None = optional(
        "MPICH's own selection file of your release: maint/tuning/coll/mpir/generic.json "
        "of its sources (default: no file is written)"
    )
