"""Process groups of a job, and the groups of ranks without a file.

Groups are those in the metadata, otherwise those in METADATA nodes, otherwise they are inferred
from the nodes that name them. A METADATA node `process_group:init`, written by the converter of
PyTorch traces, has a list `[{"pg_name": "1", "ranks": [0, 1]}, ...]` among its inputs; an empty
list of ranks means all ranks. Source: ASTRA-sim's reader, which cuts off the text around the list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from collhub_job_traces.records import INPUTS, fields, preserved_fields
from hub_core import Diagnostic, InputError, Location, Severity
from hub_core.columns import Int64Array, distinct
from hub_core.model import NodeColumns, NodeKind, ProcessGroup, format_ranks
from hub_core.plugin_api import Source

# Field of the input values in the message `IOInfo`.
_VALUES = 1
ALL_RANKS_NAMES = ("", "0")
"""Names of groups of all ranks."""


def stated_groups(nodes: NodeColumns, extras: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Return ranks by group name, as defined in METADATA nodes, in the order of definition.

    `extras`: the additional attributes of nodes; a node refers to them by index. They are read
    in the order of the nodes, each once. One may define several groups (see
    `_list_metadata_groups`).

    An empty list of ranks means all ranks of the job; other ranks keep the given order. Ignored
    are groups with ranks outside of the job, and the names "" and "0", which mean all ranks
    elsewhere. The first definition of a name that is not ignored is used. Without definitions
    the result is empty.
    """
    groups: dict[str, tuple[int, ...]] = {}
    rows = np.flatnonzero(nodes.is_kind(NodeKind.MARKER) & (nodes.extra >= 0))
    for extra in dict.fromkeys(nodes.extra[rows].tolist()):
        for name, ranks in _list_metadata_groups(extras[extra]):
            members = ranks or tuple(range(nodes.num_ranks))
            if name not in ALL_RANKS_NAMES and max(members) < nodes.num_ranks:
                groups.setdefault(name, members)
    return groups


def select_groups(
    names: tuple[str, ...], stated: dict[str, tuple[int, ...]]
) -> tuple[ProcessGroup, ...] | None:
    """Return the groups with these names in the order of `names`; None if one is undefined.

    `stated`: ranks by name of the defined groups, in their order. None also without names.
    """
    if not names or not set(names) <= stated.keys():
        return None
    return tuple(ProcessGroup(name, stated[name]) for name in names)


def _list_metadata_groups(extra: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (name, ranks) for each group in the JSON lists among the input values of a record.

    `extra`: tokens of the record. In each text of the input values, the list is the section from
    the first `[{` to the last `}]`. A text without a section or with invalid JSON is skipped, and
    so are fields that cannot be decoded. Ranks have the given order and may be empty. Entries that
    are no group (`_is_group`) are skipped; names may be repeated.
    """
    for number, inputs in preserved_fields(extra):
        if number != INPUTS or not isinstance(inputs, bytes):
            continue
        try:
            values = [value for inner, value, _ in fields(inputs) if inner == _VALUES]
        except ValueError:
            continue
        for value in values:
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
            first, last = text.find("[{"), text.rfind("}]")
            try:
                entries = json.loads(text[first : last + 2]) if 0 <= first < last else []
            except (ValueError, RecursionError):
                continue
            for entry in filter(_is_group, entries):
                yield entry["pg_name"], tuple(entry["ranks"])


def _is_group(entry: object) -> bool:
    """Return whether a JSON value defines a process group.

    It must be an object with a text `pg_name`, which may be empty, and a list `ranks` of
    distinct integers of at least 0, which may be empty. Booleans are not integers here. Other
    members are ignored.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("pg_name"), str):
        return False
    ranks = entry.get("ranks")
    if not isinstance(ranks, list):
        return False
    is_rank = all(type(rank) is int and rank >= 0 for rank in ranks)
    return is_rank and len(set(ranks)) == len(ranks)


ATTRIBUTE = "process_groups"
"""Metadata attribute: JSON object of a group file, ranks by name."""


def build_groups(
    text: str,
    names: tuple[str, ...],
    nodes: NodeColumns,
    extras: tuple[str, ...],
    source: Source,
) -> tuple[ProcessGroup, ...]:
    """Build the groups of a job, by the index that nodes use: entry i has the name `names[i]`.

    `extras`: additional attributes, to which `nodes` refer by index. The first rule that applies:

    1. `text` is not empty: a JSON object of ranks by name, in the order of positions in the
       group. Groups that no node names follow the named ones, in the order of the object.
    2. There are `names`, and METADATA nodes define all of them (`stated_groups`): the groups of
       `names` as defined there. Further defined groups are left out.
    3. Otherwise group i has the ranks of the nodes whose group is i, ascending; it is empty
       without such nodes. If there are `names`, one warning `groups-assumed` is reported to
       `source`. Without names the result is empty.

    Raises `InputError` (`group`), only with `text`: for a text that `parsed_groups` refuses,
    for a name in `names` that it does not define, and for a group that lists a rank twice.
    """
    if text:
        described = parsed_groups(text.encode(), source.name)
        for name in names:
            if name not in described:
                cure = f"the groups that are stated: {', '.join(described) or 'none'}"
                message = f"nodes name the process group {name!r}, which is not stated"
                raise InputError(message, location=Location(source.name), code="group", cure=cure)
        unused = [name for name in described if name not in names]
        return tuple(ProcessGroup(name, tuple(described[name])) for name in (*names, *unused))
    stated = select_groups(names, stated_groups(nodes, extras))
    if stated is not None:
        return stated
    if names:
        message = (
            f"{len(names)} process groups are stated by no file:"
            " each is taken to have the ranks whose nodes name it, in ascending order"
        )
        location = Location(source.name)
        source.report(Diagnostic("groups-assumed", message, Severity.WARNING, location))
    return infer_groups(names, nodes)


def infer_groups(names: Sequence[str], nodes: NodeColumns) -> tuple[ProcessGroup, ...]:
    """Infer process groups from their use: a group has the ranks whose nodes name it, ascending.

    `nodes.group` is the index in `names`. The result has one group per name, in the order of
    `names`; one that no node names is empty.
    """
    ranks = [distinct(nodes.rank[nodes.group == index]) for index in range(len(names))]
    return tuple(
        ProcessGroup(name, tuple(members.tolist()))
        for name, members in zip(names, ranks, strict=True)
    )


def parsed_groups(content: bytes, file: str) -> dict[str, list[int]]:
    """Parse the JSON of a group file, `{"1": [0, 1], ...}`, as ranks by group name.

    Groups and ranks keep the order of the file; of equal names the last one counts. An object
    without groups and groups without ranks are accepted. Ranks may be repeated and are not
    compared with a job.

    Raises `InputError` (`group`, location `file`) for text that is no JSON, for another value
    than an object, and for values that are no lists of integers of at least 0. `true` and `1.0`
    are no integers here.
    """
    try:
        groups: dict[str, list[int]] = json.loads(content)
    except (ValueError, RecursionError) as error:
        message = f"the process groups are no JSON: {error}"
        raise InputError(message, location=Location(file), code="group") from None
    is_object = isinstance(groups, dict)
    if not is_object or not all(
        isinstance(ranks, list) and all(type(rank) is int and rank >= 0 for rank in ranks)
        for ranks in groups.values()
    ):
        message = 'the process groups are no object of lists of ranks, as {"1": [0, 1]}'
        raise InputError(message, location=Location(file), code="group")
    return groups


_Column = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Stand:
    """Rank with a file whose nodes each rank of the job copies: `of[rank]`."""

    of: tuple[int, ...]

    @property
    def assumed(self) -> tuple[int, ...]:
        """The ranks without a file."""
        return tuple(rank for rank, source in enumerate(self.of) if rank != source)


def choose_stand_ins(ranks_with_file: Sequence[int], ranks: int) -> Stand:
    """Choose for every rank the rank whose file it uses: its own, else the next lower one.

    `ranks_with_file`: ascending, not empty; `ranks`: number of ranks of the job. Ranks below
    the first file use the first one. Files of the first rank of every pipeline stage are
    therefore sufficient.
    """
    known = np.asarray(ranks_with_file, np.int64)
    index = np.searchsorted(known, np.arange(ranks), side="right") - 1
    return Stand(tuple(known[np.maximum(index, 0)].tolist()))


def report(stand: Stand, source: Source) -> None:
    """Report one warning (`ranks-assumed`) to `source` that lists all ranks without a file.

    It also gives the number of ranks of the job. Its text says that each listed rank is assumed to
    have the nodes of the next lower rank with a file. Ranks below the first file use the first file
    (`choose_stand_ins`), but the text does not mention this. The ranks are written as in `0,2,4-7`.
    If all ranks have a file, nothing is reported.
    """
    if not stand.assumed:
        return
    ranks = format_ranks(stand.assumed)
    message = (
        f"ranks {ranks} of {len(stand.of)} have no file:"
        " each is assumed to have the nodes of the next lower rank with a file"
    )
    location = Location(source.name)
    source.report(Diagnostic("ranks-assumed", message, Severity.WARNING, location))


def translate_groups(
    stand: Stand, rank: _Column, group: _Column, groups: Sequence[ProcessGroup], file: str
) -> Int64Array:
    """Return the column of groups (int64), translated for the ranks without a file.

    Nodes of a rank without a file are copies of the nodes of another rank, its stand-in
    (`stand`), with the stand-in's groups. `rank`, `group`: columns of all nodes, not changed. A
    group is an index of `groups`, below 0 for none.

    A group does not change if the rank has a file, or is in the group. Otherwise the new group
    has the same shape: the distances between its consecutive ranks are equal, as in (0, 1) and
    (2, 3). Several groups with this shape are numbered by index, separately for the groups that
    contain the stand-in and those that contain the rank. The new group has the same number.

    Raises `InputError` (`group`) if the stand-in is not in the group, or if the rank has too few
    groups of the shape. It reports the lowest such rank, and the lowest such group of this rank.
    """
    column = group.astype(np.int64)
    of_rank: list[list[int]] = [[] for _ in stand.of]
    for index, entry in enumerate(groups):
        for member in entry.ranks:
            of_rank[member].append(index)
    for missing in stand.assumed:
        rows = np.flatnonzero((rank == missing) & (column >= 0))
        named = column[rows]
        for used in distinct(named).tolist():
            replacement = _find_corresponding_group(
                used, groups, of_rank[stand.of[missing]], of_rank[missing]
            )
            if replacement < 0:
                name = groups[used].name
                message = f"rank {missing} has no group like {name!r} of rank {stand.of[missing]}"
                cure = "state the groups of all ranks with -O groups, or give the rank's file"
                location = Location(file, rank=missing)
                raise InputError(message, location=location, code="group", cure=cure)
            column[rows[named == used]] = replacement
    return column


def _find_corresponding_group(
    used: int,
    groups: Sequence[ProcessGroup],
    source_groups: Sequence[int],
    rank_groups: Sequence[int],
) -> int:
    """Return the group of a rank that corresponds to group `used` of the rank it is copied from.

    Results and arguments are indices of `groups`. `source_groups`, `rank_groups`: the groups
    that contain the copied rank and this rank. The first rule that applies:

    1. This rank is in `used`: `used`.
    2. `used` is not in `source_groups`: -1.
    3. A group matches `used` if the differences of its consecutive ranks are equal: (0, 2)
       matches (1, 3). If `used` is match number k in `source_groups`, the result is match
       number k in `rank_groups`, or -1 if there are fewer.
    """
    if used in rank_groups or used not in source_groups:
        return used if used in rank_groups else -1
    shape = _list_distances(groups[used])
    # Several groups may have the same distances: the position among them decides.
    position = [index for index in source_groups if _list_distances(groups[index]) == shape].index(
        used
    )
    candidates = [index for index in rank_groups if _list_distances(groups[index]) == shape]
    return candidates[position] if position < len(candidates) else -1


def _list_distances(group: ProcessGroup) -> tuple[int, ...]:
    """List the distances between consecutive ranks of a group."""
    return tuple(after - before for before, after in pairwise(group.ranks))


def translate_peers(stand: Stand, rank: _Column, peer: _Column, file: str) -> Int64Array:
    """Shift the peers of copied nodes by the distance between a rank and its stand-in.

    A rank without a file has copies of the nodes of its stand-in (`stand`). The peers of its
    nodes increase by rank minus stand-in: if rank 5 copies rank 4, peer 3 becomes 4. There is
    no wrap-around. Nodes of ranks with a file, and nodes without a peer (below 0), keep their
    value.

    Returns a new int64 column; `rank` and `peer` (columns of all nodes) are not changed. Raises
    `InputError` (`peer`) for the first row whose new peer is not a rank of the job.
    """
    shift = np.arange(len(stand.of)) - np.asarray(stand.of)
    column = peer.astype(np.int64)
    rows = np.flatnonzero(column >= 0)
    column[rows] += shift[rank[rows]]
    outside = rows[(column[rows] < 0) | (column[rows] >= len(stand.of))]
    if len(outside):
        missing = int(rank[outside[0]])
        message = f"rank {missing} would exchange messages with rank {column[outside[0]]}"
        cure = "give the files of the first and the last rank of every pipeline stage"
        location = Location(file, rank=missing)
        raise InputError(message, location=location, code="peer", cure=cure)
    return column
