"""Blocks of consecutive nodes: lists of nodes, and dependencies between blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from collhub_templates import Edges, Lists, Template, built

from hub_core.columns import Int64Array, counted_positions, expanded_ranges, inverse, row_pointer


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """Possible contents of blocks: a node of the workload, or the nodes of a template on one rank.

    Entry i of the first `nodes` is row i of the workload; entries of template t begin at
    `entry[t]`, one per position. Likewise, nodes of template t begin at `node[t]`. `first`,
    `length`: nodes of an entry. `starts`, `ends`: nodes by entry. `data`, `control`: dependencies
    within entries, (row pointer by entry, parents, children).
    """

    nodes: int
    entry: Int64Array
    node: Int64Array
    first: Int64Array
    length: Int64Array
    starts: Lists
    ends: Lists
    data: tuple[Int64Array, Int64Array, Int64Array]
    control: tuple[Int64Array, Int64Array, Int64Array]


def catalogue(nodes: int, templates: list[Template]) -> Catalogue:
    """Build the entries of a workload with `nodes` nodes, and of these templates.

    First comes one entry per node, of one row that is its own start and end; then one per template
    and position. Rows of templates are numbered behind the nodes, one template after the other.
    """
    positions = [len(template.first) - 1 for template in templates]
    node = nodes + row_pointer([len(template) for template in templates])
    firsts = [template.first[:-1] + at for template, at in zip(templates, node[:-1], strict=True)]
    lengths = [np.diff(template.first) for template in templates]
    job_nodes = np.arange(nodes)
    first = np.concatenate([job_nodes, *firsts])
    length = np.concatenate([np.ones(nodes, np.int64), *lengths])
    return Catalogue(
        nodes,
        nodes + row_pointer(positions),
        node,
        first,
        length,
        _all_lists(nodes, [template.starts for template in templates], node),
        _all_lists(nodes, [template.ends for template in templates], node),
        _all_edges(nodes, first, [template.data for template in templates], node),
        _all_edges(nodes, first, [template.control for template in templates], node),
    )


def _all_lists(nodes: int, parts: list[Lists], node: Int64Array) -> Lists:
    counts = [np.diff(indptr) for indptr, _ in parts]
    values = [rows + at for (_, rows), at in zip(parts, node[:-1], strict=True)]
    pointer = row_pointer(np.concatenate([np.ones(nodes, np.int64), *counts]))
    return pointer, np.concatenate([np.arange(nodes), *values])


def _all_edges(
    nodes: int, first: Int64Array, parts: list[Edges], node: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    none = np.zeros(0, np.int64)
    shifted = [(p + at, c + at) for (p, c), at in zip(parts, node[:-1], strict=True)]
    parents = np.concatenate([none, *(pair[0] for pair in shifted)])
    children = np.concatenate([none, *(pair[1] for pair in shifted)])
    # Children are ascending, and the nodes of an entry are consecutive.
    pointer = np.searchsorted(children, np.append(first, node[-1])).astype(np.int64)
    return pointer, parents, children


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks in node order: int64 per block, the entry and the first new node."""

    catalogue: Catalogue
    entry: Int64Array
    first: Int64Array

    @classmethod
    def of(cls, entries: Catalogue, entry: Int64Array) -> Blocks:
        """Create consecutive blocks of these entries."""
        return cls(entries, entry, row_pointer(entries.length[entry])[:-1])

    @property
    def shift(self) -> Int64Array:
        """Difference between new node numbers and numbers in the catalogue, int64[blocks]."""
        return self.first - self.catalogue.first[self.entry]

    def rows(self) -> tuple[Int64Array, Int64Array]:
        """Return (row in the catalogue, number of the block) of every new node, block by block.

        int64 each. A block has the consecutive rows of its catalogue entry.
        """
        length = self.catalogue.length[self.entry]
        nodes = expanded_ranges(self.catalogue.first[self.entry], length)
        return nodes, np.repeat(np.arange(len(length)), length)

    def lists(self, listed: Lists) -> Lists:
        """Convert lists of rows per catalogue entry to lists of new nodes per block, as CSR.

        `listed`: starts or ends of the entries.
        """
        pointer, values = listed
        counts = np.diff(pointer)[self.entry]
        taken = values[expanded_ranges(pointer[self.entry], counts)]
        return row_pointer(counts), taken + np.repeat(self.shift, counts)

    def inner(self, edges: tuple[Int64Array, Int64Array, Int64Array]) -> Edges:
        """Return the dependencies within blocks as (parents, children), block by block.

        `edges`: row pointer by catalogue entry, parents and children in rows of the catalogue.
        """
        pointer, parents, children = edges
        counts = np.diff(pointer)[self.entry]
        chosen = expanded_ranges(pointer[self.entry], counts)
        shift = np.repeat(self.shift, counts)
        return parents[chosen] + shift, children[chosen] + shift


def joined(edges: Edges, last_nodes: Lists, first_nodes: Lists) -> Edges:
    """Expand dependencies: every end of the parent precedes every start of the child.

    `last_nodes`, `first_nodes`: ends and starts by entry, as (row pointer, nodes). Edges of entries
    with an empty list vanish; the order of the edges is kept.
    """
    parents, children = edges
    last_counts = np.diff(last_nodes[0])[parents]
    first_counts = np.diff(first_nodes[0])[children]
    pair = counted_positions(last_counts * first_counts)
    edge = np.repeat(np.arange(len(parents)), last_counts * first_counts)
    last_index, first_index = np.divmod(pair, first_counts[edge])
    return last_nodes[1][last_nodes[0][parents[edge]] + last_index], first_nodes[1][
        first_nodes[0][children[edge]] + first_index
    ]


def spread(template: Template, members: Sequence[int], stride: int) -> Template:
    """Copy a template to all groups of ranks at distance `stride`.

    Rank r has position r // stride modulo the number of positions. The result is indexed by
    position in `members`, which lists all ranks.
    """
    positions = len(template.first) - 1
    rank = np.asarray(members, np.int64)
    member_index = inverse(rank)
    position = rank // stride % positions
    entries = catalogue(0, [template])
    blocks = Blocks.of(entries, position)
    number, block = blocks.rows()
    peer = template.peer[number]
    lowest = (rank - position * stride)[block]
    # Local operations have no peer.
    met = np.where(peer < 0, 0, lowest + peer * stride)
    return built(
        template.kind[number],
        np.where(peer < 0, -1, member_index[met]),
        template.bytes[number],
        template.duration_ns[number],
        template.message[number],
        np.append(blocks.first, len(number)),
        blocks.inner(entries.data),
        blocks.inner(entries.control),
    )
