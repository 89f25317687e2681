"""Muon, data parallel: momentum of a matrix is made nearly orthogonal before it is applied.

One Newton-Schulz step of the quintic polynomial; more are more of the same. Reference: Jordan et
al., "Muon: An optimizer for hidden layers in neural networks" (2024).
"""

from collhub_coconet import (
    LOCAL,
    Program,
    ProgramBuilder,
    all_reduce,
    matmul,
    norm,
    transpose,
    update,
)

MOMENTUM, RATE, A, B, C = 0.95, 0.02, 3.4445, -4.7750, 2.0315


def muon(element: str = "float32") -> Program:
    """The program; its outputs are the momentum and the parameters."""
    build = ProgramBuilder("muon", M=(1, 2**16), N=(1, 2**16))
    g = build.argument("g", element, "M", "N", layout=LOCAL)
    m = build.state("m", element, "M", "N")
    w = build.state("w", element, "M", "N", whole_after=True)
    g1 = all_reduce(g).named("g1")
    m1 = update(m, MOMENTUM * m + g1).named("m1")
    x = (m1 / (norm(m1) + 1e-7)).named("x")
    square = matmul(x, transpose(x)).named("square")
    polynomial = (B * square + C * matmul(square, square)).named("polynomial")
    step = (A * x + matmul(polynomial, x)).named("step")
    w1 = update(w, w - RATE * step).named("w1")
    return build.program(m1, w1)
