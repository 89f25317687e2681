"""The process groups of a job: as its metadata states them, else by the nodes that name them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from collhub_job_traces.stated_groups import stated_groups, with_stated
from hub_core import Diagnostic, InputError, Location, Severity
from hub_core.columns import distinct
from hub_core.model import NodeColumns, ProcessGroup
from hub_core.plugin_api import Source

ATTRIBUTE = "process_groups"
"""Metadata attribute: the group file's JSON object, ranks by name."""


def job_groups(
    text: str,
    names: tuple[str, ...],
    nodes: NodeColumns,
    extras: tuple[str, ...],
    source: Source,
) -> tuple[ProcessGroup, ...]:
    """The groups by index; `text`: the JSON that states them, empty where only nodes may.

    Raises `InputError` for names that it does not explain.
    """
    if text:
        return _listed(parsed_groups(text.encode(), source.name), names, source.name)
    stated = with_stated(names, stated_groups(nodes, extras))
    if stated is not None:
        return stated
    if names:
        message = (
            f"{len(names)} process groups are stated by no file:"
            " each is taken to have the ranks whose nodes name it, in ascending order"
        )
        place = Location(source.name)
        source.report(Diagnostic("groups-assumed", message, Severity.WARNING, place))
    return inferred_groups(names, nodes)


def inferred_groups(names: Sequence[str], nodes: NodeColumns) -> tuple[ProcessGroup, ...]:
    """Groups of the ranks whose nodes name them, by index."""
    ranks = [distinct(nodes.rank[nodes.group == index]) for index in range(len(names))]
    return tuple(
        ProcessGroup(name, tuple(members.tolist()))
        for name, members in zip(names, ranks, strict=True)
    )


def _listed(
    stated: Mapping[str, Sequence[int]], names: Sequence[str], file: str
) -> tuple[ProcessGroup, ...]:
    """Those that nodes name, by index, and behind them the others."""
    for name in names:
        if name not in stated:
            cure = f"the groups that are stated: {', '.join(stated) or 'none'}"
            message = f"nodes name the process group {name!r}, which is not stated"
            raise InputError(message, location=Location(file), code="group", cure=cure)
    others = [name for name in stated if name not in names]
    return tuple(ProcessGroup(name, tuple(stated[name])) for name in (*names, *others))


def parsed_groups(content: bytes, file: str) -> dict[str, list[int]]:
    """The object of a group file, `{"1": [0, 1], ...}`. Raises `InputError`."""
    try:
        found: dict[str, list[int]] = json.loads(content)
    except (ValueError, RecursionError) as error:
        message = f"the process groups are no JSON: {error}"
        raise InputError(message, location=Location(file), code="group") from None
    is_object = isinstance(found, dict)
    if not is_object or not all(_is_rank_list(ranks) for ranks in found.values()):
        message = 'the process groups are no object of lists of ranks, as {"1": [0, 1]}'
        raise InputError(message, location=Location(file), code="group")
    return found


def _is_rank_list(ranks: object) -> bool:
    return isinstance(ranks, list) and all(type(rank) is int and rank >= 0 for rank in ranks)
