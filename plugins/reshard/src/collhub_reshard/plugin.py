"""Offers of this distribution: the command `reshard`, the check of its proofs, and the rules."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import (
    Check,
    Command,
    Rule,
    RuleSet,
    Subject,
    declare_rules,
    declare_similar_rules,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Return the plugin's only command, `collhub reshard`."""
    return [
        Command(
            "reshard",
            "Move sharded tensors between device meshes in minimum time.",
            "collhub_reshard.command:reshard",
        )
    ]


@hookimpl
def collhub_checks() -> Sequence[Check | RuleSet]:
    """Return the check `reshard`, which recomputes the bound and the schedule in a certificate of a
    resharding, and the rules of the plugin.
    """
    return [
        Check(
            "reshard",
            Subject.CERTIFICATE,
            "bound and schedule of a resharding, recomputed only from its tasks",
            "collhub_reshard.recheck:check_schedule",
        ),
        RuleSet("reshard", "findings in reshardings", "collhub_reshard.plugin:list_rules"),
    ]


_RESULTS = (
    (
        "no-solver",
        "The schedule is heuristic, because OR-tools is not installed.",
        "The extra `exact` was not installed.",
        "Run `python -m pip install 'collhub-reshard[exact]'`; the bound shows the loss.",
        "an environment without ortools",
    ),
    (
        "reshard-form",
        "The proof of a schedule is malformed.",
        "The certificate was changed by hand.",
        "Reshard again.",
        "a certificate without its bound",
    ),
)

_REQUESTS: tuple[tuple[str, str, str], ...] = (
    ("mesh-too-large", "The meshes name more devices than the network has.", "8 devices, `ring:4`"),
    ("shard-mismatch", "A shard has another shape or element type.", "a shard of 3 of 8 rows"),
    ("too-many-runs", "The boxes have too many contiguous parts.", "slices of single columns"),
    ("invalid-state-dict", "The file lists no tensors with their shapes.", "a JSON list"),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules("results of `collhub reshard`", _RESULTS),
        *declare_similar_rules(
            "requests: jobs, tensor programs and shardings",
            _REQUESTS,
            cause="Tensor, mesh, sharding and network do not fit each other.",
            cure="Change the one that the message names.",
        ),
    ]
