# mypy: ignore-errors
"""Functions that `writing` copies into every written module; it needs PyTorch only."""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist

NUM_RANKS, ARGUMENTS, UPDATES, OUTPUT_LAYOUTS, OUTPUT_SHAPES = 0, {}, {}, {}, {}


def _name(group):
    """Name of a process group, which functional collectives take."""
    return (group or dist.group.WORLD).group_name


def _block(x, dimension, group):
    """Block of this rank along a dimension: ceil(n / p) elements, the last ones fewer."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    length = -(-x.shape[dimension] // ranks)
    first = min(rank * length, x.shape[dimension])
    return x.narrow(dimension, first, min(length, x.shape[dimension] - first)).contiguous()


def _pad_rows(x, rows):
    """Append rows of zeros, so that all blocks have the same length."""
    missing = rows - x.shape[0]
    if not missing:
        return x.contiguous()
    return torch.cat([x, x.new_zeros((missing, *x.shape[1:]))])


class _Pending:
    """Result of a collective in flight; `finish`: computes the value after the wait."""

    def __init__(self, tensor, finish):
        self.tensor, self.finish = tensor, finish

    def wait(self):
        return self.finish(torch.ops._c10d_functional.wait_tensor(self.tensor))


def _all_reduce(x, reduction, group):
    result = torch.ops._c10d_functional.all_reduce(x.contiguous(), reduction, _name(group))
    return _Pending(result, lambda value: value)


def _all_reduce_bucket(tensors, reduction, group):
    """All-reduce several tensors as one; returns one pending result per tensor."""
    flat = torch.cat([x.reshape(-1) for x in tensors])
    result = torch.ops._c10d_functional.all_reduce(flat, reduction, _name(group))
    parts = [(x.numel(), lambda value, x=x: value.reshape(x.shape)) for x in tensors]
    return _divide_bucket(result, parts, 1)


def _reduce_scatter_bucket(tensors, dimensions, reduction, group):
    """Reduce-scatter several tensors as one: a block of the bucket has a block of each."""
    ranks = dist.get_world_size(group)
    blocks, parts = [], []
    for x, dimension in zip(tensors, dimensions, strict=True):
        rows = x.movedim(dimension, 0)
        length = -(-rows.shape[0] // ranks)
        own = max(0, min(length, rows.shape[0] - dist.get_rank(group) * length))
        blocks.append(_pad_rows(rows, ranks * length).reshape(ranks, -1))

        def finish(value, shape=(length, *rows.shape[1:]), own=own, dimension=dimension):
            return value.reshape(shape).narrow(0, 0, own).movedim(0, dimension).contiguous()

        parts.append((blocks[-1].shape[1], finish))
    flat = torch.cat(blocks, 1).reshape(-1)
    result = torch.ops._c10d_functional.reduce_scatter_tensor(flat, reduction, ranks, _name(group))
    return _divide_bucket(result, parts, 1)


def _all_gather_bucket(tensors, dimensions, sizes, group):
    """All-gather several tensors as one; `sizes`: of the complete dimensions."""
    ranks = dist.get_world_size(group)
    blocks, parts = [], []
    for x, dimension, size in zip(tensors, dimensions, sizes, strict=True):
        rows = _pad_rows(x.movedim(dimension, 0), -(-size // ranks))
        blocks.append(rows.reshape(-1))

        def finish(value, shape=rows.shape[1:], size=size, dimension=dimension):
            complete = value.reshape(-1, *shape).narrow(0, 0, size)
            return complete.movedim(0, dimension).contiguous()

        parts.append((rows.numel(), finish))
    result = torch.ops._c10d_functional.all_gather_into_tensor(
        torch.cat(blocks), ranks, _name(group)
    )
    return _divide_bucket(result, parts, ranks)


def _divide_bucket(tensor, parts, ranks):
    """Pending results of a bucket: (count of elements per rank, function of them) by member."""
    pending, start, results = _Pending(tensor, None), 0, []
    for count, finish in parts:
        results.append(_Share(pending, ranks, start, count, finish))
        start += count
    return results


class _Share:
    """Part of a pending bucket; the first wait waits for all."""

    def __init__(self, pending, ranks, start, count, finish):
        self.pending, self.ranks, self.finish = pending, ranks, finish
        self.start, self.count = start, count

    def wait(self):
        if self.pending.finish is None:
            value = torch.ops._c10d_functional.wait_tensor(self.pending.tensor)
            self.pending.finish, self.pending.tensor = (lambda: value), None
        value = self.pending.finish().view(self.ranks, -1)
        return self.finish(value.narrow(1, self.start, self.count))


def _reduce_scatter(x, dimension, reduction, group):
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


def _all_gather(x, dimension, size, group):
    """`size`: of the complete dimension."""
    ranks = dist.get_world_size(group)
    padded = _pad_rows(x.movedim(dimension, 0), -(-size // ranks))
    result = torch.ops._c10d_functional.all_gather_into_tensor(padded, ranks, _name(group))
    return _Pending(
        result, lambda value: value.narrow(0, 0, size).movedim(0, dimension).contiguous()
    )


def _all_to_all(x, source, destination, size, group):
    """Blocks along `source` become blocks along `destination`; sizes are multiples of the ranks.

    `size`: of the complete dimension `destination`.
    """
    ranks = dist.get_world_size(group)
    parts = torch.cat([part.movedim(source, 0) for part in x.chunk(ranks, destination)])
    splits = [parts.shape[0] // ranks] * ranks
    result = torch.ops._c10d_functional.all_to_all_single(
        parts.contiguous(), splits, splits, _name(group)
    )
    return _Pending(result, lambda value: value.movedim(0, source).contiguous())


def _broadcast(x, root, group):
    result = torch.ops._c10d_functional.broadcast(x.contiguous(), root, _name(group))
    return _Pending(result, lambda value: value)


def _reduce(x, root, reduction, group):
    """The result is valid on the root only."""
    result = torch.ops._c10d_functional.all_reduce(x.contiguous(), reduction, _name(group))
    return _Pending(result, lambda value: value)


def _all_reduce_scalar(x, reduction, group):
    return _all_reduce(x, reduction, group).wait()


def shard(arguments, group=None):
    """Blocks of this rank of all sliced arguments, from the complete tensors; others unchanged."""
    result = {}
    for name, (_, _, layout) in ARGUMENTS.items():
        is_block = isinstance(layout, int)
        result[name] = _block(arguments[name], layout, group) if is_block else arguments[name]
    return result


def random_arguments(seed, group=None):
    """Random arguments of this rank: equal on all ranks unless they are local."""
    result = {}
    for number, (name, (element, shape, layout)) in enumerate(ARGUMENTS.items()):
        rank = dist.get_rank(group) if layout == "local" else 0
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number * 1009 + rank)
        dtype = getattr(torch, element)
        if dtype.is_floating_point:
            tensor = torch.rand(shape, generator=generator) * 0.9 + 0.1
            result[name] = tensor.to(dtype)
        else:
            result[name] = torch.randint(0, 2, shape, generator=generator).to(dtype)
    return shard(result, group)


def _complete(outputs, layouts, shapes, group):
    """Complete tensors of all outputs."""
    result = {}
    for name, value in outputs.items():
        layout = layouts[name]
        if isinstance(layout, int):
            value = _all_gather(value, layout, shapes[name][layout], group).wait()
        result[name] = value
    return result


def _measure(program, arguments, repeats):
    """Outputs of a program, and the median time of its steps in seconds on the slowest rank."""
    outputs = program.step(arguments)
    times = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        for value in program.step(arguments).values():
            value.sum()
        elapsed = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        dist.all_reduce(elapsed, dist.ReduceOp.MAX)
        times.append(float(elapsed))
    return outputs, statistics.median(times)


def _load(path):
    """Another written module."""
    import importlib.util

    specification = importlib.util.spec_from_file_location("original_program", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _run_rank(rank, path, options):
    torch.set_num_threads(1)
    store = dist.FileStore(path, NUM_RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS)
    this = sys.modules[__name__]
    outputs, seconds = _measure(this, random_arguments(0), options.repeats)
    report = {"ranks": NUM_RANKS, "seconds": seconds}
    if options.original:
        other = _load(options.original)
        expected, report["original_seconds"] = _measure(
            other, other.random_arguments(0), options.repeats
        )
        actual = _complete(outputs, OUTPUT_LAYOUTS, OUTPUT_SHAPES, None)
        expected = _complete(expected, other.OUTPUT_LAYOUTS, other.OUTPUT_SHAPES, None)
        error = 0.0
        for name, value in expected.items():
            scale = float(value.double().abs().max()) or 1.0
            error = max(error, float((actual[name].double() - value.double()).abs().max()) / scale)
        largest = torch.tensor(error, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        report["max_relative_error"] = float(largest)
    if rank == 0:
        print(json.dumps(report))
    dist.destroy_process_group()


def main():
    """Run the step on gloo with NUM_RANKS processes; `--original` compares another module."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--original", help="module whose outputs and time are compared")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        torch.multiprocessing.start_processes(
            _run_rank, (path, options), nprocs=NUM_RANKS, start_method="fork"
        )


if __name__ == "__main__":
    main()
