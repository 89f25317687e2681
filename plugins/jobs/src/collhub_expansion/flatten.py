"""Replace every collective by the nodes of its algorithm, and order nodes in slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from collhub_templates import Edges, Template, marker

from collhub_expansion.plan import (
    CollectivePieces,
    ExpansionPlan,
    NodeBlocks,
    PlannedCalls,
    catalogue,
    concatenate_edges,
    joined,
    plan_blocks,
)
from hub_core import InputError
from hub_core.columns import Int64Array, row_pointer
from hub_core.model import NODE_DEFAULTS, NODE_DTYPES, NodeColumns, NodeKind, Workload
from hub_core.plugin_api import WorkloadTimes

_TAGS = 500_000_000
# Columns copied from the collective; others come from templates or have defaults.
_COPIED_COLUMNS = ("rank", "name", "group")
_OF_TEMPLATES = ("kind", "bytes", "duration_ns")


@dataclass(frozen=True, slots=True, eq=False)
class Expansion:
    """Flat nodes; `origin`: row of the original workload per node."""

    nodes: NodeColumns
    origin: Int64Array


def expanded(
    workload: Workload,
    calls: PlannedCalls,
    pieces: CollectivePieces,
    templates: Sequence[Template],
    turns: Edges,
    duration_ns: Int64Array,
) -> Expansion:
    """Replace every collective call of a workload by the nodes of its algorithm.

    - `pieces`: parts of the calls, each of which is replaced by one of `templates`, the node
      patterns of algorithms.
    - `turns`: control dependencies between rows of `workload`, in addition to its own.
    - `duration_ns`: by row of `workload`, new durations of the nodes that are kept. Nodes of
      templates keep theirs.

    The first nodes of a collective depend on the parents of its call; the children of the call
    depend on its last nodes. These dependencies are data or control as before. With more than 16
    first or last nodes on a rank, a MARKER stands between. Tags of new messages are above those of
    the workload; each piece has its own range.

    Returns the new nodes, and for each the row of `workload` from which it comes (of a template's
    node or MARKER: the row of the call). Nodes are sorted by rank, then by identity of that row.
    They have new identities, no extras and no algorithms. Raises `InputError` (`too-large`) if more
    than 5e8 tags are needed.
    """
    book = [*templates, marker(1)]
    entries = catalogue(len(workload.nodes), book)
    plan = plan_blocks(workload.nodes, calls, pieces, entries)
    blocks = NodeBlocks.of(entries, plan.entry)
    number, block = blocks.rows()
    columns = _columns(workload, plan, book, number, block)
    old = np.flatnonzero(number < len(workload.nodes))
    columns["duration_ns"][old] = duration_ns[number[old]]
    _set_peers_and_tags(columns, workload, calls, pieces, book, number, plan.piece[block])
    # Dependencies between old nodes lead from the last blocks of the parent to the first blocks of
    # the child, those between blocks from all end nodes to all start nodes.
    exits, entrances = blocks.lists(entries.ends), blocks.lists(entries.starts)
    between_data = concatenate_edges(
        joined(workload.nodes.data_edges, plan.exits, plan.entrances), plan.chains
    )
    between_control = joined(
        concatenate_edges(workload.nodes.control_edges, turns), plan.exits, plan.entrances
    )
    data = concatenate_edges(joined(between_data, exits, entrances), blocks.inner(entries.data))
    control = concatenate_edges(
        joined(between_control, exits, entrances), blocks.inner(entries.control)
    )
    table = NodeColumns.from_columns(workload.num_ranks, columns, data, control)
    return Expansion(table, plan.row[block])


def _columns(
    workload: Workload,
    plan: ExpansionPlan,
    book: Sequence[Template],
    number: Int64Array,
    block: Int64Array,
) -> dict[str, npt.NDArray[np.generic]]:
    """Build the columns of the new nodes, except identity, extra and algorithm.

    `block`: for each new node, the block (index in `plan`) that it belongs to. A block has the
    nodes that replace the workload row `plan.row[block]`. `number`: the catalogue row of each new
    node. The catalogue has the workload rows, then the nodes of each template in `book`.

    A column has one entry per new node, and its dtype in `NODE_DTYPES`:
    - `number` is a workload row: the value of the workload row `plan.row[block]`.
    - `number` is in a template: `_OF_TEMPLATES` have the values of the template, `_COPIED_COLUMNS`
      those of the workload row `plan.row[block]`. All other columns have `NODE_DEFAULTS`; so do
      `peer` and `tag`, which `_set_peers_and_tags` sets later.
    Raises `ValueError` if `book` is empty.
    """
    nodes, row = workload.nodes, plan.row[block]
    # The catalogue lists the nodes of the job first, then those of templates.
    is_old = number < len(nodes)
    at = number[~is_old] - len(nodes)
    columns: dict[str, npt.NDArray[np.generic]] = {}
    for name, dtype in NODE_DTYPES.items():
        # Ids are renumbered; records and algorithms no longer apply.
        if name in ("identity", "extra", "algorithm"):
            continue
        taken = getattr(nodes, name)[row]
        if name not in _COPIED_COLUMNS:
            taken = np.where(is_old, taken, NODE_DEFAULTS[name]).astype(dtype)
        if name in _OF_TEMPLATES:
            taken[~is_old] = np.concatenate([getattr(template, name) for template in book])[at]
        columns[name] = taken
    return columns


def _set_peers_and_tags(
    columns: dict[str, npt.NDArray[np.generic]],
    workload: Workload,
    calls: PlannedCalls,
    pieces: CollectivePieces,
    book: Sequence[Template],
    number: Int64Array,
    piece: Int64Array,
) -> None:
    """Set the peers and tags of messages that come from templates, in `columns`.

    `number`: catalogue number of each new node. The rows of the workload have the first numbers,
    the nodes of the templates in `book` follow. `piece`: piece of each new node. A template's
    node is a message if its peer is not negative. All other nodes remain unchanged.

    The peer of a template is a position in the group of the call; it is converted to a rank. Each
    piece has a range of tags, and its first tag plus the template's message number is the tag. The
    ranges are consecutive, and begin above the highest tag of the workload's messages (at 0 without
    messages). Raises `InputError` (`too-large`) if the first tag after all ranges is above 5e8.
    """
    nodes = workload.nodes
    free = int(nodes.tag[nodes.is_kind(NodeKind.SEND, NodeKind.RECV)].max(initial=-1)) + 1
    tag_counts = np.array([template.tags for template in book], np.int64)
    first_tag = free + row_pointer(tag_counts[pieces.template])
    if first_tag[-1] > _TAGS:
        message = f"{first_tag[-1]} tags would be needed, and there are {_TAGS}"
        raise InputError(message, cure="expand a part of the job", code="too-large")
    new = np.flatnonzero(number >= len(nodes))
    at = number[new] - len(nodes)
    peer = np.concatenate([template.peer for template in book])[at]
    message_number = np.concatenate([template.message for template in book])[at]
    is_message = peer >= 0
    rows, message_piece = new[is_message], piece[new[is_message]]
    # The first list is group -1: all ranks.
    lists = [workload.members(group) for group in range(-1, len(workload.groups))]
    pointer = row_pointer([len(members) for members in lists])
    members = np.concatenate([np.asarray(ranks, np.int64) for ranks in lists])
    group = calls.group[pieces.instance[message_piece]]
    columns["peer"][rows] = members[pointer[group + 1] + peer[is_message]]
    columns["tag"][rows] = first_tag[message_piece] + message_number[is_message]


FROZEN, FREE = "frozen", "free"
_HOST, _COMPUTE, _COMMUNICATION = range(3)
_SLOTS = 3


def order_occupants(nodes: NodeColumns, times: WorkloadTimes) -> Edges:
    """Return the (previous, next) nodes that occupy the same execution slot of a rank in turn.

    As in ASTRA-sim, a rank has three slots:

    - host: computations and collectives that are marked as on the host
    - device: all other computations
    - communication: all other nodes, such as sends, collectives, loads and stores

    Receives and markers occupy no slot. The nodes of a slot are ordered by start, then end in
    `times`, then id. Each node and its successor are one pair; the two results are arrays of their
    rows. Pairs are sorted by rank, then slot (host, device, communication), then time.

    Raises `InputError` (`never-ends`) for the lowest row that does not end in `times`, also for a
    receive or marker.
    """
    start, end = np.asarray(times.step_start_ns), np.asarray(times.step_end_ns)
    never = np.flatnonzero(end < 0)
    if len(never):
        row = int(never[0])
        message = f"node {nodes.identity[row]} never ends, so that the order in slots is not known"
        cure = "see collhub simulate, or expand with --slots free"
        raise InputError(message, location=nodes.location(row), cure=cure, code="never-ends")
    rows = np.flatnonzero(~nodes.is_kind(NodeKind.RECV, NodeKind.MARKER))
    is_compute = nodes.is_kind(NodeKind.COMPUTE)
    slot_of_node = np.where(is_compute, _COMPUTE, _COMMUNICATION)
    is_host = nodes.on_host & (is_compute | nodes.is_kind(NodeKind.COLLECTIVE))
    slot_of_node = np.where(is_host, _HOST, slot_of_node).astype(np.int64)
    slot = nodes.rank[rows] * np.int64(_SLOTS) + slot_of_node[rows]
    order = np.lexsort((nodes.identity[rows], end[rows], start[rows], slot))
    rows, slot = rows[order], slot[order]
    is_followed = slot[1:] == slot[:-1]
    return rows[:-1][is_followed], rows[1:][is_followed]


def sort_by_start(nodes: NodeColumns, times: WorkloadTimes) -> Int64Array:
    """Return the rows of all collectives, by rank, then by start, end and id: int64.

    `times`: of all nodes of the workload in ns, with starts and ends (which must not be None).
    Collectives that never start have the start -1 and come first.
    """
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE))
    start, end = np.asarray(times.step_start_ns)[rows], np.asarray(times.step_end_ns)[rows]
    return rows[np.lexsort((nodes.identity[rows], end, start, nodes.rank[rows]))]


def measure_durations_ns(nodes: NodeColumns, times: WorkloadTimes) -> Int64Array:
    """Return the duration of every node in ns: int64[nodes].

    Computations have their simulated duration (end minus start), all other nodes the recorded
    one; a missing recorded duration remains -1. A computation that never ran (start and end -1)
    has 0. All computations that start must end.
    """
    start, end = np.asarray(times.step_start_ns), np.asarray(times.step_end_ns)
    is_simulated = nodes.is_kind(NodeKind.COMPUTE)
    return np.where(is_simulated, end - start, nodes.duration_ns)
