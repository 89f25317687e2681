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


class LayerSizes:
    """Sizes of a layer of a model with tensor and expert parallelism."""

    def __init__(self, options: TransformerOptions) -> None:
        """Store the options, and derive the sizes of a layer from them.

        These are `width`, the width of the MLP (by default four times the hidden size), `tokens`,
        the microbatch times the sequence length, the columns of keys and values together (by
        default as many heads as for queries), and the matrices of an MLP: 3 if it is gated,
        otherwise 2.
        """
        self.options = options
        self.width = options.feed_forward or 4 * options.hidden
        kv_heads = options.kv_heads or options.heads
        # Keys and values together, in columns of the projection.
        self._kv_columns = 2 * options.hidden * kv_heads // options.heads
        self._matrices = 3 if options.gated else 2
        self.tokens = options.microbatch * options.sequence

    @property
    def activation_bytes(self) -> int:
        """Bytes of the hidden state of a microbatch: tokens x hidden size x element bytes."""
        elements = self.tokens * self.options.hidden
        return elements * self.options.element_bytes

    @property
    def shard_bytes(self) -> int:
        """Bytes of the hidden state between layers on one rank.

        With sequence parallelism it is divided by the tensor parallelism, rounded down.
        """
        parts = self.options.tensor if self.options.sequence_parallel else 1
        return self.activation_bytes // parts

    def attention(self) -> Part:
        """Return operations, parameters and bytes of attention on one rank, forward.

        h is the hidden size, c the columns of keys and values together, and p the tensor
        parallelism. The projections have w = h x (2 h + c) weights. Divisions round down.

        - Operations: (2 x tokens x w + 4 x tokens x sequence x h) / p. The second summand is for
          the scores of all pairs of tokens and the weighted values.
        - Parameters: (w + h + c) / p, and 3 h, which are not divided, for the bias of the output
          and the norm.
        - Bytes: element bytes x (parameters + 2 x tokens x h + tokens x (2 h + c) / p). The second
          summand is for the input and output hidden states, the third for queries, keys, values and
          the result before the last projection. The scores are not written to memory.
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
        """Return operations, parameters and bytes of the MLP, or gate and experts, of a rank.

        t is the tensor parallelism; quotients are rounded down.

        - Operations: all matrix products / t. Every token passes `top_k` experts. With more than
          one expert, the products of the gate are included.
        - Parameters: the norm (2 x hidden), not divided. Plus `expert_parameters` with one expert,
          which divides all but the output bias by t. With several, plus the gate (not divided),
          without the experts.
        - Bytes: element bytes x (these parameters + elements of the input and output hidden states,
          not divided + elements of the inner tensors / t).
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
        """Number of parameters of one MLP or expert on one rank, biases included.

        Divided by the tensor parallelism, and rounded down, are the weights between hidden size and
        MLP width (2 matrices, 3 with a gate) and the biases of the inner width (1 vector, 2 with a
        gate). The output bias (hidden size) is added in full.
        """
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
        """Bytes of the gradients of all experts of a rank; 0 without several experts.

        It is experts held x parameters of an expert x element bytes.
        """
        parameters = self.experts_held * self.expert_parameters
        return parameters * self.options.element_bytes

    def logits(self) -> Part:
        """Return operations, parameters and bytes of the output layer on one rank.

        It multiplies the last hidden state with the embeddings of the vocabulary. Parameters are
        vocabulary x hidden size, divided by the tensor parallelism and rounded down; operations are
        2 x tokens x parameters. Bytes are those of the parameters, of two hidden states of all
        tokens, and of the logits, which are divided too.
        """
        options = self.options
        parameters = options.vocabulary * options.hidden // options.tensor
        inner = self.tokens * options.vocabulary // options.tensor
        return self._part(2 * self.tokens * parameters, parameters, inner)

    def embedding_parameters(self, *, has_positions: bool) -> int:
        """Return the number of parameters of the embeddings on one rank.

        They are vocabulary x hidden size, divided by the tensor parallelism and rounded down. With
        `has_positions`, as in the first stage, sequence length x hidden size is added in full.
        """
        tokens = self.logits().parameters
        if not has_positions:
            return tokens
        return tokens + self.options.sequence * self.options.hidden

    def _part(self, operations: int, parameters: int, inner: int) -> Part:
        """Create a part of a layer from operations, parameters and elements of inner tensors.

        Its bytes are element bytes x (parameters + 2 x tokens x hidden size + inner): the weights,
        the input and output hidden states, which are not divided, and the inner tensors.
        """
        elements = parameters + 2 * self.tokens * self.options.hidden + inner
        return Part(operations, parameters, elements * self.options.element_bytes)


def parameters(options: TransformerOptions) -> int:
    """Return the number of parameters of a complete model with L layers, all experts included.

    A plain model has 12 L h^2 (1 + 13 / (12 h) + (V + s) / (12 L h)), with the hidden size
    h, the vocabulary V and the sequence length s (for embeddings of positions). Raise
    `ValueError` if the tensor parallelism exceeds 1.
    """
    costs = LayerSizes(options)
    if options.tensor > 1:
        message = "parameters are those of a model that is not cut"
        raise ValueError(message)
    experts = options.experts * costs.expert_parameters if options.experts > 1 else 0
    layer = costs.attention().parameters + costs.mlp().parameters + experts
    return options.layers * layer + costs.embedding_parameters(has_positions=True)
