"""The process groups that METADATA nodes state, as the converter of PyTorch's traces writes them.

A node `process_group:init` has a list `[{"pg_name": "1", "ranks": [0, 1]}, ...]` among its inputs;
no ranks means all. Source: ASTRA-sim's reader of such nodes, which cuts off what encloses the list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from collhub_job_traces.records import fields
from hub_core.model import NodeColumns, NodeKind, ProcessGroup

_INPUTS, _VALUES = 8, 1
WHOLE = ("", "0")
"""Names of groups that mean all ranks."""


def stated_groups(nodes: NodeColumns, extras: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Ranks by name, in the order of the nodes; the first that states a group counts.

    Lists that cannot be read, and groups of ranks that the job has not, are left out.
    """
    found: dict[str, tuple[int, ...]] = {}
    rows = np.flatnonzero(nodes.is_kind(NodeKind.MARKER) & (nodes.extra >= 0))
    for extra in dict.fromkeys(nodes.extra[rows].tolist()):
        for text in _values(extras[extra]):
            for name, ranks in _listed(text):
                members = ranks or tuple(range(nodes.num_ranks))
                if name not in WHOLE and max(members) < nodes.num_ranks:
                    found.setdefault(name, members)
    return found


def with_stated(
    names: tuple[str, ...], stated: dict[str, tuple[int, ...]]
) -> tuple[ProcessGroup, ...] | None:
    """The groups of names by index; None where one of them is not stated."""
    if not names or not set(names) <= stated.keys():
        return None
    return tuple(ProcessGroup(name, stated[name]) for name in names)


def _values(tokens: str) -> Iterator[str]:
    """The values of the inputs of a record, from the tokens that hold bytes."""
    for token in tokens.split():
        if token[0] not in "=!":
            continue
        for number, inputs, _ in fields(bytes.fromhex(token[1:])):
            if number == _INPUTS and isinstance(inputs, bytes):
                for inner, value, _ in fields(inputs):
                    if inner == _VALUES and isinstance(value, bytes):
                        yield value.decode("utf-8", "replace")


def _listed(text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, ranks) of the groups of a list, none of a text that is no such list."""
    first, last = text.find("[{"), text.rfind("}]")
    try:
        entries = json.loads(text[first : last + 2]) if 0 <= first < last else []
    except (ValueError, RecursionError):
        return
    for entry in filter(_is_group, entries):
        yield entry["pg_name"], tuple(entry["ranks"])


def _is_group(entry: object) -> bool:
    """Whether an entry has a name and different ranks."""
    if not isinstance(entry, dict) or not isinstance(entry.get("pg_name"), str):
        return False
    ranks = entry.get("ranks")
    if not isinstance(ranks, list):
        return False
    is_rank = all(type(one) is int and one >= 0 for one in ranks)
    return is_rank and len(set(ranks)) == len(ranks)
