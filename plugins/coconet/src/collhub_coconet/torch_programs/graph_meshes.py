"""Find the mesh of a captured graph: every process group is an axis of it, or several axes.

A graph with one process group has one axis without a name. With several groups, the axes are those
of the document (the device mesh of the capture), of the options, or they are derived from the
ranks of the groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
from collhub_captured_graphs import (
    CapturedGraph,
    GraphNode,
    derive_axes,
    describe_node,
    is_collective,
)

from collhub_coconet.program.operations import Binding
from hub_core.columns import connected_parts
from hub_core.model import InputError, Location

DEFAULT_RANKS = 4
MAX_RANKS = 1 << 16
"""Ranks of a graph without options, and the limit of ranks that are read."""


@dataclass(frozen=True, slots=True)
class GraphMesh:
    """Axes of the ranks of a graph, and the axes of every process group.

    `names`: of the axes, the slowest first; empty for one process group. `sizes`: ranks along
    every axis, a single number for one process group. `axes_of`: positions of the axes that a
    process group goes along, by its name.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    axes_of: Mapping[str, tuple[int, ...]]

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the program."""
        return prod(self.sizes)

    def name_axes(self, axes: Sequence[int]) -> tuple[str, ...] | None:
        """Return the names of axes, given by position; None if the mesh has no names
        (one process group).
        """
        return tuple(self.names[axis] for axis in axes) if self.names else None

    def count(self, axes: Sequence[int]) -> int:
        """Return the number of ranks that communicate along these axes."""
        return prod(self.sizes[axis] for axis in axes)


def find_mesh(
    graph: CapturedGraph,
    num_ranks: int | None = None,
    sizes: Mapping[str, int] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> GraphMesh:
    """Return the mesh of ranks of a captured graph, with the axes of each group in use.

    `sizes`: ranks by axis, the slowest first; `groups`: axes by group. The first case that applies:
    1. `sizes`, or else the device mesh of the graph, gives the axes.
    2. At most one group is in use (names with equal recorded ranks count once): one axis without a
       name. Its size is the number of recorded ranks, else the last integer `group_size` of a
       collective, else `num_ranks`, else 4.
    3. The axes are derived from the recorded ranks of all groups.

    In cases 1 and 3, a group has its axes in `groups`, otherwise those of its recorded ranks. They
    must be recorded, except in case 1 for a group in `groups`. Raises `InputError` for a group
    against this rule, for unknown axes, for ranks that follow no axes, if `num_ranks` or
    `group_size` contradicts the mesh, and if the ranks are not 2 to 65536.
    """
    used = {
        str(node.arguments["group_name"]): node
        for node in reversed(graph.nodes)
        if is_collective(node.operator) and isinstance(node.arguments.get("group_name"), str)
    }
    sizes = dict(sizes or dict(zip(graph.mesh, graph.mesh_sizes, strict=False)))
    distinct = {graph.groups.get(name, name) for name in used}
    if not sizes and len(distinct) <= 1:
        number = _find_num_ranks(graph, used, num_ranks)
        _check_count(graph, number)
        return GraphMesh((), (number,), dict.fromkeys(used, (0,)))
    for name in used:
        if name not in graph.groups and not (sizes and name in (groups or {})):
            names = " and ".join(sorted(used)[:4])
            message = f"collectives use the process groups {names}, whose ranks are not stated"
            cure = f"name their axes: -O mesh=dp=2,tp=2 -O groups={name}=dp"
            raise _build_error(graph, message, cure, "groups")
    if not sizes:
        sizes = derive_axes({graph.groups[name]: name for name in reversed(used)}, graph.file)
    number = prod(sizes.values())
    _check_count(graph, number)
    if num_ranks not in (None, number):
        message = f"the graph was captured on {number} ranks, not {num_ranks}"
        raise _build_error(graph, message, "leave num_ranks out", "ranks")
    axes_of = {}
    for name, node in used.items():
        given = (groups or {}).get(name)
        axes = _find_axes(graph, sizes, name) if given is None else _match(graph, sizes, given)
        size = node.arguments.get("group_size")
        count = prod([*sizes.values()][axis] for axis in axes)
        if type(size) is int and size != count:
            message = f"has {size} ranks, but its group goes along axes of {count} ranks"
            graph.refuse(node, message, "groups", "correct the sizes of the mesh")
        axes_of[name] = axes
    return GraphMesh(tuple(sizes), tuple(sizes.values()), axes_of)


def find_blocks(graph: CapturedGraph, mesh: GraphMesh) -> Mapping[str, frozenset[int]]:
    """Return by name the mesh axes (positions) that slice a value, as collectives show.

    The results of reduce-scatters and the operands of all-gathers are sliced along all axes
    of their group; an unknown group means all axes. All related values are sliced, too, also
    through other values. Related are:

    - operand and result of a wait
    - the single result of an operator that is no collective, and each operand of the same
      shape that it allows to be sliced

    Axes of several collectives are united. Scalars and values without axes have no entry.
    Entries are in the order of `graph.tensors`.
    """
    number_of = {name: number for number, name in enumerate(graph.tensors)}
    related: list[tuple[str, str]] = []
    seeds: list[tuple[str, tuple[int, ...]]] = []
    for node in graph.nodes:
        if node.operator.endswith("wait_tensor.default"):
            related.append((node.reads[0], node.tensors[0].name))
        elif is_collective(node.operator):
            name, axes = node.operator.split(".")[1], find_group_axes(mesh, node)
            if name.startswith("reduce_scatter"):
                seeds += [(one.name, axes) for one in node.tensors]
            if name.startswith("all_gather"):
                seeds += [(one, axes) for one in node.reads]
        elif len(node.tensors) == 1:
            facts = describe_node(graph, node)
            result = node.tensors[0]
            equal = [one for one in facts.sliceable if graph.tensors[one].shape == result.shape]
            related += [(name, result.name) for name in equal]
    firsts = np.array([number_of[first] for first, _ in related], np.int64)
    seconds = np.array([number_of[second] for _, second in related], np.int64)
    sets = connected_parts(firsts, seconds, len(number_of)).tolist()
    axes_of: dict[int, frozenset[int]] = {}
    for name, axes in seeds:
        of_set = sets[number_of[name]]
        axes_of[of_set] = axes_of.get(of_set, frozenset()) | frozenset(axes)
    return {
        name: axes_of[of_set]
        for (name, tensor), of_set in zip(graph.tensors.items(), sets, strict=True)
        if tensor.shape and of_set in axes_of
    }


def find_group_axes(mesh: GraphMesh, node: GraphNode) -> tuple[int, ...]:
    """Return the positions of the mesh axes along which a collective communicates, ascending.

    They are those of its argument `group_name` in `mesh.axes_of`. Without this argument, or
    for a name that is no key of `mesh.axes_of`, they are all axes of the mesh.
    """
    name = node.arguments.get("group_name")
    return mesh.axes_of.get(name if isinstance(name, str) else "", tuple(range(len(mesh.sizes))))


def _find_num_ranks(
    graph: CapturedGraph, used: Mapping[str, GraphNode], requested: int | None
) -> int:
    """Return the number of ranks of a graph with at most one process group.

    The first of these numbers that exists is returned:

    1. the ranks of the group that the graph records, of several names in `used` those of the last
       one
    2. the group size of the last collective in the graph that has an integer size
    3. `requested`, the number of the user
    4. `DEFAULT_RANKS`

    Raises `InputError` (`ranks`) if `requested` differs from a number of the graph (1 or 2).
    """
    sizes = [
        node.arguments.get("group_size") for node in graph.nodes if is_collective(node.operator)
    ]
    numbers = [size for size in sizes if type(size) is int]
    numbers += [len(graph.groups[name]) for name in used if name in graph.groups]
    number = numbers[-1] if numbers else None
    if number is not None and requested not in (None, number):
        message = f"the graph was captured on {number} ranks, not {requested}"
        raise _build_error(graph, message, "leave num_ranks out", "ranks")
    return number or requested or DEFAULT_RANKS


def _check_count(graph: CapturedGraph, number: int) -> None:
    """Raise `InputError` unless a program of this number of ranks has 2 to `MAX_RANKS`."""
    if not 2 <= number <= MAX_RANKS:
        message = f"the graph has {number} ranks, 2 to {MAX_RANKS} are read"
        raise _build_error(graph, message, "state the ranks: -O num_ranks=4", "ranks")


def _find_axes(graph: CapturedGraph, sizes: Mapping[str, int], name: str) -> tuple[int, ...]:
    """Return the positions of the mesh axes along which the ranks of a group differ, ascending.

    `sizes`: ranks by axis name, the slowest axis first; `name`: a key of `graph.groups`. A mesh of
    n ranks may be repeated: copy k has the ranks k n to (k + 1) n - 1. The ranks of the group are
    reduced by the first rank of the copy with the lowest rank of the group. They must then be
    exactly, in ascending order, a set of ranks that differ only on some axes. On the mesh 2 x 2,
    ranks 0, 1 give (1,), ranks 4, 6 give (0,), and ranks 0, 1, 2, 3 give (0, 1).

    Combinations of one axis are tried first, then of two and so on, each in the order of the axes.
    Raises `InputError` (`groups`) if none fits, for example for an empty group, or a group of one
    rank in a mesh without an axis of size 1.
    """
    ranks = graph.groups[name]
    binding = Binding.of_mesh(tuple(sizes.values()), {})
    first = min(ranks, default=0) // binding.num_ranks * binding.num_ranks
    group = [rank - first for rank in ranks]
    positions = range(len(sizes))
    for count in range(1, len(sizes) + 1):
        for axes in combinations(positions, count):
            if group in binding.subgroups(axes):
                return axes
    mesh = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
    message = f"process group {name:.60} has ranks {list(ranks)[:8]}, no axes of the mesh {mesh}"
    raise _build_error(graph, message, "capture with groups of the device mesh", "groups")


def _match(graph: CapturedGraph, sizes: Mapping[str, int], names: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of the named axes in the mesh, ascending; () without names.

    `sizes`: ranks by axis, in the order of the mesh. A repeated name gives a repeated
    position. Raises `InputError` (`axis`) for the first name that the mesh lacks.
    """
    for name in names:
        if name not in sizes:
            raise _build_error(
                graph, f"the mesh has no axis {name:.60}", f"name {', '.join(sizes)}", "axis"
            )
    return tuple(sorted([*sizes].index(name) for name in names))


def _build_error(graph: CapturedGraph, message: str, cure: str, code: str) -> InputError:
    return InputError(message, location=Location(graph.file or None), cure=cure, code=code)
