"""Write rings within a node as a file for `NCCL_GRAPH_FILE`.

Stock NCCL then runs its collectives over them. Source of the format: `src/graph/search.cc` and the
parser in `src/graph/xml.cc` of NCCL 2.30.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import quoteattr

from collhub_nccl.graphs.rings import Ring, rings_of
from collhub_nccl.options import NcclRingOptions
from hub_core.model import Algorithm, InputError, Loss, ReduceOp, UsageError, parse_ranks
from hub_core.plugin_api import Artifact, WriteResult
from hub_core.verification import verify

# NCCL reads more channels than these without a check, into arrays of this size.
_MOST_CHANNELS = 32
_MOST_GPUS = 256
# NCCL_TOPO_PATTERN_RING
_RING_PATTERN = 4


def write(algorithm: Algorithm, options: NcclRingOptions) -> WriteResult:
    """Writer of the format `nccl-graph`.

    Raises `InputError` for all but equal rings over all ranks, with the reason.
    """
    devices = _devices(options.gpus, algorithm.num_ranks)
    rings = _equal_rings(algorithm)
    copies = options.copies
    if copies * len(rings) > _MOST_CHANNELS:
        raise UsageError(
            f"{copies} times {len(rings)} rings are not 1 to {_MOST_CHANNELS} channels",
            cure="use option copies",
        )
    # NCCL shares data evenly among channels, so every ring needs as many.
    channels = [ring for ring in rings for _ in range(copies)]
    text = _document(channels, devices, options)
    return WriteResult([Artifact("", text.encode)], tuple(_losses(algorithm)))


def _equal_rings(algorithm: Algorithm) -> list[Ring]:
    """The rings of an algorithm, each with the same share of the buffer."""
    _refuse_wrong(algorithm)
    parts = rings_of(algorithm)
    if len(set(parts.values())) > 1:
        shares = ", ".join(map(str, parts.values()))
        raise InputError(
            f"not equal rings: they carry {shares} parts of the buffer, "
            "NCCL gives all channels the same share",
            cure="write it as a program: --to nccl",
            code="unequal-rings",
        )
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


def _devices(stated: str | None, num_ranks: int) -> tuple[int, ...]:
    """Device number of every rank in its node, by the option `gpus`."""
    if num_ranks > _MOST_GPUS:
        raise InputError(
            f"{num_ranks} ranks do not fit one node",
            cure=f"use at most {_MOST_GPUS}",
            code="too-many-ranks",
        )
    if stated is None:
        return tuple(range(num_ranks))
    return parse_ranks(stated, "device", num_ranks)


def _document(rings: Sequence[Ring], devices: Sequence[int], options: NcclRingOptions) -> str:
    """The file in NCCL's dialect: no declaration, a tag on one line, devices in hexadecimal."""
    attributes = _attributes(len(rings), options)
    graph = " ".join(f"{name}={quoteattr(value)}" for name, value in attributes.items())
    lines = ['<graphs version="1">', f"  <graph {graph}>"]
    for ring in rings:
        lines.append("    <channel>")
        lines += [f'      <gpu dev="{devices[rank]:x}"/>' for rank in ring]
        lines.append("    </channel>")
    lines += ["  </graph>", "</graphs>", ""]
    return "\n".join(lines)


def _attributes(channel_count: int, options: NcclRingOptions) -> dict[str, str]:
    """Attributes of the ring graph. NCCL fails where one but `latencyinter` is missing."""
    speed = options.speed
    if not 0 < speed < 1e6:
        raise UsageError(
            f"option speed: {speed} GB/s",
            cure="state the bandwidth of one channel, as 20",
        )
    return {
        "id": "0",
        "pattern": str(_RING_PATTERN),
        "crossnic": "0",
        "nchannels": str(channel_count),
        "speedintra": f"{speed:g}",
        "speedinter": f"{speed:g}",
        "latencyinter": "0",
        "typeintra": options.type,
        "typeinter": "PIX",
        "samechannels": "0",
    }


def _losses(algorithm: Algorithm) -> Iterator[Loss]:
    """What the file does not say of the algorithm."""
    collective = algorithm.collective
    yield Loss(
        "kind",
        str(collective.kind),
        "NCCL runs every collective over these rings where it chooses rings; "
        "NCCL_ALGO=Ring makes it",
    )
    yield Loss(
        "steps",
        "all",
        "NCCL cuts, orders and joins messages itself; only the order of the ranks is kept",
    )
    if collective.root is not None:
        yield Loss("root", f"rank {collective.root}", "the call names it")
    if collective.reduce_op is not ReduceOp.SUM:
        yield Loss("reduce_op", str(collective.reduce_op), "the call names it")
    if algorithm.extensions:
        yield Loss("extensions", ", ".join(sorted(algorithm.extensions)), "not in the file")
