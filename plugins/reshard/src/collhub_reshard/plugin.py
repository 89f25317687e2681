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
_FALSE_PROOFS = (
    (
        "reshard-topology",
        "The proof is for other network cards or links than those of `--topology`.",
        "a proof for `dgx-h100:2` and `--topology dgx-a100:2`",
    ),
    (
        "reshard-tasks",
        "The tasks of the proof are not those that follow from the moves of tensors.",
        "a task of 1 byte for a shard of 1 MiB",
    ),
    (
        "reshard-sender",
        "A host or device sends data that it does not have.",
        "a piece that starts at a host without the shard",
    ),
    (
        "reshard-receivers",
        "A stream does not reach all receivers of its data.",
        "a stream without hops",
    ),
    (
        "reshard-coverage",
        "A task is not sent completely, or a part of it is sent twice.",
        "only the first half of a task",
    ),
    (
        "reshard-release",
        "A task starts before its data are available.",
        "a start at 0 s, and a release at 1 s",
    ),
    (
        "reshard-duration",
        "A task takes less time than the network cards need for its bytes.",
        "1 GB in 1 ms at 50 GB/s",
    ),
    (
        "reshard-overlap",
        "More pieces use the network cards of a host at once than it has cards.",
        "two pieces at the same time on a host with one card",
    ),
    (
        "reshard-makespan",
        "The makespan that is claimed is not that of the schedule.",
        '"makespan_s": "1/2" for a schedule of 1 s',
    ),
    (
        "reshard-bound",
        "The lower bound does not follow from the tasks, or the schedule is faster than it.",
        "a bound of a host that receives nothing",
    ),
    (
        "reshard-optimal",
        "The schedule is called optimal by its bound, but it takes longer.",
        "a schedule of 2 s with a bound of 1 s",
    ),
    (
        "reshard-traffic",
        "The algorithm does not send the bytes of the tasks, or sends them between other devices.",
        "an algorithm that was changed after its synthesis",
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
            "proofs of reshardings, by `collhub verify --certificate`",
            _FALSE_PROOFS,
            cause="The proof or the algorithm was changed, or belongs to another network.",
            cure="Reshard again, or name the topology of the resharding.",
        ),
        *declare_similar_rules(
            "requests: jobs, tensor programs and shardings",
            _REQUESTS,
            cause="Tensor, mesh, sharding and network do not fit each other.",
            cure="Change the one that the message names.",
        ),
    ]
