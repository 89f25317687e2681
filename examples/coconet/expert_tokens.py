"""A layer of experts with a number of tokens for every pair of ranks, without empty slots.

Every rank has one expert, and sends each token to the rank of its expert. The first expert is the
most popular one. Reference: Hwang et al., "Tutel" (2022), sections 2 and 3.
"""

from collhub_coconet import LOCAL, Program, ProgramBuilder, all_to_all_v, matmul, tanh

POPULARITY = (8, 5, 4, 3, 3, 3, 3, 3)
"""Of the tokens of a rank, the shares for the expert of each rank."""


def expert_tokens(
    element: str = "float32", tokens: int = 2048, popularity: tuple[int, ...] = POPULARITY
) -> Program:
    """Dispatch, two products of the rank's expert, combine.

    `tokens`: of a rank; the sum of `popularity` must divide it.
    """
    build = ProgramBuilder("expert_tokens", H=(1, 16384), F=(1, 65536))
    share = tokens // sum(popularity)
    counts = [[share * number for number in popularity] for _ in popularity]
    x = build.argument("x", element, tokens, "H", layout=LOCAL)
    w1 = build.argument("w1", element, "H", "F", layout=LOCAL)
    w2 = build.argument("w2", element, "F", "H", layout=LOCAL)
    dispatched = all_to_all_v(x, counts).named("dispatched")
    hidden = tanh(matmul(dispatched, w1).named("inner")).named("hidden")
    y = matmul(hidden, w2).named("y")
    back = [list(column) for column in zip(*counts, strict=True)]
    return build.program(all_to_all_v(y, back).named("combined"))
