"""Reader for schedules of TE-CCL's solver, a check of its claims, and the rules.

TE-CCL formulates collectives as multi-commodity flows (Liu et al., SIGCOMM 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import (
    Check,
    Format,
    FormatReader,
    Rule,
    RuleSet,
    Subject,
    declare_rules,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

# Inputs of the solver match too, so that the reader can report them. Forks of TE-CCL first write
# the collective and other members with 0, and a name or comments before inputs. Possessive groups
# prevent backtracking for any text.
_SIGNATURE = (
    rb"\A\s*+\{\s*+"
    rb'(?:"(?:0-[A-Za-z_]{1,40}+|name|_[a-z0-9_]{1,60}+)"\s*+:\s*+'
    rb'(?:"(?:[^"\\]|\\.)*+"|[0-9]{1,9}+)\s*+,\s*+)*+'
    rb'"(?:1-Epoch_Duration|TopologyParams|GurobiParams|InstanceParams)"'
)

_TECCL = Format(
    "teccl",
    "schedules of TE-CCL (JSON): all-gather and all-to-all, with fractions of chunks",
    (".json",),
    _SIGNATURE,
    members=("1-Epoch_Duration", "3-Epochs_Required", "7-Flows", "8-Chunk paths"),
)


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Reader of schedules."""
    return [
        FormatReader(
            _TECCL, "collhub_teccl.schedules:read", samples="collhub_teccl.schedules:samples"
        )
    ]


@hookimpl
def collhub_checks() -> Sequence[Check | RuleSet]:
    """Check of the claimed epochs, and rules of the reader."""
    return [
        Check(
            "teccl-claims",
            Subject.ALGORITHM,
            "the epochs that TE-CCL claims compared with those that its schedule needs",
            "collhub_teccl.schedules:check",
        ),
        RuleSet("teccl", "findings in TE-CCL schedules", "collhub_teccl.plugin:list_rules"),
    ]


_RULES = (
    (
        "teccl-schema",
        "The JSON document does not have the structure of a schedule.",
        "The file is an input of the solver, or was changed by hand.",
        "Run the LP or MILP solver, and read its output; the message names the member and the "
        "expected value.",
        'a hop as `"0-1 over 2"`',
    ),
    (
        "teccl-schedule",
        "The flows of the schedule contradict each other.",
        "A switch is also an end of a demand, a demand occurs twice, or a chunk arrives twice.",
        "Give switches separate numbers, and write every demand once.",
        "node 3 as a switch in one hop and as an end in another",
    ),
    (
        "demand-not-met",
        "The paths bring less than the whole chunk to a GPU.",
        "A path is missing, or volumes do not add up to 1.",
        "Write a path for every demand; the volumes of a demand must add up to 1.",
        "two paths with volumes 0.5 and 0.25",
    ),
    (
        "flows-lost",
        "The list of flows lacks volume, because the solver merges equal lines.",
        "TE-CCL writes flows as a set of lines.",
        "No action is needed: the paths of the demands are read.",
        "two equal lines in `7-Flows`",
    ),
    (
        "volumes-rounded",
        "Volumes are rounded to a common fraction of a chunk.",
        "The solver found volumes without a small common denominator.",
        "No action is needed; the message states the largest deviation.",
        "a volume of 0.3333334",
    ),
    (
        "teccl-claims",
        "The schedule needs more epochs than the file claims.",
        "A link carries more than one chunk in an epoch.",
        "Simulate the schedule on its network instead of using the claimed time.",
        "`3-Epochs_Required` of 2 for a schedule that needs 3",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return declare_rules("schedules of TE-CCL, when they are read, and by `collhub verify`", _RULES)
