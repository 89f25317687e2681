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

from collhub_templates import RankPrograms, job_of

from collhub_models.costs import Costs
from collhub_models.layout import ROLES, role_groups, stage_ranks
from collhub_models.options import TransformerOptions
from collhub_models.stage import StageProgram
from hub_core import UsageError
from hub_core.model import Workload

MOST_COMPUTATIONS = 10**7


def generate(options: TransformerOptions) -> Workload:
    """One step. Raises `UsageError` for degrees that do not divide what they cut."""
    _check(options)
    costs = Costs(options)
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
    """(whether forward, microbatch) in the order of 1F1B on one stage.

    As many forward passes as there are later stages, then one of each kind in turn, then the
    backward passes that are left.
    """
    ahead = min(stages - stage - 1, microbatches)
    order = [(True, microbatch) for microbatch in range(ahead)]
    # The steady part: what goes forward replaces what comes back.
    for microbatch in range(microbatches - ahead):
        order += [(True, ahead + microbatch), (False, microbatch)]
    return order + [(False, microbatch) for microbatch in range(microbatches - ahead, microbatches)]


def computations(options: TransformerOptions) -> int:
    """How many computations the layers of all ranks will have; a job has up to six times that."""
    # Two halves of a layer, forward and backward, for every microbatch of every replica.
    passes = 4 * options.layers * options.batch // options.microbatch
    return passes * options.tensor


def _check(options: TransformerOptions) -> None:
    wanted = (
        ("layers", options.layers, "pipeline", options.pipeline),
        ("hidden", options.hidden, "heads", options.heads),
        ("heads", options.heads, "tensor", options.tensor),
        ("heads", options.heads, "kv_heads", options.kv_heads or 1),
        ("batch", options.batch, "data x microbatch", options.data * options.microbatch),
        ("experts", options.experts, "expert", options.expert),
        ("data", options.data, "expert", options.expert),
    )
    for name, value, divisor_name, divisor in wanted:
        if value % divisor:
            message = f"{name} {value} is no multiple of {divisor_name} {divisor}"
            raise UsageError(message, cure=f"change -O {name}", code="degrees")
    if options.sequence_parallel and options.sequence % options.tensor:
        message = f"sequence {options.sequence} is no multiple of tensor {options.tensor}"
        raise UsageError(message, cure="change -O sequence", code="degrees")
    count = computations(options)
    if count > MOST_COMPUTATIONS:
        most = f"{MOST_COMPUTATIONS:.0e}"
        message = f"{count:.0e} computations are more than the {most} that a job may have"
        raise UsageError(message, cure="make it of fewer layers, ranks or microbatches")
    if options.top_k > options.experts:
        message = f"top_k {options.top_k} is more than there are experts"
        raise UsageError(message, cure="change -O experts", code="degrees")
    # Otherwise every tensor-parallel rank would send all tokens, as Megatron-Core refuses, too.
    if options.expert > 1 and options.tensor > 1 and not options.sequence_parallel:
        message = "expert and tensor parallelism together need sequence parallelism"
        raise UsageError(message, cure="-O sequence_parallel=true", code="degrees")
