"""Rules of the check of workloads."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules

_RULES = (
    (
        "cycle",
        "A node waits for itself, directly or through other nodes.",
        "Dependencies form a cycle.",
        "Remove one of the dependencies.",
        "node 1 depends on node 2, and node 2 on node 1",
    ),
    (
        "peer",
        "The peer of a message is no other rank of the job.",
        "The trace is that of a larger job, or a rank sends to itself.",
        "Correct the peer, or give the files of all ranks.",
        "a send of rank 0 to rank 8 of 8 ranks",
    ),
    (
        "unmatched",
        "A message has no partner with equal ranks, tag and bytes.",
        "A rank is missing, or both sides state different sizes.",
        "Correct size and tag, or add the other message.",
        "a send of 64 bytes and a receive of 32 bytes",
    ),
    (
        "group",
        "A rank uses a process group to which it does not belong, or a group has one member.",
        "Lists of members differ from the calls.",
        "Correct the members of the group.",
        "an all-reduce of rank 3 in a group of the ranks 0 and 1",
    ),
    (
        "collectives-differ",
        "Ranks of one group issue different collectives, or in another order.",
        "A rank skips a step, or has other sizes.",
        "Issue the same collectives in the same order on all ranks of the group.",
        "an all-reduce of 4 bytes on rank 0 and of 8 bytes on rank 1",
    ),
    (
        "deadlock",
        "Ranks wait for one another for ever.",
        "Two groups are used in opposite orders.",
        "Issue collectives and messages in the same order on all ranks that share them.",
        "rank 0 calls groups A and B, rank 1 calls B and A",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules of the check of workloads."""
    return declare_rules("workloads, by `collhub verify`", _RULES)
