"""The layout of boxes in the buffers of devices, in units of equal bytes.

`packed`: INPUT and OUTPUT contain the boxes of a device in sequence, in the order of the unit
tasks, so that every box is contiguous. `rows`: INPUT and OUTPUT are the tiles in row-major order;
boxes that are not contiguous in them are packed and unpacked by COPY steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from collhub_shardings import Move, Side, UnitTasks

from hub_core.columns import Int64Array
from hub_core.model import InputError

_MAX_UNITS = 1 << 20
_MAX_RUNS = 1 << 18


@dataclass(frozen=True, slots=True)
class Region:
    """The position of a box in a buffer.

    `starts`: first units of its runs, int64. `run_units`: units of each run.
    """

    starts: Int64Array
    run_units: int

    @property
    def is_contiguous(self) -> bool:
        """Whether the region consists of exactly one run of units."""
        return len(self.starts) == 1


@dataclass(frozen=True, slots=True)
class BoxLayout:
    """Regions of all boxes.

    `unit_bytes`: bytes of a unit. `box_units`: int64[unit tasks]. `inputs`, `outputs`: regions by
    (unit task, device). `input_units`, `output_units`: int64[devices]. `padding_bytes`: bytes on
    all devices that extend boxes to an integral number of units.
    """

    kind: str
    unit_bytes: int
    box_units: Int64Array
    inputs: dict[tuple[int, int], Region]
    outputs: dict[tuple[int, int], Region]
    input_units: Int64Array
    output_units: Int64Array
    padding_bytes: int = 0


def build_packed_layout(units: UnitTasks, moves: Sequence[Move], least_units: int) -> BoxLayout:
    """Build buffers that contain the boxes of each device without gaps, in the order of the tasks.

    A box is the data of one unit task. INPUT of a device has the boxes that the device sends,
    OUTPUT those that it receives. A box with several senders or receivers has one contiguous
    region on each of them. If a unit task adds a further summand to a sum, its receivers have no
    new region: they use the OUTPUT region of the unit task before it. A device without boxes has
    buffers of 0 units.

    All boxes have the same unit, whose bytes `_choose_unit_bytes` computes from `least_units`,
    the desired number of units of the smallest box. The result can have fewer. The bytes of a
    box are rounded up to units. `padding_bytes` is the sum of the added bytes over all regions.
    """
    unit_bytes = _choose_unit_bytes(units, moves, least_units)
    box_units = -(-units.bytes // unit_bytes)
    num_devices = len(units.host_of)
    sides = []
    for pointer, members, shares in (
        (units.sender_indptr, units.senders, False),
        (units.receiver_indptr, units.receivers, True),
    ):
        sizes = np.zeros(num_devices, np.int64)
        regions: dict[tuple[int, int], Region] = {}
        for row in range(len(units)):
            for device in members[pointer[row] : pointer[row + 1]].tolist():
                # The summands of a box are added in one region.
                if shares and units.summand[row]:
                    regions[row, device] = regions[row - 1, device]
                    continue
                first = np.asarray([sizes[device]], np.int64)
                regions[row, device] = Region(first, int(box_units[row]))
                sizes[device] += box_units[row]
        sides.append((regions, sizes))
    (inputs, input_units), (outputs, output_units) = sides
    stored = int(input_units.sum() + output_units.sum()) * unit_bytes
    # The bytes of all boxes on all devices, without padding.
    sent = np.diff(units.sender_indptr)
    # Summands are stored in one region, which counts once.
    received = np.where(units.summand == 0, np.diff(units.receiver_indptr), 0)
    padding = stored - int((units.bytes * (sent + received)).sum())
    return BoxLayout(
        "packed", unit_bytes, box_units, inputs, outputs, input_units, output_units, padding
    )


def _choose_unit_bytes(units: UnitTasks, moves: Sequence[Move], least_units: int) -> int:
    """Choose how many bytes a unit of the buffers has; 1 if no box has bytes.

    A box is the data of one unit task. GCD is the greatest common divisor of the sizes of the
    boxes with bytes. An element has the least common multiple of the element sizes of all tensors,
    in bytes. If the GCD is no multiple of this, an element has GCD bytes instead.

    A unit is a multiple of an element. It must be so large that all boxes that devices send or
    receive have at most `_MAX_UNITS` units together. Among such units, the first of these that
    exists is returned:

    1. the largest unit that divides the GCD, and of which the smallest box has at least
       `least_units`; if the smallest box has fewer elements, a unit of one element
    2. the smallest unit that divides the GCD
    3. the smallest unit; boxes are then padded
    """
    sizes = units.bytes[units.bytes > 0]
    if not len(sizes):
        return 1
    element = math.lcm(*(move.tensor.element_bytes for move in moves))
    common = int(np.gcd.reduce(sizes))
    smallest = int(sizes.min())
    measure = common // element if common % element == 0 else 1
    element = element if common % element == 0 else common
    target = max(1, smallest // element // max(1, least_units))
    stored = int(units.bytes @ (np.diff(units.sender_indptr) + np.diff(units.receiver_indptr)))
    floor = -(-stored // _MAX_UNITS)
    fitting = [
        part for part in _list_divisors(measure) if part <= target and part * element >= floor
    ]
    if fitting:
        return max(fitting) * element
    # Larger units than desired are still exact; boxes are padded only if there are none.
    exact = [part for part in _list_divisors(measure) if part * element >= floor]
    if exact:
        return min(exact) * element
    return -(-floor // element) * element


def _list_divisors(number: int) -> list[int]:
    """Return all divisors of a positive number, ascending, with 1 and the number itself.

    Takes time proportional to its square root. The result is [] for 0.
    """
    small = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    return sorted({*small, *(number // part for part in small)})


def build_row_layout(units: UnitTasks, moves: Sequence[Move]) -> BoxLayout:
    """Lay out complete tiles (parts of tensors on a device) in row-major order; boxes are runs.

    The tiles of a device are stored one after the other in the order of `moves`, separately for
    INPUT and OUTPUT. A box (data of one unit task) consists of equally long contiguous runs of its
    tile, on every sender in INPUT and on every receiver in OUTPUT. The size of a unit is the
    greatest common divisor of all run lengths, run starts and buffer sizes in bytes, so there is no
    padding; 1 without bytes. Unit tasks without bytes have no regions.

    Raises `InputError` (`too-many-runs`) for more than `_MAX_RUNS` (2^18) runs; the runs of a box
    count once for each device that sends or receives it.
    """
    runs: dict[tuple[int, int, bool], tuple[Int64Array, int]] = {}
    # Bytes of the tiles of earlier moves on each device, in INPUT and in OUTPUT.
    bases = [np.zeros((len(units.host_of), 2), np.int64)]
    tiles = []
    for move in moves:
        tile_bytes = np.zeros((len(units.host_of), 2), np.int64)
        grids = _TileGrid(move.source, move), _TileGrid(move.destination, move)
        for column, side in enumerate((move.source, move.destination)):
            shapes = grids[column].stop - grids[column].start
            devices = np.asarray(side.mesh.devices)
            tile_bytes[devices, column] = np.prod(shapes, axis=1) * move.tensor.element_bytes
        bases.append(bases[-1] + tile_bytes)
        tiles.append(grids)
    measures = {0}
    count = 0
    for row in range(len(units)):
        if not units.bytes[row]:
            continue
        number = int(units.move[row])
        for is_output, tile in enumerate(tiles[number]):
            members = units.receivers_of(row) if is_output else units.senders_of(row)
            starts, length = tile.runs(units, row, bool(is_output))
            for device in members.tolist():
                first = starts + bases[number][device, is_output]
                runs[row, device, bool(is_output)] = first, length
                measures |= {length, int(np.gcd.reduce(first))}
                count += len(first)
        if count > _MAX_RUNS:
            raise InputError(
                f"the boxes have more than {_MAX_RUNS} contiguous runs in row-major tiles",
                cure="use -O layout=packed",
                code="too-many-runs",
            )
    sizes = bases[-1]
    unit_bytes = math.gcd(*measures, *(int(size) for size in np.unique(sizes))) or 1
    regions: tuple[dict[tuple[int, int], Region], dict[tuple[int, int], Region]] = ({}, {})
    for (row, device, is_output), (starts, length) in runs.items():
        regions[is_output][row, device] = Region(starts // unit_bytes, length // unit_bytes)
    return BoxLayout(
        "rows",
        unit_bytes,
        units.bytes // unit_bytes,
        regions[0],
        regions[1],
        sizes[:, 0] // unit_bytes,
        sizes[:, 1] // unit_bytes,
    )


class _TileGrid:
    """The tiles of the devices of one side: `start`, `stop` int64[devices, dimensions]."""

    def __init__(self, side: Side, move: Move) -> None:
        cuts = side.placement.boundaries(move.tensor.shape, side.mesh)
        at = side.placement.tile_coordinates(side.mesh)
        self.counts = side.placement.parts(side.mesh)
        self.cuts = cuts
        self.start = np.stack([cut[at[:, d]] for d, cut in enumerate(cuts)], 1)
        self.stop = np.stack([cut[at[:, d] + 1] for d, cut in enumerate(cuts)], 1)
        self.element_bytes = move.tensor.element_bytes

    def runs(self, units: UnitTasks, row: int, is_output: bool) -> tuple[Int64Array, int]:
        """Return the contiguous runs of a box in the row-major tile that contains it.

        `row`: unit task of the box. The tile is the source tile of the unit task, or with
        `is_output` its destination tile. Returns (first byte of every run from the start of the
        tile, int64 ascending; length of all runs in bytes). Runs are as long as possible: trailing
        dimensions that the box fills are part of a run.
        """
        tile = int(units.destination_tile[row] if is_output else units.source_tile[row])
        at = np.unravel_index(tile, self.counts)
        low = np.asarray([cut[index] for cut, index in zip(self.cuts, at, strict=True)])
        high = np.asarray([cut[index + 1] for cut, index in zip(self.cuts, at, strict=True)])
        width = len(low)
        start, stop = units.start[row, :width] - low, units.stop[row, :width] - low
        shape = high - low
        strides = np.append(np.cumprod(shape[::-1])[::-1][1:], 1)
        extent = stop - start
        inner = len(shape) - 1
        while inner > 0 and extent[inner] == shape[inner]:
            inner -= 1
        firsts = np.asarray([int(start @ strides)], np.int64)
        for dimension in range(inner):
            steps = np.arange(extent[dimension]) * strides[dimension]
            firsts = (firsts[:, None] + steps).reshape(-1)
        length = int(extent[inner] * strides[inner]) * self.element_bytes
        return firsts * self.element_bytes, length
