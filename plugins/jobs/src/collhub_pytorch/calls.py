"""Parse communication calls of PyTorch: collective, bytes, process group, root and peer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from hub_core.model import InputError, JobCollective, Location, NodeKind

MAX_RANKS = 1 << 20
"""Largest number of ranks of a job."""
# Types by their names in C++, as most records have them, and in `torch`.
ELEMENT_BYTES = {
    "float": 4, "half": 2, "bfloat16": 2, "double": 8, "long": 8, "longint": 8, "int": 4,
    "short": 2, "shortint": 2, "byte": 1, "char": 1, "unsignedchar": 1, "signedchar": 1, "bool": 1,
    "float8e4m3fn": 1, "float8e5m2": 1, "float8e4m3fnuz": 1, "float8e5m2fnuz": 1,
    "float8e8m0fnu": 1, "complexhalf": 4, "complexfloat": 8, "complexdouble": 16,
    "float16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4,
    "uint64": 8, "qint8": 1, "quint8": 1, "qint32": 4, "float4e2m1fnx2": 1,
}  # fmt: skip
_COLLECTIVES = {
    "allreduce": JobCollective.ALL_REDUCE,
    "reduce": JobCollective.REDUCE,
    "allgather": JobCollective.ALL_GATHER,
    "gather": JobCollective.GATHER,
    "scatter": JobCollective.SCATTER,
    "broadcast": JobCollective.BROADCAST,
    "alltoall": JobCollective.ALL_TO_ALL,
    "reducescatter": JobCollective.REDUCE_SCATTER,
    "barrier": JobCollective.BARRIER,
    "allreducebarrier": JobCollective.BARRIER,
    "monitoredbarrier": JobCollective.BARRIER,
    "sparseallreduce": JobCollective.ALL_REDUCE,
}
_MESSAGES = {"send": NodeKind.SEND, "recv": NodeKind.RECV, "recvanysource": NodeKind.RECV}
# Suffixes of variants that move equal data: `_base`, `into_tensor` (one tensor), `v` (uneven).
_ENDINGS = ("coalesced", "sparse", "base", "intotensor", "tensor", "single", "oop", "v")
# Index of the root or peer among the inputs of the operator `c10d::NAME`.
ROOT_OR_PEER = {"broadcast_": 2, "send": 2, "recv_": 2, "reduce_": 3, "gather_": 3, "scatter_": 3}
# Namespaces of the operators that issue collectives, or wait for one.
ISSUER_NAMESPACES = ("c10d::", "_c10d_functional::", "c10d_functional::")
# Annotation prefixes of libraries that communicate from main memory.
HOST_LIBRARIES = ("gloo:", "mpi:", "ucc:")
_NOT_LETTERS = re.compile(r"[^a-z]")
_NAME_OF_KERNEL = re.compile(
    # NCCL before 2.8 named kernels by collective and algorithm: ncclAllReduceRingLLKernel.
    r"(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce)(?=_|\(|$|Ring|Tree|CollNet)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """Process group as recorded in one rank's file.

    `ranks`: None for all ranks of the job or, if `is_cut`, for a truncated list of ranks. `size`:
    number of ranks of a truncated list, 0 if it is not recorded or the list is complete.
    """

    name: str = ""
    ranks: tuple[int, ...] | None = None
    is_cut: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One communication of one rank.

    `collective`: -1 for SEND and RECV. `bytes`: as defined by `JobCollective`, -1 if not recorded.
    `dtype`, `splits` (input and output elements of an uneven all-to-all): as recorded.
    """

    name: str
    kind: NodeKind
    collective: int
    bytes: int
    dtype: str = ""
    group: GroupRecord = GroupRecord()
    peer: int = -1
    root: int = -1
    splits: tuple[str, str] | None = None

    def extra(self) -> str:
        """Return dtype and splits of the call as a JSON object; workloads have no columns for them.

        The keys are `dtype` if it is not empty, and `in_split` and `out_split` if splits are
        recorded. The result is "" if it would have no keys.
        """
        fields: dict[str, object] = {"dtype": self.dtype} if self.dtype else {}
        if self.splits is not None:
            fields |= {"in_split": self.splits[0], "out_split": self.splits[1]}
        return json.dumps(fields) if fields else ""


def kind_of(name: str) -> tuple[NodeKind, int] | None:
    """Return node kind and collective (-1 for messages) of a name; None for other names.

    Only the letters after the last colon count, in lower case; other characters are ignored. If
    they are no known name, the first ending in the order of `_ENDINGS` that fits is removed, and
    the rest is tried again. None if no ending fits or no letters are left.
    """
    word = _NOT_LETTERS.sub("", name.rpartition(":")[2].lower())
    while word:
        if word in _COLLECTIVES:
            return NodeKind.COLLECTIVE, int(_COLLECTIVES[word])
        if word in _MESSAGES:
            return _MESSAGES[word], -1
        ending = next((suffix for suffix in _ENDINGS if word.endswith(suffix)), None)
        if ending is None:
            return None
        word = word.removesuffix(ending)
    return None


def element_bytes(dtype: str) -> int:
    """Return the bytes per element of a type such as `Float`, `long int` or `Tensor(float)`.

    Case, characters other than letters and digits, and a prefix before the last `:` are
    ignored. The result is -1 for an unknown type.
    """
    inner = dtype[7:-1] if dtype.startswith("Tensor(") else dtype
    word = re.sub(r"[^a-z0-9]", "", inner.rpartition(":")[2].lower())
    return ELEMENT_BYTES.get(word, -1)


def call_of_args(args: Mapping[str, Any], group: GroupRecord) -> Call | None:
    """Parse a call from the arguments in newer files; None if they name no known communication.

    `args`: as in a Kineto profile. The members of the call:

    - kind: by `kind_of` from `Collective name`; without this name the result is None
    - bytes: elements (`_elements_in`, 0 for a barrier) x element size, -1 if one of the two is
      unknown
    - peer: `Dst Rank` of a send, `Src Rank` of a receive, -1 if absent and for collectives
    - root: unknown (-1)
    - `splits`: texts of `In split size` and `Out split size`, "[]" for an absent one; None if both
      are "[]"

    Raises `ValueError` for a text that is not an integer where a number is expected, and
    `TypeError` for null and lists there. Only numbers that the kind of call needs are checked, and
    both numbers of elements.
    """
    name = str(args.get("Collective name", ""))
    kinds = kind_of(name)
    if kinds is None:
        return None
    kind, collective = kinds
    dtype = str(args.get("dtype", ""))
    elements = _elements_in(args, collective, kind)
    size = element_bytes(dtype)
    peer = args.get("Dst Rank" if kind is NodeKind.SEND else "Src Rank", -1)
    splits = [str(args.get(key, "[]")) for key in ("In split size", "Out split size")]
    return Call(
        name,
        kind,
        collective,
        elements * size if size > 0 and elements >= 0 else -1,
        dtype,
        group,
        int(peer) if kind is not NodeKind.COLLECTIVE else -1,
        splits=(splits[0], splits[1]) if splits != ["[]", "[]"] else None,
    )


def call_of_shapes(
    name: str, dims: Sequence[Any], types: Sequence[Any], group: GroupRecord = GroupRecord()
) -> Call | None:
    """Parse a call from an annotation `nccl:NAME` with the shapes and dtypes of its inputs.

    None if the name is no communication. Only the first input counts: its bytes and dtype are
    those of the call. The bytes are -1 if its dtype is unknown or its shape is missing or empty
    (a scalar), and 0 for a barrier. Raises `ValueError` or `TypeError` for a length that is no
    integer.
    """
    kinds = kind_of(name)
    if kinds is None:
        return None
    dtype = str(types[0]) if types else ""
    size = element_bytes(dtype)
    stated = [shape for shape in dims[:1] if shape]
    count = elements_of(stated[0]) if stated else -1
    is_barrier = kinds[1] == JobCollective.BARRIER
    total = count * size if size > 0 and count >= 0 else -1
    return Call(name.rpartition(":")[2], *kinds, 0 if is_barrier else total, dtype, group)


def with_target(call: Call, target: int) -> Call:
    """Return the call with its root or, for a message, its peer set to `target`."""
    return replace(call, peer=target) if call.collective < 0 else replace(call, root=target)


def call_of_kernel(name: str) -> Call | None:
    """Return the collective that a kernel of communication executes; None for other kernels.

    The name of the kernel decides, such as `ncclDevKernel_AllReduce_...`: it contains
    AllReduce, AllGather, ReduceScatter, Broadcast or Reduce, in any case, followed by `_`,
    `(`, Ring, Tree, CollNet or the end. Kernels of messages give None. The bytes are
    unknown (-1), and so is the group.
    """
    match = _NAME_OF_KERNEL.search(name)
    kinds = kind_of(match[1]) if match else None
    return None if kinds is None else Call(name, *kinds, -1)


def elements_of(shape: Sequence[Any]) -> int:
    """Return the number of elements of a tensor with this shape; 1 for an empty shape.

    A list of shapes (the first entry is a list) gives the sum of the elements of all these
    tensors. Lengths are converted by `int`, so that 2.5 counts as 2. Raise `ValueError` or
    `TypeError` for a length that it refuses.
    """
    if shape and isinstance(shape[0], list):
        return sum(elements_of(tensor_shape) for tensor_shape in shape)
    product = 1
    for length in shape:
        product *= int(length)
    return product


def group_of_args(args: Mapping[str, Any], file: str) -> GroupRecord:
    """Parse the process group from the arguments of a call, with its name ("" without one).

    The first case that applies gives the ranks:

    1. The list of ranks is not empty text and not truncated (`...`): this list; `[]` has no ranks.
    2. The start is at least 0, the size is above 0, and the stride is above 0 or the size is 1:
       start, stride and size give them. A stride of 0 marks ranks without a regular order.
    3. The group has a name or a truncated list: unknown ranks; the result is marked as cut.
    4. Otherwise: all ranks of the job.

    A missing start or stride counts as -1, a size that is missing or None as 0. `file`: for errors.
    Raises `InputError` for an invalid list, and in case 2 for ranks of `MAX_RANKS` or more. Raises
    `ValueError` for a number that is no integer, and `TypeError` for a start or stride of None.
    """
    name = str(args.get("Process Group Name", args.get("pg_name", "")))
    text = str(args.get("Process Group Ranks", ""))
    count = int(args.get("Group size", args.get("pg_size", 0)) or 0)
    start = int(args.get("Global rank start", args.get("global_rank_start", -1)))
    stride = int(args.get("Global rank stride", args.get("global_rank_stride", -1)))
    if text and "..." not in text:
        try:
            listed = tuple(int(rank) for rank in json.loads(text))
        except (ValueError, TypeError):
            message = f"{text!r} is no list of the ranks of a process group"
            raise InputError(message, location=Location(file), code="group") from None
        return GroupRecord(name, listed)
    # A stride of 0 marks ranks without a regular order.
    if start >= 0 and count > 0 and (stride > 0 or count == 1):
        return GroupRecord(name, list_regular_ranks(start, stride, count, file))
    is_cut = bool(text or name)
    return GroupRecord(name, is_cut=is_cut, size=count if is_cut else 0)


# Many calls have the same groups, which share one tuple.
@lru_cache(maxsize=256)
def list_regular_ranks(start: int, stride: int, count: int, file: str) -> tuple[int, ...]:
    """Return `count` ranks from `start` on. Raises `InputError` (`rank-range`) if they are too
    large to be ranks of a job.
    """
    if start + max(stride, 1) * (count - 1) >= MAX_RANKS:
        message = f"a process group of {count} ranks from {start} on; at most {MAX_RANKS} are read"
        raise InputError(message, location=Location(file), code="rank-range")
    return tuple(start + stride * index for index in range(count))


def _elements_in(args: Mapping[str, Any], collective: int, kind: NodeKind) -> int:
    """Return the number of elements by which the hub counts the size of a call; -1 if unknown.

    `args`: the recorded arguments. The input is `In msg nelems`, the output `Out msg nelems`, each
    -1 if missing. `collective`: a `JobCollective`. The first rule that applies decides:

    1. `collective` is a barrier: 0.
    2. `kind` is RECV, or `collective` is a broadcast: the larger one of input and output.
    3. `collective` is a scatter, whose only input is that of the root: the larger one of the input
       and the output times `Group size` (default 1).
    4. Otherwise: the input.

    With a missing output, rule 3 multiplies -1. Raises `ValueError` for a text that is no integer.
    """
    input_elements, output_elements = (
        int(args.get(key, -1)) for key in ("In msg nelems", "Out msg nelems")
    )
    if collective == JobCollective.BARRIER:
        return 0
    if kind is NodeKind.RECV or collective == JobCollective.BROADCAST:
        return max(input_elements, output_elements)
    if collective == JobCollective.SCATTER:
        # Only the root has an input.
        return max(input_elements, output_elements * int(args.get("Group size", 1)))
    return input_elements
