"""Declarations of the findings in selection files of Open MPI, UCC and MPICH."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules

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
        "The file has rules for a collective that the hub does not write.",
        "Its number is not one of the known ones.",
        "Check the file without this collective.",
        "collective number 99",
    ),
    (
        "communicator-size",
        "A collective does not have exactly one set of rules, for communicators of size 0.",
        "The rules depend on the size of the communicator.",
        "Write one set of rules, for size 0.",
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
