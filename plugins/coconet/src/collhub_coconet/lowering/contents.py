"""Units that the steps of an algorithm read and write, and nodes that need or produce them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from collhub_templates import Template, template_of

from hub_core.columns import Int64Array, expanded_ranges, positions_in, topological_levels
from hub_core.model import READING, WRITING, Algorithm, Buffer, InputError, NodeKind, StepKind

INITIAL = -1
"""Version of a unit before the first write."""


@dataclass(frozen=True, slots=True, eq=False)
class Accesses:
    """Units that the steps of an algorithm read, one entry per step and unit, int64 columns.

    `row`: row of the step; `address`: in the memory of all ranks; `version`: the row that wrote the
    unit last, in the order of the rank, or `INITIAL`. In an algorithm without races, a step reads
    this version in every order that the dependencies allow.
    """

    row: Int64Array
    address: Int64Array
    version: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """Algorithm as nodes, with the units of its inputs and outputs.

    Nodes are those of `template`, which includes all steps; `last[row]`: last node of a step.
    Entries, int64: `need_node` reads the initial value of unit `need_unit` of the full buffer;
    after `give_node` (-1: from the start), unit `give_unit` of the full buffer is ready on position
    `give_rank`, at `give_address`. `level`: int64 by node, length of the longest path to it,
    including messages. `source`, `destination`: first addresses by step, -1 for none. `input_of`:
    unit of the full buffer by address of INPUT, -1 elsewhere.
    """

    algorithm: Algorithm
    template: Template
    last: Int64Array
    reads: Accesses
    need_node: Int64Array
    need_unit: Int64Array
    give_rank: Int64Array
    give_unit: Int64Array
    give_node: Int64Array
    give_address: Int64Array
    level: Int64Array
    source: Int64Array
    destination: Int64Array
    input_of: Int64Array

    @property
    def units(self) -> int:
        """Number of units of the full buffer."""
        return self.algorithm.collective.unit_count


def build_contents(algorithm: Algorithm, size: int) -> Contents:
    """Build the nodes of an algorithm for a full buffer of `size` bytes, with reads and results.

    Raises `InputError` for an algorithm that does not specify the units of its steps, for opaque
    steps, and for less than one byte per unit.
    """
    if not algorithm.has_contents:
        message = "an algorithm that states no units cannot be joined to computations by chunks"
        raise InputError(message, cure="name another algorithm", code="no-contents")
    steps = algorithm.steps
    template = template_of(_remove_zero_durations(algorithm), range(algorithm.num_ranks), size)
    nodes = np.where(steps.is_kind(StepKind.RECV_REDUCE), 2, 1)
    last = np.cumsum(nodes) - 1
    collective = algorithm.collective
    layout = collective.memory_layout(collective.in_place, algorithm.scratch_units)
    source = _find_addresses(algorithm, layout.base, "src", READING)
    destination = _find_addresses(algorithm, layout.base, "dst", WRITING)
    reads, final = _find_versions(algorithm, source, destination, layout.total)
    inputs = _map_buffer_units(algorithm, layout.base, Buffer.INPUT, layout.total)
    outputs = _map_buffer_units(algorithm, layout.base, Buffer.OUTPUT, layout.total)
    is_need = (reads.version == INITIAL) & (inputs[reads.address] >= 0)
    output_addresses = np.flatnonzero(outputs >= 0)
    writer = final[output_addresses]
    rank = np.searchsorted(layout.base.min(axis=1), output_addresses, side="right") - 1
    return Contents(
        algorithm,
        template,
        last,
        reads,
        last[reads.row[is_need]],
        inputs[reads.address[is_need]],
        rank,
        outputs[output_addresses],
        np.where(writer >= 0, last[np.maximum(writer, 0)], -1),
        output_addresses,
        _compute_levels(template),
        source,
        destination,
        inputs,
    )


def _remove_zero_durations(algorithm: Algorithm) -> Algorithm:
    """Replace durations of 0 by unknown ones, since steps of duration 0 would not be nodes."""
    steps = algorithm.steps
    duration = np.where(steps.duration_ns == 0, -1, steps.duration_ns)
    return replace(algorithm, steps=replace(steps, duration_ns=duration))


def _find_addresses(
    algorithm: Algorithm, base: Int64Array, side: str, kinds: tuple[StepKind, ...]
) -> Int64Array:
    """Find the first address of one side of every step, -1 if the step does not have it."""
    steps = algorithm.steps
    buffer = np.minimum(getattr(steps, f"{side}_buffer"), Buffer.SCRATCH)
    offset = getattr(steps, f"{side}_offset")
    addresses: Int64Array = np.where(steps.is_kind(*kinds), base[steps.rank, buffer] + offset, -1)
    return addresses


def _find_versions(
    algorithm: Algorithm, source: Int64Array, destination: Int64Array, total: int
) -> tuple[Accesses, Int64Array]:
    """Find the version that each read accesses, and the last writer of every address.

    Accesses are sorted by address and row, with the reads of a step before its writes. The last
    write before a read is then the running maximum within its address.
    """
    steps = algorithm.steps
    reductions = np.flatnonzero(steps.is_kind(StepKind.REDUCE))
    read_row = np.concatenate([np.flatnonzero(source >= 0), reductions])
    read_first = np.concatenate([source[source >= 0], destination[reductions]])
    write_row = np.flatnonzero(destination >= 0)
    rows, addresses = [], []
    for row, first in ((read_row, read_first), (write_row, destination[write_row])):
        rows.append(np.repeat(row, steps.count[row]))
        addresses.append(expanded_ranges(first, steps.count[row]))
    is_write = np.repeat([False, True], [len(rows[0]), len(rows[1])])
    row, address = np.concatenate(rows), np.concatenate(addresses)
    order = np.lexsort((is_write, row, address))
    row, address, is_write = row[order], address[order], is_write[order]
    # Numbers increase from address to address, so that a maximum never belongs to another address.
    width = len(steps) + 1
    number = address * width + np.where(is_write, row + 1, 0)
    seen = np.maximum.accumulate(number) % width - 1
    is_read = ~is_write
    final = np.full(total, INITIAL, np.int64)
    final[address[is_write]] = row[is_write]
    return Accesses(row[is_read], address[is_read], seen[is_read]), final


def _map_buffer_units(
    algorithm: Algorithm, base: Int64Array, buffer: Buffer, total: int
) -> Int64Array:
    """Map each address of INPUT or OUTPUT to its unit of the full buffer, all others to -1."""
    collective, traits = algorithm.collective, algorithm.collective.kind.traits
    is_input = buffer is Buffer.INPUT
    sizes = collective.input_units() if is_input else collective.output_units()
    is_part = traits.input_is_part if is_input else traits.output_is_part
    units = np.full(total, -1, np.int64)
    for rank, size in enumerate(sizes.tolist()):
        first = rank * collective.units_per_rank if is_part else 0
        first_address = int(base[rank, buffer])
        units[first_address : first_address + size] = first + np.arange(size)
    return units


def _compute_levels(template: Template) -> Int64Array:
    """Compute the level of every node, with messages as edges."""
    position = np.repeat(np.arange(len(template.first) - 1), np.diff(template.first))
    sends = np.flatnonzero(template.kind == NodeKind.SEND)
    receives = np.flatnonzero(template.kind == NodeKind.RECV)
    ranks, tags = len(template.first), template.tags + 1
    send_key = (position[sends] * ranks + template.peer[sends]) * tags + template.message[sends]
    recv_key = (template.peer[receives] * ranks + position[receives]) * tags
    recv_key += template.message[receives]
    sends, receives = sends[np.argsort(send_key)], receives[np.argsort(recv_key)]
    parents = np.concatenate([template.data[0], template.control[0], sends])
    children = np.concatenate([template.data[1], template.control[1], receives])
    order = topological_levels(len(template), parents, children)
    widths = np.diff(order.level_indptr)
    return np.repeat(np.arange(len(widths)), widths)[positions_in(order.nodes, len(template))]
