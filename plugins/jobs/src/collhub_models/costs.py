"""Operations, parameters and bytes of a transformer layer, by the closed forms of the papers.

Operations of matrix products (two a multiply-add), with s tokens a sequence, h the hidden size:
Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM"
(SC 2021), appendix: forward 24 B s h^2 + 4 B s^2 h a layer and 2 B s h V for the logits of B
sequences, backward twice that. Parameters: the same paper, section 5.1: 12 h^2 + 13 h a layer, and
(V + s) h. Keys and values of fewer heads, gated MLPs and experts change the terms of their
matrices alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from collhub_models.plugin import TransformerOptions


@dataclass(frozen=True, slots=True)
class Part:
    """Costs of half a layer on one rank, for one microbatch, forward.

    `operations`; `parameters`: that the rank holds; `bytes`: of weights and activations.
    """

    operations: int
    parameters: int
    bytes: int


class Costs:
    """Sizes of a layer of a model with tensor and expert parallelism."""

    def __init__(self, options: TransformerOptions) -> None:
        """Compute the sizes for these options."""
        self.options = options
        self.width = options.feed_forward or 4 * options.hidden
        kv_heads = options.kv_heads or options.heads
        # Keys and values together, in columns of the projection.
        self._kv_columns = 2 * options.hidden * kv_heads // options.heads
        self._matrices = 3 if options.gated else 2
        self.tokens = options.microbatch * options.sequence

    @property
    def activation_bytes(self) -> int:
        """Of the hidden state of a microbatch: s b h elements."""
        elements = self.tokens * self.options.hidden
        return elements * self.options.element_bytes

    @property
    def shard_bytes(self) -> int:
        """Bytes of the hidden state between layers on one rank."""
        parts = self.options.tensor if self.options.sequence_parallel else 1
        return self.activation_bytes // parts

    def attention(self) -> Part:
        """Return projections, scores and weighted values; biases and norms among the parameters.

        Operations and inner bytes are divided by the tensor parallelism; scores count all pairs of
        tokens, 4 x tokens x sequence x hidden operations, and are not written to memory.
        """
        options, h, parts = self.options, self.options.hidden, self.options.tensor
        weights = h * (2 * h + self._kv_columns)
        scores = 4 * self.tokens * options.sequence * h
        # Biases of the columns are cut as these are, that of the output and the norm are not.
        parameters = (weights + h + self._kv_columns) // parts + h + 2 * h
        # Queries, keys, values and what is attended to; scores stay in the caches of the chip.
        inner = self.tokens * (2 * h + self._kv_columns) // parts
        return self._part((2 * self.tokens * weights + scores) // parts, parameters, inner)

    def mlp(self) -> Part:
        """Return the MLP, or the gate and the experts of the rank; without parameters of experts.

        Operations are divided by the tensor parallelism, those of the gate included; every token
        passes `top_k` experts. With more than one expert, parameters are those of the norm and the
        gate.
        """
        options, h = self.options, self.options.hidden
        products = 2 * self.tokens * self._matrices * h * self.width * options.top_k
        # The norm before the MLP is on every rank.
        parameters = 2 * h
        if options.experts > 1:
            products += 2 * self.tokens * h * options.experts
            parameters += h * options.experts
        else:
            parameters += self.expert_parameters
        inner = self.tokens * self._matrices * self.width * options.top_k // options.tensor
        return self._part(products // options.tensor, parameters, inner)

    @property
    def expert_parameters(self) -> int:
        """Of one MLP, with biases, on one rank."""
        h, matrices = self.options.hidden, self._matrices
        cut = matrices * h * self.width + (matrices - 1) * self.width
        return cut // self.options.tensor + h

    @property
    def experts_held(self) -> int:
        """Experts of a rank, 0 for a plain MLP."""
        # They are spread evenly, or refused before.
        return self.options.experts // self.options.expert if self.options.experts > 1 else 0

    @property
    def expert_gradient_bytes(self) -> int:
        """Of all experts of the rank."""
        parameters = self.experts_held * self.expert_parameters
        return parameters * self.options.element_bytes

    def logits(self) -> Part:
        """The product of the last hidden state with the embeddings of the vocabulary."""
        options = self.options
        parameters = options.vocabulary * options.hidden // options.tensor
        inner = self.tokens * options.vocabulary // options.tensor
        return self._part(2 * self.tokens * parameters, parameters, inner)

    def embedding_parameters(self, *, has_positions: bool) -> int:
        """Of the tokens, and of the positions in the first stage."""
        tokens = self.logits().parameters
        if not has_positions:
            return tokens
        return tokens + self.options.sequence * self.options.hidden

    def _part(self, operations: int, parameters: int, inner: int) -> Part:
        """The part with the bytes of its weights, its inputs and outputs, and what is between."""
        elements = parameters + 2 * self.tokens * self.options.hidden + inner
        return Part(operations, parameters, elements * self.options.element_bytes)


def parameters(options: TransformerOptions) -> int:
    """All parameters of a model: 12 L h^2 (1 + 13 / (12 h) + (V + s) / (12 L h)) for plain ones."""
    costs = Costs(options)
    if options.tensor > 1:
        message = "parameters are those of a model that is not cut"
        raise ValueError(message)
    experts = options.experts * costs.expert_parameters if options.experts > 1 else 0
    layer = costs.attention().parameters + costs.mlp().parameters + experts
    return options.layers * layer + costs.embedding_parameters(has_positions=True)
