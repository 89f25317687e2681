"""A transformer block on a mesh: batch along `dp`, heads and positions along `tp`.

Between the tensor-parallel parts the positions are divided among the ranks of `tp` (sequence
parallelism): a ReduceScatter ends a part, an AllGather begins the next one. Reference: Korthikanti
et al., "Reducing Activation Recomputation in Large Transformer Models" (2022).
"""

from collhub_coconet import (
    Program,
    ProgramBuilder,
    Value,
    all_gather,
    batch_matmul,
    exp,
    matmul,
    permute,
    reduce_scatter,
    reshape,
    row_reduce,
    sliced,
    sqrt,
    tanh,
)


def transformer_mesh(
    heads: int = 16, head_size: int = 64, element: str = "float32", hidden: int = 4096
) -> Program:
    """Attention and MLP with residuals, of B sequences of S positions."""
    width = heads * head_size
    build = ProgramBuilder("transformer_mesh", ("dp", "tp"), B=(1, 4096), S=(1, 2**20))
    x = build.argument("x", element, "B", "S", width, layout={"dp": sliced(0), "tp": sliced(1)})
    weights = {
        name: build.argument(name, element, width, width, layout={"tp": sliced(1)})
        for name in ("wq", "wk", "wv")
    }
    wo = build.argument("wo", element, width, width, layout={"tp": sliced(0)})
    w1 = build.argument("w1", element, width, hidden, layout={"tp": sliced(1)})
    w2 = build.argument("w2", element, hidden, width, layout={"tp": sliced(0)})
    gains = [build.argument(f"gain{part}", element, width) for part in (1, 2)]

    complete = all_gather(_normalize(x, width) * gains[0], axes="tp").named("complete1")
    # Heads are divided like the columns of the weights.
    q, k, v = (
        permute(reshape(matmul(complete, w), "B", "S", heads, head_size), 0, 2, 1, 3)
        for w in weights.values()
    )
    scores = batch_matmul(q, permute(k, 0, 1, 3, 2)) * head_size**-0.5
    powers = exp(scores - row_reduce(scores, 3, "max")).named("powers")
    context = batch_matmul(powers / row_reduce(powers, 3), v).named("context")
    rows = reshape(permute(context, 0, 2, 1, 3), "B", "S", width)
    attended = reduce_scatter(matmul(rows, wo), 1, axes="tp").named("attended")
    y = (attended + x).named("y")

    complete = all_gather(_normalize(y, width) * gains[1], axes="tp").named("complete2")
    inner = matmul(complete, w1).named("inner")
    product = matmul(tanh(inner), w2).named("product")
    return build.program((reduce_scatter(product, 1, axes="tp") + y).named("o"))


def _normalize(x: Value, width: int) -> Value:
    """Divide rows by their root mean square."""
    return x / sqrt(row_reduce(x * x, 2) * (1 / width) + 1e-5)
