"""A training step, data parallel: forward, backward, and momentum for every layer.

The batch is sliced; every rank has its part of the sum of a gradient, which is all-reduced.
"""

from collhub_coconet import (
    Program,
    ProgramBuilder,
    all_reduce,
    matmul,
    sliced,
    tanh,
    transpose,
    update,
)

RATE, MOMENTUM = 1e-2, 0.9


def training_step(layers: int = 24, element: str = "float32") -> Program:
    """The program; its outputs are the momentum and the weights of all layers."""
    build = ProgramBuilder("training_step", B=(1, 2**20), H=(1, 2**16))
    x = build.argument("x", element, "B", "H", layout=sliced(0))
    goal = build.argument("goal", element, "B", "H", layout=sliced(0))
    weights, momenta = [], []
    for layer in range(layers):
        weights.append(build.state(f"w{layer}", element, "H", "H", whole_after=True))
        momenta.append(build.state(f"m{layer}", element, "H", "H"))
    activations = [x]
    for layer, weight in enumerate(weights):
        activations.append(tanh(matmul(activations[-1], weight)).named(f"a{layer}"))
    outputs = []
    slope = (activations[-1] - goal).named("slope")
    for layer in reversed(range(layers)):
        value = activations[layer + 1]
        delta = (slope * (1.0 - value * value)).named(f"d{layer}")
        gradient = matmul(transpose(activations[layer]), delta).named(f"g{layer}")
        if layer:
            slope = matmul(delta, transpose(weights[layer])).named(f"s{layer}")
        total = all_reduce(gradient).named(f"h{layer}")
        new = update(momenta[layer], MOMENTUM * momenta[layer] + total).named(f"n{layer}")
        outputs += [new, update(weights[layer], weights[layer] - RATE * new).named(f"v{layer}")]
    return build.program(*outputs)
