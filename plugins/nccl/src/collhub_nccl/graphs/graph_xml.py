"""Write rings within a node as a file for NCCL_GRAPH_FILE, so that stock NCCL runs its collectives over them."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import quoteattr

from collhub_nccl.graphs.rings import Ring, rings_of
from hub_core.algorithm import Algorithm
from hub_core.collectives import ReduceOp
from hub_core.diagnostics import InputError, UsageError
from hub_core.losses import Loss
from hub_core.plugins.contract import Artifact, Options, WriteResult
from hub_core.verification.verifier import verify

# NCCL reads more channels than these without a check, into arrays of this size.
_MOST_CHANNELS = 32
_MOST_GPUS = 256
_RING_PATTERN = 4


def write(algorithm: Algorithm, options: Options) -> WriteResult:
    """Writer of the format `nccl-graph`. Raises `InputError` for all but equal rings over all ranks, with the reason."""
    devices = _devices(options.get("gpus"), algorithm.num_ranks)
    rings = _equal_rings(algorithm)
    copies = int(options.get("copies") or 1)
    if copies < 1 or copies * len(rings) > _MOST_CHANNELS:
        raise UsageError(
            f"{copies} times {len(rings)} rings are not 1 to {_MOST_CHANNELS} channels",
            cure="use option copies",
        )
    text = _document([ring for ring in rings for _ in range(copies)], devices, options)
    return WriteResult([Artifact("", text.encode)], _losses(algorithm))


def _equal_rings(algorithm: Algorithm) -> list[Ring]:
    _refuse_wrong(algorithm)
    parts = rings_of(algorithm)
    if len(set(parts.values())) > 1:
        shares = ", ".join(map(str, parts.values()))
        message = f"not equal rings: they carry {shares} parts of the buffer, NCCL gives all channels the same share"
        raise InputError(message, cure="write it as a program: --to nccl", code="unequal-rings")
    if len(parts) > _MOST_CHANNELS:
        raise InputError(
            f"{len(parts)} rings are more than the {_MOST_CHANNELS} channels of NCCL",
            code="too-many-rings",
        )
    return list(parts)


def _refuse_wrong(algorithm: Algorithm) -> None:
    """A wrong algorithm must not become right by being handed to NCCL."""
    report = verify(algorithm)
    if not report.ok:
        raise InputError(report.diagnostics)


def _devices(stated: object, num_ranks: int) -> tuple[int, ...]:
    if num_ranks > _MOST_GPUS:
        raise InputError(
            f"{num_ranks} ranks do not fit one node",
            cure=f"use at most {_MOST_GPUS}",
            code="too-many-ranks",
        )
    if stated is None:
        return tuple(range(num_ranks))
    parts = str(stated).split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) <= 4 for part in parts):
        raise UsageError(
            f"option gpus: {str(stated)[:80]!r} is not a list of device numbers",
            cure="write for example 0,2,1,3",
        )
    devices = tuple(map(int, parts))
    if len(set(devices)) != num_ranks or len(devices) != num_ranks:
        raise UsageError(
            f"option gpus: {len(set(devices))} different devices for {num_ranks} ranks",
            cure="name one for each rank",
        )
    return devices


def _document(rings: Sequence[Ring], devices: Sequence[int], options: Options) -> str:
    """The file in NCCL's dialect: no declaration, a tag on one line, devices in hexadecimal."""
    speed = float(options.get("speed") or 20.0)
    if not 0 < speed < 1e6:
        raise UsageError(
            f"option speed: {speed} GB/s", cure="state the bandwidth of one channel, as 20"
        )
    attributes = {
        "id": "0",
        "pattern": str(_RING_PATTERN),
        "crossnic": "0",
        "nchannels": str(len(rings)),
        "speedintra": f"{speed:g}",
        "speedinter": f"{speed:g}",
        "latencyinter": "0",
        "typeintra": str(options.get("type") or "NVL"),
        "typeinter": "PIX",
        "samechannels": "0",
    }
    lines = [
        '<graphs version="1">',
        f"  <graph {' '.join(f'{name}={quoteattr(value)}' for name, value in attributes.items())}>",
    ]
    for ring in rings:
        lines += [
            "    <channel>",
            *(f'      <gpu dev="{devices[rank]:x}"/>' for rank in ring),
            "    </channel>",
        ]
    return "\n".join([*lines, "  </graph>", "</graphs>"]) + "\n"


def _losses(algorithm: Algorithm) -> tuple[Loss, ...]:
    kind = algorithm.collective.kind
    found = [
        Loss(
            "kind",
            str(kind),
            "NCCL runs every collective over these rings where it chooses rings; NCCL_ALGO=Ring makes it",
        ),
        Loss(
            "steps",
            "all",
            "NCCL cuts, orders and joins messages itself; only the order of the ranks is kept",
        ),
    ]
    if algorithm.collective.root is not None:
        found.append(Loss("root", f"rank {algorithm.collective.root}", "the call names it"))
    if algorithm.collective.reduce_op is not ReduceOp.SUM:
        found.append(Loss("reduce_op", str(algorithm.collective.reduce_op), "the call names it"))
    if algorithm.extensions:
        found.append(Loss("extensions", ", ".join(sorted(algorithm.extensions)), "not in the file"))
    return tuple(found)
