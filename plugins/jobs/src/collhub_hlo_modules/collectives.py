"""Collectives of a module: kinds, sizes, groups of ranks, and pairs of permutations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collhub_hlo_modules.groups import (
    PARTITION_OPERATIONS,
    Devices,
    Groups,
    find_groups,
    find_pairs,
)
from collhub_hlo_modules.text import HloInstruction, Shape, invalid, to_integer
from hub_core.model import JobCollective

COLLECTIVES = frozenset((
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast", "send", "recv",
))  # fmt: skip
KINDS = {
    "all-reduce": JobCollective.ALL_REDUCE,
    "all-gather": JobCollective.ALL_GATHER,
    "reduce-scatter": JobCollective.REDUCE_SCATTER,
    "all-to-all": JobCollective.ALL_TO_ALL,
    "ragged-all-to-all": JobCollective.ALL_TO_ALL,
    "collective-broadcast": JobCollective.BROADCAST,
}
_SUFFIX = "-start"
# Attribute in which partitioning records the pairs of sends and receives.
_PAIRS = "_xla_send_recv_source_target_pairs="
# Longer numbers are read in parts: they exceed the maximum number of devices as well.
_IDS = re.compile(r"\d{1,9}")
_MESH_SIZES = re.compile(r"=(\d{1,9})")


@dataclass(slots=True)
class HloCollective:
    """A collective of the program. `groups`: groups of ranks, or (source, target) pairs.

    `operand_bytes`, `result_bytes`: of one device; `calls`: how often a device issues it.
    """

    name: str
    opcode: str
    dtype: str
    operand_bytes: int
    result_bytes: int
    groups: Groups
    reduction: str
    line: int
    channel: int
    calls: int = 0


def collective_of(opcode: str) -> str | None:
    """Return the collective of an opcode, such as `all-reduce` for `all-reduce-start`.

    The result is an entry of `COLLECTIVES`, which includes `send` and `recv`. None for all
    other opcodes, `all-reduce-done` included: a collective is counted where it starts.
    """
    base = opcode.removesuffix(_SUFFIX)
    return base if base in COLLECTIVES else None


def count_devices(instructions: Iterable[HloInstruction]) -> tuple[int, int]:
    """Return the smallest numbers of (replicas, partitions) that the ids in collectives allow.

    Ids are read from `replica_groups` and from pairs (`get_pairs_text`), also those of sends and
    receives. The number of an instruction is the largest id plus 1, or 1 without ids. If its groups
    are a mesh or an iota, the number is the product of all their sizes.

    The ids of an instruction are partitions if it has a `channel_id`, and also has
    `use_global_device_ids` or an opcode in `PARTITION_OPERATIONS`. Otherwise they are replicas.
    Each result is the maximum over its instructions, 1 without any. Example: groups `{{0,1},{2,3}}`
    with a channel and `use_global_device_ids` give (1, 4).
    """
    replicas = partitions = 1
    for instruction in instructions:
        attributes = instruction.attributes
        text = attributes.get("replica_groups", "").lstrip() + get_pairs_text(instruction)
        if text.startswith(("mesh", "@mesh")):
            count = math.prod(map(int, _MESH_SIZES.findall(text.partition("]")[0])))
        elif "<=" in text:
            count = math.prod(map(int, _IDS.findall(text.partition("<=")[2].partition("]")[0])))
        else:
            count = max(map(int, _IDS.findall(text)), default=0) + 1
        is_of_replicas = (
            attributes.get("use_global_device_ids") != "true"
            and collective_of(instruction.opcode) not in PARTITION_OPERATIONS
        )
        if "channel_id" in attributes and not is_of_replicas:
            partitions = max(partitions, count)
        else:
            replicas = max(replicas, count)
    return replicas, partitions


def has_pairs(instruction: HloInstruction) -> bool:
    """Check whether a send or receive is between devices and records its pairs of devices.

    The pairs are the entry `_xla_send_recv_source_target_pairs` of `frontend_attributes`.
    False for transfers to and from the host, and without this entry; the opcode is not
    checked.
    """
    attributes = instruction.attributes
    is_host = attributes.get("is_host_transfer") == "true"
    return not is_host and _PAIRS in attributes.get("frontend_attributes", "")


def has_root_operand(instruction: HloInstruction) -> bool:
    """Check whether a broadcast has its root as last operand, which the program computes.

    True if it has one operand more than results; False for other opcodes.
    """
    is_broadcast = instruction.opcode == "collective-broadcast"
    return is_broadcast and len(instruction.operands) == len(instruction.shape.leaves) + 1


def get_pairs_text(instruction: HloInstruction) -> str:
    """Return the pairs (source, target) of a permutation or message, such as `{{0,1},{1,0}}`.

    Those of a send or receive are in its `frontend_attributes`. The text is not checked. It is
    empty for other instructions, and for messages without pairs (`has_pairs`).
    """
    if not has_pairs(instruction):
        return instruction.attributes.get("source_target_pairs", "")
    text = instruction.attributes["frontend_attributes"].partition(_PAIRS)[2].lstrip('"')
    return text[: text.find("}}") + 2]


def read_call(
    instruction: HloInstruction,
    name: str,
    operands: Sequence[Shape],
    reduction: str,
    devices: Devices,
    file: str,
) -> HloCollective:
    """Read a collective or message of an HLO module: bytes, dtype, groups, channel, reduction.

    `name`: its opcode without `-start`; `operands`: their shapes. `reduction` is stored unchanged.
    The data is all operands, with three exceptions: only the first one of a send or ragged
    all-to-all, the received value of a `recv` (the first array if its shape is a tuple), and not
    the root of a broadcast (`has_root_operand`).

    - `operand_bytes`, `dtype`: bytes of the data, and its different element types in their order,
      joined by `+` ("" without arrays)
    - `result_bytes`: bytes of the result, without what the tuple of a `-start` repeats (`_result`)
    - `groups`: groups of ranks, or pairs (source, target) for messages and collective-permute; ()
      for messages without recorded pairs, such as those with the host
    - `channel`: the `channel_id`, 0 if it is missing

    Raises `InputError` at the line: `group` for invalid groups, pairs or channels, then `size` if
    the result's size does not fit operands and groups (`_check_result`).
    """
    shapes = list(operands)
    if name in ("ragged-all-to-all", "send"):
        # Of the others, only the first operand is data.
        shapes = shapes[:1]
    elif has_root_operand(instruction):
        del shapes[-1]
    elif name == "recv":
        # The shape of a `recv` may be (data, context, token).
        shape = instruction.shape
        shapes = [Shape(shape.leaves[:1]) if shape.is_tuple else shape]
    attributes = instruction.attributes
    groups: Groups = ()
    try:
        if name in KINDS:
            groups = find_groups(name, attributes, devices)
        elif name not in ("send", "recv") or has_pairs(instruction):
            groups = find_pairs(get_pairs_text(instruction), name, attributes, devices)
        channel = to_integer(attributes.get("channel_id", "0"))
    except ValueError as error:
        message = f"{name} {instruction.name!r}: {error}"
        cure = "correct its groups, use_global_device_ids, replica_count or num_partitions"
        raise invalid(message, file, instruction.line, cure, "group") from None
    dtypes = dict.fromkeys(shape.dtype for shape in shapes if shape.leaves)
    call = HloCollective(
        instruction.name, name, "+".join(dtypes), sum(shape.bytes for shape in shapes),
        _result(instruction, shapes).bytes, groups, reduction, instruction.line, channel,
    )  # fmt: skip
    _check_result(call, instruction, file)
    return call


def _result(instruction: HloInstruction, operands: Sequence[Shape]) -> Shape:
    """Return the shape of the arrays that a collective produces.

    An opcode with `-start` often has a tuple as shape: first the shapes of its operands,
    then as many results, then contexts. If the shape begins with those of `operands` and
    has at least twice as many arrays, the results are returned as a tuple. Otherwise, as
    for an all-reduce, for other opcodes and in older dumps, the entire shape is the result.
    """
    leaves = instruction.shape.leaves
    inputs = tuple(leaf for operand in operands for leaf in operand.leaves)
    count = len(inputs)
    is_started = instruction.opcode.endswith(_SUFFIX) and len(leaves) >= 2 * count
    if not is_started or leaves[:count] != inputs:
        return instruction.shape
    return Shape(leaves[count : 2 * count], True)


def _check_result(call: HloCollective, instruction: HloInstruction, file: str) -> None:
    """Raise `InputError` (`size`) if operand, result and group size contradict each other.

    With groups of n ranks, two numbers of bytes are compared:

    - all-gather: operand * n, and result
    - reduce-scatter: operand, and result * n
    - all-reduce: operand, and result

    They may differ by at most n times the number of operands (at least 1), because elements below a
    byte are rounded up. Not checked are all other collectives, calls without groups, and groups of
    different sizes. The error is at the line of the call.
    """
    sizes = {len(group) for group in call.groups}
    if call.opcode not in ("all-gather", "reduce-scatter", "all-reduce"):
        return
    if len(sizes) != 1:
        return
    (size,) = sizes
    expected, have = call.operand_bytes, call.result_bytes
    if call.opcode == "all-gather":
        expected *= size
    elif call.opcode == "reduce-scatter":
        have *= size
    # Elements below a byte are rounded up.
    if abs(expected - have) > size * max(1, len(instruction.operands)):
        message = (
            f"{call.opcode} {call.name!r}: {call.operand_bytes} bytes in groups of {size}"
            f" cannot give {call.result_bytes} bytes"
        )
        raise invalid(message, file, call.line, "correct its shape or its groups", "size")
