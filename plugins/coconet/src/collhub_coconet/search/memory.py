"""Peak memory of a program on one rank."""

from __future__ import annotations

from collhub_coconet.program.operations import Kind
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding


def peak_bytes(program: Program, binding: Binding) -> int:
    """Most bytes that a rank holds at once, kernels one after another.

    Arguments and states stay. A value lives from the kernel that makes it to the last that reads
    it, an output to the end; one that its own kernel alone reads stays in registers. An Update
    writes into its state, a Slice is a view.
    """
    kernels = program.kernels()
    last = {name: len(kernels) for name in program.outputs}
    for place, kernel in enumerate(kernels):
        for operation in kernel:
            for name in operation.reads:
                last[name] = max(last.get(name, 0), place)
    change = [0] * (len(kernels) + 1)
    for place, kernel in enumerate(kernels):
        for operation in kernel:
            end = last.get(operation.name, place)
            if operation.kind in (Kind.UPDATE, Kind.SLICE) or (end == place and len(kernel) > 1):
                continue
            size = binding.bytes_of_rank(program.types[operation.name])
            change[place] += size
            # Freed behind its last reader.
            if end < len(kernels):
                change[end + 1] -= size
    resident = sum(binding.bytes_of_rank(one.type) for one in program.arguments)
    most = held = 0
    for one in change:
        held += one
        most = max(most, held)
    return resident + most
