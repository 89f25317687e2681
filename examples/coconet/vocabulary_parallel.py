"""Embedding, output layer and loss of a language model whose vocabulary lies on several ranks.

Tokens are divided among the axis `dp`, the vocabulary of V words among the axis `tp`. The largest
logit of a token is subtracted before the exponentials, so that these cannot overflow. Reference:
Shoeybi et al., "Megatron-LM" (2019), section 3.
"""

from collhub_coconet import (
    Program,
    ProgramBuilder,
    all_reduce,
    equal,
    exp,
    gather,
    index_of,
    log,
    matmul,
    row_reduce,
    select,
    sliced,
    total,
)


def vocabulary_parallel(element: str = "float32") -> Program:
    """Cross-entropy of the next words of T tokens, summed."""
    sizes = {"T": (1, 2**20), "V": (1, 2**20), "H": (1, 65536)}
    build = ProgramBuilder("vocabulary_parallel", ("dp", "tp"), **sizes)
    tokens = build.argument("tokens", "int32", "T", layout={"dp": sliced(0)})
    targets = build.argument("targets", "int64", "T", 1, layout={"dp": sliced(0)})
    table = build.argument("table", element, "V", "H", layout={"tp": sliced(0)})
    head = build.argument("head", element, "H", "V", layout={"tp": sliced(1)})
    # Words of other ranks count as zeros.
    embedded = gather(table, tokens).named("embedded")
    x = all_reduce(embedded, axes="tp").named("x")
    logits = matmul(x, head).named("logits")
    highest = all_reduce(row_reduce(logits, 1, "max"), "max", axes="tp").named("highest")
    shifted = (logits - highest).named("shifted")
    partition = all_reduce(row_reduce(exp(shifted), 1), axes="tp").named("partition")
    own = select(equal(index_of(shifted, 1), targets), shifted, 0.0)
    chosen = all_reduce(row_reduce(own, 1), axes="tp").named("chosen")
    return build.program(total(log(partition) - chosen).named("loss"))
