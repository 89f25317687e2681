"""Derive the axes of a mesh from the ranks of process groups."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product

from hub_core.model import InputError, Location

_MAX_AXES = 6
_NO_LETTER = re.compile(r"[^A-Za-z0-9_]")


def derive_axes(groups: Mapping[tuple[int, ...], str], file: str) -> dict[str, int]:
    """Derive the axes of a device mesh from its process groups: size by name, slowest first.

    `groups`: group name by global ranks. The ranks of a group must be nested runs, each with a
    distance and a count: 0, 1, 4, 5 are the runs (1, 2) and (4, 2). The boundaries are 1 and, for
    each run, its distance and distance times count. In ascending order, every two consecutive
    boundaries are an axis of size higher / lower. Boundaries 1, 2, 8 give sizes 4 and 2. The
    result is empty without groups.

    An axis is named `group_NAME`, where NAME is the first group that is just the run (lower
    boundary, size). Characters that names cannot have become `_`; at most 40 characters remain.
    Without such a group it is `axis_K`, where K is the number of axes before it. If the name is
    already in the result, `_K` is appended.

    Raises `InputError` (`groups`), in this order: for a group that is no nested runs, for a
    boundary that does not divide the next one, for more than 6 axes.
    """
    bounds = {1}
    strides_of: list[tuple[str, list[tuple[int, int]]]] = []
    for ranks, name in groups.items():
        strides = _find_strides(ranks)
        if strides is None:
            message = f"process group {name:.60} has ranks {list(ranks)[:8]}, no axes of a mesh"
            raise _build_error(file, message, "use groups of equal distances")
        strides_of.append((name, strides))
        bounds |= {stride * count for stride, count in strides} | {stride for stride, _ in strides}
    ascending = sorted(bounds)
    sizes: dict[str, int] = {}
    for low, high in zip(ascending[-2::-1], ascending[:0:-1], strict=True):
        if high % low:
            message = f"process groups have distances {low} and {high}, which fit no mesh"
            raise _build_error(file, message, "use groups of a device mesh")
        single = [one for one, strides in strides_of if strides == [(low, high // low)]]
        name = f"axis_{len(sizes)}"
        if single and single[0]:
            name = f"group_{_NO_LETTER.sub('_', single[0])}"[:40]
        sizes[name if name not in sizes else f"{name}_{len(sizes)}"] = high // low
    if len(sizes) > _MAX_AXES:
        message = f"process groups form a mesh of {len(sizes)} axes, at most {_MAX_AXES} are read"
        raise _build_error(file, message, "use groups of a device mesh")
    return sizes


def _find_strides(ranks: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return (distance, count) of the nested runs of ranks in a group, the innermost first.

    Ranks 0, 1, 4, 5 give (1, 2) and (4, 2): two runs at distance 4, with two ranks at distance 1 in
    each. A run, from the innermost on, is as long as its distance remains equal: 0, 1, 2, 3 give
    (1, 4). Only differences to the first rank count. Every distance is at least 1 and every count
    at least 2, but a later distance may be smaller: 0, 4, 1, 5 give (4, 2) and (1, 2).

    The list is empty for a single rank. The result is None without ranks, and if the ranks are no
    such grid in this order.
    """
    offsets = [rank - ranks[0] for rank in ranks]
    strides: list[tuple[int, int]] = []
    size = 1
    while size < len(offsets):
        stride, count = offsets[size], 1
        while count * size < len(offsets) and offsets[count * size] == count * stride:
            count += 1
        if stride < 1 or count < 2:
            return None
        strides.append((stride, count))
        size *= count
    ranges = [range(0, stride * count, stride) for stride, count in reversed(strides)]
    return strides if [sum(parts) for parts in product(*ranges)] == offsets else None


def _build_error(file: str, message: str, cure: str) -> InputError:
    return InputError(message, location=Location(file or None), cure=cure, code="groups")
