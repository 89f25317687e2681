"""Ranks without a file: they do what a rank with one does, in their own groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hub_core import Diagnostic, InputError, Location, Severity
from hub_core.columns import distinct
from hub_core.model import ProcessGroup, format_ranks
from hub_core.plugin_api import Source

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
