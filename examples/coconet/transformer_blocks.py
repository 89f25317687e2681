"""Model-parallel ends of transformer blocks, and the boundary of a pipeline."""

from collhub_coconet import (
    LOCAL,
    Program,
    ProgramBuilder,
    all_reduce,
    dropout,
    matmul,
    send,
    sliced,
    tanh,
)

RATE, SEED = 0.1, 7


def attention(element: str = "float16") -> Program:
    """Output of attention: columns of x and rows of the weights lie on p ranks."""
    build = ProgramBuilder("attention", B=(1, 64), S=(1, 4096), K=(1, 16384), H=(1, 16384))
    x = build.argument("x", element, "B", "S", "K", layout=sliced(2))
    w = build.argument("w", element, "K", "H", layout=sliced(0))
    b = build.argument("b", element, "H")
    r = build.argument("r", element, "B", "S", "H")
    y = matmul(x, w).named("y")
    z = all_reduce(y).named("z")
    o = (dropout(z + b, RATE, SEED) + r).named("o")
    return build.program(o)


def mlp(element: str = "float16") -> Program:
    """Both layers: the first gives columns, the second partial sums."""
    build = ProgramBuilder("mlp", B=(1, 64), S=(1, 4096), H=(1, 16384), F=(1, 65536))
    x = build.argument("x", element, "B", "S", "H")
    w1 = build.argument("w1", element, "H", "F", layout=sliced(1))
    w2 = build.argument("w2", element, "F", "H", layout=sliced(0))
    b = build.argument("b", element, "H")
    hidden = tanh(matmul(x, w1)).named("hidden")
    y = matmul(hidden, w2).named("y")
    z = all_reduce(y).named("z")
    o = (dropout(z + b, RATE, SEED) + x).named("o")
    return build.program(o)


def pipeline_boundary(element: str = "float16") -> Program:
    """End of a pipeline stage: every rank sends the whole tensor to the next group."""
    build = ProgramBuilder("pipeline", B=(1, 64), S=(1, 4096), H=(1, 16384))
    y = build.argument("y", element, "B", "S", "H", layout=LOCAL)
    b = build.argument("b", element, "H")
    r = build.argument("r", element, "B", "S", "H")
    z = all_reduce(y).named("z")
    o = (dropout(z + b, RATE, SEED) + r).named("o")
    q = send(o, 1).named("q")
    return build.program(q)
