"""Expand a workload: every collective becomes the nodes of its algorithm, in numpy columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from collhub_columns import (
    BoolArray,
    Int64Array,
    counted_positions,
    csr,
    group_of_entry,
    inverse,
    row_pointer,
)

from collhub_expansion.blocks import Blocks, Catalogue, catalogue, joined
from collhub_expansion.calls import Calls
from collhub_expansion.templates import Edges, Lists, Template, marker
from hub_core import InputError
from hub_core.model import NODE_DEFAULTS, NODE_DTYPES, NodeColumns, NodeKind, Workload

# Where more nodes than this would wait for as many others, a MARKER stands between them.
_MOST_ENDS = 16
_TAGS = 500_000_000
_FRONT, _PIECE, _BACK = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Parts in which collectives run: int64 by piece, ascending in `instance`, then in order.

    `template`: number of its nodes. `at_once`: int64 by collective, pieces of it under way at once.
    """

    instance: Int64Array
    template: Int64Array
    at_once: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Expansion:
    """A flat workload, and where it comes from: by node, the row of the workload before."""

    nodes: NodeColumns
    origin: Int64Array


def expanded(
    workload: Workload,
    calls: Calls,
    pieces: Pieces,
    templates: Sequence[Template],
    turns: Edges,
    duration_ns: Int64Array,
) -> Expansion:
    """Replace calls by nodes; `turns`: further control dependencies of rows; `duration_ns` by row.

    Dependencies on a collective become those on its ends, its own those of its starts. Every
    message of a collective has a tag of its own among those of its two ranks. Cost: a few sorts.
    Raises `InputError` where tags run out.
    """
    entries = catalogue(len(workload.nodes), [*templates, marker(1)])
    plan = _Plan(workload, calls, pieces, entries, templates)
    blocks = Blocks.of(entries, plan.entry)
    exits, entrances = blocks.lists(entries.ends), blocks.lists(entries.starts)

    def dependencies(edges: Edges, inside: Edges, more: Edges) -> Edges:
        outer = joined(edges, plan.exits, plan.entrances)
        between = (np.concatenate(side) for side in zip(outer, more, strict=True))
        found = joined((next(between), next(between)), exits, entrances)
        return np.concatenate([found[0], inside[0]]), np.concatenate([found[1], inside[1]])

    nodes = workload.nodes
    data = nodes.data_indices, group_of_entry(nodes.data_indptr)
    control = nodes.control_indices, group_of_entry(nodes.control_indptr)
    waits = np.concatenate([control[0], turns[0]]), np.concatenate([control[1], turns[1]])
    none = np.zeros(0, np.int64), np.zeros(0, np.int64)
    number, block = blocks.rows()
    columns = _columns(plan, templates, number, block, duration_ns)
    table = NodeColumns.from_columns(
        nodes.num_ranks,
        columns,
        dependencies(data, blocks.inner(entries.data), plan.chains),
        dependencies(waits, blocks.inner(entries.control), none),
    )
    return Expansion(table, plan.row[block])


class _Plan:
    """The blocks of all rows, in the order of their nodes.

    By block, int64: `row`, `entry`, `piece` (-1 of none). `exits`, `entrances`: blocks by row.
    `chains`: dependencies between blocks of one row.
    """

    def __init__(
        self,
        workload: Workload,
        calls: Calls,
        pieces: Pieces,
        entries: Catalogue,
        templates: Sequence[Template],
    ) -> None:
        self.workload, self.calls, self.pieces = workload, calls, pieces
        nodes = len(workload.nodes)
        self.tag = _first_tags(workload, pieces, templates)
        self.marker_node = int(entries.node[-2])
        called = np.full(nodes, -1, np.int64)
        called[calls.row] = np.arange(len(calls.row))
        plain = np.flatnonzero(called < 0)
        pointer = row_pointer(np.bincount(pieces.instance, minlength=len(calls)))
        counts = np.diff(pointer)[calls.instance]
        call = np.repeat(np.arange(len(calls.row)), counts)
        turn = counted_positions(counts)
        piece = pointer[calls.instance][call] + turn
        entry = entries.entry[pieces.template[piece]] + calls.position[call]
        at_once = np.minimum(pieces.at_once[calls.instance], counts)
        is_first, is_last = turn < at_once[call], turn >= (counts - at_once)[call]
        fronts = _crowded(call[is_first], entries.starts, entry[is_first], len(calls.row))
        backs = _crowded(call[is_last], entries.ends, entry[is_last], len(calls.row))
        between = int(entries.entry[-2])
        row = np.concatenate([plain, calls.row[call], calls.row[fronts], calls.row[backs]])
        part = _joined_parts(plain, _PIECE), _joined_parts(call, _PIECE)
        part += _joined_parts(fronts, _FRONT), _joined_parts(backs, _BACK)
        markers = np.full(len(fronts) + len(backs), between)
        alone = np.full(len(markers), -1)
        # The smallest id of those that may run goes first: the order of ids is kept.
        identity = workload.nodes.identity
        order = np.lexsort((np.concatenate(part), identity[row], workload.nodes.rank[row]))
        self.row = row[order]
        self.entry = np.concatenate([plain, entry, markers])[order]
        self.piece = np.concatenate([np.full(len(plain), -1), piece, alone])[order]
        place = inverse(order)
        whole, rest = np.split(place, [len(plain)])
        inner, front, back = np.split(rest, [len(call), len(call) + len(fronts)])
        self.entrances = _doors(
            nodes, plain, whole, calls.row, call[is_first], inner[is_first], fronts, front
        )
        self.exits = _doors(
            nodes, plain, whole, calls.row, call[is_last], inner[is_last], backs, back
        )
        self.chains = _chains(call, turn, at_once, inner, counts)
        self._join(fronts, front, call[is_first], inner[is_first], is_front=True)
        self._join(backs, back, call[is_last], inner[is_last], is_front=False)

    def _join(
        self, calls: Int64Array, marker: Int64Array, call: Int64Array, inner: Int64Array,
        *, is_front: bool,
    ) -> None:  # fmt: skip
        """Add the dependencies between markers and the pieces that they stand before or behind."""
        place = np.full(len(self.calls.row), -1, np.int64)
        place[calls] = marker
        chosen = place[call] >= 0
        ends = place[call[chosen]], inner[chosen]
        more = ends if is_front else ends[::-1]
        self.chains = (
            np.concatenate([self.chains[0], more[0]]),
            np.concatenate([self.chains[1], more[1]]),
        )


def _joined_parts(rows: Int64Array, part: int) -> Int64Array:
    return np.full(len(rows), part, np.int64)


def _crowded(call: Int64Array, listed: Lists, entry: Int64Array, calls: int) -> Int64Array:
    """Calls with too many starts, or ends, for dependencies of each on each."""
    counts = np.diff(listed[0])[entry]
    return np.flatnonzero(np.bincount(call, counts, calls) > _MOST_ENDS)


def _doors(
    nodes: int, plain: Int64Array, whole: Int64Array, row_of: Int64Array, call: Int64Array,
    inner: Int64Array, marked: Int64Array, marker: Int64Array,
) -> Lists:  # fmt: skip
    """The blocks by row with which it begins, or ends: its marker, or else these pieces."""
    has_marker = np.zeros(len(row_of), np.bool_)
    has_marker[marked] = True
    open_ = ~has_marker[call]
    rows = np.concatenate([plain, row_of[call[open_]], row_of[marked]])
    return csr(rows, np.concatenate([whole, inner[open_], marker]), nodes)


def _chains(
    call: Int64Array, turn: Int64Array, at_once: Int64Array, inner: Int64Array, counts: Int64Array
) -> Edges:
    """Each piece before the one that takes its place: so many are under way at once."""
    place = np.arange(len(call))
    is_before: BoolArray = turn < (counts - at_once)[call]
    parent = place[is_before]
    return inner[parent], inner[parent + at_once[call[parent]]]


def _first_tags(workload: Workload, pieces: Pieces, templates: Sequence[Template]) -> Int64Array:
    """The first tag of every piece, above those of the workload's own messages."""
    nodes = workload.nodes
    is_message = nodes.is_kind(NodeKind.SEND, NodeKind.RECV)
    free = int(nodes.tag[is_message].max(initial=-1)) + 1
    needed = np.array([template.tags for template in templates], np.int64)
    first = free + row_pointer(needed[pieces.template])
    if first[-1] > _TAGS:
        message = f"{first[-1]} tags would be needed, and there are {_TAGS}"
        raise InputError(message, cure="expand a part of the job", code="too-large")
    return first


def _columns(
    plan: _Plan,
    templates: Sequence[Template],
    number: Int64Array,
    block: Int64Array,
    duration_ns: Int64Array,
) -> dict[str, np.ndarray[tuple[int], np.dtype[np.generic]]]:
    """The columns of the new nodes; `number`: nodes of the catalogue, `block`: their blocks."""
    nodes, row = plan.workload.nodes, plan.row[block]
    is_old = plan.piece[block] < 0
    columns = {
        name: np.where(is_old, getattr(nodes, name)[row], NODE_DEFAULTS[name]).astype(dtype)
        for name, dtype in NODE_DTYPES.items()
        if name not in ("identity", "extra", "algorithm")
    }
    # What a collective becomes keeps its rank, its name, and the group.
    for name in ("rank", "name", "group"):
        columns[name] = getattr(nodes, name)[row]
    columns["duration_ns"] = np.where(is_old, duration_ns[row], -1)
    new = np.flatnonzero(~is_old)
    at = number[new] - len(nodes)
    for name in ("kind", "bytes", "duration_ns"):
        columns[name][new] = np.concatenate([getattr(one, name) for one in templates])[at]
    _address(plan, templates, columns, new, at, plan.piece[block[new]])
    _clear_marked(columns, number == plan.marker_node)
    return columns


def _address(
    plan: _Plan,
    templates: Sequence[Template],
    columns: dict[str, np.ndarray[tuple[int], np.dtype[np.generic]]],
    new: Int64Array,
    at: Int64Array,
    piece: Int64Array,
) -> None:
    """Write peers and tags of the messages of templates."""
    peer = np.concatenate([one.peer for one in templates])[at]
    message = np.concatenate([one.message for one in templates])[at]
    is_message = peer >= 0
    groups = plan.calls.group[plan.pieces.instance[piece[is_message]]]
    lists = [plan.workload.members(group) for group in range(-1, len(plan.workload.groups))]
    pointer = row_pointer([len(members) for members in lists])
    members = np.concatenate([np.asarray(one, np.int64) for one in lists])
    columns["peer"][new[is_message]] = members[pointer[groups + 1] + peer[is_message]]
    columns["tag"][new[is_message]] = (plan.tag[piece] + message)[is_message]


def _clear_marked(
    columns: dict[str, np.ndarray[tuple[int], np.dtype[np.generic]]], is_marker: BoolArray
) -> None:
    """Leave a MARKER no more than its kind, rank, name and group."""
    columns["kind"][is_marker] = NodeKind.MARKER
    for name in columns:
        if name not in ("kind", "rank", "name", "group"):
            columns[name][is_marker] = NODE_DEFAULTS[name]
