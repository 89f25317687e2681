"""Find equal copies within an algorithm, of which one is enough for a simulation.

Replicated algorithms contain the same steps several times, on units, channels and lanes of their
own. A machine shares its links fairly between such copies, so that all of them proceed equally. A
simulation that serves each link first come, first served would let one copy run ahead of another
instead and report a time that depends on the description of the algorithm.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import gcd

import numpy as np

from hub_core.columns import (
    Int64Array,
    connected_parts,
    labels,
    ordinals,
    positions_in,
    run_starts,
)
from hub_core.model import (
    COLUMN_DTYPES,
    Algorithm,
    Messages,
    StepTable,
    connection_keys,
    matched_messages,
)

# Columns of a step on which its time depends; units may differ between copies.
_TIMED = ("rank", "kind", "peer", "count", "duration_ns", "src_buffer", "dst_buffer")


def find_copies(algorithm: Algorithm, planes: int = 1) -> tuple[Algorithm, Int64Array, int]:
    """Find equal copies of which an algorithm consists, so that only one must be simulated.

    Parts are sets of steps that share no dependency, message, connection or lane. Parts are equal,
    and form a class, if their steps in the order of rows are equal in: rank, kind, peer, count,
    duration, both buffers, channel modulo `planes`, message partner, dependencies and grouping into
    lanes. Offsets, lane numbers and channel numbers may differ.

    Returns (copy, row in the copy for each row (int64), n). n is the greatest common divisor of the
    sizes of the classes. Parts are numbered by their lowest row. The copy has the first size / n
    parts of each class, with ascending rows. Part i of a class is mapped to its part i modulo (size
    / n). The collective is unchanged.

    Without steps or with one part, n is 1. If n is 1, `algorithm` itself and rows 0, 1, 2 ...
    result.
    """
    steps = algorithm.steps
    rows = np.arange(len(steps))
    messages = matched_messages(steps)
    part = _find_parts(steps, messages)
    if not len(part) or not part.any():
        return algorithm, rows, 1
    order = np.argsort(part, kind="stable")
    members = np.split(order, run_starts(part[order])[1:])
    classes: dict[bytes, list[Int64Array]] = defaultdict(list)
    local = ordinals(part)
    for rows_of_part, signature in zip(
        members, _build_signatures(steps, messages, part, local, planes), strict=True
    ):
        classes[signature].append(rows_of_part)
    copies = gcd(*(len(equal) for equal in classes.values()))
    if copies == 1:
        return algorithm, rows, 1
    row_of_copy = np.empty(len(steps), np.int64)
    chosen = []
    for equal in classes.values():
        distinct_parts = len(equal) // copies
        chosen += equal[:distinct_parts]
        for index, rows_of_part in enumerate(equal):
            row_of_copy[rows_of_part] = equal[index % distinct_parts]
    kept = np.sort(np.concatenate(chosen))
    position = positions_in(kept, len(steps))
    columns = {name: getattr(steps, name)[kept] for name in COLUMN_DTYPES}
    tables = []
    for parent, child in (steps.data_edges, steps.control_edges):
        # Parts are chosen completely, so the parent of a kept child is kept too.
        is_kept = position[child] >= 0
        tables.append((position[parent[is_kept]], position[child[is_kept]]))
    data, control = tables
    kept_steps = StepTable.from_columns(steps.num_ranks, columns, data, control)
    return replace(algorithm, steps=kept_steps), position[row_of_copy], copies


def _find_parts(steps: StepTable, messages: Messages) -> Int64Array:
    """Return the number of the part of each step: int64, from 0. Connected steps are in one part.

    Two steps are directly connected if any of these holds:

    - One depends on the other (data or control).
    - They are send and receive of one message.
    - Their messages have the same connection (source, destination, channel).
    - They have the same lane of the same rank; steps without a lane (-1) have none.

    A chain of such steps connects too. Parts are numbered by their lowest row. The result is empty
    without steps.
    """
    parents, children = steps.edges()
    connection = np.full(len(steps), -1, np.int64)
    rows = np.flatnonzero(steps.sends | steps.receives)
    source, destination = steps.ends(rows)
    connection[rows] = connection_keys(source, destination, steps.channel[rows])
    pairs = [(parents, children), (messages.send, messages.receive)]
    in_lanes = np.flatnonzero(steps.lane >= 0)
    lane = labels(steps.rank[in_lanes], steps.lane[in_lanes])
    for members, key in ((rows, connection[rows]), (in_lanes, lane)):
        order = np.argsort(key, kind="stable")
        is_same = key[order][1:] == key[order][:-1]
        pairs.append((members[order[:-1][is_same]], members[order[1:][is_same]]))
    first, second = (np.concatenate([pair[end] for pair in pairs]) for end in (0, 1))
    head = connected_parts(first, second, len(steps))
    return labels(head)


def _build_signatures(
    steps: StepTable, messages: Messages, part: Int64Array, local: Int64Array, planes: int
) -> list[bytes]:
    """Return one text of bytes per part, in the order of parts; copies of a part have equal bytes.

    They contain, for each step of the part in the order of rows:

    - rank, kind, peer, count, duration, source buffer and destination buffer; no offsets
    - the number in its part of the step at the other side of the message, -1 for none
    - the channel modulo `planes`
    - the number of its lane among those of its rank in the part (from 0, ascending), -1 for none

    Then follow all data and control dependencies as pairs (parent, child) of numbers in the part,
    sorted by child, then parent. `part`: number of each row's part, as `_find_parts` returns them;
    `local`: number of each row in its part, from 0.
    """
    partner = np.full(len(steps), -1, np.int64)
    partner[messages.send] = local[messages.receive]
    partner[messages.receive] = local[messages.send]
    # The distinct lanes of a rank in a part are numbered from 0 in ascending order.
    lane = steps.lane.astype(np.int64)
    width = max(int(lane.max(initial=-1)) + 1, 1)
    group = labels(part, steps.rank)
    in_lanes = np.flatnonzero(lane >= 0)
    used, index = np.unique(group[in_lanes] * width + lane[in_lanes], return_inverse=True)
    first = np.searchsorted(used // width, np.arange(int(group.max(initial=0)) + 1))
    lane_number = np.full(len(steps), -1, np.int64)
    lane_number[in_lanes] = index - first[group[in_lanes]]
    columns = [getattr(steps, name).astype(np.int64) for name in _TIMED]
    columns += [partner, steps.channel % planes, lane_number]
    table = np.stack(columns, axis=1)
    parents, children = steps.edges()
    edges = np.stack([local[parents], local[children]], axis=1)
    order = np.argsort(part, kind="stable")
    starts = run_starts(part[order])[1:]
    by_part = np.lexsort((parents, children, part[children]))
    edge_starts = np.searchsorted(part[children][by_part], np.arange(1, len(starts) + 1))
    return [
        rows.tobytes() + pairs.tobytes()
        for rows, pairs in zip(
            np.split(table[order], starts), np.split(edges[by_part], edge_starts), strict=True
        )
    ]
