"""Approximate work of instructions: floating-point operations and bytes of memory accesses.

The rules follow XLA's `hlo_cost_analysis.cc`, with two differences: a loop counts once per
iteration, and matrix products of GPU libraries (custom calls) count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from collhub_hlo_modules.text import HloInstruction, Shape, parse_integers, to_integer

# Instructions without a kernel.
FREE = frozenset((
    "add-dependency", "after-all", "bitcast", "constant", "domain", "get-tuple-element",
    "opt-barrier", "parameter", "partition-id", "replica-id", "tuple",
))  # fmt: skip
# Instructions that move data, without arithmetic.
_MOVES = FREE | frozenset((
    "broadcast", "concatenate", "copy", "copy-start", "dynamic-slice", "dynamic-update-slice",
    "gather", "infeed", "iota", "outfeed", "pad", "reshape", "reverse", "slice", "transpose",
))  # fmt: skip
_REDUCTIONS = frozenset(["reduce", "reduce-window", "select-and-scatter", "sort"])
# A value passes through these unchanged, element by element.
_PASSED_ON = frozenset(["bitcast", "convert", "copy", "reshape"])
_SLICES = frozenset(["dynamic-slice", "gather", "slice"])
_CONTRACTED = re.compile(r'"?lhs_contracting_dimensions"?\s*[:=]\s*\[([^\]]*)\]')
_DIM_LABELS = re.compile(r"[^_]*_([a-z0-9?]*)->")
GEMM_TARGETS = ("__cublas$", "__triton_gemm", "__onednn$matmul")
_ATTENTION_TARGETS = ("__cudnn$fmha", "__cudnn$fhma")

Instructions = Mapping[str, HloInstruction]


def is_product(instruction: HloInstruction) -> bool:
    """Check whether an instruction is a matrix product: a dot, or a custom call of `GEMM_TARGETS`.

    The name of the called target must begin with one of these. Convolutions are no products.
    """
    if instruction.opcode == "custom-call":
        return _target(instruction).startswith(GEMM_TARGETS)
    return instruction.opcode == "dot"


def has_unknown_work(instruction: HloInstruction) -> bool:
    """Check whether an instruction is a custom call that is neither a product nor attention.

    The number of operations of such a call is unknown.
    """
    known = (*GEMM_TARGETS, *_ATTENTION_TARGETS)
    return instruction.opcode == "custom-call" and not _target(instruction).startswith(known)


def count_operations(instruction: HloInstruction, instructions: Instructions) -> int:
    """Estimate the operations of one instruction, without those of called computations.

    `instructions`: instructions of the same computation by name. The first rule that fits
    counts:

    - rule 1: product (`is_product`): 2 * elements of the first result array * contracted
      elements (`_contracted_size`)
    - rule 2: convolution: 2 * elements of the result * kernel elements per output element
      (`_elements_per_output`)
    - rule 3: attention: see `_attention_operations`; other custom calls: 0
    - rule 4: reduce, reduce-window, select-and-scatter, sort: elements of the first operand
    - rule 5: scatter: elements of the last operand; rules 4 and 5 give 0 without operands
    - rule 6: fusion, call, and instructions in `_MOVES` (no arithmetic, such as copy or slice):
      0
    - rule 7: any other: elements of all result arrays; this includes while, conditional,
      all-reduce

    Raises `KeyError` for an operand that is not in `instructions`. For a product, raises
    `ValueError` for a contracted dimension that its first operand does not have, or that is no
    integer.
    """
    opcode, shape = instruction.opcode, instruction.shape
    operands = [instructions[name].shape for name in instruction.operands]
    if is_product(instruction):
        return 2 * _first(shape).elements * _contracted_size(instruction, operands)
    if opcode == "convolution":
        return 2 * shape.elements * _elements_per_output(instruction, operands)
    if opcode == "custom-call":
        return _attention_operations(instruction, operands)
    if opcode in _REDUCTIONS:
        return operands[0].elements if operands else 0
    if opcode == "scatter":
        return operands[-1].elements if operands else 0
    return 0 if opcode in _MOVES or opcode in ("fusion", "call") else shape.elements


def count_bytes(instruction: HloInstruction, instructions: Instructions) -> int:
    """Estimate the bytes that an instruction other than a fusion reads and writes.

    - slice, dynamic-slice, gather: twice the bytes of the result (read and written)
    - dynamic-update-slice: twice the bytes of the update, its second operand
    - any other: the bytes of the result and of all operands, a repeated operand repeatedly

    `instructions`: instructions of the same computation by name. Raises `KeyError` for an
    operand that is missing there.
    """
    opcode, result = instruction.opcode, instruction.shape.bytes
    operands = [instructions[name].shape.bytes for name in instruction.operands]
    if opcode in _SLICES:
        return 2 * result
    if opcode == "dynamic-update-slice" and len(operands) > 1:
        return 2 * operands[1]
    return result + sum(operands)


def count_accessed_bytes(instructions: Instructions) -> tuple[dict[int, int], int | None]:
    """Return the bytes that a fused computation reads, by parameter number, and writes.

    The bytes read of each parameter are those of `_read_bytes`: a parameter that is only sliced
    counts with the bytes of its slices, others with all their bytes. A computation without
    parameters gives {}.

    The bytes written are those of the update (second operand) if the root is a
    `dynamic-update-slice`. The root may also be a chain of bitcast, convert, copy or reshape
    with one after it: they count as their first operand. In all other cases the second result
    is None, also without a root: the whole result is written. Of several roots the last counts.

    Raises `ValueError` for a parameter whose number is no integer of at most 18 digits, and
    `KeyError` for a missing operand of such a chain or update.
    """
    users: dict[str, list[tuple[HloInstruction, int]]] = {}
    for instruction in instructions.values():
        for index, name in enumerate(instruction.operands):
            users.setdefault(name, []).append((instruction, index))
    read = {}
    for instruction in instructions.values():
        if instruction.opcode == "parameter":
            read[to_integer(instruction.literal)] = _read_bytes(instruction, users, instructions)
    roots = [instruction for instruction in instructions.values() if instruction.is_root]
    root = roots[-1] if roots else None
    while root and root.opcode in _PASSED_ON and root.operands:
        root = instructions[root.operands[0]]
    if root and root.opcode == "dynamic-update-slice" and len(root.operands) > 1:
        return read, instructions[root.operands[1]].shape.bytes
    return read, None


def _read_bytes(
    parameter: HloInstruction,
    users: Mapping[str, list[tuple[HloInstruction, int]]],
    instructions: Instructions,
) -> int:
    """Return the bytes of a parameter that a fused computation reads, at most its size.

    `users`: (instruction, position of the operand) by name of the operand. First, as long as
    the value has one user and that is a bitcast, convert, copy or reshape, the users of that
    instruction are considered in its place. Then each user is counted:

    - slice, dynamic-slice or gather with the value as first operand: the bytes of its result
    - dynamic-update-slice with the value as first operand of two or more: 0, as the other
      elements remain in place
    - any other use, also as an index: the entire parameter is read, its size is returned

    The sum is limited to the size. Without users, the result is 0. `instructions` is not used.
    """
    name, total = parameter.name, 0
    while len(users.get(name, ())) == 1 and users[name][0][0].opcode in _PASSED_ON:
        name = users[name][0][0].name
    for user, index in users.get(name, ()):
        if user.opcode in _SLICES and not index:
            total += user.shape.bytes
        elif user.opcode == "dynamic-update-slice" and not index and len(user.operands) > 1:
            # The remaining elements stay in place.
            continue
        else:
            return parameter.shape.bytes
    return min(total, parameter.shape.bytes)


def _target(instruction: HloInstruction) -> str:
    return instruction.attributes.get("custom_call_target", "").strip('"')


def _first(shape: Shape) -> Shape:
    """Return the first array of a shape: gemm calls return (result, workspace)."""
    return Shape(shape.leaves[:1])


def _dimensions(shape: Shape) -> tuple[int, ...]:
    return shape.leaves[0][1] if shape.leaves else ()


def _contracted_size(instruction: HloInstruction, operands: list[Shape]) -> int:
    """Return the product of the contracted dimensions of the first (left) operand of a product.

    The dimensions are listed in `lhs_contracting_dims`. A custom call ignores this attribute:
    its `backend_config` (JSON, or a string with escaped JSON) lists them as
    `lhs_contracting_dimensions`. The first match there counts. `{1}` on f32[4,8] gives 8. A
    tuple operand counts with its first array. The result is 1 without the attribute or an empty
    list.

    Raises `ValueError` for a listed dimension that the operand does not have (all of them
    without an operand), and for text that is no list of integers.
    """
    attributes = instruction.attributes
    text = attributes.get("lhs_contracting_dims", "")
    if instruction.opcode == "custom-call":
        # The configuration is JSON, or a string with escaped JSON.
        match = _CONTRACTED.search(attributes.get("backend_config", "").replace("\\", ""))
        text = match[1] if match else ""
    sizes = _dimensions(operands[0]) if operands else ()
    total = 1
    for axis in parse_integers(text.replace('"', "")):
        if not 0 <= axis < len(sizes):
            raise ValueError(f"its left operand has no dimension {axis}")
        total *= sizes[axis]
    return total


def _elements_per_output(instruction: HloInstruction, operands: list[Shape]) -> int:
    """Return how many kernel elements contribute to one output element of a convolution.

    It is the product of the dimensions of the kernel, the second operand, without the
    dimension of the output features: the one with the label `o` in `dim_labels`. Without
    readable `dim_labels`, all dimensions count. Without a second operand it is 1.
    """
    kernel = _dimensions(operands[1]) if len(operands) > 1 else ()
    labels = _DIM_LABELS.match(instruction.attributes.get("dim_labels", ""))
    total = 1
    for index, size in enumerate(kernel):
        is_output = labels is not None and labels[1][index : index + 1] == "o"
        total *= 1 if is_output else size
    return total


def _attention_operations(instruction: HloInstruction, operands: list[Shape]) -> int:
    """Estimate the operations of an attention call: 4 x query elements x sequence length.

    An attention call is a custom call of cuDNN whose target begins with `__cudnn$fmha` or
    `__cudnn$fhma`. The query is the first operand. The sequence length is the larger one of
    the second and third dimension of the second operand; the second, if it has only two.

    A target that contains `ackward` computes the gradient: it has 2.5 times as many
    operations, rounded down.

    Returns 0 for all other calls, for fewer than two operands, and if the second operand has
    fewer than two dimensions.
    """
    target = _target(instruction)
    if not target.startswith(_ATTENTION_TARGETS) or len(operands) < 2:
        return 0
    # The sequence is the second or third dimension; it is usually longer than the heads.
    sequence = max(_dimensions(operands[1])[1:3], default=0)
    operations = 4 * _first(operands[0]).elements * sequence
    return operations * 5 // 2 if "ackward" in target else operations
