"""Refusals of each runtime's parser, one function for each group of its checks.

`mscclGetAlgoFromXMLAndSetAlgo` in `src/graph/topo.cc` of microsoft/msccl, and
`src/misc/msccl/msccl_parser.cc` of Azure/msccl-executor-nccl and ROCm/rccl. What they accept though
it cannot work is a warning. Linear in elements.
"""

from __future__ import annotations

from collections import Counter

from collhub_msccl.runtimes.known_runtimes import (
    BLOCKS_PER_CHANNEL,
    FIFO_CAPACITY,
    MOST_CHILDREN,
    MOST_NODES,
)
from collhub_msccl.runtimes.raw_xml import RawElement
from collhub_msccl.runtimes.refusals import Refusals, number
from collhub_msccl.runtimes.step_rules import check_chains, check_step

_REQUIRED = {
    "algo": ("ngpus", "nchunksperloop", "nchannels", "proto", "coll", "inplace"),
    "gpu": ("id", "i_chunks", "o_chunks", "s_chunks"),
    "tb": ("id", "send", "recv", "chan"),
    "step": ("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"),
}
# What <algo> needs besides, by whether the runtime reads both modes.
_OWN_REQUIRED = {True: ("outofplace", "minBytes", "maxBytes"), False: ("name",)}


def check_algo(algo: RawElement, found: Refusals) -> None:
    """The attributes of `<algo>`, and how many ranks there are."""
    _check_header(algo, found)
    _check_collective(algo, found)
    _check_protocol(algo, found)
    _check_sizes(algo, found)
    _check_channels(algo, found)
    if len(algo.children) > MOST_CHILDREN:
        message = f"{len(algo.children)} <gpu>; more than {MOST_CHILDREN} overrun an array"
        found.refuse("too-many-elements", message, algo.line)
    _check_ranks(algo, found)


def _check_header(algo: RawElement, found: Refusals) -> None:
    """All attributes are there that the runtime requires."""
    runtime = found.runtime
    cure = f"'collhub convert -O runtime={runtime.name}' adds it"
    for name in (*_REQUIRED["algo"], *_OWN_REQUIRED[runtime.has_both_modes]):
        if name not in algo.attributes:
            message = f"<algo> has no attribute {name!r}, which {runtime.title} requires"
            found.refuse_once("missing-attribute", f"algo {name}", message, algo.line, cure)


def _check_collective(algo: RawElement, found: Refusals) -> None:
    """`coll` is spelled as the runtime spells it."""
    runtime = found.runtime
    name = algo.attributes.get("coll")
    if name in runtime.collectives:
        return
    known = ", ".join(sorted(runtime.collectives))
    found.refuse(
        "unknown-collective",
        f"{runtime.title} knows no coll={name!r}; it knows {known}",
        algo.line,
        f"'collhub convert -O runtime={runtime.name}' spells it right",
    )


def _check_protocol(algo: RawElement, found: Refusals) -> None:
    """`proto` is one of the three; where it is missing, that has been told."""
    name = algo.attributes.get("proto")
    if name is not None and name not in FIFO_CAPACITY:
        message = f"proto {name!r} is not one of Simple, LL, LL128"
        found.refuse("unknown-protocol", message, algo.line)


def _check_sizes(algo: RawElement, found: Refusals) -> None:
    """microsoft/msccl alone compares the sizes."""
    attributes = algo.attributes
    if found.runtime.has_both_modes or "maxBytes" not in attributes:
        return
    least = number(attributes.get("minBytes", "0"))
    most = number(attributes["maxBytes"])
    if least > most:
        message = f"minBytes {least} is greater than maxBytes {most}"
        found.refuse("size-range", message, algo.line)


def _check_channels(algo: RawElement, found: Refusals) -> None:
    """Too many channels are no more than a warning in microsoft/msccl."""
    runtime = found.runtime
    channels = number(algo.attributes.get("nchannels", "1"))
    if channels <= runtime.max_channels:
        return
    message = f"nchannels {channels} is more than the {runtime.max_channels} of {runtime.title}"
    tell = found.refuse if runtime.has_both_modes else found.warn
    tell("channel-range", message, algo.line)


def _check_ranks(algo: RawElement, found: Refusals) -> None:
    """A rank reads the elements with its id, whatever other ids there are."""
    ids = sorted(number(gpu.attributes.get("id", "")) for gpu in algo.children)
    expected = number(algo.attributes.get("ngpus", "0"))
    if ids == list(range(expected)):
        return
    message = (
        f"the ids of <gpu> are not 0..{expected - 1}, each once:"
        " some rank has no program, or a mixed one"
    )
    found.warn("missing-rank", message, algo.line)


def check_gpu(
    gpu: RawElement,
    algo: RawElement,
    found: Refusals,
) -> None:
    """The program of one rank, as the rank itself parses it."""
    if not _has_all(gpu, found):
        return
    rank = number(gpu.attributes["id"])
    if number(gpu.attributes["s_chunks"]) < 0:
        message = f"rank {rank}: s_chunks is negative"
        found.refuse("attribute-range", message, gpu.line)
    if not found.runtime.has_both_modes:
        _check_chunks(gpu, algo, found)
    _check_number_of_elements(gpu, rank, algo, found)
    _check_block_ids(gpu, rank, found)
    ranks = number(algo.attributes.get("ngpus", "0"))
    # Thread blocks seen so far by (send or recv, channel).
    usage: Counter[tuple[str, int]] = Counter()
    for block in gpu.children:
        if _has_all(block, found):
            _check_block(block, gpu, ranks, usage, found)


def _check_chunks(
    gpu: RawElement,
    algo: RawElement,
    found: Refusals,
) -> None:
    """microsoft/msccl holds declared sizes against nchunksperloop."""
    whole = algo.attributes.get("nchunksperloop", "")
    for name, divided in (("i_chunks", "allgather"), ("o_chunks", "reduce_scatter")):
        size = number(gpu.attributes[name])
        # There a rank has a part of the buffer, so that all ranks together make up the chunks.
        is_part = algo.attributes.get("coll", "") == divided
        factor = number(algo.attributes.get("ngpus", "")) if is_part else 1
        if size > 0 and size * factor != number(whole):
            message = f"{name} {size} does not agree with nchunksperloop {whole}"
            cure = f"'collhub convert -O runtime={found.runtime.name}' declares sizes that it takes"
            found.refuse("chunks-inconsistent", message, gpu.line, cure)


def _check_number_of_elements(
    gpu: RawElement,
    rank: int,
    algo: RawElement,
    found: Refusals,
) -> None:
    """The parser has a fixed array of nodes; bodies of other ranks are not in it."""
    blocks = gpu.children
    # The parser skips the bodies of the other ranks, whose <gpu> still count.
    steps = sum(len(block.children) for block in blocks)
    nodes = 1 + len(algo.children) + len(blocks) + steps
    if nodes > MOST_NODES:
        message = f"rank {rank} reads {nodes} elements, more than {MOST_NODES}"
        found.refuse("too-many-elements", message, gpu.line)


def _check_block_ids(
    gpu: RawElement,
    rank: int,
    found: Refusals,
) -> None:
    """Thread blocks are numbered densely, and there are not too many."""
    runtime, blocks = found.runtime, gpu.children
    ids = sorted(number(block.attributes.get("id", "")) for block in blocks)
    if ids != list(range(len(blocks))):
        message = f"rank {rank}: the ids of its thread blocks are not 0, 1, 2, ..."
        found.refuse("thread-block-gap", message, gpu.line)
    if len(blocks) > runtime.max_blocks:
        limit = f"the {runtime.max_blocks} of {runtime.title}"
        message = f"rank {rank} has {len(blocks)} thread blocks, more than {limit}"
        found.refuse("too-many-thread-blocks", message, gpu.line)


def _check_block(
    block: RawElement,
    gpu: RawElement,
    ranks: int,
    usage: Counter[tuple[str, int]],
    found: Refusals,
) -> None:
    """One thread block and its steps."""
    rank = number(gpu.attributes["id"])
    name = f"rank {rank}, thread block {block.attributes['id']}"
    _check_channel(block, name, found)
    for side in ("send", "recv"):
        _check_peer(block, side, name, rank, ranks, found)
        _count_use(block, side, rank, usage, found)
    for step in block.children:
        if _has_all(step, found):
            check_step(step, gpu, block, name, found)
    # Needs no attribute to be there, so it looks at all steps.
    check_chains(block, name, found)


def _check_channel(
    block: RawElement,
    name: str,
    found: Refusals,
) -> None:
    """The parsers test for "greater than the limit", so the limit itself passes."""
    runtime = found.runtime
    channel = number(block.attributes["chan"])
    if channel > runtime.max_channels or channel < 0:
        limit = f"the {runtime.max_channels - 1} that {runtime.title} has"
        message = f"{name}: chan {channel} is more than {limit}"
        found.refuse("channel-range", message, block.line)
    elif channel == runtime.max_channels:
        message = f"{name}: chan {channel} passes the test, but indexes past an array"
        found.warn("channel-range", message, block.line)


def _check_peer(
    block: RawElement,
    side: str,
    name: str,
    rank: int,
    ranks: int,
    found: Refusals,
) -> None:
    """`send` and `recv` are -1 or another rank; only microsoft/msccl tests for ngpus."""
    peer = number(block.attributes[side])
    # The others index past an array without a word.
    is_beyond = peer >= ranks and not found.runtime.has_both_modes
    if peer == rank or peer < -1 or is_beyond:
        found.refuse("peer-range", f"{name}: {side} {peer} is no other rank", block.line)


def _count_use(
    block: RawElement,
    side: str,
    rank: int,
    usage: Counter[tuple[str, int]],
    found: Refusals,
) -> None:
    """A channel of a rank has place for so many peers in each direction; told once."""
    if number(block.attributes[side]) < 0:
        return
    channel = number(block.attributes["chan"])
    usage[side, channel] += 1
    # Told at the first one too many.
    if usage[side, channel] == BLOCKS_PER_CHANNEL + 1:
        what = f"more than {BLOCKS_PER_CHANNEL} thread blocks {side} on channel {channel}"
        found.refuse("too-many-thread-blocks", f"rank {rank}: {what}", block.line)


def _has_all(element: RawElement, found: Refusals) -> bool:
    """Whether all required attributes are there; missing ones are told once a name."""
    required = _REQUIRED[element.name]
    missing = [name for name in required if name not in element.attributes]
    for name in missing:
        message = f"<{element.name}> has no attribute {name!r}"
        found.refuse_once("missing-attribute", f"{element.name} {name}", message, element.line)
    return not missing
