"""Schemes of edges: how two lists of endpoints are joined."""

from __future__ import annotations

import numpy as np
from collhub_columns import Int64Array
from collhub_networks import NetworkFindings, Value

from hub_core.model import Location
from hub_core.network import MAX_LINKS

_SCHEMES = "one2one or many2many"


def joined(
    edge: Value,
    one: Int64Array,
    other: Int64Array,
    findings: NetworkFindings,
) -> tuple[Int64Array, Int64Array]:
    """The ends of all edges that a scheme makes of two lists of vertices.

    `one2one` takes them in pairs, and leaves out what the longer list has more, as InfraGraph does:
    that is reported. `many2many` takes all pairs. A vertex is not joined to itself. Raises
    `InputError` for another scheme: nothing defines what `ring` joins.
    """
    scheme = edge.text_of("scheme", "")
    if scheme == "one2one":
        length = min(len(one), len(other))
        if len(one) != len(other):
            ends = f"one2one of {len(one)} with {len(other)} endpoints"
            text = f"{edge.path}: {ends}: {length} edges are made, as InfraGraph does"
            findings.warn(
                "cut-edges",
                Location(edge.file),
                text,
                "use slices of equal length",
            )
        pair = one[:length], other[:length]
    elif scheme == "many2many":
        if len(one) * len(other) > MAX_LINKS:
            edge.fail(f"{len(one)} times {len(other)} edges are more than {MAX_LINKS}")
        pair = np.repeat(one, len(other)), np.tile(other, len(one))
    elif scheme == "ring":
        message = "the scheme ring is in InfraGraph's schema, but nothing says what it joins"
        edge.fail(message, f"write the edges as {_SCHEMES}")
    else:
        found = f"{scheme[:40]!r} is no scheme" if scheme else "the scheme is missing"
        edge.fail(found, f"state {_SCHEMES}")
    is_pair = pair[0] != pair[1]
    return pair[0][is_pair], pair[1][is_pair]
