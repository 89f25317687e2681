"""The offers of this plugin: the executor `mpi`, writers of tuned selections, and their rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import (
    Check,
    Executor,
    Format,
    Layout,
    Rule,
    RuleSet,
    SelectionWriter,
    Subject,
    choice,
    declare_rules,
    hookimpl,
    optional,
)


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
        # JSON, or text that begins with its version or with three lines of one number each.
        rb'"rule_file_version"\s*:|\A(?:\s|#[^\n]*\n)*'
        rb"(?:rule-file-version-\d+|(?:\d+[ \t]*\r?(?:#[^\n]*)?\n\s*(?:#[^\n]*\n\s*)*){3})",
        layout=Layout.FOLDER,
    ),
    "collhub_mpi.tuned.open_mpi:write",
    "collhub_mpi.tuned.open_mpi:read",
    RulesOptions,
    ("Open MPI, all versions (classic text)", "Open MPI 6.0 and later (JSON)"),
)
UCC = SelectionWriter(
    Format(
        "ucc",
        "tune string of UCC: which of its own algorithms, by size",
        (),
        rb"(?m)^\s*UCC_(?:TL|CL)_\w+_TUNE\s*=",
        layout=Layout.FOLDER,
    ),
    "collhub_mpi.tuned.ucc:write",
    "collhub_mpi.tuned.ucc:read",
    runtimes=("UCC with its transport UCP (names of its sources, not run with a release)",),
)
MPICH = SelectionWriter(
    Format(
        "mpich",
        "selection file of MPICH: which of its own algorithms, by size",
        (),
        rb'\A\s*\{\s*"collective=',
        layout=Layout.FOLDER,
    ),
    "collhub_mpi.tuned.mpich:write",
    "collhub_mpi.tuned.mpich:read",
    MpichOptions,
    ("MPICH of the release whose file -O mpich.defaults states (run with 5.0.2)",),
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
def collhub_checks() -> Sequence[Check | RuleSet]:
    """Describe the check of the installation."""
    return [
        INSTALLATION,
        RuleSet(
            "mpi",
            "findings in selection files of MPI libraries",
            "collhub_mpi.plugin:list_rules",
        ),
    ]


_RULES = (
    (
        "unknown-file",
        "The folder contains no file of this format.",
        "The file has another name.",
        "Name the file as `collhub tune` does.",
        "an empty folder",
    ),
    (
        "not-a-rule",
        "The text is no rule of this format.",
        "A number or word is missing, or more follows than the numbers announce.",
        "Correct the text at the named place.",
        "the classic text of Open MPI with a word in place of a number",
    ),
    (
        "unknown-collective",
        "The file has rules for a collective that Open MPI does not have.",
        "A number is misspelled, or the counts before it are wrong.",
        "Write a number or name of Open MPI.",
        "collective number 99",
    ),
    (
        "other-collective",
        "The file has rules for a collective that the hub does not model.",
        "The runtime selects algorithms for more collectives than the hub.",
        "None needed: only the form of these rules is checked.",
        "rules for MPI_Allgatherv",
    ),
    (
        "unknown-algorithm",
        "A rule of Open MPI names an algorithm that the collective does not have.",
        "The number or the name belongs to another collective, or is misspelled.",
        "Write an algorithm of the list, or 0 for Open MPI's own decision.",
        "algorithm 99 of an all-reduce",
    ),
    (
        "communicator-size",
        "It is not certain, or impossible, which communicators use a set of rules.",
        "Releases of Open MPI interpret sizes differently, or a range in JSON is empty.",
        "Write one set of rules, for size 0; in JSON an ascending range.",
        "sets for 2 and 4 ranks",
    ),
    (
        "not-ascending",
        "The sizes of the rules do not ascend from 0.",
        "Rules are in another order.",
        "Order the rules by size, and begin with 0.",
        "rules for 1024 and 0 bytes",
    ),
    (
        "not-a-selection",
        "The JSON is no selection file that MPICH follows.",
        "A member is missing, or MPICH would choose otherwise.",
        "Write it with `collhub tune --to mpich`.",
        "an empty file",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules of the readers of selection files."""
    return declare_rules("selection files of Open MPI, UCC and MPICH, by `collhub verify`", _RULES)
