"""A training step of a transformer, cut into data, tensor, pipeline, sequence and expert parts.

Sources. Tensor parallelism, two all-reduces a layer and direction: Shoeybi et al., "Megatron-LM"
(arXiv 1909.08053). Sequence parallelism, each of them as all-gather and reduce-scatter, and the
inputs gathered once more backward: Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models" (arXiv 2205.05198). Ranks (tensor innermost, then data, then pipeline) and 1F1B:
Narayanan et al. (SC 2021). Sharded weights, gathered before and scattered after use: Zhao et al.,
"PyTorch FSDP" (arXiv 2304.11277). Experts, two all-to-alls a layer and direction: Lepikhin et al.,
"GShard" (arXiv 2006.16668).

Left out: the optimizer, recomputation, losses cut by the vocabulary, gradients of norms among
sequence-parallel ranks; FSDP leaves embeddings whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from collhub_templates import RankProgram, RankPrograms, job_of
from collhub_templates.roofline import work_of

from collhub_models.costs import LayerSizes, Part
from collhub_models.plugin import TransformerOptions
from hub_core import UsageError
from hub_core.model import JobCollective, NodeKind, Workload

ROLES = ("tensor", "data", "expert", "expert data", "embedding")


def stage_ranks(options: TransformerOptions, stage: int) -> npt.NDArray[np.int64]:
    """Return the ranks of a pipeline stage, ascending: int64[data x tensor].

    They are consecutive and begin at `stage` (from 0) times data x tensor; tensor-parallel
    ranks are consecutive. The stage is not checked.
    """
    count = options.data * options.tensor
    return np.arange(stage * count, (stage + 1) * count, dtype=np.int64)


def role_groups(options: TransformerOptions) -> dict[str, npt.NDArray[np.int64]]:
    """Return the groups of ranks of every role in `ROLES`, by name: int64[groups, members].

    The number of a rank is t + T (e + E (d + D p)). t, e, d and p are its positions in the tensor,
    expert, data / expert and pipeline dimensions. T, E and D are the sizes of the first three. The
    members of a group differ only in these positions:

    - `tensor`: t
    - `data`: d and e
    - `expert`: e
    - `expert data`: d
    - `embedding`: p, which is the first or the last stage; with one stage, the row has its rank
      twice. Both stages store the embeddings.

    Members ascend, and groups ascend by their first member. A dimension of size 1 gives groups with
    one member. Raises `ValueError` if `data` is not a multiple of `expert`.
    """
    cube = (options.pipeline, options.data // options.expert, options.expert, options.tensor)
    ranks = np.arange(np.prod(cube), dtype=np.int64).reshape(cube)
    by_data = ranks.reshape(options.pipeline, options.data, options.tensor)
    # The first and the last stage hold the embeddings of the vocabulary both.
    end_stages = by_data[[0, -1]].reshape(2, -1).T
    tables = (
        ranks.reshape(-1, options.tensor),
        by_data.transpose(0, 2, 1).reshape(-1, options.data),
        ranks.transpose(0, 1, 3, 2).reshape(-1, options.expert),
        ranks.transpose(0, 2, 3, 1).reshape(-1, cube[1]),
        end_stages,
    )
    return dict(zip(ROLES, tables, strict=True))


# Backward, the gradients of inputs and those of weights are computed.
_BACKWARD = 2


class StageProgram:
    """Builder of the program of a stage.

    `_flow`: the rows whose data the next node takes. `_computes`: computations so far, of which
    each waits for the one before it, in the order of the schedule.
    """

    def __init__(
        self,
        options: TransformerOptions,
        costs: LayerSizes,
        stage: int,
        microbatches: int,
        roles: Sequence[str],
    ) -> None:
        """Create an empty program of pipeline stage `stage`, counted from 0.

        `microbatches`: number of microbatches of the step; `roles`: names of the groups. The
        stage has layers / pipeline consecutive layers, rounded down; remaining layers are
        dropped.
        """
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
        """Add the forward pass of a microbatch (numbered from 0) to `program`, in this order.

        1. Except on the first stage: a receive of the activations from the previous stage. It waits
           for no node.
        2. For each layer of the stage: the all-gather of its weights (only with FSDP and more than
           one data-parallel rank), attention, then MLP or experts. `_half` lists the nodes of both
           halves.
        3. On the last stage the computation of the logits; on other stages a send of the
           activations to the next stage.

        Each node needs the data of the node before it, without regard to all-gathers of weights.
        These wait only for an earlier computation (`_gathered_weights`), and the computations of
        both halves need their data. Each computation also waits for the last computation before it,
        which may belong to an earlier pass. The tag of the messages is `microbatch`.
        """
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
        """Add the backward pass of a microbatch (numbered from 0) to `program`, in this order.

        1. On the last stage the computation of the logits; on other stages the receive of gradients
           from the next stage, which waits for nothing.
        2. For each layer, from the last to the first: the all-gather of the weights (with FSDP and
           more than one data-parallel rank, `_gathered_weights`), MLP or experts, attention, both
           with their tensor- and expert-parallel communication (`_half`), then the reductions of
           the layer's gradients. `_reduce_layer` adds all-reduces only for the last microbatch of
           the step, or stores them for `finish`. No node waits for a reduction.
        3. Except on the first stage, a send of gradients to the previous stage.

        A computation has twice the operations and bytes of the forward pass. It needs the data of
        the node before it, reductions excepted, and of the weights. It waits for the last
        computation, also of an earlier pass. The tag of the messages is `microbatch`.
        """
        if self._is_last:
            self._flow = []
            self._compute("backward logits", self._costs.logits(), _BACKWARD)
        else:
            self._flow = [self._received(1, microbatch)]
        for layer in reversed(self._layers):
            # Gather weights that were freed after the forward pass.
            gathered = self._gathered_weights(f"backward {layer}")
            # The parts of a layer in the opposite order.
            self._experts_or_mlp(f"backward {layer}", gathered)
            self._half(f"backward {layer} attention", self._costs.attention(), gathered)
            self._reduce_layer(layer, is_last=microbatch == self._last_microbatch)
        if not self._is_first:
            self._send(-1, microbatch)

    def finish(self) -> None:
        """Add the all-reduces of the remaining gradients after the last pass of the stage.

        1. The gradients that `_reduce_layer` stored, in the order of storing. With the option
           `overlap` it stores none.
        2. Only on the first and the last stage: gradients of the embeddings in the group `data`.
           The size is that of the vocabulary's, on the first stage also of the positions'
           embeddings.
        3. On these two stages, if there are several stages: gradients of the vocabulary's
           embeddings in the group `embedding`, which both stages share.

        All-reduces in groups of one rank are omitted. 1 and 2 wait for the last computation of the
        stage. 3 waits for 2 or, if 2 is omitted, for the last computation. Sizes are in bytes. The
        stored gradients are not cleared.
        """
        for name, size, role in self._gradients:
            self._all_reduce(name, size, role, self._computes[-1:])
        # Stages in the middle hold no embeddings.
        if not self._is_first and not self._is_last:
            return
        parameters = self._costs.embedding_parameters(has_positions=self._is_first)
        size = parameters * self._options.element_bytes
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
        """Add half a layer (attention or MLP): communication, computation, communication.

        The first node needs the data of `self._flow`, each further one that of the node before it.
        Afterwards `self._flow` is the last node. The nodes are, in this order:

        1. with tensor parallelism above 1 and sequence parallelism: the all-gather `NAME gather`;
           if `name` begins with `backward`, also `NAME gather inputs` for the stored inputs
        2. with experts (`name` ends with `mlp`, expert parallelism above 1): all-to-all
           `NAME dispatch`
        3. the computation `name`, which also needs the data of the rows `gathered` (weights) and
           waits for the previous computation of the stage. `part` has its operations and bytes;
           both are doubled if `name` begins with `backward`.
        4. with experts (see 2): the all-to-all `NAME combine`
        5. with tensor parallelism above 1: the reduce-scatter `NAME scatter` with sequence
           parallelism, otherwise the all-reduce `NAME reduce`
        """
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
        control = [row for row in self._computes[-1:] if row not in self._flow]
        work = work_of(self._options, part.operations * times, part.bytes * times)
        row = self.program.compute(name, self._flow, control, **work)
        self._computes.append(row)
        self._flow = [row]

    def _communicate(self, name: str, kind: JobCollective, role: str) -> None:
        """Add a collective on the hidden state, which the following operations need.

        Its group is `role`, and it needs the data of the operations before it. An all-gather
        has the bytes of the rank's shard (with sequence parallelism a tensor-parallel part,
        otherwise all), other kinds those of the complete hidden state.
        """
        is_gather = kind is JobCollective.ALL_GATHER
        size = self._costs.shard_bytes if is_gather else self._costs.activation_bytes
        self._flow = [self.program.collective(name, kind, size, role, self._flow)]

    def _exchange(self, name: str) -> None:
        """Add the all-to-all in the group `expert` that sends tokens to their experts, or back.

        Its size is the rank's shard of the hidden state times `top_k`, in bytes. It needs the
        data of the operations before it, and the following operations need its data.
        """
        # Each token goes to so many experts.
        size = self._costs.shard_bytes * self._options.top_k
        kind = JobCollective.ALL_TO_ALL
        self._flow = [self.program.collective(name, kind, size, "expert", self._flow)]

    def _received(self, shift: int, microbatch: int) -> int:
        # A receive is posted at once: only what it brings is waited for.
        return self._message(NodeKind.RECV, shift, microbatch, ())

    def _send(self, shift: int, microbatch: int) -> None:
        """Send the result of a microbatch to a neighbour."""
        # Nothing of this stage waits until it has arrived.
        self._message(NodeKind.SEND, shift, microbatch, self._flow)

    def _message(self, kind: NodeKind, shift: int, microbatch: int, after: Sequence[int]) -> int:
        """Add a SEND to, or a RECV from, a neighbour stage, and return its row.

        `kind`: SEND or RECV; `shift`: 1 for the next stage, -1 for the previous one;
        `microbatch`: its number, which is the tag; `after`: rows whose data it needs. The peer
        is the rank at the same position of the other stage, which is not checked to exist. A
        message to a later stage carries activations, otherwise their gradients; its size is the
        rank's shard of the hidden state.
        """
        # Activations go up the stages, their gradients down.
        is_forward = (kind is NodeKind.SEND) == (shift > 0)
        name = "activations" if is_forward else "gradients of activations"
        ranks = shift * self._options.data * self._options.tensor
        return self.program.message(kind, name, self._costs.shard_bytes, ranks, microbatch, after)

    # --- weights and gradients ---

    def _layer_bytes(self) -> int:
        """Return the bytes of a layer's weights (or gradients) on one rank, without experts.

        They include attention, norms, and the MLP, or with several experts the gate.
        """
        # Experts are reduced in a group of their own.
        attention, mlp = self._costs.attention(), self._costs.mlp()
        parameters = attention.parameters + mlp.parameters
        return parameters * self._options.element_bytes

    def _gathered_weights(self, name: str) -> list[int]:
        """Add the all-gather of a layer's weights (group `data`); return its row in a list.

        [] without FSDP or with one data-parallel rank. The size is the layer's bytes
        (`_layer_bytes`) divided by the data-parallel ranks, rounded up. Without the option
        `overlap` it starts after the last computation of the stage. With it, it starts after
        the third-last one, so that it runs one layer ahead; of fewer than three computations,
        after the first. Without computations it waits for none.
        """
        if not self._options.fsdp or self._options.data == 1:
            return []
        shard = -(-self._layer_bytes() // self._options.data)
        # Two computations a layer: with overlap the gather waits for the layer before the last.
        ahead = 3 if self._options.overlap else 1
        control = self._computes[-ahead:][:1]
        kind = JobCollective.ALL_GATHER
        return [self.program.collective(f"{name} weights", kind, shard, "data", (), control)]

    def _reduce_layer(self, layer: int, *, is_last: bool) -> None:
        """Add the reductions of a layer's gradients.

        - With FSDP and several data-parallel ranks: after every microbatch a reduce-scatter of the
          layer's bytes (`_layer_bytes`, without experts) in the group `data`. It waits for the last
          computation.
        - After the last microbatch (`is_last`), without FSDP: an all-reduce of the layer's bytes in
          the group `data`.
        - After the last microbatch, with or without FSDP, if there are several experts: an
          all-reduce of the gradients of the rank's experts in the group `expert data`.

        With the option `overlap` the all-reduces wait for the last computation only; otherwise they
        are stored, and `finish` adds them at the end of the pass. An all-reduce in a group of one
        rank is left out (`_all_reduce`).
        """
        options, name = self._options, f"gradients {layer}"
        last_computation = self._computes[-1:]
        # Every rank keeps the sum of its shard alone.
        if options.fsdp and options.data > 1:
            size, kind = self._layer_bytes(), JobCollective.REDUCE_SCATTER
            self.program.collective(name, kind, size, "data", last_computation)
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
                self._all_reduce(*gradients, last_computation)
            else:
                self._gradients.append(gradients)

    def _all_reduce(self, name: str, size: int, role: str, after: Sequence[int]) -> list[int]:
        """Add an all-reduce in the group of a role; return the rows for which later nodes wait.

        `role`: `data`, `expert data` or `embedding`; `size`: bytes; `after`: rows whose data it
        needs. The result is its row. A group of one rank gets no collective, because simulators
        would hang; then the result is `after`.
        """
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


MOST_COMPUTATIONS = 10**7


def generate(options: TransformerOptions) -> Workload:
    """Generate one training step of a transformer on all ranks as a workload.

    Ranks are numbered with the tensor-parallel rank fastest, then the data-parallel rank, then the
    pipeline stage. The ranks of a stage have the same program in different groups. A stage runs
    batch / data / microbatch microbatches, forward and backward in the order of `schedule`.

    Raises `UsageError` in the first of these cases:

    - The first number is no multiple of the second: layers, pipeline; hidden, heads; heads, tensor;
      heads, kv_heads (if not 0); batch, data x microbatch; experts, expert; data, expert; with
      sequence parallelism also sequence, tensor.
    - There are more than `MOST_COMPUTATIONS` computations.
    - `top_k` is above the number of experts.
    - Expert and tensor parallelism are both above 1, without sequence parallelism.
    """
    _check(options)
    costs = LayerSizes(options)
    microbatches = options.batch // options.data // options.microbatch
    stages = []
    # Ranks of one stage differ in their groups alone.
    for index in range(options.pipeline):
        program = StageProgram(options, costs, index, microbatches, ROLES)
        for forward, microbatch in schedule(index, options.pipeline, microbatches):
            if forward:
                program.forward(microbatch)
            else:
                program.backward(microbatch)
        program.finish()
        stages.append(RankPrograms(program.program, stage_ranks(options, index)))
    return job_of(stages, role_groups(options), "transformer")


def schedule(stage: int, stages: int, microbatches: int) -> list[tuple[bool, int]]:
    """Return (is forward, microbatch) of the passes of a stage in 1F1B order.

    First come as many forward passes as there are later stages, at most `microbatches`. Then one
    forward and one backward pass alternate. The remaining backward passes are last.
    """
    ahead = min(stages - stage - 1, microbatches)
    order = [(True, microbatch) for microbatch in range(ahead)]
    # The steady part: what goes forward replaces what comes back.
    for microbatch in range(microbatches - ahead):
        order += [(True, ahead + microbatch), (False, microbatch)]
    return order + [(False, microbatch) for microbatch in range(microbatches - ahead, microbatches)]


def computations(options: TransformerOptions) -> int:
    """Return the number of computations in the layers of all ranks, to estimate a job's size.

    There are 2 per layer (attention, MLP) and direction, for every microbatch of every
    data-parallel rank, on each tensor-parallel rank: 4 x layers x (batch / microbatch) x
    tensor. Logits do not count; the job has up to six times as many nodes. The options are
    not checked.
    """
    # Two halves of a layer, forward and backward, for every microbatch of every replica.
    passes = 4 * options.layers * options.batch // options.microbatch
    return passes * options.tensor


def _check(options: TransformerOptions) -> None:
    divisions = (
        ("layers", options.layers, "pipeline", options.pipeline),
        ("hidden", options.hidden, "heads", options.heads),
        ("heads", options.heads, "tensor", options.tensor),
        ("heads", options.heads, "kv_heads", options.kv_heads or 1),
        ("batch", options.batch, "data x microbatch", options.data * options.microbatch),
        ("experts", options.experts, "expert", options.expert),
        ("data", options.data, "expert", options.expert),
    )
    for name, value, divisor_name, divisor in divisions:
        if value % divisor:
            message = f"{name} {value} is no multiple of {divisor_name} {divisor}"
            raise UsageError(message, cure=f"change -O {name}", code="degrees")
    if options.sequence_parallel and options.sequence % options.tensor:
        message = f"sequence {options.sequence} is no multiple of tensor {options.tensor}"
        raise UsageError(message, cure="change -O sequence", code="degrees")
    count = computations(options)
    if count > MOST_COMPUTATIONS:
        limit = f"{MOST_COMPUTATIONS:.0e}"
        message = f"{count:.0e} computations are more than the {limit} that a job may have"
        raise UsageError(message, cure="make it of fewer layers, ranks or microbatches")
    if options.top_k > options.experts:
        message = f"top_k {options.top_k} is more than there are experts"
        raise UsageError(message, cure="change -O experts", code="degrees")
    # Otherwise every tensor-parallel rank would send all tokens, as Megatron-Core refuses, too.
    if options.expert > 1 and options.tensor > 1 and not options.sequence_parallel:
        message = "expert and tensor parallelism together need sequence parallelism"
        raise UsageError(message, cure="-O sequence_parallel=true", code="degrees")
