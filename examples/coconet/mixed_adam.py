"""Adam with mixed precision: gradients and weights in bfloat16, masters and moments in float32.

The moves split, reorder and as-slice give the form of ZeRO: every rank updates its slice of the
masters and moments, and an AllGather collects the new weights. Reference: Micikevicius et al.,
"Mixed Precision Training" (2018).
"""

from collhub_coconet import Program, ProgramBuilder, all_reduce, cast, partial, sqrt, update


def mixed_adam(narrow: str = "bfloat16", betas: tuple[float, float] = (0.9, 0.95)) -> Program:
    """One step for N weights."""
    build = ProgramBuilder("mixed_adam", ("dp",), N=(1, 2**40))
    gradient = build.argument("g", narrow, "N", layout=partial("sum"))
    rate = build.argument("rate", "float32")
    weights = build.state("w", narrow, "N", whole_after=True)
    master = build.state("master", "float32", "N")
    m, v = (build.state(name, "float32", "N") for name in ("m", "v"))
    g = cast(all_reduce(gradient).named("reduced"), "float32").named("g32")
    m1 = update(m, betas[0] * m + (1 - betas[0]) * g).named("m1")
    v1 = update(v, betas[1] * v + (1 - betas[1]) * g * g).named("v1")
    step = rate * m1 / (sqrt(v1) + 1e-8)
    new = update(master, master - step).named("master1")
    return build.program(update(weights, cast(new, narrow)).named("w1"))
