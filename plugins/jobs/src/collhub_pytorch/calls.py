"""Communication as PyTorch names it: which collective, of how many bytes, among whom."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hub_core.model import InputError, JobCollective, Location, NodeKind

ELEMENT_BYTES = {
    "float": 4, "half": 2, "bfloat16": 2, "double": 8, "long": 8, "longint": 8, "int": 4,
    "short": 2, "shortint": 2, "byte": 1, "char": 1, "unsignedchar": 1, "signedchar": 1, "bool": 1,
    "float8e4m3fn": 1, "float8e5m2": 1, "complexfloat": 8, "complexdouble": 16,
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
# Variants of a collective that move the same: `_base` and `into_tensor` of one tensor, `v` uneven.
_ENDINGS = ("coalesced", "sparse", "base", "intotensor", "tensor", "single", "oop", "v")
# Where the inputs of the operator `c10d::NAME` hold the root or the other side.
ROOT_OR_PEER = {"broadcast_": 2, "send": 2, "recv_": 2, "reduce_": 3, "gather_": 3, "scatter_": 3}
# Namespaces of the operators that issue collectives, or wait for one.
ISSUER_NAMESPACES = ("c10d::", "_c10d_functional::", "c10d_functional::")
# Annotations of libraries that communicate from main memory.
HOST_LIBRARIES = ("gloo:", "mpi:", "ucc:")
_NOT_LETTERS = re.compile(r"[^a-z]")
_NAME_OF_KERNEL = re.compile(
    # NCCL before 2.8 named kernels by collective and algorithm: ncclAllReduceRingLLKernel.
    r"(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce)(?=_|\(|$|Ring|Tree|CollNet)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class GroupSaid:
    """A process group as one rank's file tells it.

    `ranks` None: all of the job or, where `is_cut`, the file gives only the first of them here.
    """

    name: str = ""
    ranks: tuple[int, ...] | None = None
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One communication of one rank.

    `collective` -1 for SEND and RECV. `bytes` as `JobCollective` counts them, -1 where the file
    does not say. `dtype`, `splits` (elements in and out of an uneven all-to-all) as the file says.
    """

    name: str
    kind: NodeKind
    collective: int
    bytes: int
    dtype: str = ""
    group: GroupSaid = GroupSaid()
    peer: int = -1
    root: int = -1
    splits: tuple[str, str] | None = None

    def extra(self) -> str:
        """What the columns of a workload do not hold, as JSON; "" for nothing."""
        said: dict[str, object] = {"dtype": self.dtype} if self.dtype else {}
        if self.splits is not None:
            said |= {"in_split": self.splits[0], "out_split": self.splits[1]}
        return json.dumps(said) if said else ""


def kind_of(name: str) -> tuple[NodeKind, int] | None:
    """Kind of node and collective (-1 for messages) of a name; None for `wait` and the like."""
    word = _NOT_LETTERS.sub("", name.rpartition(":")[2].lower())
    while word:
        if word in _COLLECTIVES:
            return NodeKind.COLLECTIVE, int(_COLLECTIVES[word])
        if word in _MESSAGES:
            return _MESSAGES[word], -1
        ending = next((one for one in _ENDINGS if word.endswith(one)), None)
        if ending is None:
            return None
        word = word.removesuffix(ending)
    return None


def element_bytes(dtype: str) -> int:
    """Bytes of an element: `Float`, `long int`, `c10::BFloat16`, `Tensor(float)`; -1: unknown."""
    inner = dtype[7:-1] if dtype.startswith("Tensor(") else dtype
    word = re.sub(r"[^a-z0-9]", "", inner.rpartition(":")[2].lower())
    return ELEMENT_BYTES.get(word, -1)


def call_of_args(args: Mapping[str, Any], group: GroupSaid) -> Call | None:
    """A call from the arguments of newer files; None where they name no communication."""
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
    name: str, dims: Sequence[Any], types: Sequence[Any], group: GroupSaid = GroupSaid()
) -> Call | None:
    """A call from an annotation `nccl:NAME` with the shapes and types of its inputs."""
    kinds = kind_of(name)
    if kinds is None:
        return None
    dtype = str(types[0]) if types else ""
    size = element_bytes(dtype)
    stated = [one for one in dims[:1] if one]
    count = elements_of(stated[0]) if stated else -1
    is_barrier = kinds[1] == JobCollective.BARRIER
    total = count * size if size > 0 and count >= 0 else -1
    return Call(name.rpartition(":")[2], *kinds, 0 if is_barrier else total, dtype, group)


def aimed(call: Call, target: int) -> Call:
    """The call with its root, or the other side of a message, as an operator states it."""
    return replace(call, peer=target) if call.collective < 0 else replace(call, root=target)


def call_of_kernel(name: str) -> Call | None:
    """A call of which only the kernel's name tells the kind: `ncclDevKernel_AllReduce_...`."""
    found = _NAME_OF_KERNEL.search(name)
    kinds = kind_of(found[1]) if found else None
    return None if kinds is None else Call(name, *kinds, -1)


def elements_of(shape: Sequence[Any]) -> int:
    """Elements of a tensor of this shape, or of a list of tensors."""
    if shape and isinstance(shape[0], list):
        return sum(elements_of(one) for one in shape)
    product = 1
    for length in shape:
        product *= int(length)
    return product


def group_of_args(args: Mapping[str, Any], file: str) -> GroupSaid:
    """The process group. Raises `InputError` for a list of ranks that cannot be read."""
    name = str(args.get("Process Group Name", args.get("pg_name", "")))
    text = str(args.get("Process Group Ranks", ""))
    count = int(args.get("Group size", args.get("pg_size", 0)) or 0)
    start = int(args.get("Global rank start", args.get("global_rank_start", -1)))
    stride = int(args.get("Global rank stride", args.get("global_rank_stride", -1)))
    if text and "..." not in text:
        return GroupSaid(name, _rank_list(text, file))
    # A stride of 0 says that the ranks are in no regular order.
    if start >= 0 and count > 0 and (stride > 0 or count == 1):
        return GroupSaid(name, tuple(start + stride * one for one in range(count)))
    return GroupSaid(name, is_cut=bool(text or name))


def _rank_list(text: str, file: str) -> tuple[int, ...]:
    try:
        found = json.loads(text)
        return tuple(int(rank) for rank in found)
    except (ValueError, TypeError):
        message = f"{text!r} is no list of the ranks of a process group"
        raise InputError(message, location=Location(file), code="group") from None


def _elements_in(args: Mapping[str, Any], collective: int, kind: NodeKind) -> int:
    """Elements of the buffer that `JobCollective` counts, -1 where they are not said."""
    taken, given = (int(args.get(key, -1)) for key in ("In msg nelems", "Out msg nelems"))
    if collective == JobCollective.BARRIER:
        return 0
    if kind is NodeKind.RECV or collective == JobCollective.BROADCAST:
        return max(taken, given)
    if collective == JobCollective.SCATTER:
        # Only the root puts something in.
        return max(taken, given * int(args.get("Group size", 1)))
    return taken
