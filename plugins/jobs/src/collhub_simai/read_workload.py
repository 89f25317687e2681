"""Read workload text of AICB (SimAI, ASTRA-sim 1): every GPU runs all rows, forward and backward.

The text has a policy, degrees of parallelism, and one row per layer. Source: aliyun/aicb
`SimAI_training_workload_generator.py`, aliyun/SimAI `Workload.cc` (Apache-2.0).

The order is that of the original simulator: the collectives of the forward pass block; in the
backward pass, the collective of the input gradient overlaps the computation of the weight gradient,
and the collective of the weight gradient overlaps everything until the end of the step.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import BinaryIO, NoReturn

import numpy as np
from collhub_templates import RankProgram, RankPrograms, job_of, number_by_use

from collhub_simai.plugin import SIMAI, SimaiOptions
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

POLICIES = (
    "DATA", "MODEL", "MICRO", "HYBRID_TRANSFORMER", "HYBRID_TRANSFORMER_FWD_IN_BCKWD",
    "HYBRID_DLRM", "HYBRID_DLRM_ENHANCED", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA",
    "HYBRID_CUSTOMIZED", "DISTRIBUTED_INFERENCE",
)  # fmt: skip
_CUSTOMIZED = "HYBRID_CUSTOMIZED"
_MICRO = "MICRO"
_TENSOR_KEY = "model_parallel_NPU_group"
_ROW_WORDS = 12
_KINDS = {
    "ALLREDUCE": JobCollective.ALL_REDUCE,
    "ALLGATHER": JobCollective.ALL_GATHER,
    "REDUCESCATTER": JobCollective.REDUCE_SCATTER,
    "ALLTOALL": JobCollective.ALL_TO_ALL,
}
# The original reader takes this word for an all-reduce without a group, which does nothing.
_SHADOWED = "ALLREDUCEALLTOALL"
_COMMUNICATION = re.compile(r"([A-Z]{1,20}?)(_EP|_DP_EP)?\Z")
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_MAX_ROWS = 1 << 20
_MAX_GPUS = 1 << 20
TENSOR, DATA, EXPERT, EXPERT_DATA = ROLES = ("tensor", "data", "expert", "expert-data")


@dataclass(frozen=True, slots=True)
class Communication:
    """A collective of a row. `bytes`: as in the file, the complete buffer; `role`: of its group."""

    kind: JobCollective
    role: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Phase:
    """Computation in ns, and the collective after it; None without one."""

    compute_ns: int
    communication: Communication | None


@dataclass(frozen=True, slots=True)
class Layer:
    """One row of the file."""

    name: str
    line: int
    forward: Phase
    input_gradient: Phase
    weight_gradient: Phase
    update_ns: int


@dataclass(frozen=True, slots=True)
class WorkloadText:
    """Contents of a file. `values`: numbers of the first line by key. `notes`: for the user."""

    policy: str
    values: Mapping[str, int]
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()

    def value(self, key: str) -> int:
        """Return a number of the first line, 1 without it."""
        return max(1, self.values.get(key, 1))


class _Words:
    """Words of a file with their lines. Memory: one line."""

    def __init__(self, stream: BinaryIO, file: str) -> None:
        self._stream, self.file = stream, file
        self.line = 0
        self._pending: list[str] = []

    def next_line(self) -> list[str]:
        """Return the words of the next line that has any; [] at the end of the file.

        Words are separated by white space. Bytes that are not UTF-8 are replaced. A byte order
        mark before the first line is left out. `line` increases by 1 for every line that is
        read, also for skipped ones. A line of more than 2^20 bytes is read in parts of 2^20
        bytes; each part counts as a line, and a word can be divided between two of them.
        """
        while content := self._stream.readline(1 << 20):
            self.line += 1
            if self.line == 1:
                content = content.removeprefix(codecs.BOM_UTF8)
            words = content.decode("utf-8", "replace").split()
            if words:
                return words
        return []

    def rows(self) -> Iterator[str]:
        """Yield the words of all further lines."""
        while words := self.next_line():
            yield from words

    def refuse(self, message: str, cure: str) -> NoReturn:
        """Raise `InputError` (`simai`), always, at the current line; 1 before the first line."""
        location = Location(self.file, max(1, self.line))
        raise InputError(message, location=location, cure=cure, code="simai")


def parse_workload(stream: BinaryIO, file: str) -> WorkloadText:
    """Parse a workload file: the policy with its values, the number of rows, and the layers.

    Empty lines are ignored. Line 1 has one of `POLICIES`, then `key: number` pairs
    (`_parse_values`). Line 2 has only the number of rows, 1 to 2^20. Each row has 12 words, 13
    with the policy `HYBRID_CUSTOMIZED`:

    - 1: the name, cut at 200 characters. 3, 6, 9 and 12: times in ns. 2 and 13: ignored.
    - 4, 7 and 10: communications, with sizes in bytes in 5, 8 and 11. There is none for `NONE`, for
      size 0, and for `ALLREDUCEALLTOALL` (with a note). A kind that ends with `_EP` uses the
      expert group, with `_DP_EP` the group of expert data.

    Further words of a row, and words after the last row, are ignored with a note. `notes` has
    the first 20. Raises `InputError` (`simai`) for the first defect, with its line: an
    unknown policy (also an empty file), an invalid value, number or communication, or too few
    words or rows.
    """
    words = _Words(stream, file)
    head = words.next_line()
    policy = head[0] if head else ""
    if policy not in POLICIES:
        listed = ", ".join(POLICIES)
        words.refuse(f"the file begins with {policy[:40]!r}, no policy", f"use one of {listed}")
    notes: list[str] = []
    values = _parse_values(head[1:], words)
    count_words = words.next_line()
    count = int(count_words[0]) if count_words and _NUMBER.match(count_words[0]) else -1
    if len(count_words) != 1 or not 1 <= count <= _MAX_ROWS:
        text = " ".join(count_words)[:40]
        words.refuse(f"{text!r} is not the number of rows, 1 to {_MAX_ROWS}", "correct the line")
    layers = []
    size = _ROW_WORDS + (policy == _CUSTOMIZED)
    for number in range(count):
        row = words.next_line()
        if len(row) < size:
            message = f"row {number + 1} of {count} has {len(row)} of {size} words"
            words.refuse(message, "complete the row, or correct the number of rows")
        if len(row) > size:
            notes.append(f"line {words.line}: {len(row) - size} words behind the row are ignored")
        layers.append(_parse_row(row, words, notes))
    if rest := sum(1 for _ in words.rows()):
        notes.append(f"{rest} words behind the last row are ignored")
    return WorkloadText(policy, values, tuple(layers), tuple(notes[:20]))


def _parse_values(words: list[str], source: _Words) -> dict[str, int]:
    """Parse the `key: number` pairs of the first line as numbers by key (without the colon).

    A key is a word that ends with a colon, or `pp_comm` with or without it. Its value is the
    next word; further words up to the next key are ignored, so `checkpoints: 2 0 5` gives 2. A
    key at the end of the line is ignored. The last value of a repeated key is used. Without
    keys the result is {}.

    Raises `InputError` (`simai`) for a value that is not 1 to 18 decimal digits, also with a
    sign, and for more than 2^20 `all_gpus`. Only `pp_comm` may have decimals, as in `8388608.0`;
    they are ignored, as in SimAI.
    """
    values: dict[str, int] = {}
    for key, text in pairwise(words):
        name = key.removesuffix(":")
        if not key.endswith(":") and key != "pp_comm":
            continue
        # AICB divides this size by the tensor parallelism, which gives a float in Python.
        whole, _, decimals = text.partition(".") if name == "pp_comm" else (text, "", "")
        if not _NUMBER.match(whole) or not _NUMBER.match(decimals or "0"):
            source.refuse(f"{name[:40]} is {text[:40]!r}, no number", "write a decimal number")
        values[name] = int(whole)
    if values.get("all_gpus", 1) > _MAX_GPUS:
        source.refuse(f"{values['all_gpus']} GPUs; at most {_MAX_GPUS} are read", "correct it")
    return values


def _parse_row(row: list[str], source: _Words, notes: list[str]) -> Layer:
    def number(column: int) -> int:
        if not _NUMBER.match(row[column]):
            message = f"word {column + 1} of the row is {row[column][:40]!r}, no number"
            source.refuse(message, "write a decimal number: times in ns, sizes in bytes")
        return int(row[column])

    def phase(column: int, role: str) -> Phase:
        compute, size = number(column), number(column + 2)
        return Phase(compute, _communication(row[column + 1], size, role, source, notes))

    return Layer(
        row[0][:200],
        source.line,
        phase(2, TENSOR),
        phase(5, TENSOR),
        phase(8, DATA),
        number(11),
    )


def _communication(
    text: str, size: int, role: str, source: _Words, notes: list[str]
) -> Communication | None:
    """Parse a word such as `ALLTOALL_EP`; None for no communication.

    `size`: bytes. The word is a kind and possibly a suffix: `_EP` selects the expert group,
    `_DP_EP` that of expert data; without a suffix the group is that of `role`. The first rule that
    applies decides:
    1. None for `NONE`, with any size.
    2. None for a kind in `_KINDS` with size 0, with any suffix.
    3. None for the kind `_SHADOWED`, which has no effect in the original reader; a note is added to
       `notes`.
    4. `InputError` (`simai`, at the current line of `source`) for any other word that is no kind in
       `_KINDS`, such as `NONE_EP`.
    5. The communication with its kind, role and size.
    """
    match = _COMMUNICATION.match(text)
    word = match[1] if match else ""
    if text == "NONE" or (word in _KINDS and size == 0):
        return None
    if word == _SHADOWED:
        notes.append(f"line {source.line}: {text} does nothing, as in the original reader")
        return None
    if match is None or word not in _KINDS:
        known = ", ".join(_KINDS)
        message = f"{text[:40]!r} is no communication"
        source.refuse(message, f"use NONE, or {known} with _EP, _DP_EP or no suffix")
    roles = {"_EP": EXPERT, "_DP_EP": EXPERT_DATA}
    return Communication(_KINDS[word], roles.get(match[2] or "", role), size)


EXTENSION = "simai"


def read(source: Source, options: SimaiOptions) -> Workload:
    """Read a workload text of SimAI as a job of `options.passes` iterations.

    The number of GPUs is the option `gpus`, or else `all_gpus` of the file (1 if missing or 0). All
    GPUs run the same rows. The extension has the policy, the number of rows, the values of line 1.

    Reports notes to `source`: those of the text; the GPUs, with the sizes of groups of several
    ranks; another number of GPUs in the file; with several pipeline stages (`pp`), that the job
    lacks their messages. A warning counts the collectives of tensor
    parallelism that are left out, because the file has no degree for it and their groups have one
    GPU. It is omitted for the policy `MICRO`.

    Raises `InputError`, in this order:

    - `several-files`: the source has several files.
    - `simai`: a line is invalid; neither option nor file has a number of GPUs although a row has
      a collective; or the degrees of parallelism do not divide the GPUs.
    - `too-large`: the nodes of all GPUs exceed the option `max_nodes`.
    """
    part = source.get_only_part("a workload text")
    with decompressed(part.stream(), part.name) as stream:
        text = parse_workload(stream, part.name)
    gpus = options.gpus or text.value("all_gpus")
    if options.gpus is None and "all_gpus" not in text.values and _num_collectives(text, ROLES):
        message = "the first line has no all_gpus, and the rows have collectives"
        cure = "give the number of GPUs with -O gpus=N"
        raise InputError(message, location=Location(part.name, 1), cure=cure, code="simai")
    roles = _groups(text, gpus, part.name)
    sizes = {role: table.shape[1] for role, table in roles.items()}
    program = _program(text, sizes, options.passes)
    if len(program) * gpus > options.max_nodes:
        message = f"{gpus} GPUs with {len(program)} nodes each; at most {options.max_nodes} in all"
        cure = "read fewer GPUs with -O gpus=N, or raise -O max_nodes=N"
        raise InputError(message, location=Location(part.name), cure=cure, code="too-large")
    listed = ", ".join(f"{role} {size}" for role, size in sizes.items() if size > 1) or "none"
    notes = [*text.notes, f"{gpus} GPUs, all with the same rows; groups of several ranks: {listed}"]
    if text.values.get("all_gpus", gpus) != gpus:
        notes.append(f"the file is for {text.values['all_gpus']} GPUs")
    if text.value("pp") > 1:
        notes.append("messages between pipeline stages are not in the rows, and not in the job")
    for line in notes:
        source.report(Diagnostic("simai", line, Severity.NOTE, Location(part.name)))
    lost = _num_collectives(text, (TENSOR,)) if sizes[TENSOR] == 1 else 0
    if lost and _TENSOR_KEY not in text.values and text.policy != _MICRO:
        message = (
            f"{lost} collectives of tensor parallelism are left out: their groups have one GPU"
        )
        cure = f"write {_TENSOR_KEY}: N into the first line"
        place = Location(part.name, 1)
        source.report(Diagnostic("simai", message, Severity.WARNING, place, cure))
    every = np.arange(gpus, dtype=np.int64)
    workload = job_of([RankPrograms(program, every)], roles, SIMAI)
    facts: dict[str, JsonValue] = {"policy": text.policy, "rows": len(text.layers), **text.values}
    return replace(
        _number_groups(workload),
        provenance=Provenance(SIMAI, "", source.name, source.sha256()),
        extensions={EXTENSION: facts},
    )


def _num_collectives(text: WorkloadText, roles: Sequence[str]) -> int:
    """Return the number of collectives in all layers whose groups have one of the roles.

    The forward, input-gradient and weight-gradient phases of a layer have at most one
    collective each.
    """
    phases = [
        phase
        for layer in text.layers
        for phase in (layer.forward, layer.input_gradient, layer.weight_gradient)
    ]
    return sum(
        phase.communication is not None and phase.communication.role in roles for phase in phases
    )


def _groups(text: WorkloadText, gpus: int, file: str) -> dict[str, Int64Array]:
    """Return the groups of tensor, data, expert and expert-data: int64[groups, size] by role.

    T is `model_parallel_NPU_group`, S is `pp`, E is `ep`. Each is 1 if it is missing or below 1.
    Exception: T is `gpus` if the policy is `MODEL` and `model_parallel_NPU_group` is missing. D is
    `gpus` / (T S). The rank with tensor position t, data position d and stage s has the number
    t + T (d + D s). The groups are:

    - tensor: T ranks that differ only in t
    - data: D ranks that differ only in d
    - expert: E ranks of equal t and s, with consecutive d from a multiple of E
    - expert-data: D / E ranks of equal t and s, with equal d modulo E

    Members ascend, and groups ascend by first member. Raises `InputError` (`simai`, line 1) if T S
    does not divide `gpus`, then if E does not divide D.
    """
    tensor, stages = text.value(_TENSOR_KEY), text.value("pp")
    if text.policy == "MODEL" and _TENSOR_KEY not in text.values:
        tensor = gpus
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
    """Renumber the groups of a job in the order of first use by a node; drop unused ones.

    The numbers in the nodes begin at 0, the names of the groups are "1", "2", ... A group
    that lists all ranks in ascending order becomes -1 in the nodes and is not listed. Nodes
    without a group keep -1. The given job is not changed.
    """
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
    """Build the nodes of one rank for `passes` iterations; all ranks execute the same program.

    Each iteration runs the computation and the collective of every layer forwards, first to last.
    Then it runs backwards, last to first: for each layer first the input gradient (computation,
    collective), then the weight gradient (computation, collective, update).

    - A forward computation waits for the previous layer's collective (in the first layer: for the
      end of the previous iteration) and for the layer's own last update.
    - An input gradient waits for the previous layer: for the collective of its input gradient and
      for the computation of its weight gradient.
    - A weight gradient waits only for the computation of its input gradient. Without a collective
      it has no update.

    A computation of 0 ns gets no node, nor does a collective in a group of one rank (`sizes`: ranks
    by role). Followers then wait for its predecessors. The policy `DISTRIBUTED_INFERENCE` has
    forward passes only. With `MICRO`, an iteration has only the first layer's collective of the
    weight gradient, which waits for nothing. Bytes of an all-gather are divided by the ranks of the
    group, rounded up.
    """
    program = RankProgram(ROLES)
    if text.policy == _MICRO:
        for _ in range(passes):
            _collective(
                program, text.layers[0], text.layers[0].weight_gradient.communication, sizes, []
            )
        return program
    before: list[int] = []
    # Collectives of weight gradients of the previous pass, by layer.
    gradients: dict[int, list[int]] = {}
    is_inference = text.policy == "DISTRIBUTED_INFERENCE"
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
    """Add a collective that waits for the rows `after`, and return its row in a list.

    `sizes`: ranks of a group by role. Without a communication, and in a group of one rank,
    add no row and return `after`. The bytes of an all-gather are divided by the ranks of
    the group, rounded up, because the file has the gathered buffer, a workload the input of
    a rank.
    """
    if communication is None or sizes[communication.role] < 2:
        return after
    size = communication.bytes
    if communication.kind is JobCollective.ALL_GATHER:
        # The file has the gathered buffer, a workload the input of a rank.
        size = -(-size // sizes[communication.role])
    kind, role = communication.kind, communication.role
    return [program.collective(layer.name, kind, size, role, (), after)]
