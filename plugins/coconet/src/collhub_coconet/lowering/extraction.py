"""The algorithm of a collective as it stands in a flat graph, for the verifier of the hub."""

from __future__ import annotations

import numpy as np

from collhub_coconet.lowering.parts import Collected, FlatProgram
from hub_core.columns import Int64Array, positions_in
from hub_core.model import Algorithm, InputError, StepTable


def extracted(flat: FlatProgram, name: str, piece: int = 0) -> Algorithm:
    """A piece of a collective with the peers, tags and dependencies of the flat graph.

    Regions are those of the algorithm that was laid out; a tag is a channel. `hub_core.verify` then
    says whether every contribution arrives exactly once in the graph as it is. Raises `InputError`
    where no collective has this name.
    """
    number, part = _part(flat, name)
    contents, nodes = part.contents, flat.workload.nodes
    steps, count = contents.algorithm.steps, len(contents.template)
    rows = np.flatnonzero((flat.part == number) & (flat.item // count == piece))
    row_of_node = np.searchsorted(contents.last, np.arange(count))
    step = row_of_node[flat.item[rows] % count]
    # Of a receive that reduces, the message is the first node.
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = step[1:] != step[:-1]
    chosen = rows[is_first]
    kept = step[is_first]
    columns = {
        column: getattr(steps, column)[kept]
        for column in ("kind", "src_buffer", "src_offset", "dst_buffer", "dst_offset", "count")
    }
    peer = nodes.peer[chosen]
    columns["rank"] = nodes.rank[chosen] - part.first_rank
    columns["peer"] = np.where(peer >= 0, peer - part.first_rank, -1)
    columns["channel"] = np.where(peer >= 0, nodes.tag[chosen], 0)
    edges = _edges(nodes.edges(), rows, np.cumsum(is_first) - 1, len(nodes))
    table = StepTable.from_columns(contents.algorithm.num_ranks, columns, edges)
    return Algorithm(contents.algorithm.collective, table, contents.algorithm.scratch_units)


def _part(flat: FlatProgram, name: str) -> tuple[int, Collected]:
    """The part of a collective, and its number."""
    for number, part in enumerate(flat.parts):
        if isinstance(part, Collected) and part.operation.name == name:
            return number, part
    message = f"{name} is no collective of {flat.program.name}"
    raise InputError(message, cure="name a collective", code="target")


def _edges(
    edges: tuple[Int64Array, Int64Array], rows: Int64Array, step: Int64Array, count: int
) -> tuple[Int64Array, Int64Array]:
    """Dependencies between these rows of the graph, as those of steps."""
    place = positions_in(rows, count)
    parents, children = (place[side] for side in edges)
    is_inside = (parents >= 0) & (children >= 0)
    parents, children = step[parents[is_inside]], step[children[is_inside]]
    is_other = parents != children
    return parents[is_other], children[is_other]
