"""Rules of networks: findings of `collhub topology check`."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules

_NETWORKS = (
    (
        "npu-without-links",
        "An NPU has no link.",
        "A link is missing, or NPUs are numbered from 1.",
        "Add links, or leave the NPU out.",
        "4 NPUs, and links between NPUs 0, 1 and 2",
    ),
    (
        "unreachable",
        "An NPU cannot reach another one.",
        "Links are missing, or lead in one direction only.",
        "Add the missing links, or name the NPUs of one part, as in `?npus=0-3`.",
        "two rings without a link between them",
    ),
    (
        "one-way-links",
        "Links have no reverse link.",
        "The network is directed, or links were left out.",
        "No action is needed for directed networks; else add the reverse links.",
        "a link from 0 to 1 without the opposite one",
    ),
    (
        "unequal-directions",
        "A link differs from its reverse link.",
        "Bandwidth or latency of one direction is different.",
        "No action is needed if this is intended.",
        "100 GB/s from 0 to 1 and 50 GB/s from 1 to 0",
    ),
    (
        "parallel-links",
        "Several links join the same two nodes in one direction.",
        "The network has bonded links.",
        "No action is needed if this is intended.",
        "two links from 0 to 1",
    ),
    (
        "idle-switch",
        "A switch has no links in or no links out, so that no message can pass.",
        "Its links were left out.",
        "Add the links, or leave the switch out.",
        "a switch with one link in",
    ),
)
_REQUESTS = (
    (
        "loads",
        "The file with loads of links is not readable.",
        "It is missing, or is no report with loads.",
        "Give the output of `collhub simulate --json`.",
        "`--loads` with another file",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules("networks, by `collhub topology check`", _NETWORKS),
        *declare_rules("requests: networks", _REQUESTS),
    ]
