"""Build the job of a workload text: every GPU runs all rows, forward and backward.

The order is that of the original simulator: the collectives of the forward pass block; in the
backward pass, the collective of the input gradient overlaps the computation of the weight gradient,
and the collective of the weight gradient overlaps everything until the end of the step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collhub_templates import RankProgram, RankPrograms, job_of, number_by_use

from collhub_simai.options import SIMAI, SimaiOptions
from collhub_simai.workload_text import ROLES, Communication, Layer, WorkloadText, parse_workload
from hub_core.columns import Int64Array
from hub_core.model import (
    Diagnostic,
    InputError,
    JobCollective,
    JsonValue,
    Location,
    ProcessGroup,
    Provenance,
    Severity,
    Workload,
)
from hub_core.plugin_api import Source, decompressed

EXTENSION = "simai"


def read(source: Source, options: SimaiOptions) -> Workload:
    """Read a workload text as a job.

    Assumptions are passed to `source.report`. Raises `InputError` with the line for invalid rows,
    for parallelism that does not divide the GPUs, and for too many nodes.
    """
    part = source.parts[0]
    if len(source.parts) != 1:
        message = f"{len(source.parts)} files; a workload text is one file"
        raise InputError(message, location=Location(source.name), cure="name one file")
    with decompressed(part.stream(), part.name) as stream:
        text = parse_workload(stream, part.name)
    gpus = options.gpus or text.value("all_gpus")
    roles = _groups(text, gpus, part.name)
    sizes = {role: table.shape[1] for role, table in roles.items()}
    program = _program(text, sizes, options.passes)
    if len(program) * gpus > options.max_nodes:
        message = f"{gpus} GPUs with {len(program)} nodes each; at most {options.max_nodes} in all"
        cure = "read fewer GPUs with -O gpus=N, or raise -O max_nodes=N"
        raise InputError(message, location=Location(part.name), cure=cure, code="too-large")
    for line in _notes(text, gpus, sizes):
        source.report(Diagnostic("simai", line, Severity.NOTE, Location(part.name)))
    every = np.arange(gpus, dtype=np.int64)
    workload = job_of([RankPrograms(program, every)], roles, SIMAI)
    facts: dict[str, JsonValue] = {"policy": text.policy, "rows": len(text.layers), **text.values}
    return replace(
        _number_groups(workload),
        provenance=Provenance(SIMAI, "", source.name, source.sha256()),
        extensions={EXTENSION: facts},
    )


def _groups(text: WorkloadText, gpus: int, file: str) -> dict[str, Int64Array]:
    """Return the ranks of the groups of each role: int64[groups, size].

    Ranks are numbered with tensor parallelism first, then data, then pipeline stages.
    """
    tensor, stages = text.value("model_parallel_NPU_group"), text.value("pp")
    expert = text.value("ep")
    data, rest = divmod(gpus, tensor * stages)
    if rest or not data:
        message = f"{gpus} GPUs are not a multiple of tensor {tensor} x pp {stages}"
        cure = "correct the first line, or give -O gpus=N"
        raise InputError(message, location=Location(file, 1), cure=cure, code="simai")
    if data % expert:
        message = f"{data} data-parallel ranks are not a multiple of ep {expert}"
        cure = "correct the first line, or give -O gpus=N"
        raise InputError(message, location=Location(file, 1), cure=cure, code="simai")
    grid = np.arange(gpus, dtype=np.int64).reshape(stages, data // expert, expert, tensor)
    return dict(
        zip(
            ROLES,
            (
                grid.reshape(-1, tensor),
                grid.transpose(0, 3, 1, 2).reshape(-1, data),
                grid.transpose(0, 1, 3, 2).reshape(-1, expert),
                grid.transpose(0, 2, 3, 1).reshape(-1, data // expert),
            ),
            strict=True,
        )
    )


def _number_groups(workload: Workload) -> Workload:
    """Number the groups by their first use; a group of all ranks is -1, as in other readers."""
    nodes, every = workload.nodes, tuple(range(workload.num_ranks))
    is_every = np.array([*(group.ranks == every for group in workload.groups), False])
    is_part = ~is_every[nodes.group]
    order, number_of = number_by_use(np.where(is_part, nodes.group, -1), len(workload.groups))
    groups = tuple(
        ProcessGroup(str(index), workload.groups[number].ranks)
        for index, number in enumerate(order.tolist(), 1)
    )
    group = number_of[nodes.group].astype(nodes.group.dtype)
    group.flags.writeable = False
    return replace(workload, nodes=replace(nodes, group=group), groups=groups)


def _program(text: WorkloadText, sizes: dict[str, int], passes: int) -> RankProgram:
    """Build the nodes of one rank."""
    program = RankProgram(ROLES)
    before: list[int] = []
    # Collectives of weight gradients of the previous pass, by layer.
    gradients: dict[int, list[int]] = {}
    is_inference = text.policy in ("DISTRIBUTED_INFERENCE", "MICRO")
    for _ in range(passes):
        for layer_index, layer in enumerate(text.layers):
            row = _compute(program, f"{layer.name} forward", layer.forward.compute_ns,
                           [*before, *gradients.pop(layer_index, [])])  # fmt: skip
            before = _collective(program, layer, layer.forward.communication, sizes, row)
        if is_inference:
            continue
        for layer_index, layer in reversed(list(enumerate(text.layers))):
            gradient = _compute(
                program, f"{layer.name} input gradient", layer.input_gradient.compute_ns, before
            )
            sent = _collective(program, layer, layer.input_gradient.communication, sizes, gradient)
            row = _compute(
                program, f"{layer.name} weight gradient", layer.weight_gradient.compute_ns, gradient
            )
            last = _collective(program, layer, layer.weight_gradient.communication, sizes, row)
            if last != row:
                last = _compute(program, f"{layer.name} update", layer.update_ns, last)
                gradients[layer_index] = last
            # The weight gradient already follows the input gradient.
            before = sorted({*row, *(sent if sent != gradient else ())})
    return program


def _compute(program: RankProgram, name: str, duration_ns: int, after: list[int]) -> list[int]:
    if not duration_ns:
        return after
    return [program.compute(name, (), after, duration_ns=duration_ns)]


def _collective(
    program: RankProgram,
    layer: Layer,
    communication: Communication | None,
    sizes: dict[str, int],
    after: list[int],
) -> list[int]:
    """Add a collective; without one, and in groups of one rank, nothing. Returns its row."""
    if communication is None or sizes[communication.role] < 2:
        return after
    size = communication.bytes
    if communication.kind is JobCollective.ALL_GATHER:
        # The file has the gathered buffer, a workload the input of a rank.
        size = -(-size // sizes[communication.role])
    kind, role = communication.kind, communication.role
    return [program.collective(layer.name, kind, size, role, (), after)]


def _notes(text: WorkloadText, gpus: int, sizes: dict[str, int]) -> list[str]:
    lines = [*text.notes]
    groups = ", ".join(f"{role} {size}" for role, size in sizes.items() if size > 1) or "none"
    lines.append(f"{gpus} GPUs, all with the same rows; groups of several ranks: {groups}")
    if text.values.get("all_gpus", gpus) != gpus:
        lines.append(f"the file is for {text.values['all_gpus']} GPUs")
    if text.value("pp") > 1:
        lines.append("messages between pipeline stages are not in the rows, and not in the job")
    return lines
