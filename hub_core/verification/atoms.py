"""Divide memory at the borders of all regions, and prove the order of accesses by their data.

Atoms are the ranges between adjacent borders: every region is a sequence of atoms, and every step
treats all blocks of an atom alike. A step has one access per atom of each of its operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hub_core.columns import (
    BoolArray,
    Int64Array,
    distinct,
    expanded_ranges,
    find_heads,
    first_positions,
    inverse,
    run_mask,
)
from hub_core.model.collectives import MemoryLayout
from hub_core.model.kinds import StepKind
from hub_core.model.messages import Messages
from hub_core.model.steps import StepTable
from hub_core.verification.regions import Regions, pair_neighbours, sort_keys

# Hops of all ways that are followed one by one: some minutes at most, whatever the input.
_MAX_FOLLOWED = 1 << 29


@dataclass(frozen=True, slots=True)
class Operand:
    """Atoms of one operand (source or destination) of every step.

    `start`: address of the first block; `first`, `length`: first atom and number of atoms. int64
    [rows]; -1, 0 and 0 for steps without this operand.
    """

    start: Int64Array
    first: Int64Array
    length: Int64Array


@dataclass(frozen=True, slots=True)
class Atoms:
    """The atoms of a memory, and those of the operands of all steps.

    Atom a has the blocks `borders[a]:borders[a + 1]`; the last border is the end of the memory.
    """

    borders: Int64Array
    source: Operand
    destination: Operand

    def locate(self, start: Int64Array, count: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the first atom and the number of atoms of ranges that end at borders."""
        return _locate(self.borders, start, count)

    @property
    def accesses_by_row(self) -> Int64Array:
        """Number of accesses of every step: int64[rows]."""
        return self.source.length + self.destination.length


def divide_memory(regions: Regions, layout: MemoryLayout) -> Atoms:
    """Divide memory into atoms at the borders of regions and buffers; locate the operands.

    An atom is the range of blocks between two neighbouring borders. Borders are 0, the end
    of the memory, and the first and last border of each buffer with units and of each
    source and destination region. The result has the borders, and the first atom and the
    number of atoms of the source and the destination of every step; the number is 0 for an
    operand that the step does not have.
    """
    buffers = layout.base[layout.size > 0], (layout.base + layout.size)[layout.size > 0]
    starts = [side[side >= 0] for side in (regions.source, regions.destination)]
    counts = [regions.count[side >= 0] for side in (regions.source, regions.destination)]
    stops = [start + count for start, count in zip(starts, counts, strict=True)]
    borders = distinct(np.concatenate([*buffers, *starts, *stops, [0, regions.total]]))
    operands = [
        Operand(side, *_locate(borders, side, np.where(side >= 0, regions.count, 0)))
        for side in (regions.source, regions.destination)
    ]
    return Atoms(borders, *operands)


def _locate(
    borders: Int64Array, start: Int64Array, count: Int64Array
) -> tuple[Int64Array, Int64Array]:
    first = np.searchsorted(borders, start)
    return first, np.searchsorted(borders, start + count) - first


class Accesses:
    """The accesses of all steps to atoms: the reads, row by row, then the writes.

    `row`, `atom`: int64[accesses]. A step that reads the region that it writes has no reads.
    `by_time`: accesses by atom, then by the position of their steps in a linear extension of
    happens-before; of a step that reads and writes an atom, only the write. All steps must run.
    """

    def __init__(self, atoms: Atoms, position: Int64Array) -> None:
        self.atoms = atoms
        is_other = atoms.source.start != atoms.destination.start
        reads = np.where(is_other, atoms.source.length, 0)
        writes = atoms.destination.length
        self.num_reads = int(reads.sum())
        self._first_read = first_positions(reads)
        self._first_write = self.num_reads + first_positions(writes)
        rows = np.arange(len(reads))
        self.row = np.concatenate([np.repeat(rows, reads), np.repeat(rows, writes)])
        self.atom = np.concatenate(
            [
                expanded_ranges(atoms.source.first[reads > 0], reads[reads > 0]),
                expanded_ranges(atoms.destination.first[writes > 0], writes[writes > 0]),
            ]
        )
        nodes = max(1, len(position))
        is_write = np.arange(len(self.row)) >= self.num_reads
        keys = sort_keys(self.atom, position[self.row], is_write, nodes)
        atom, place = np.divmod(keys >> 1, nodes)
        row = inverse(position)[place]
        first_atom = np.where(keys & 1, atoms.destination.first[row], atoms.source.first[row])
        first_access = np.where(keys & 1, self._first_write[row], self._first_read[row])
        self.by_time = first_access + atom - first_atom

    @cached_property
    def neighbours(self) -> tuple[Int64Array, Int64Array]:
        """Return pairs of accesses to one atom that must keep their order: (earlier, later).

        Both are int64 arrays of indices of accesses. The accesses of an atom are taken in the
        order `by_time`. A pair is a read and the last write before it, a read and the next
        write after it, or two consecutive writes; two writes with a read between them form no
        pair. The order of the pairs is that of `pair_neighbours`. A step that reads and writes
        the atom counts as a write.
        """
        block, is_write = self.atom[self.by_time], self.by_time >= self.num_reads
        earlier, later = pair_neighbours(block, is_write)
        return self.by_time[earlier], self.by_time[later]

    def find_at(
        self, access: Int64Array, shift: Int64Array, row: Int64Array, *, is_read: bool
    ) -> tuple[Int64Array, Int64Array]:
        """Find, in operands of other steps, the blocks that correspond to blocks of accesses.

        An atom is a range of blocks that no access divides. For each i, the given block is
        `shift[i]` blocks after the start of the atom of `access[i]`, and p blocks after the start
        of the operand of this access. The corresponding block is block p of an operand of step
        `row[i]`: its source with `is_read`, otherwise its destination.

        Returns two int64 arrays: the access of step `row[i]` to the atom that has the corresponding
        block, and the distance of this block from the start of that atom, in blocks. The step must
        have this operand, with more than p blocks; this is not checked.
        """
        atoms, own_row = self.atoms, self.row[access]
        target = atoms.source if is_read else atoms.destination
        of_read = access < self.num_reads
        own_start = np.where(of_read, atoms.source.start[own_row], atoms.destination.start[own_row])
        position = atoms.borders[self.atom[access]] + shift - own_start
        address = target.start[row] + position
        atom = target.first[row]
        several = np.flatnonzero(target.length[row] > 1)
        atom[several] = np.searchsorted(atoms.borders, address[several], side="right") - 1
        first_access = (self._first_read if is_read else self._first_write)[row]
        return first_access + atom - target.first[row], address - atoms.borders[atom]


def are_ordered_by_data(
    accesses: Accesses,
    steps: StepTable,
    messages: Messages,
    earlier: Int64Array,
    later: Int64Array,
) -> BoolArray:
    """Return for which pairs data flow proves that the read happens before the write: bool[pairs].

    Pair i is the accesses `earlier[i]` and `later[i]` to one atom. Its value is True if
    `earlier[i]` is a read, `later[i]` is a write, and two paths end at accesses of one step:

    - from the read forwards through sums (`_find_ways_of_sums`)
    - from the write backwards through copies: from a received part to its send, and from a read
      to the last write of the atom before it

    Both paths are followed twice: with the first unit of every atom (`find_ends`), then with
    their own first unit (`follow`). One meeting is enough. False proves nothing, as the second
    step is cut off beyond `_MAX_FOLLOWED` accesses. True is valid only if, of two neighbouring
    accesses to an atom, a write always happens before the later one; the caller proves this.
    """
    forwards = _find_ways_of_sums(accesses, steps, messages)
    backwards = _find_ways_of_copies(accesses, steps, messages)
    is_of_read = (earlier < accesses.num_reads) & (later >= accesses.num_reads)
    ends, sources = forwards.find_ends()[earlier], backwards.find_ends()[later]
    ordered: BoolArray = is_of_read & (accesses.row[ends] == accesses.row[sources])
    # Pointer jumping follows the first unit of every atom on the way, which may be another one.
    left = np.flatnonzero(is_of_read & ~ordered)
    ends, sources = forwards.follow(earlier[left]), backwards.follow(later[left])
    is_followed = (ends >= 0) & (sources >= 0)
    ordered[left] = is_followed & (accesses.row[ends] == accesses.row[sources])
    return ordered


@dataclass(frozen=True, slots=True)
class _Ways:
    """The next access of every access on the ways of data.

    `within`: the next access to the same atom, int64[accesses], itself if there is none; `hop`:
    row to which data move from the row, int64[rows], -1 for none, from its reads to writes with
    `is_forwards`, else from its writes to reads. An access with a hop has none to its atom.
    """

    accesses: Accesses
    within: Int64Array
    hop: Int64Array
    is_forwards: bool

    def find_ends(self) -> Int64Array:
        """Return, for every access, the access at the end of its path of data: int64[accesses].

        The result is the access itself if its data move no further. At each access of the path,
        the first unit of its atom is followed, even if the data arrived at a later unit of it
        (`follow` is exact). The paths must not contain cycles.
        """
        everything = np.arange(len(self.within))
        return find_heads(self._advance(everything, np.zeros_like(everything))[0])

    def follow(self, access: Int64Array) -> Int64Array:
        """Return the access at the end of the data path of each given access, as a new int64 array.

        `access`: indices of accesses. A path follows one unit of data: the first unit of the atom
        of the given access, also where it is not the first unit of a later atom. `_advance` gives
        the next access. A path ends at an access whose next access is itself.

        All paths advance together, one access per round. The lengths of all paths together are
        limited: if the accesses visited so far exceed `_MAX_FOLLOWED` (2^29) before a round, the
        paths that have not ended get -1. The given array is not changed.
        """
        ends, going, shift = access.copy(), np.arange(len(access)), np.zeros_like(access)
        hops = 0
        while len(going):
            if hops > _MAX_FOLLOWED:
                ends[going] = -1
                break
            hops += len(going)
            following, shift = self._advance(ends[going], shift)
            moves = following != ends[going]
            ends[going] = following
            going, shift = going[moves], shift[moves]
        return ends

    def _advance(self, access: Int64Array, shift: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Move units of data one hop along their paths; return (access, shift).

        Entry i of the arguments and results (int64) is one unit: `access[i]` is a read or
        write of an atom, and `shift[i]` is the position of the unit in this atom. The
        first case that applies decides:

        - The row of the access moves data to another row (`hop` is at least 0), and the
          access is on the side from which data move: a read with `is_forwards`, otherwise
          a write. The unit moves to the same position in the opposite operand (write or
          read) of that other row.
        - Otherwise, the unit moves to the next access of the same atom (`within`), with
          an unchanged shift. At the end of a path this is the access itself.

        The arguments are not changed.
        """
        accesses = self.accesses
        following, shift = self.within[access], shift.copy()
        target = self.hop[accesses.row[access]]
        hops = np.flatnonzero((target >= 0) & ((access < accesses.num_reads) == self.is_forwards))
        following[hops], shift[hops] = accesses.find_at(
            access[hops], shift[hops], target[hops], is_read=not self.is_forwards
        )
        return following, shift


def _find_ways_of_sums(accesses: Accesses, steps: StepTable, messages: Messages) -> _Ways:
    """Build the next access on the path from each access to the sum into which its data flow.

    An access is a read or write of one atom (a smallest range of memory) by a step. Accesses to an
    atom are in the order of time. A step that reads and writes an atom has only the write there.

    - The read of a SEND leads to the write of its RECV_REDUCE, if the regions of both are within
      buffers (a valid message). The read of a REDUCE or RECV_REDUCE leads to its write.
    - A write leads to the next access to the atom if that is a write. If it is a read, the write
      leads to it only if no other read follows before the next write, and if the step of the read
      is a REDUCE, a RECV_REDUCE, or a SEND as above.
    - Every other access leads to itself: the path ends.

    In the result, `hop` has the rules of reads by step (-1 without one), and `within` that of
    writes by access.
    """
    by_time, row = accesses.by_time, accesses.row
    hop = np.full(len(steps), -1)
    adds = _find_valid_messages(accesses, messages)
    adds &= steps.is_kind(StepKind.RECV_REDUCE)[messages.receive]
    hop[messages.send[adds]] = messages.receive[adds]
    additions = np.flatnonzero(steps.is_kind(StepKind.RECV_REDUCE, StepKind.REDUCE))
    hop[additions] = additions
    is_write = by_time >= accesses.num_reads
    begins = np.append(run_mask(accesses.atom[by_time]), [True, True])
    has_next = np.flatnonzero(is_write & ~begins[1 : len(by_time) + 1])
    next_is_write = is_write[has_next + 1]
    # The access after the next one, if it is of the same atom, must not be a second read.
    after = np.minimum(has_next + 2, len(by_time) - 1)
    is_only_read = begins[has_next + 2] | is_write[after]
    is_only_read &= hop[row[by_time[has_next + 1]]] >= 0
    has_next = has_next[next_is_write | is_only_read]
    within = np.arange(len(row))
    within[by_time[has_next]] = by_time[has_next + 1]
    return _Ways(accesses, within, hop, is_forwards=True)


def _find_ways_of_copies(accesses: Accesses, steps: StepTable, messages: Messages) -> _Ways:
    """Build the next access on the path from each access back to the source of its data.

    A read leads to the last write of the atom before it. The write of a RECV leads to the
    read of its SEND, if the message is valid (`_find_valid_messages`). All other accesses
    end the path: writes of other kinds of steps, and reads without an earlier write.
    """
    within = np.arange(len(accesses.row))
    earlier, later = accesses.neighbours
    is_of_read = later < accesses.num_reads
    within[later[is_of_read]] = earlier[is_of_read]
    hop = np.full(len(steps), -1)
    is_copied = _find_valid_messages(accesses, messages)
    is_copied &= steps.is_kind(StepKind.RECV)[messages.receive]
    hop[messages.receive[is_copied]] = messages.send[is_copied]
    return _Ways(accesses, within, hop, is_forwards=False)


def _find_valid_messages(accesses: Accesses, messages: Messages) -> BoolArray:
    """Return for which messages both regions are valid: bool[messages].

    The regions are the source of the send and the destination of the receive. A region is
    valid if it has at least one atom; a region outside its buffer, or without units in the
    examined block, has none.
    """
    atoms = accesses.atoms
    is_sent = atoms.source.length[messages.send] > 0
    return is_sent & (atoms.destination.length[messages.receive] > 0)
