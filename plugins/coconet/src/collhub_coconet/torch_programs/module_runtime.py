# Some names of torch are not exported to type checkers.
# mypy: disable-error-code="attr-defined,no-untyped-call"
"""Functions that `writing` copies into every written module; it needs PyTorch only."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

NUM_RANKS = 0
MESH: dict[str, int] = {}
GROUPS: list[list[str]] = []
ARGUMENTS: dict[str, tuple[str, list[int], int | str | list[int | str]]] = {}
UPDATES: dict[str, str] = {}
OUTPUT_LAYOUTS: dict[str, int | str | list[int | str]] = {}
OUTPUT_SHAPES: dict[str, list[int]] = {}

Group: TypeAlias = "dist.ProcessGroup | None"
Layout: TypeAlias = "int | str | list[int | str]"
Tensors: TypeAlias = dict[str, torch.Tensor]

_groups_of_mesh: dict[Group, dict[str, Group]] = {}


def _make_groups(group: Group) -> dict[str, Group]:
    """Return the process groups of this rank by the names of their axes, such as `dp` or `dp+tp`.

    The ranks of `group` (None: all ranks of the job), in their order, form the mesh `MESH`, whose
    first axis varies slowest. There is one entry per element of `GROUPS`: each axis of the mesh,
    and the combinations of axes that the module needs. Its process group has this rank and all
    ranks that differ from it only in their positions on these axes, in ascending order. Without a
    mesh the dict is empty.

    The first call for a `group` creates the process groups, and all ranks of `group` must make it.
    The result is cached by `group`.
    """
    if group not in _groups_of_mesh:
        world = dist.get_process_group_ranks(group or dist.group.WORLD) if MESH else []
        groups: dict[str, Group] = {}
        for axes in GROUPS:
            members: dict[tuple[int, ...], list[int]] = {}
            for rank in range(len(world)):
                others = zip(MESH, _find_coordinates(rank), strict=True)
                key = tuple(number for axis, number in others if axis not in axes)
                members.setdefault(key, []).append(rank)
            for ranks in members.values():
                is_member = dist.get_rank(group) in ranks
                if group is None or is_member:
                    is_local = group is not None
                    numbers = [world[rank] for rank in ranks]
                    created = dist.new_group(numbers, use_local_synchronization=is_local)
                    groups |= {"+".join(axes): created} if is_member else {}
        _groups_of_mesh[group] = groups
    return _groups_of_mesh[group]


def _find_coordinates(rank: int) -> list[int]:
    """Return the position of a rank on each axis of `MESH`; the first axis varies slowest.

    `rank`: within the group that forms the mesh, from 0. The result is [] without a mesh.
    """
    coordinates = []
    for size in reversed(MESH.values()):
        rank, coordinate = divmod(rank, size)
        coordinates.append(coordinate)
    return coordinates[::-1]


def _list_axes(layout: Layout, group: Group) -> list[tuple[int | str, Group]]:
    """Return (layout, process group of this rank) for every axis of the mesh, in its order.

    `layout`: one entry per axis, a dimension (int) or a placement such as `local` (text).
    If it is a single entry instead of a list, the result is one pair of it and `group`. The
    first call with a list creates the process groups (`_make_groups`), so all ranks of
    `group` must make it.
    """
    if not isinstance(layout, list):
        return [(layout, group)]
    groups = _make_groups(group)
    return [(one, groups[axis]) for axis, one in zip(MESH, layout, strict=True)]


def _name(group: Group) -> str:
    """Return the name of a process group, which functional collectives take; None is all ranks."""
    process_group = group or dist.group.WORLD
    assert process_group is not None
    return str(process_group.group_name)


def _block(x: torch.Tensor, dimension: int, group: Group) -> torch.Tensor:
    """Return the block of this rank in `group` along a dimension of n elements, contiguous.

    Blocks have ceil(n / p) elements on p ranks; the last ones have fewer, or none. The
    block shares the memory of `x` if it is contiguous there, and is a copy otherwise.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    length = -(-x.shape[dimension] // ranks)
    first = min(rank * length, x.shape[dimension])
    return x.narrow(dimension, first, min(length, x.shape[dimension] - first)).contiguous()


def _pad_rows(x: torch.Tensor, rows: int) -> torch.Tensor:
    """Append zeros along dimension 0 until `x` has `rows` rows; the result is contiguous.

    `x` is not changed. A contiguous `x` of `rows` rows is returned itself. Raises
    `RuntimeError` if `x` has more rows.
    """
    missing = rows - x.shape[0]
    if not missing:
        return x.contiguous()
    return torch.cat([x, x.new_zeros((missing, *x.shape[1:]))])


class _Pending:
    """Result of a collective in flight; `finish`: computes the value after the wait."""

    def __init__(
        self, tensor: torch.Tensor, finish: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self.tensor, self.finish = tensor, finish

    def wait(self) -> torch.Tensor:
        return self.finish(torch.ops._c10d_functional.wait_tensor(self.tensor))


def _all_reduce(x: torch.Tensor, reduction: str, group: Group) -> _Pending:
    """Start an all-reduce over a group; the pending result has the shape of `x`.

    `reduction`: name of an operator of PyTorch, such as `sum`. `x` is not changed.
    """
    result = torch.ops._c10d_functional.all_reduce(x.contiguous(), reduction, _name(group))
    return _Pending(result, lambda value: value)


def _all_reduce_bucket(
    tensors: Sequence[torch.Tensor], reduction: str, group: Group
) -> list[_Share]:
    """Start one all-reduce of several tensors, which are copied into one vector.

    The tensors must have one element type; there must be at least one. `reduction`: as for
    PyTorch, such as `sum`. Returns one pending result per tensor, in order and in its
    shape. The tensors are not changed.
    """
    flat = torch.cat([x.reshape(-1) for x in tensors])
    result = torch.ops._c10d_functional.all_reduce(flat, reduction, _name(group))
    parts = [(x.numel(), lambda value, x=x: value.reshape(x.shape)) for x in tensors]
    return _divide_bucket(result, parts, 1)


def _reduce_scatter_bucket(
    tensors: Sequence[torch.Tensor], dimensions: Sequence[int], reduction: str, group: Group
) -> list[_Share]:
    """Start one reduce-scatter of several tensors of one element type.

    All ranks of `group` must call it, with tensors of equal shapes. Returns one pending result per
    tensor, in order; `wait()` gives the block of this rank along the tensor's entry of
    `dimensions`, as a contiguous tensor. A dimension of n elements on p ranks has blocks of ceil(n
    / p) elements; the last ones have fewer, or none. Blocks are padded with zeros during the
    transfer; the results have no padding. `reduction`: as for PyTorch, such as `sum`. The tensors
    are not changed; there must be at least one.
    """
    ranks = dist.get_world_size(group)
    blocks, parts = [], []
    for x, dimension in zip(tensors, dimensions, strict=True):
        rows = x.movedim(dimension, 0)
        length = -(-rows.shape[0] // ranks)
        own = max(0, min(length, rows.shape[0] - dist.get_rank(group) * length))
        blocks.append(_pad_rows(rows, ranks * length).reshape(ranks, -1))

        def finish(
            value: torch.Tensor,
            shape: tuple[int, ...] = (length, *rows.shape[1:]),
            own: int = own,
            dimension: int = dimension,
        ) -> torch.Tensor:
            return value.reshape(shape).narrow(0, 0, own).movedim(0, dimension).contiguous()

        parts.append((blocks[-1].shape[1], finish))
    flat = torch.cat(blocks, 1).reshape(-1)
    result = torch.ops._c10d_functional.reduce_scatter_tensor(flat, reduction, ranks, _name(group))
    return _divide_bucket(result, parts, 1)


def _all_gather_bucket(
    tensors: Sequence[torch.Tensor], dimensions: Sequence[int], sizes: Sequence[int], group: Group
) -> list[_Share]:
    """Start one all-gather of blocks of several tensors of one element type.

    All ranks of `group` must call it. `tensors`: the blocks of this rank. `sizes`: elements of each
    complete dimension. A dimension of n elements on p ranks has blocks of ceil(n / p) elements; the
    last ones have fewer, or none, and are padded with zeros during the transfer.

    Returns one pending result per tensor, in order; `wait()` gives the blocks of all ranks, joined
    along the tensor's entry of `dimensions` in the order of ranks, without padding. The tensors are
    not changed; there must be at least one.
    """
    ranks = dist.get_world_size(group)
    blocks, parts = [], []
    for x, dimension, size in zip(tensors, dimensions, sizes, strict=True):
        rows = _pad_rows(x.movedim(dimension, 0), -(-size // ranks))
        blocks.append(rows.reshape(-1))

        def finish(
            value: torch.Tensor,
            shape: tuple[int, ...] = tuple(rows.shape[1:]),
            size: int = size,
            dimension: int = dimension,
        ) -> torch.Tensor:
            complete = value.reshape(-1, *shape).narrow(0, 0, size)
            return complete.movedim(0, dimension).contiguous()

        parts.append((rows.numel(), finish))
    result = torch.ops._c10d_functional.all_gather_into_tensor(
        torch.cat(blocks), ranks, _name(group)
    )
    return _divide_bucket(result, parts, ranks)


def _divide_bucket(
    tensor: torch.Tensor,
    parts: Sequence[tuple[int, Callable[[torch.Tensor], torch.Tensor]]],
    ranks: int,
) -> list[_Share]:
    """Return the pending results of the tensors in a bucket, in the order of `parts`.

    A bucket is one collective for several tensors; its result is `tensor`, and it may still
    run. The first `wait` of any result waits for it, later ones do not wait again.

    `tensor` has `ranks` equal blocks, one after the other; `ranks` is 1 unless the collective
    gathers. Each block has the elements of all parts, one part after the other. A part is its
    number of elements per block and a function. Each `wait` of its result returns the value
    of this function for its elements, as a tensor [ranks, elements]. Sizes are not checked.
    """
    start = 0
    bucket = _Bucket(tensor)
    results: list[_Share] = []
    for count, finish in parts:
        results.append(_Share(bucket, ranks, start, count, finish))
        start += count
    return results


class _Bucket:
    """Result of a collective of several tensors; only the first `wait` waits for it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.is_complete = tensor, False

    def wait(self) -> torch.Tensor:
        if not self.is_complete:
            self.tensor = torch.ops._c10d_functional.wait_tensor(self.tensor)
            self.is_complete = True
        return self.tensor


class _Share:
    """Part of a pending bucket: `count` elements per rank from `start` on.

    `finish` computes the value of the member from them, with shape (ranks, count).
    """

    def __init__(
        self,
        bucket: _Bucket,
        ranks: int,
        start: int,
        count: int,
        finish: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self.bucket, self.ranks, self.finish = bucket, ranks, finish
        self.start, self.count = start, count

    def wait(self) -> torch.Tensor:
        value = self.bucket.wait().view(self.ranks, -1)
        return self.finish(value.narrow(1, self.start, self.count))


def _reduce_scatter(x: torch.Tensor, dimension: int, reduction: str, group: Group) -> _Pending:
    """Start a reduce-scatter; the result is the block of this rank along `dimension`.

    Blocks have ceil(n / p) elements on p ranks; the last ones have fewer, or none. `x` is
    padded for the communication and not changed; the result is contiguous, and has no padding.
    """
    ranks = dist.get_world_size(group)
    rows = x.movedim(dimension, 0)
    length = -(-rows.shape[0] // ranks)
    padded = _pad_rows(rows, ranks * length)
    own = max(0, min(length, rows.shape[0] - dist.get_rank(group) * length))
    result = torch.ops._c10d_functional.reduce_scatter_tensor(
        padded, reduction, ranks, _name(group)
    )
    return _Pending(
        result, lambda value: value.narrow(0, 0, own).movedim(0, dimension).contiguous()
    )


def _all_gather(x: torch.Tensor, dimension: int, size: int, group: Group) -> _Pending:
    """Start an all-gather of blocks along `dimension`, which has `size` elements in total.

    `x`: the block of this rank. On p ranks a block has ceil(size / p) elements along it,
    the last ones fewer or none; they are padded with zeros during the transfer. The pending
    result has the blocks in the order of the ranks, without padding, and is contiguous.
    """
    ranks = dist.get_world_size(group)
    padded = _pad_rows(x.movedim(dimension, 0), -(-size // ranks))
    result = torch.ops._c10d_functional.all_gather_into_tensor(padded, ranks, _name(group))
    return _Pending(
        result, lambda value: value.narrow(0, 0, size).movedim(0, dimension).contiguous()
    )


def _all_to_all(
    x: torch.Tensor, source: int, destination: int, size: int, group: Group
) -> _Pending:
    """Start an all-to-all: gather along `source`, keep this rank's block of `destination`.

    `x`: complete along `destination`, and this rank's block along `source`. The pending
    result is complete along `source`, in the order of the ranks, and is contiguous. The
    complete sizes of both dimensions must be multiples of the ranks. `size`: that of
    `destination`; not used.
    """
    ranks = dist.get_world_size(group)
    parts = torch.cat([part.movedim(source, 0) for part in x.chunk(ranks, destination)])
    splits = [parts.shape[0] // ranks] * ranks
    result = torch.ops._c10d_functional.all_to_all_single(
        parts.contiguous(), splits, splits, _name(group)
    )
    return _Pending(result, lambda value: value.movedim(0, source).contiguous())


def _all_to_all_rows(
    x: torch.Tensor, counts: Sequence[Sequence[int]], rows: int, group: Group
) -> _Pending:
    """Start an exchange of rows: `counts[i][j]` rows are sent from rank i to rank j.

    Every rank sends its first rows to rank 0, the following ones to rank 1, and so on; rows
    after these are not sent. The pending result has the received rows in the order of their
    senders, then zeros up to `rows` rows.

    Raises `RuntimeError` if `x` has fewer rows than the rank must send. The `wait` of the
    result raises it if more than `rows` rows are received.
    """
    rank = dist.get_rank(group)
    sent, received = list(counts[rank]), [row[rank] for row in counts]
    result = torch.ops._c10d_functional.all_to_all_single(
        x.narrow(0, 0, sum(sent)).contiguous(), received, sent, _name(group)
    )
    return _Pending(result, lambda value: _pad_rows(value, rows))


def _send_chunk(
    x: torch.Tensor, counts: Sequence[Sequence[int]], chunk: int, chunks: int, group: Group
) -> _Pending:
    """Start the exchange of chunk `chunk` (from 0) of `chunks` of the rows of `x`.

    `counts[i][j]` rows are sent from rank i to rank j in all chunks together; `x` begins
    with the rows to rank 0, followed by those to rank 1, and so on. Of c rows from one rank
    to another, chunk k of n has those from c * k // n to c * (k + 1) // n. The pending
    result has the received rows of this chunk in the order of their senders.
    """
    own = list(counts[dist.get_rank(group)])
    blocks = x.narrow(0, 0, sum(own)).split(own)
    rows = [
        block[count * chunk // chunks : count * (chunk + 1) // chunks]
        for block, count in zip(blocks, own, strict=True)
    ]
    return _forward_chunk(torch.cat(rows), counts, chunk, chunks, group)


def _forward_chunk(
    rows: torch.Tensor, counts: Sequence[Sequence[int]], chunk: int, chunks: int, group: Group
) -> _Pending:
    """Start the exchange of `rows`, the rows of one chunk in the order of their receivers.

    `counts[i][j]` rows go from rank i to rank j in all `chunks` chunks together. Of c rows from
    one rank to another, chunk k (from 0) of n has those from c * k // n to c * (k + 1) // n. The
    pending result has the received rows of this chunk in the order of their senders. `rows` is
    not changed. All ranks of `group` must call this.
    """
    rank = dist.get_rank(group)
    sent = _divide_counts(counts[rank], chunk, chunks)
    received = _divide_counts([row[rank] for row in counts], chunk, chunks)
    result = torch.ops._c10d_functional.all_to_all_single(
        rows.contiguous(), received, sent, _name(group)
    )
    return _Pending(result, lambda value: value)


def _divide_counts(counts: Sequence[int], chunk: int, chunks: int) -> list[int]:
    """Return the rows of a chunk of every count."""
    return [count * (chunk + 1) // chunks - count * chunk // chunks for count in counts]


def _join_chunks(
    parts: Sequence[torch.Tensor], counts: Sequence[Sequence[int]], rows: int, group: Group
) -> torch.Tensor:
    """Return the received rows of all chunks in the order of their senders, then zeros.

    `parts`: for each chunk, in order, its received rows (the results of `_send_chunk` or
    `_forward_chunk`, after the wait). `counts[i][j]`: rows from rank i to rank j in all
    chunks. The result has `rows` rows; raises `RuntimeError` if more are received.
    """
    received = [row[dist.get_rank(group)] for row in counts]
    blocks = [
        part.split(_divide_counts(received, chunk, len(parts))) for chunk, part in enumerate(parts)
    ]
    ordered = [
        block for blocks_of_sender in zip(*blocks, strict=True) for block in blocks_of_sender
    ]
    return _pad_rows(torch.cat(ordered), rows)


def _all_gather_rows(x: torch.Tensor, counts: Sequence[int], group: Group) -> _Pending:
    """Start an all-gather of the first `counts[i]` rows of every rank i, in rank order.

    All ranks transfer as many rows as the largest count, since backends need equal shapes;
    `x` must have them (`RuntimeError` otherwise). The pending result has only the counted
    rows.
    """
    longest = max(counts)
    result = torch.ops._c10d_functional.all_gather_into_tensor(
        x.narrow(0, 0, longest).contiguous(), len(counts), _name(group)
    )

    def finish(value: torch.Tensor) -> torch.Tensor:
        blocks = value.reshape(len(counts), longest, *value.shape[1:])
        return torch.cat([block[:count] for block, count in zip(blocks, counts, strict=True)])

    return _Pending(result, finish)


def _reduce_scatter_rows(
    x: torch.Tensor, counts: Sequence[int], reduction: str, group: Group
) -> _Pending:
    """Start a reduce-scatter of rows: rank i gets `counts[i]` rows, lower ranks those before.

    `x` has sum(`counts`) rows on every rank (`RuntimeError` otherwise). The parts are
    padded with zeros to the largest count during the transfer. The pending result has as
    many rows as the largest count; those after the rows of a rank are zeros.
    """
    longest, own = max(counts), counts[dist.get_rank(group)]
    padded = torch.cat([_pad_rows(part, longest) for part in x.split(list(counts))])
    result = torch.ops._c10d_functional.reduce_scatter_tensor(
        padded, reduction, len(counts), _name(group)
    )
    return _Pending(result, lambda value: _pad_rows(value.narrow(0, 0, own), longest))


def _broadcast(x: torch.Tensor, root: int, group: Group) -> _Pending:
    """Start a broadcast from rank `root` of the group, counted within it.

    The pending result has the values of the root; `x`, of equal shape on all ranks, is not changed.
    """
    result = torch.ops._c10d_functional.broadcast(x.contiguous(), root, _name(group))
    return _Pending(result, lambda value: value)


def _reduce(x: torch.Tensor, root: int, reduction: str, group: Group) -> _Pending:
    """Start a reduction whose result programs use on rank `root` only.

    It is an all-reduce, because PyTorch has no functional reduction to one rank: `root` is
    ignored, and every rank of `group` gets the result. `x` is not changed.
    """
    result = torch.ops._c10d_functional.all_reduce(x.contiguous(), reduction, _name(group))
    return _Pending(result, lambda value: value)


def _all_reduce_scalar(x: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
    """Return the all-reduced scalar after waiting for it."""
    return _all_reduce(x, reduction, group).wait()


def _top(x: torch.Tensor, dimension: int, count: int) -> Any:
    """Return `values` and `indices` of the `count` largest elements along a dimension.

    The largest is first, and of equal elements the one with the smallest position. NaN
    counts as the largest. Raises `RuntimeError` if there are fewer than `count` elements.
    """
    values, indices = x.sort(dim=dimension, descending=True, stable=True)
    parts = (one.narrow(dimension, 0, count) for one in (values, indices))
    return torch.return_types.sort(parts)


def _gather_rows(x: torch.Tensor, indices: torch.Tensor, size: int, group: Group) -> torch.Tensor:
    """Select rows by index from this rank's block of a table; rows outside of it are zeros.

    `size`: rows of the complete table, of which every rank but the last ones holds ceil(`size`
    / ranks) rows; a block may be empty. `indices`: in the complete table. The result has the
    shape of `indices`, followed by that of a row. The function does not communicate.
    """
    length = -(-size // dist.get_world_size(group))
    places = indices - dist.get_rank(group) * length
    is_inside = (places >= 0) & (places < x.shape[0])
    if not x.shape[0]:
        return x.new_zeros((*indices.shape, *x.shape[1:]))
    rows = x[places.where(is_inside, 0)]
    # Not a product with the mask: the first row, which stands for all others, may be infinite.
    is_row_inside = is_inside.reshape(*indices.shape, *[1] * (x.dim() - 1))
    return torch.where(is_row_inside, rows, 0)


def _scatter(indices: torch.Tensor, values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Add values at rows of a tensor of zeros."""
    return values.new_zeros(list(shape)).index_put((indices,), values, accumulate=True)


def shard(arguments: Mapping[str, torch.Tensor], group: Group = None) -> Tensors:
    """Return all arguments by name, with the sliced ones cut to the block of this rank.

    `arguments`: complete tensors, with one entry for every name of `ARGUMENTS`. Arguments that are
    not sliced are returned unchanged.
    """
    result: Tensors = {}
    for name, (_, _, layout) in ARGUMENTS.items():
        value = arguments[name]
        for one, group_of_axis in _list_axes(layout, group):
            value = _block(value, one, group_of_axis) if isinstance(one, int) else value
        result[name] = value
    return result


def random_arguments(seed: int, group: Group = None) -> Tensors:
    """Return random arguments of this rank by name, in the order of `ARGUMENTS`.

    - A sliced argument is the block of this rank of a complete random tensor. This tensor is
      equal on all ranks.
    - A local argument differs between ranks with different positions on its local axes.
    - Any other argument is equal on all ranks.

    Floats are in [0.1, 1], other elements 0 or 1, in the declared element type. Equal seeds give
    equal values; the global random state is not used. `group` None means all ranks. On a mesh,
    the first call creates process groups, so all ranks of `group` must make it.
    """
    result: Tensors = {}
    for number, (name, (element, shape, layout)) in enumerate(ARGUMENTS.items()):
        rank = 0
        for one, group_of_axis in _list_axes(layout, group):
            rank *= dist.get_world_size(group_of_axis)
            rank += dist.get_rank(group_of_axis) if one == "local" else 0
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number * 1009 + rank)
        dtype = getattr(torch, element)
        if dtype.is_floating_point:
            tensor = torch.rand(shape, generator=generator) * 0.9 + 0.1
            result[name] = tensor.to(dtype)
        else:
            result[name] = torch.randint(0, 2, shape, generator=generator).to(dtype)
    return shard(result, group)


def _complete(
    outputs: Mapping[str, torch.Tensor],
    layouts: Mapping[str, Layout],
    shapes: Mapping[str, Sequence[int]],
    group: Group,
) -> Tensors:
    """Return the complete tensors of all outputs by name; every rank receives them.

    All ranks of `group` must call it. An output whose layout has a dimension (an int) for an axis
    is gathered along this dimension on this axis; the last axis of the mesh is gathered first. Axes
    with other layouts (text) leave the output unchanged, so a local or partial output keeps the
    values of this rank. `shapes`: complete shapes by name. Waits for every gather.
    """
    result: Tensors = {}
    for name, value in outputs.items():
        shape, pending = list(shapes[name]), []
        for one, group_of_axis in _list_axes(layouts[name], group):
            if isinstance(one, int):
                pending.append((one, shape[one], group_of_axis))
                # Blocks of several axes have equal lengths.
                shape[one] //= dist.get_world_size(group_of_axis)
        for dimension, size, group_of_axis in reversed(pending):
            value = _all_gather(value, dimension, size, group_of_axis).wait()
        result[name] = value
    return result


def _measure(programs: Sequence[Any], repeats: int) -> list[tuple[Tensors, float]]:
    """Run each program; return the outputs of a step and the median of `repeats` times in s.

    All ranks of the initialized default process group call it together. `programs`: modules that
    are already imported, whose random arguments have seed 0. Returns one pair per program, in
    order. The outputs are those of a first step, which is not timed.

    Each of the `repeats` rounds runs a step of each program in turn, so that other load of the host
    affects all of them. A time contains the step and a sum over each output. It is that of the
    slowest rank, so all ranks get equal times. Raises `statistics.StatisticsError` if `repeats` is
    0.
    """
    arguments = [program.random_arguments(0) for program in programs]
    outputs = [program.step(values) for program, values in zip(programs, arguments, strict=True)]
    times: list[list[float]] = [[] for _ in programs]
    for _ in range(repeats):
        for program, values, measured in zip(programs, arguments, times, strict=True):
            dist.barrier()
            start = time.perf_counter()
            for value in program.step(values).values():
                value.sum()
            elapsed = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
            dist.all_reduce(elapsed, dist.ReduceOp.MAX)
            measured.append(float(elapsed))
    return list(zip(outputs, map(statistics.median, times), strict=True))


def _find_relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference of two elements, divided by the largest expected magnitude.

    The tensors have equal shapes. Two NaNs are equal, and two infinities of one sign. If an element
    is NaN or infinite in only one of the tensors, the result is infinite. The magnitude is that of
    the finite expected elements; it is 1 if all of them are 0. Without elements the result is 0.
    """
    first, second = actual.double(), expected.double()
    is_equal = (first == second) | (first.isnan() & second.isnan())
    differences = (first - second)[~is_equal].abs().nan_to_num(torch.inf, torch.inf)
    if not differences.numel():
        return 0.0
    magnitudes = second[second.isfinite()].abs()
    scale = float(magnitudes.max()) if magnitudes.numel() else 0.0
    return float(differences.max()) / (scale or 1.0)


def _load(path: str) -> Any:
    """Import the written module in the file `path`, which executes it.

    Raises `ImportError` if the file name has no Python suffix.
    """
    import importlib.util

    specification = importlib.util.spec_from_file_location("original_program", path)
    if specification is None or specification.loader is None:
        raise ImportError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _run_rank(rank: int, path: str, options: argparse.Namespace) -> None:
    """Measure the step of this module as one rank of NUM_RANKS; rank 0 prints a line of JSON.

    `path`: file through which the ranks find each other. `options.repeats`: number of timed steps.
    The report has `ranks` and `seconds` (the median of a step). With `options.original`, the file
    of another module, it also has:

    - `original_seconds`: the median of a step of the other module
    - `max_relative_error`: the maximum of `_find_relative_error` over all outputs of the other
      module and over all ranks

    Creates and destroys the process group (gloo) and sets the number of threads to 1. Raises
    `KeyError` for an output that this module does not have.
    """
    torch.set_num_threads(1)
    store = dist.FileStore(path, NUM_RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS)
    programs = [sys.modules[__name__], *([_load(options.original)] if options.original else [])]
    (outputs, seconds), *others = _measure(programs, options.repeats)
    report: dict[str, float] = {"ranks": NUM_RANKS, "seconds": seconds}
    for other, (expected, report["original_seconds"]) in zip(programs[1:], others, strict=True):
        actual = _complete(outputs, OUTPUT_LAYOUTS, OUTPUT_SHAPES, None)
        expected = _complete(expected, other.OUTPUT_LAYOUTS, other.OUTPUT_SHAPES, None)
        error = 0.0
        for name, value in expected.items():
            error = max(error, _find_relative_error(actual[name], value))
        largest = torch.tensor(error, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        report["max_relative_error"] = float(largest)
    if rank == 0:
        print(json.dumps(report))
    dist.destroy_process_group()


def main() -> None:
    """Run the step on gloo with NUM_RANKS processes, and print ranks and seconds as JSON.

    The seconds are the median of --repeats timed steps (default 5). With --original they are also
    measured for another module, and the largest relative error of the outputs is printed. Fewer
    than one timed step is a usage error (exit 2).
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--original", help="module whose outputs and time are compared")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats: expected 1 or more, got {options.repeats}")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        torch.multiprocessing.start_processes(
            _run_rank, (path, options), nprocs=NUM_RANKS, start_method="fork"
        )


if __name__ == "__main__":
    main()
