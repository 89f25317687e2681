"""Pointwise operations and contractions on one rank, every element in a fixed order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from collhub_coconet.equivalence.blocks import Array
from collhub_coconet.program.operations import Kind

_UFUNCS: dict[Kind, Callable[..., Any]] = {
    Kind.ADD: np.add,
    Kind.SUBTRACT: np.subtract,
    Kind.MULTIPLY: np.multiply,
    Kind.DIVIDE: np.divide,
    Kind.POWER: np.power,
    Kind.LESS: np.less,
    Kind.GREATER: np.greater,
    Kind.EQUAL: np.equal,
    Kind.SQRT: np.sqrt,
    Kind.TANH: np.tanh,
    Kind.SELECT: np.where,
}


def pointwise(kind: Kind, operands: list[Array]) -> Array:
    """The result of arrays of one element type that broadcast to one shape."""
    # Stretched first: loops of numpy may round otherwise where a stride is 0. Copied always, since
    # an array of one element passes for contiguous whatever its stride is.
    full = [np.array(one, order="C", ndmin=1) for one in np.broadcast_arrays(*operands)]
    # Scalars of numpy become arrays again.
    result: Array = np.asarray(_UFUNCS[kind](*full))
    return result


def matrix_product(x: Array, w: Array) -> Array:
    """x[..., K] w[K, N], terms added in the order of K: a block of rows has the whole's bits."""
    result = np.zeros((*x.shape[:-1], w.shape[1]), x.dtype)
    for k in range(w.shape[0]):
        result += x[..., k : k + 1] * w[k]
    return result


def batch_product(x: Array, w: Array) -> Array:
    """x[..., M, K] w[..., K, N] of one batch, terms added in the order of K."""
    result = np.zeros((*x.shape[:-1], w.shape[-1]), x.dtype)
    for k in range(w.shape[-2]):
        result += x[..., k : k + 1] * w[..., k : k + 1, :]
    return result


def convolution(x: Array, w: Array) -> Array:
    """x[B, C, positions] with w[O, C, window], zeros around; terms added in the order of w."""
    window = w.shape[2:]
    sides = [(size // 2, size // 2) for size in window]
    padded = np.pad(x, [(0, 0), (0, 0), *sides])
    result = np.zeros((x.shape[0], w.shape[0], *x.shape[2:]), x.dtype)
    for channel, *place in product(range(w.shape[1]), *map(range, window)):
        values = padded[:, channel]
        weights = w[:, channel]
        for axis, (start, size) in enumerate(zip(place, x.shape[2:], strict=True), 1):
            values = values.take(range(start, start + size), axis=axis)
            weights = weights.take([start], axis=axis)
        result += values[:, None] * weights
    return result
