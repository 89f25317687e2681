"""Algorithms of the collectives of a program, and the units that their steps read and write.

Algorithms are selected, synthesized once, and verified. The contents of an algorithm are its
accesses to units of the collective, and the nodes that need or produce these.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from collhub_templates import Template, template_of

from collhub_coconet.program.operations import UNEVEN_COLLECTIVES, Binding, Kind, Operation
from collhub_coconet.program.program import Program, count_ranks
from collhub_coconet.program.uneven_rows import COLLECTIVE_KINDS, compute_byte_counts
from hub_core import HubError, Registry, Topology, parse_topology, read, synthesize, verify
from hub_core.columns import (
    Int64Array,
    expanded_ranges,
    group_of_entry,
    positions_in,
    topological_levels,
)
from hub_core.model import (
    READING,
    WRITING,
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    InputError,
    NodeKind,
    StepKind,
    UnitCounts,
    collective_of_call,
    has_equal_counts,
)

KINDS = {
    Kind.ALL_REDUCE: CollectiveKind.ALL_REDUCE,
    Kind.REDUCE_SCATTER: CollectiveKind.REDUCE_SCATTER,
    Kind.ALL_GATHER: CollectiveKind.ALL_GATHER,
    Kind.BROADCAST: CollectiveKind.BROADCAST,
    Kind.REDUCE: CollectiveKind.REDUCE,
    Kind.ALL_TO_ALL: CollectiveKind.ALL_TO_ALL,
    **COLLECTIVE_KINDS,
}
# Algorithms for the collectives that rings and halving do not implement.
_FALLBACK_ALGORITHMS = {
    Kind.ALL_TO_ALL: "direct",
    Kind.BROADCAST: "binomial",
    Kind.REDUCE: "binomial",
    Kind.ALL_TO_ALL_V: "direct",
}
# A single scalar is too small to be cut into the units of other algorithms.
SCALAR_ALGORITHM = "binomial"


INITIAL = -1
"""Version of a unit before the first write."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Algorithm and chunks of one communication.

    `algorithm`: the name of a synthesizer, a file, or an algorithm; the latter two must perform the
    collective on the same number of ranks. `options`: of the synthesizer. `chunks`: number of
    pieces, each of which runs the complete algorithm when its data are available; of a Send, the
    number of its messages. `tiles`: maximum number of computations per rank into which a producer
    in a chain is cut; None: one per unit. `at_once`: maximum number of pieces in flight on a rank;
    a small number lets the first piece finish early. `data_share`: fraction of the bytes of a
    message that are data. `step_bytes`: bytes added to every message, for the latency of a
    protocol that is slower than the network's.
    """

    algorithm: str | Algorithm = "ring"
    chunks: int = 1
    options: Mapping[str, str] = field(default_factory=dict)
    tiles: int | None = None
    at_once: int = 2
    data_share: float = 1.0
    step_bytes: int = 0

    def __post_init__(self) -> None:
        if min(self.chunks, self.at_once, 1 if self.tiles is None else self.tiles) < 1:
            numbers = f"{self.chunks} chunks, {self.at_once} at once, {self.tiles} tiles"
            message = f"{numbers}: at least 1 of each is needed"
            raise InputError(message, cure="state a positive number", code="chunks")


Choices = Mapping[str, Choice]
"""Choices by the name of a communication; the empty name applies to all without an entry."""


def select_choice(choices: Choices, name: str, *, is_scalar: bool = False) -> Choice:
    """Return the choice for a communication: by its name, else by "", else `Choice()`.

    A choice has the algorithm, the number of chunks and further settings; `Choice()` is the
    ring with one chunk. For the reduction of one scalar (`is_scalar`) the entry "" is
    ignored: without an entry under its own name it uses the algorithm `SCALAR_ALGORITHM` (a
    binomial tree), which needs only one unit of data.
    """
    if is_scalar:
        return choices.get(name, Choice(SCALAR_ALGORITHM))
    return choices.get(name, choices.get("", Choice()))


def select_fallbacks(program: Program, chunks: int = 1) -> dict[str, Choice]:
    """Select algorithms for the collectives that only some algorithms implement, by name.

    `chunks`: number of pieces of each, and of tiles of the computations that overlap with it; with
    one piece, the number of tiles is not limited.
    """
    return {
        operation.name: Choice(
            _FALLBACK_ALGORITHMS[operation.kind], chunks, tiles=chunks if chunks > 1 else None
        )
        for operation in program.operations
        if operation.kind in _FALLBACK_ALGORITHMS
    }


@dataclass(frozen=True, slots=True)
class AlgorithmCall:
    """Collective of the ranks `members` with a full buffer of `size_bytes` bytes.

    `root`: index of the root in `members`, or None. `counts`: bytes of the parts of an uneven
    collective, with the sum `size_bytes`; None for all other collectives.
    """

    kind: Kind
    members: Sequence[int]
    root: int | None
    size_bytes: int
    counts: UnitCounts | None = None

    @property
    def collective(self) -> Collective:
        """Return the collective of the call among its members, as `collective_of_call` builds it.

        Ranks are numbered from 0 within the members. The buffer has as few units as possible,
        so `size_bytes` has no effect. A root of None counts as member 0 if the kind has a root.
        Raises `InputError` if root or counts do not fit the kind and the members, and `KeyError`
        for a kind that is no collective.
        """
        ranks = len(self.members)
        return collective_of_call(KINDS[self.kind], ranks, self.root or 0, self.counts)

    def check_fit(self, algorithm: Algorithm, name: str) -> None:
        """Raise `InputError` (`algorithm-does-not-fit`) unless an algorithm performs the call.

        Kind, number of ranks and root must be those of the call. Counts must be equal up to the
        size of a unit (`has_equal_counts`). Modes, reduction operator and size are not
        compared. `name`: of the algorithm, for the error.
        """
        actual, required = algorithm.collective, self.collective
        fits = (actual.kind, actual.num_ranks, actual.root) == (
            required.kind, required.num_ranks, required.root,
        )  # fmt: skip
        if not fits:
            message = f"{name} is no {required.kind} of {required.num_ranks} ranks"
        elif not has_equal_counts(actual.counts, required.counts):
            message = f"{name} has other counts"
        else:
            return
        raise InputError(message, cure="name another algorithm", code="algorithm-does-not-fit")


class Algorithms:
    """Algorithms of collectives on the ranks of one group; each is created and verified once."""

    def __init__(self, topology: Topology, registry: Registry) -> None:
        self._topology, self._registry = topology, registry
        self._cache: dict[Hashable, Contents] = {}
        # Keeps the objects, so that no other one gets the same identity.
        self._verified: dict[int, Algorithm] = {}

    def contents(self, call: AlgorithmCall, choice: Choice) -> Contents:
        """Return the chosen algorithm for a call as nodes, with the units they read and write.

        A call is one piece of a collective, with its kind, members, root and bytes. Of `choice`
        only the algorithm and its options count. A text with `/` or `.` is a file, any other text
        the name of a synthesizer. Equal calls with equal choices share one cached result; algorithm
        objects are compared by identity, and each is verified once.

        Raises `InputError` (`algorithm-does-not-fit`) for a file or object that does not perform
        the call, and `HubError` for an incorrect algorithm or one whose units are unknown. Errors
        of reading and synthesizing pass through.
        """
        algorithm = choice.algorithm
        identity = algorithm if isinstance(algorithm, str) else id(algorithm)
        key = call, identity, tuple(sorted(choice.options.items()))
        if key in self._cache:
            return self._cache[key]
        if isinstance(algorithm, str) and (
            algorithm.isidentifier() or {"/", "."}.isdisjoint(algorithm)
        ):
            algorithm = _verify_algorithm(self._synthesize(call, algorithm, choice))
        else:
            if isinstance(algorithm, str):
                algorithm = read(algorithm, registry=self._registry)
            call.check_fit(algorithm, repr(algorithm))
            if id(algorithm) not in self._verified:
                self._verified[id(algorithm)] = _verify_algorithm(algorithm)
        self._cache[key] = build_contents(algorithm, call.size_bytes)
        return self._cache[key]

    def _synthesize(self, call: AlgorithmCall, name: str, choice: Choice) -> Algorithm:
        """Synthesize an algorithm for a call with the synthesizer `name`, and return it.

        The network is the sub-network of `call.members`; if they are as many as the NPUs of the
        topology, it is the topology itself. Of `choice` only the options are used. The algorithm is
        for a full buffer of `call.size_bytes`, and is not verified here.

        If the sub-network is disconnected (code `disconnected`), the algorithm is synthesized for
        `fully-connected:N` with N members instead. Its messages are routed over other NPUs. Raises
        `HubError` of the synthesizer in all other cases, also for a disconnected complete topology.
        """
        network, size = self._topology, call.size_bytes
        options, registry = choice.options, self._registry
        if len(call.members) < network.num_npus:
            network = network.subset(call.members)
        try:
            return synthesize(
                call.collective, network, size, name=name, options=options, registry=registry
            ).algorithm
        except HubError as error:
            is_connected = all(entry.code != "disconnected" for entry in error.diagnostics)
            if is_connected or network is self._topology:
                raise
        pairs = parse_topology(f"fully-connected:{len(call.members)}", registry=registry)
        return synthesize(
            call.collective, pairs, size, name=name, options=options, registry=registry
        ).algorithm


def count_buffer_bytes(program: Program, binding: Binding, operation: Operation) -> int:
    """Count the bytes of the full buffer on which the algorithm of an operation works.

    R: number of ranks that communicate, the product of the sizes of the operation's mesh axes.
    "Local" bytes: of a rank's longest block if the tensor is sliced, else of the complete tensor.

    - no communication (a reduction to a scalar, then an all-reduce): local bytes of the result
    - uneven collectives (`UNEVEN_COLLECTIVES`): the sum of all counts in bytes
    - ReduceScatter: R * local bytes of the result; AllGather: R * local bytes of the operand
    - AllToAll to slices along mesh axes: local bytes of the operand, rounded up to a multiple of R
    - other AllToAll: the same, but only the length of the result's sliced dimension is rounded up
    - other collectives: local bytes of the operand

    Raises `InputError` for a symbol without a number (`symbol`), invalid counts (`invalid-counts`),
    and counts of more than 2^62 bytes (`size`).
    """
    kind = program.types[operation.name]
    ranks = count_ranks(program, binding, operation)
    if not operation.is_communication:
        return binding.bytes_of_rank(kind)
    if operation.kind in UNEVEN_COLLECTIVES:
        return compute_byte_counts(program, binding, operation).total
    # All blocks count as the longest one.
    if operation.kind is Kind.REDUCE_SCATTER:
        return binding.bytes_of_rank(kind) * ranks
    operand = program.types[operation.reads[0]]
    size = binding.bytes_of_rank(operand)
    if operation.kind is Kind.ALL_GATHER:
        return size * ranks
    if operation.kind is Kind.ALL_TO_ALL:
        if kind.layout.axes:
            return -(-size // ranks) * ranks
        # A rank sends to each rank a block of its slice, cut along the other dimension.
        length = binding.shape(kind.shape)[kind.layout.dimension]
        return size // length * -(-length // ranks) * ranks
    return size


@dataclass(frozen=True, slots=True, eq=False)
class UnitReads:
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
    `give_rank`, at `give_address`. Units of an uneven collective are numbered on all ranks, those
    of the inputs and those of the outputs. `level`: int64 by node, length of the longest path to
    it, including messages. `source`, `destination`: first addresses by step, -1 for none.
    `input_of`: unit of the full buffer by address of INPUT, -1 elsewhere.
    """

    algorithm: Algorithm
    template: Template
    last: Int64Array
    reads: UnitReads
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

    The fields are described at `Contents`. The addresses are those of in-place calls if the
    collective supports them, otherwise of calls out of place. A receive with a reduction becomes
    two nodes, of which the second writes; every other step becomes one node.

    - `need_` arrays: an entry for every read of an address of INPUT that no step has written
      before, by address, then row of the step. An address that is read several times occurs several
      times.
    - `give_` arrays: an entry for every address of OUTPUT, ascending, so rank by rank. `give_node`
      is the node that writes it last, in the order of rows, or -1 if the address has its initial
      value.

    Raises `InputError` for an algorithm without units (`no-contents`), for opaque steps, and for
    less than one byte per unit.
    """
    if not algorithm.has_contents:
        message = "an algorithm that states no units cannot be joined to computations by chunks"
        raise InputError(message, cure="name another algorithm", code="no-contents")
    steps = algorithm.steps
    # `template_of` leaves out local steps and reductions with a duration of 0, and the numbers of
    # nodes per step would differ. So these durations count as unknown.
    duration = np.where(steps.duration_ns == 0, -1, steps.duration_ns)
    untimed = replace(algorithm, steps=replace(steps, duration_ns=duration))
    template = template_of(untimed, range(algorithm.num_ranks), size)
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


def _find_addresses(
    algorithm: Algorithm, base: Int64Array, side: str, kinds: tuple[StepKind, ...]
) -> Int64Array:
    """Return the first address of one side (`src` or `dst`) of every step, -1 for steps without it.

    Addresses number all units of all buffers of all ranks; `base`: first address by rank and
    buffer. `kinds`: the kinds of steps that have this side. The result is int64[steps].
    """
    steps = algorithm.steps
    buffer = np.minimum(getattr(steps, f"{side}_buffer"), Buffer.SCRATCH)
    offset = getattr(steps, f"{side}_offset")
    addresses: Int64Array = np.where(steps.is_kind(*kinds), base[steps.rank, buffer] + offset, -1)
    return addresses


def _find_versions(
    algorithm: Algorithm, source: Int64Array, destination: Int64Array, total: int
) -> tuple[UnitReads, Int64Array]:
    """Find the write whose value each read of an algorithm sees, and the last write per address.

    `source`, `destination`: first address by step, negative for none. A step reads `count`
    consecutive addresses from its source, and writes as many from its destination. A REDUCE also
    reads its destination. `total`: number of addresses.

    A version is the row of the step that wrote the address last, or `INITIAL` (-1) before any
    write. Steps count in ascending rows, and the reads of a step before its writes: a read in row 5
    sees the last write in rows 0 to 4.

    Returns the reads (row, address, version; one entry per step and address) sorted by address,
    then row, and the last version of every address as int64[`total`].
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
    return UnitReads(row[is_read], address[is_read], seen[is_read]), final


def _map_buffer_units(
    algorithm: Algorithm, base: Int64Array, buffer: Buffer, total: int
) -> Int64Array:
    """Map each address of INPUT or OUTPUT to its unit of the full buffer: int64[`total`].

    Addresses outside of `buffer` have -1. `base`: first address by rank and buffer. Units ascend
    with the addresses of a rank, and begin at:

    - In an uneven collective: the sum of the sizes of this buffer on the lower ranks. Its ranks
      have no common full buffer.
    - Otherwise r x units per rank for rank r, if the buffer has only the part of its rank. An
      example is the INPUT of an all-gather.
    - Otherwise 0: every rank has the full buffer.
    """
    collective, traits = algorithm.collective, algorithm.collective.kind.traits
    is_input = buffer is Buffer.INPUT
    sizes = collective.input_units() if is_input else collective.output_units()
    is_part = traits.input_is_part if is_input else traits.output_is_part
    units = np.full(total, -1, np.int64)
    preceding = np.cumsum(sizes) - sizes
    for rank, size in enumerate(sizes.tolist()):
        if traits.is_uneven:
            first = int(preceding[rank])
        else:
            first = rank * collective.units_per_rank if is_part else 0
        first_address = int(base[rank, buffer])
        units[first_address : first_address + size] = first + np.arange(size)
    return units


def _compute_levels(template: Template) -> Int64Array:
    """Return the level of every node of a template: int64 by node, in the order of the nodes.

    The level is the number of edges of the longest path to the node; a node without predecessors
    has level 0. Edges are the data dependencies, the control dependencies, and one from every send
    to its receive. A send and its receive have the same sender, receiver and message number. Every
    send must have exactly one receive, and the graph no cycle: neither is checked.
    """
    position = group_of_entry(template.first)
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


def _verify_algorithm(algorithm: Algorithm) -> Algorithm:
    """Verify an algorithm, and return the same object if it is correct in all modes it claims.

    The modes are in place and out of place. Otherwise raise `HubError` with all findings of
    the verification, notes included.
    """
    report = verify(algorithm)
    if not report.ok:
        raise HubError(report.diagnostics)
    return algorithm
