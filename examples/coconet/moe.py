"""A layer of experts: tokens travel to the ranks of their experts and back.

Tokens stand in slots: of every expert, each rank has its share of C slots, which the router has
filled. Experts lie on the ranks. Reference: Lepikhin et al., "GShard" (2020).
"""

from collhub_coconet import Program, ProgramBuilder, all_to_all, batch_matmul, sliced, tanh


def moe(element: str = "float32") -> Program:
    """Dispatch, two products an expert, combine, weighted by the router."""
    build = ProgramBuilder("moe", E=(1, 256), C=(1, 65536), H=(1, 16384), F=(1, 65536))
    x = build.argument("x", element, "E", "C", "H", layout=sliced(1))
    gates = build.argument("gates", element, "E", "C", 1, layout=sliced(1))
    w1 = build.argument("w1", element, "E", "H", "F", layout=sliced(0))
    w2 = build.argument("w2", element, "E", "F", "H", layout=sliced(0))
    dispatched = all_to_all(x, 0).named("dispatched")
    hidden = tanh(batch_matmul(dispatched, w1).named("inner")).named("hidden")
    y = batch_matmul(hidden, w2).named("y")
    combined = all_to_all(y, 1).named("combined")
    return build.program((combined * gates + x).named("o"))
