"""What a rank of one pipeline stage does in a training step, pass by pass."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_templates import RankProgram

from collhub_models.costs import Costs, Part
from collhub_models.options import TransformerOptions, work_of
from hub_core.model import JobCollective, NodeKind

# Backward, the gradients of inputs and those of weights are computed.
_BACKWARD = 2


class StageProgram:
    """The program of a stage as it grows.

    `_flow`: the rows whose data the next node takes. `_computes`: computations so far, of which
    each waits for the one before it, in the order of the schedule.
    """

    def __init__(
        self,
        options: TransformerOptions,
        costs: Costs,
        stage: int,
        microbatches: int,
        roles: Sequence[str],
    ) -> None:
        """An empty program of stage `stage`."""
        self.program = RankProgram(roles)
        self._options, self._costs = options, costs
        self._stage, self._last_microbatch = stage, microbatches - 1
        # Stages hold consecutive layers, as many each.
        count = options.layers // options.pipeline
        self._layers = range(stage * count, (stage + 1) * count)
        self._is_first, self._is_last = stage == 0, stage == options.pipeline - 1
        self._flow: list[int] = []
        self._computes: list[int] = []
        self._gradients: list[tuple[str, int, str]] = []

    def forward(self, microbatch: int) -> None:
        """Receive, run the layers, and send; the last stage computes logits instead."""
        # Stage 0 has the tokens themselves.
        self._flow = [] if self._is_first else [self._received(-1, microbatch)]
        for layer in self._layers:
            # Nothing to wait for unless the weights are cut.
            gathered = self._gathered_weights(f"forward {layer}")
            self._half(f"forward {layer} attention", self._costs.attention(), gathered)
            self._experts_or_mlp(f"forward {layer}", gathered)
        # Logits stay: the backward pass begins on this stage.
        if self._is_last:
            self._compute("forward logits", self._costs.logits(), 1)
        else:
            self._send(1, microbatch)

    def backward(self, microbatch: int) -> None:
        """The same way back, with the reduction of gradients."""
        if self._is_last:
            self._flow = []
            self._compute("backward logits", self._costs.logits(), _BACKWARD)
        else:
            self._flow = [self._received(1, microbatch)]
        for layer in reversed(self._layers):
            # Weights that were freed behind the forward pass come back.
            gathered = self._gathered_weights(f"backward {layer}")
            # The parts of a layer in the opposite order.
            self._experts_or_mlp(f"backward {layer}", gathered)
            self._half(f"backward {layer} attention", self._costs.attention(), gathered)
            self._reduce_layer(layer, is_last=microbatch == self._last_microbatch)
        if not self._is_first:
            self._send(-1, microbatch)

    def finish(self) -> None:
        """Reduce what is left: gradients without overlap, and those of the embeddings."""
        for name, size, role in self._gradients:
            self._all_reduce(name, size, role, self._computes[-1:])
        # Stages in the middle hold no embeddings.
        if not self._is_first and not self._is_last:
            return
        held = self._costs.embedding_parameters(has_positions=self._is_first)
        size = held * self._options.element_bytes
        waits = self._all_reduce("gradients embedding", size, "data", self._computes[-1:])
        # Both ends of the pipeline hold the embeddings, and want the sum of their gradients.
        if self._options.pipeline > 1:
            size = self._costs.logits().parameters * self._options.element_bytes
            self._all_reduce("gradients tied embedding", size, "embedding", waits)

    # --- parts of a pass ---

    def _experts_or_mlp(self, name: str, gathered: Sequence[int]) -> None:
        """The second half of a layer."""
        # Experts are MLPs: which, their costs and the exchange around them say.
        self._half(f"{name} mlp", self._costs.mlp(), gathered)

    def _half(self, name: str, part: Part, gathered: Sequence[int]) -> None:
        """Half a layer: communication before, the computation, communication behind."""
        options = self._options
        is_backward = name.startswith("backward")
        is_cut = options.tensor > 1
        if is_cut and options.sequence_parallel:
            self._communicate(f"{name} gather", JobCollective.ALL_GATHER, "tensor")
            # Beside the gradients, the inputs that were kept as shards.
            if is_backward:
                self._communicate(f"{name} gather inputs", JobCollective.ALL_GATHER, "tensor")
        has_experts = name.endswith("mlp") and options.expert > 1
        if has_experts:
            self._exchange(f"{name} dispatch")
        # The weights are an input like the hidden state.
        self._flow = [*self._flow, *gathered]
        self._compute(name, part, _BACKWARD if is_backward else 1)
        if has_experts:
            self._exchange(f"{name} combine")
        if is_cut and options.sequence_parallel:
            self._communicate(f"{name} scatter", JobCollective.REDUCE_SCATTER, "tensor")
        elif is_cut:
            self._communicate(f"{name} reduce", JobCollective.ALL_REDUCE, "tensor")

    def _compute(self, name: str, part: Part, times: int) -> None:
        # What the flow waits for already needs no second dependency.
        behind = [row for row in self._computes[-1:] if row not in self._flow]
        work = work_of(self._options, part.operations * times, part.bytes * times)
        row = self.program.compute(name, self._flow, behind, **work)
        self._computes.append(row)
        self._flow = [row]

    def _communicate(self, name: str, kind: JobCollective, role: str) -> None:
        """A collective on the hidden state: of its shard where it is gathered."""
        is_gather = kind is JobCollective.ALL_GATHER
        size = self._costs.shard_bytes if is_gather else self._costs.activation_bytes
        self._flow = [self.program.collective(name, kind, size, role, self._flow)]

    def _exchange(self, name: str) -> None:
        """Tokens to their experts, or back."""
        # Each token goes to so many experts.
        size = self._costs.shard_bytes * self._options.top_k
        kind = JobCollective.ALL_TO_ALL
        self._flow = [self.program.collective(name, kind, size, "expert", self._flow)]

    def _received(self, shift: int, microbatch: int) -> int:
        # A receive is posted at once: only what it brings is waited for.
        return self._message(NodeKind.RECV, shift, microbatch, ())

    def _send(self, shift: int, microbatch: int) -> None:
        """Send what a microbatch made to a neighbour."""
        # Nothing of this stage waits until it has arrived.
        self._message(NodeKind.SEND, shift, microbatch, self._flow)

    def _message(self, kind: NodeKind, shift: int, microbatch: int, after: Sequence[int]) -> int:
        """A message between this stage and the one before or behind it."""
        # Activations go up the stages, their gradients down.
        is_forward = (kind is NodeKind.SEND) == (shift > 0)
        name = "activations" if is_forward else "gradients of activations"
        ranks = shift * self._options.data * self._options.tensor
        return self.program.message(kind, name, self._costs.shard_bytes, ranks, microbatch, after)

    # --- weights and gradients ---

    def _layer_bytes(self) -> int:
        """Of the weights, or gradients, of a layer without experts."""
        # Experts are reduced in a group of their own.
        attention, mlp = self._costs.attention(), self._costs.mlp()
        held = attention.parameters + mlp.parameters
        return held * self._options.element_bytes

    def _gathered_weights(self, name: str) -> list[int]:
        """Gather the shards of a layer's weights, one layer ahead where that overlaps."""
        if not self._options.fsdp or self._options.data == 1:
            return []
        shard = -(-self._layer_bytes() // self._options.data)
        # Two computations a layer: with overlap the gather waits for the layer before the last.
        ahead = 3 if self._options.overlap else 1
        behind = self._computes[-ahead:][:1]
        kind = JobCollective.ALL_GATHER
        return [self.program.collective(f"{name} weights", kind, shard, "data", (), behind)]

    def _reduce_layer(self, layer: int, *, is_last: bool) -> None:
        """Gradients of a layer: cut among ranks after every pass, or reduced after the last."""
        options, name = self._options, f"gradients {layer}"
        behind = self._computes[-1:]
        # Every rank keeps the sum of its shard alone.
        if options.fsdp and options.data > 1:
            size, kind = self._layer_bytes(), JobCollective.REDUCE_SCATTER
            self.program.collective(name, kind, size, "data", behind)
        # Until the last microbatch the gradients add up in place.
        if not is_last:
            return
        reduced = [] if options.fsdp else [(name, self._layer_bytes(), "data")]
        if self._costs.experts_held:
            experts = f"{name} experts", self._costs.expert_gradient_bytes, "expert data"
            reduced.append(experts)
        for gradients in reduced:
            # Without overlap they wait for the end of the last pass.
            if options.overlap:
                self._all_reduce(*gradients, behind)
            else:
                self._gradients.append(gradients)

    def _all_reduce(self, name: str, size: int, role: str, after: Sequence[int]) -> list[int]:
        """Reduce in the group of a role; nothing where that has one rank."""
        ranks = {
            "data": self._options.data,
            "expert data": self._options.data // self._options.expert,
            "embedding": min(self._options.pipeline, 2),
        }
        # A collective of one rank would never end in simulators.
        if ranks[role] == 1:
            return [*after]
        kind = JobCollective.ALL_REDUCE
        return [self.program.collective(name, kind, size, role, after)]
