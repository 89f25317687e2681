"""Placements of parameters by their `sharding`: on each axis replicated, or blocks of a dimension.

Source: openxla/xla `xla/hlo/ir/hlo_sharding.cc`, `tile_assignment.cc`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from collhub_hlo_modules.groups import expand_iota
from collhub_hlo_modules.text import parse_integers
from hub_core.columns import Int64Array

_MAX_DEVICES = 1 << 16
_MAX_CHOICES = 4096

_TILES = re.compile(
    r"devices=\[([\d,\s]+)\](?:<=\[([\d,\s]*)\](?:\s*T\(([\d,\s]*)\))?|([\d,\s]+))?\s*(.*)\Z",
    re.DOTALL,
)
_KINDS = re.compile(r"last_tile_dims=\{([\w,\s]*)\}?")


def find_placement(sharding: str, devices: Sequence[int], sizes: Sequence[int], count: int) -> str:
    """Return the placement of a parameter on a mesh: `R`, `S(d)`, or one of both per axis.

    `devices`: the device of each rank of the mesh; `sizes`: ranks along its axes, the slowest
    first; `count`: devices of the module. Blocks of several axes of one dimension nest in the
    order of the axes. Returns "" for other shardings, and for none.
    """
    text = sharding.strip()
    if text.startswith("{{"):
        # A tuple has one sharding per member.
        return ""
    text = text.strip("{}").strip()
    if text.startswith("replicated"):
        return "R"
    tiles = _parse_tiles(text, count)
    if tiles is None or len(devices) != prod(sizes) or max(devices, default=count) >= count:
        return ""
    # Blocks that all ranks of the mesh have in common are complete tensors of the program.
    tiles = tiles[list(devices)]
    tiles = tiles - tiles[0]
    coordinates = np.indices(tuple(sizes), dtype=np.int64).reshape(len(sizes), -1)
    dimensions = [place for place in range(tiles.shape[1]) if tiles[:, place].any()]
    if (len(dimensions) + 1) ** len(sizes) > _MAX_CHOICES:
        return ""
    for choice in product((-1, *dimensions), repeat=len(sizes)):
        blocks = np.zeros_like(tiles)
        for axis, dimension in enumerate(choice):
            if dimension >= 0:
                blocks[:, dimension] = blocks[:, dimension] * sizes[axis] + coordinates[axis]
        if np.array_equal(blocks, tiles):
            found = ["R" if dimension < 0 else f"S({dimension})" for dimension in choice]
            return found[0] if len(found) == 1 else f"({', '.join(found)})"
    return ""


def _parse_tiles(text: str, count: int) -> Int64Array | None:
    """Return the block of every device: int64[devices, dimensions]; None for other shardings.

    Trailing dimensions of replicated devices are left out.
    """
    match = _TILES.search(text)
    if match is None or not 0 < count <= _MAX_DEVICES:
        return None
    dims = parse_integers(match[1])
    kinds = _KINDS.search(match[5])
    words = [word.strip() for word in kinds[1].split(",")] if kinds else []
    copies = len(words) or int("last_tile_dim_replicate" in match[5])
    is_replicated = set(words) <= {"replicated"}
    if not is_replicated or copies >= len(dims) or prod(dims) != count:
        return None
    try:
        if match[2] is not None:
            order = expand_iota(match[2], match[3], count)
        else:
            order = np.array(parse_integers(match[4] or ""), np.int64)
    except ValueError:
        return None
    if sorted(order.tolist()) != list(range(count)):
        return None
    tiles = np.empty((count, len(dims)), np.int64)
    tiles[order] = np.indices(dims, dtype=np.int64).reshape(len(dims), -1).T
    return tiles[:, : len(dims) - copies]
