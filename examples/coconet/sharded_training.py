"""Training steps whose states are sharded or should be: FSDP (ZeRO-3), and LAMB with clipping.

References: Rajbhandari et al., "ZeRO" (2020); Zhao et al., "PyTorch FSDP" (2023); You et al.,
"Large Batch Optimization for Deep Learning" (2020).
"""

from collhub_coconet import (
    LOCAL,
    Program,
    ProgramBuilder,
    all_gather,
    all_reduce,
    matmul,
    norm,
    reduce_scatter,
    select,
    sliced,
    sqrt,
    tanh,
    transpose,
    update,
)

RATE, MOMENTUM, BETA1, BETA2, EPSILON, DECAY = 1e-2, 0.9, 0.9, 0.999, 1e-6, 0.01


def fsdp(layers: int = 2, element: str = "float32") -> Program:
    """Forward, backward and momentum of layers whose weights and states are slices.

    Weights are gathered before every use. No gathering depends on a computation, so that the next
    weights arrive during the products of a layer (prefetch).
    """
    build = ProgramBuilder("fsdp", B=(1, 2**20), H=(1, 2**16))
    x = build.argument("x", element, "B", "H", layout=sliced(0))
    goal = build.argument("goal", element, "B", "H", layout=sliced(0))
    weights, momenta = [], []
    for layer in range(layers):
        weights.append(build.state(f"w{layer}", element, "H", "H", layout=sliced(0)))
        momenta.append(build.state(f"m{layer}", element, "H", "H", layout=sliced(0)))
    activations = [x]
    for layer, weight in enumerate(weights):
        full = all_gather(weight).named(f"forward{layer}")
        activations.append(tanh(matmul(activations[-1], full)).named(f"a{layer}"))
    outputs = []
    slope = (activations[-1] - goal).named("slope")
    for layer in reversed(range(layers)):
        value = activations[layer + 1]
        delta = (slope * (1.0 - value * value)).named(f"d{layer}")
        gradient = matmul(transpose(activations[layer]), delta).named(f"g{layer}")
        if layer:
            full = all_gather(weights[layer]).named(f"backward{layer}")
            slope = matmul(delta, transpose(full)).named(f"s{layer}")
        total = reduce_scatter(gradient, 0).named(f"h{layer}")
        new = update(momenta[layer], MOMENTUM * momenta[layer] + total).named(f"n{layer}")
        outputs += [new, update(weights[layer], weights[layer] - RATE * new).named(f"v{layer}")]
    return build.program(*outputs)


def lamb_clipped(element: str = "float32") -> Program:
    """LAMB without bias correction; the gradient is clipped by its norm first."""
    build = ProgramBuilder("lamb_clipped", N=(1, 2**30))
    g = build.argument("g", element, "N", layout=LOCAL)
    m, v = (build.state(name, element, "N") for name in ("m", "v"))
    w = build.state("w", element, "N", whole_after=True)
    total = all_reduce(g).named("g1")
    length = norm(total).named("length")
    clipped = (select(length > 1.0, 1.0 / length, 1.0) * total).named("clipped")
    m1 = update(m, BETA1 * m + (1 - BETA1) * clipped).named("m1")
    v1 = update(v, BETA2 * v + (1 - BETA2) * (clipped * clipped)).named("v1")
    u = (m1 / (sqrt(v1) + EPSILON) + DECAY * w).named("u")
    ratio = (norm(w).named("a") / norm(u).named("b")).named("ratio")
    return build.program(m1, v1, update(w, w - RATE * ratio * u).named("w1"))
