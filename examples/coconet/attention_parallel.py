"""Attention over a sequence that is cut into blocks, one a rank, in two ways.

Tensors are [heads, positions, channels]; keys come transposed. The softmax is exp(s) / sum(exp(s)),
its sum a product with ones.
"""

from math import e

from collhub_coconet import (
    Program,
    ProgramBuilder,
    Value,
    all_gather,
    all_to_all,
    batch_matmul,
    slice_of,
    sliced,
)


def ulysses(element: str = "float32") -> Program:
    """All-to-all from positions to heads, attention of whole heads, and back.

    Reference: Jacobs et al., "DeepSpeed Ulysses" (2023).
    """
    build, q, k, v, ones = _arguments("ulysses", element)
    q1 = all_to_all(q, 0).named("q1")
    k1 = all_to_all(k, 0).named("k1")
    v1 = all_to_all(v, 0).named("v1")
    weights = (e ** batch_matmul(q1, k1).named("scores")).named("weights")
    sums = batch_matmul(weights, slice_of(ones, 0)).named("sums")
    context = (batch_matmul(weights, v1).named("mixed") / sums).named("context")
    return build.program(all_to_all(context, 1).named("o"))


def ring_attention(element: str = "float32") -> Program:
    """Every rank keeps its queries; keys and values of all ranks pass by.

    In this model the ring is the AllGather of keys and values: overlapped with the product that
    reads it, each block is multiplied when it arrives, in the order in which the ring brings it.
    Reference: Liu et al., "Ring Attention with Blockwise Transformers" (2023).
    """
    build, q, k, v, ones = _arguments("ring_attention", element)
    keys = all_gather(k).named("keys")
    values = all_gather(v).named("values")
    weights = (e ** batch_matmul(q, keys).named("scores")).named("weights")
    sums = batch_matmul(weights, ones).named("sums")
    return build.program((batch_matmul(weights, values).named("mixed") / sums).named("o"))


def _arguments(name: str, element: str) -> tuple[ProgramBuilder, Value, Value, Value, Value]:
    build = ProgramBuilder(name, A=(1, 256), S=(1, 2**20), D=(1, 1024))
    q = build.argument("q", element, "A", "S", "D", layout=sliced(1))
    k = build.argument("k", element, "A", "D", "S", layout=sliced(2))
    v = build.argument("v", element, "A", "S", "D", layout=sliced(1))
    ones = build.argument("ones", element, "A", "S", 1)
    return build, q, k, v, ones
