"""Reader for schedules of TE-CCL's solver, and a check of its claims.

TE-CCL formulates collectives as multi-commodity flows (Liu et al., SIGCOMM 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Check, Format, FormatReader, RuleSet, Subject, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

# Inputs of the solver match too, so that the reader can report them. Possessive groups prevent
# backtracking for any text.
_SIGNATURE = rb'\A\s*+\{\s*+"(?:1-Epoch_Duration|TopologyParams|GurobiParams|InstanceParams)"'
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
        RuleSet("teccl", "findings in TE-CCL schedules", "collhub_teccl.rules:list_rules"),
    ]
