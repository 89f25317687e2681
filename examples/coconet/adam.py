"""Adam, data parallel: gradients are all-reduced, every rank updates all parameters."""

from collhub_coconet import LOCAL, Program, ProgramBuilder, all_reduce, sqrt, update

BETA1, BETA2, EPSILON, RATE, STEP = 0.9, 0.999, 1e-6, 1e-3, 10


def adam(element: str = "float32") -> Program:
    """The program; its outputs are both moments and the parameters."""
    build = ProgramBuilder("adam", N=(1, 2**30))
    g = build.argument("g", element, "N", layout=LOCAL)
    m = build.state("m", element, "N")
    v = build.state("v", element, "N")
    w = build.state("w", element, "N", whole_after=True)
    g1 = all_reduce(g).named("g1")
    m1 = update(m, BETA1 * m + (1 - BETA1) * g1).named("m1")
    v1 = update(v, BETA2 * v + (1 - BETA2) * (g1 * g1)).named("v1")
    mh = (m1 / (1 - BETA1**STEP)).named("mh")
    vh = (v1 / (1 - BETA2**STEP)).named("vh")
    w1 = update(w, w - RATE * mh / (sqrt(vh) + EPSILON)).named("w1")
    return build.program(m1, v1, w1)
