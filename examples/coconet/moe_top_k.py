"""A layer of experts with its router: every token goes to the K experts of the largest scores.

Tokens and experts are divided among the same ranks. Each expert has a slot for every token; the
mask of the router empties the slots of the other tokens. Reference: Shazeer et al., "Outrageously
Large Neural Networks" (2017).
"""

from collhub_coconet import (
    Program,
    ProgramBuilder,
    all_to_all,
    batch_matmul,
    equal,
    exp,
    index_of,
    matmul,
    permute,
    reshape,
    row_reduce,
    select,
    sliced,
    tanh,
    top_k,
)


def moe_top_k(element: str = "float32", choices: int = 2) -> Program:
    """Route T tokens of H numbers to `choices` of E experts each, and add their results."""
    sizes = {"T": (1, 2**20), "E": (choices, 4096), "H": (1, 65536), "F": (1, 65536)}
    build = ProgramBuilder("moe_top_k", ("ep",), **sizes)
    x = build.argument("x", element, "T", "H", layout=sliced(0))
    router = build.argument("router", element, "H", "E")
    w1 = build.argument("w1", element, "E", "H", "F", layout=sliced(0))
    w2 = build.argument("w2", element, "E", "F", "H", layout=sliced(0))
    logits = matmul(x, router).named("logits")
    weights = exp(logits - row_reduce(logits, 1, "max")).named("weights")
    scores = (weights / row_reduce(weights, 1)).named("scores")
    values, experts = top_k(scores, choices, 1)
    # gates[t, e]: the score of expert e if it is one of the choices of token t, else 0.
    words = reshape(scores, "T", 1, "E")
    is_chosen = equal(index_of(words, 2), reshape(experts, "T", choices, 1))
    gates = row_reduce(select(is_chosen, reshape(values, "T", choices, 1), 0.0), 1).named("gates")
    by_expert = permute(gates, 2, 0, 1).named("by_expert")
    slots = select(by_expert > 0, reshape(x, 1, "T", "H"), 0.0).named("slots")
    dispatched = all_to_all(slots, 0).named("dispatched")
    hidden = tanh(batch_matmul(dispatched, w1)).named("hidden")
    combined = all_to_all(batch_matmul(hidden, w2), 1).named("combined")
    y = row_reduce(combined * by_expert, 0).named("y")
    return build.program((reshape(y, "T", "H") + x).named("o"))
