"""Rules of InfraGraph documents."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules

_RULES = (
    (
        "invalid-infragraph",
        "The document is no valid InfraGraph.",
        "A member is missing, or an endpoint, device or link does not exist.",
        "Correct the member that the message names.",
        "an edge to a device that is not defined",
    ),
    (
        "no-bandwidth",
        "Edges have no bandwidth.",
        "InfraGraph describes the structure; bandwidths are optional.",
        "Give them: `FILE?bandwidth=50GB/s`, or per link.",
        "a link without `physical.bandwidth`",
    ),
    (
        "no-npu",
        "No component is of the kind that counts as NPU.",
        "The devices have other kinds.",
        "Name the kind: `FILE?npu_types=`.",
        "a document with only switches",
    ),
    (
        "unconnected-npus",
        "Some NPUs cannot reach the others over links.",
        "Edges are missing.",
        "Add edges, or read a part of the document.",
        "two hosts without a network",
    ),
    (
        "ranks",
        "The annotations `rank` do not number all NPUs once; document order is used.",
        "Annotations were copied.",
        "Give every NPU a different rank.",
        "two NPUs with rank 0",
    ),
    (
        "cut-edges",
        "Slices of different lengths are paired up to the shorter one.",
        "An edge names more ports at one end.",
        "Use slices of equal length.",
        "nic[0:2] to port[0:4]",
    ),
    (
        "supplied-bandwidth",
        "Bandwidths are those of the option.",
        "The document lacks them.",
        "No action is needed.",
        "`FILE?bandwidth=50GB/s`",
    ),
    (
        "supplied-latency",
        "Latencies are those of the option or its default.",
        "The document lacks them.",
        "Give them: `FILE?latency=500ns`.",
        "a link without `physical.latency`",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return declare_rules("InfraGraph documents, when they are read", _RULES)
