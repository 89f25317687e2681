"""Algorithms that a job names for its collectives, node by node."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from collhub_expansion.calls import Calls
from collhub_expansion.native import EXTENSION
from hub_core import InputError, Workload
from hub_core.columns import Int64Array
from hub_core.model import JsonValue


def own_algorithms(workload: Workload, calls: Calls) -> Int64Array:
    """Index in `Workload.algorithms` by collective, -1 where the job names none: int64.

    From the column `algorithm`, else from the names by node of a folder for ASTRA-sim. Raises
    `InputError` where the ranks of a collective name different ones.
    """
    named = _named(workload)[calls.row]
    found = np.full(len(calls.group), -1, np.int64)
    found[calls.instance] = named
    differs = np.flatnonzero(found[calls.instance] != named)
    if len(differs):
        row = int(calls.row[differs[0]])
        file = workload.provenance.source_name or None
        place = workload.nodes.location(row, file)
        message = f"node {workload.nodes.identity[row]} names another algorithm than its group"
        cure = "name one algorithm for a collective on all its ranks"
        raise InputError(message, location=place, cure=cure, code="algorithm")
    return found


def _named(workload: Workload) -> Int64Array:
    """The algorithm that each node names, int64 by row."""
    column = workload.nodes.algorithm.astype(np.int64)
    stated = workload.extensions.get(EXTENSION)
    numbers = _by_node(stated) if isinstance(stated, dict) else {}
    if not numbers:
        return column
    of_node = [numbers.get(one, -1) for one in workload.nodes.identity.tolist()]
    return np.where(column >= 0, column, np.array(of_node, np.int64))


def _by_node(stated: Mapping[str, JsonValue]) -> dict[int, int]:
    """Index of the algorithm by identity of the node, the same on all ranks."""
    prefixes, by_node = stated.get("custom"), stated.get("per_node")
    if not isinstance(prefixes, list) or not isinstance(by_node, dict):
        return {}
    return {int(node): prefixes.index(prefix) for node, prefix in by_node.items()}
