"""The process groups of a job: as its metadata states them, else by the nodes that name them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from collhub_job_traces.records import fields
from hub_core import Diagnostic, InputError, Location, Severity
from hub_core.columns import distinct
from hub_core.model import NodeColumns, NodeKind, ProcessGroup, format_ranks
from hub_core.plugin_api import Source

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
            for name, ranks in _list_metadata_groups(text):
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


def _list_metadata_groups(text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
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
        return _list_described_groups(parsed_groups(text.encode(), source.name), names, source.name)
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


def _list_described_groups(
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


_Column = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Stand:
    """Which given rank stands for each rank of the job: `of[rank]`."""

    of: tuple[int, ...]

    @property
    def assumed(self) -> tuple[int, ...]:
        """The ranks without a file."""
        return tuple(rank for rank, source in enumerate(self.of) if rank != source)


def stand_ins(given: Sequence[int], ranks: int) -> Stand:
    """Every rank without a file is stood for by the next lower one with a file, or the first.

    Files of the first rank of every pipeline stage are thus enough. `given`: ascending.
    """
    # Ranks before the first file get the first.
    known = np.asarray(given, np.int64)
    place = np.searchsorted(known, np.arange(ranks), side="right") - 1
    return Stand(tuple(known[np.maximum(place, 0)].tolist()))


def report(stand: Stand, source: Source) -> None:
    """Say which ranks were assumed."""
    if not stand.assumed:
        return
    ranks = format_ranks(stand.assumed)
    message = (
        f"ranks {ranks} of {len(stand.of)} have no file:"
        " each is taken to do what the next lower rank with a file does"
    )
    place = Location(source.name)
    source.report(Diagnostic("ranks-assumed", message, Severity.WARNING, place))


def own_groups(
    stand: Stand, rank: _Column, group: _Column, groups: Sequence[ProcessGroup], file: str
) -> npt.NDArray[np.int64]:
    """The column of groups, with those of the stand-ins replaced by the ranks' own.

    A group that has the rank stays; else it is one that has the rank, with as many ranks that are
    as far apart. Raises `InputError` where there is none.
    """
    column = group.astype(np.int64)
    of_rank = _groups_of_ranks(groups, len(stand.of))
    for missing in stand.assumed:
        rows = np.flatnonzero((rank == missing) & (column >= 0))
        named = column[rows]
        for used in distinct(named).tolist():
            own = _group_like(used, groups, of_rank[stand.of[missing]], of_rank[missing])
            if own < 0:
                name = groups[used].name
                message = f"rank {missing} has no group like {name!r} of rank {stand.of[missing]}"
                cure = "state the groups of all ranks with -O groups, or give the rank's file"
                place = Location(file, rank=missing)
                raise InputError(message, location=place, code="group", cure=cure)
            column[rows[named == used]] = own
    return column


def _groups_of_ranks(groups: Sequence[ProcessGroup], ranks: int) -> list[list[int]]:
    """The groups that have each rank, by index."""
    found: list[list[int]] = [[] for _ in range(ranks)]
    for index, group in enumerate(groups):
        for member in group.ranks:
            found[member].append(index)
    return found


def _group_like(
    used: int, groups: Sequence[ProcessGroup], theirs: Sequence[int], own: Sequence[int]
) -> int:
    """The group of a rank that is to it as `used` is to its stand-in, -1 for none."""
    if used in own or used not in theirs:
        return used if used in own else -1
    shape = _shape(groups[used])
    # Of several names for the same ranks, that in the same place.
    place = [index for index in theirs if _shape(groups[index]) == shape].index(used)
    alike = [index for index in own if _shape(groups[index]) == shape]
    return alike[place] if place < len(alike) else -1


def _shape(group: ProcessGroup) -> tuple[int, ...]:
    """How far the ranks of a group are from one another."""
    return tuple(after - before for before, after in pairwise(group.ranks))


def own_peers(stand: Stand, rank: _Column, peer: _Column, file: str) -> npt.NDArray[np.int64]:
    """The column of peers, as far from each rank as from its stand-in. Raises `InputError`."""
    shift = np.arange(len(stand.of)) - np.asarray(stand.of)
    column = peer.astype(np.int64)
    rows = np.flatnonzero(column >= 0)
    column[rows] += shift[rank[rows]]
    outside = rows[(column[rows] < 0) | (column[rows] >= len(stand.of))]
    if len(outside):
        missing = int(rank[outside[0]])
        message = f"rank {missing} would exchange messages with rank {column[outside[0]]}"
        cure = "give the files of the first and the last rank of every pipeline stage"
        place = Location(file, rank=missing)
        raise InputError(message, location=place, code="peer", cure=cure)
    return column
