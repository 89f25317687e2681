"""Load rules of each runtime's parser, one function per group of rules.

Sources: `mscclGetAlgoFromXMLAndSetAlgo` in `src/graph/topo.cc` of microsoft/msccl, and
`src/misc/msccl/msccl_parser.cc` of Azure/msccl-executor-nccl and ROCm/rccl. Constructs that load
but cannot work cause warnings. Cost: linear in elements.
"""

from __future__ import annotations

from collections import Counter

from collhub_msccl.runtimes.known_runtimes import (
    FIFO_CAPACITY,
    MAX_BLOCKS_PER_CHANNEL,
    MAX_CHILDREN,
    MAX_COUNT,
    MAX_DEPENDENCY_BLOCK,
    MAX_NODES,
    MAX_OPERANDS,
)
from collhub_msccl.runtimes.raw_xml import RawElement, Refusals, read_number

_REQUIRED = {
    "algo": ("ngpus", "nchunksperloop", "nchannels", "proto", "coll", "inplace"),
    "gpu": ("id", "i_chunks", "o_chunks", "s_chunks"),
    "tb": ("id", "send", "recv", "chan"),
    "step": ("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"),
}
# Further required attributes of <algo>, by whether the runtime reads both modes.
_REQUIRED_OF_ALGO = {True: ("outofplace", "minBytes", "maxBytes"), False: ("name",)}


def check_algo(algo: RawElement, refusals: Refusals) -> None:
    """Check the attributes of `<algo>`, the number of channels and the ids of ranks.

    All violations are added to `refusals` in this order; no exception is raised. Numbers are
    parsed as C's strtol does (0 without digits). A runtime is double if one file may have both
    modes, in place and out of place; else single. Refused are:

    1. a missing required attribute: `ngpus`, `nchunksperloop`, `nchannels`, `proto`, `coll`,
       `inplace`; if double also `outofplace`, `minBytes` and `maxBytes`, if single `name`
    2. a `coll` that the runtime does not know, or none (in addition to rule 1)
    3. a `proto` other than Simple, LL and LL128; a missing one only by rule 1
    4. single only: `minBytes` (default 0) above `maxBytes`; not checked without `maxBytes`
    5. `nchannels` (default 1) above the channels of the runtime; if single only a warning
    6. more than 1 024 `<gpu>` elements

    Last, one warning is added if the ids of `<gpu>` are not 0..ngpus-1, each once, in any order.
    """
    runtime = refusals.runtime
    cure = f"'collhub convert -O runtime={runtime.name}' adds it"
    for name in (*_REQUIRED["algo"], *_REQUIRED_OF_ALGO[runtime.has_both_modes]):
        if name not in algo.attributes:
            message = f"<algo> has no attribute {name!r}, which {runtime.title} requires"
            refusals.refuse_once("missing-attribute", f"algo {name}", message, algo.line, cure)
    collective = algo.attributes.get("coll")
    if collective not in runtime.collectives:
        known = ", ".join(sorted(runtime.collectives))
        message = f"{runtime.title} knows no coll={collective!r}; it knows {known}"
        cure = f"'collhub convert -O runtime={runtime.name}' uses its spelling"
        refusals.refuse("unknown-collective", message, algo.line, cure)
    # A missing `proto` is refused above.
    protocol = algo.attributes.get("proto")
    if protocol is not None and protocol not in FIFO_CAPACITY:
        message = f"proto {protocol!r} is not one of Simple, LL, LL128"
        refusals.refuse("unknown-protocol", message, algo.line)
    # Only microsoft/msccl compares the sizes; for it, too many channels are only a warning.
    if not runtime.has_both_modes and "maxBytes" in algo.attributes:
        min_bytes = read_number(algo.attributes.get("minBytes", "0"))
        max_bytes = read_number(algo.attributes["maxBytes"])
        if min_bytes > max_bytes:
            message = f"minBytes {min_bytes} is greater than maxBytes {max_bytes}"
            refusals.refuse("size-range", message, algo.line)
    channels = read_number(algo.attributes.get("nchannels", "1"))
    if channels > runtime.max_channels:
        limit = f"the {runtime.max_channels} of {runtime.title}"
        report = refusals.refuse if runtime.has_both_modes else refusals.warn
        report("channel-range", f"nchannels {channels} is more than {limit}", algo.line)
    if len(algo.children) > MAX_CHILDREN:
        message = f"{len(algo.children)} <gpu>; more than {MAX_CHILDREN} overrun an array"
        refusals.refuse("too-many-elements", message, algo.line)
    ids = sorted(read_number(gpu.attributes.get("id", "")) for gpu in algo.children)
    ranks = read_number(algo.attributes.get("ngpus", "0"))
    # The lengths are compared first, because a damaged count may need more memory than exists.
    if len(ids) != ranks or ids != list(range(ranks)):
        # A rank executes all elements with its id and no others.
        message = (
            f"the ids of <gpu> are not 0..{ranks - 1}, each once:"
            " some rank has no program, or a mixed one"
        )
        refusals.warn("missing-rank", message, algo.line)


def check_gpu(
    gpu: RawElement,
    algo: RawElement,
    refusals: Refusals,
) -> None:
    """Check the program of one rank by the rules of the runtime's parser on this rank.

    All violations are recorded in `refusals`, in this order; no exception is raised. Numbers are
    read like C's `strtol`; text without digits is 0.

    1. A missing `id`, `i_chunks`, `o_chunks` or `s_chunks` of `<gpu>`, once per file and name. The
       check then ends.
    2. A negative `s_chunks`.
    3. Only for a runtime with one mode per file: sizes of INPUT and OUTPUT that do not match
       `nchunksperloop` (`_check_chunks`).
    4. More than `MAX_NODES` elements: `<algo>`, all `<gpu>`, its own thread blocks and steps.
    5. Ids of thread blocks that are not 0, 1, 2, ... in any order; a missing id counts as 0.
    6. More thread blocks than the runtime has.
    7. For each thread block: each missing required attribute, once per file and name. If none is
       missing, the violations of `_check_block`.
    """
    if not _has_all_attributes(gpu, refusals):
        return
    rank = read_number(gpu.attributes["id"])
    if read_number(gpu.attributes["s_chunks"]) < 0:
        message = f"rank {rank}: s_chunks is negative"
        refusals.refuse("attribute-range", message, gpu.line)
    if not refusals.runtime.has_both_modes:
        _check_chunks(gpu, algo, refusals)
    blocks = gpu.children
    # The parser skips the contents of the other ranks' <gpu> elements, but counts the elements.
    steps = sum(len(block.children) for block in blocks)
    nodes = 1 + len(algo.children) + len(blocks) + steps
    if nodes > MAX_NODES:
        message = f"rank {rank} reads {nodes} elements, more than {MAX_NODES}"
        refusals.refuse("too-many-elements", message, gpu.line)
    runtime = refusals.runtime
    ids = sorted(read_number(block.attributes.get("id", "")) for block in blocks)
    if ids != list(range(len(blocks))):
        message = f"rank {rank}: the ids of its thread blocks are not 0, 1, 2, ..."
        refusals.refuse("thread-block-gap", message, gpu.line)
    if len(blocks) > runtime.max_blocks:
        limit = f"the {runtime.max_blocks} of {runtime.title}"
        message = f"rank {rank} has {len(blocks)} thread blocks, more than {limit}"
        refusals.refuse("too-many-thread-blocks", message, gpu.line)
    ranks = read_number(algo.attributes.get("ngpus", "0"))
    # Thread blocks seen so far by (send or recv, channel).
    usage: Counter[tuple[str, int]] = Counter()
    for block in gpu.children:
        if _has_all_attributes(block, refusals):
            _check_block(block, gpu, ranks, usage, refusals)


def _check_chunks(
    gpu: RawElement,
    algo: RawElement,
    refusals: Refusals,
) -> None:
    """Refuse `i_chunks` or `o_chunks` that does not match nchunksperloop (`chunks-inconsistent`).

    `i_chunks` is checked before `o_chunks`, and each can be refused. Sizes of 0 and below are
    accepted. Any other size must be equal to nchunksperloop, with two exceptions: for `i_chunks`
    of an all-gather and `o_chunks` of a reduce-scatter, the size times `ngpus` must be equal to it.

    Texts are read like C's `strtol`; a text without digits and a missing attribute of `algo` are
    0. `gpu` must have both sizes (`KeyError`). Only microsoft/msccl has this rule; the caller
    checks the runtime.
    """
    chunk_count = algo.attributes.get("nchunksperloop", "")
    for name, divided in (("i_chunks", "allgather"), ("o_chunks", "reduce_scatter")):
        size = read_number(gpu.attributes[name])
        # For these collectives the buffer of a rank is one part; the parts of all ranks make up the
        # chunks.
        is_part = algo.attributes.get("coll", "") == divided
        factor = read_number(algo.attributes.get("ngpus", "")) if is_part else 1
        if size > 0 and size * factor != read_number(chunk_count):
            message = f"{name} {size} does not agree with nchunksperloop {chunk_count}"
            cure = f"'collhub convert -O runtime={refusals.runtime.name}' declares valid sizes"
            refusals.refuse("chunks-inconsistent", message, gpu.line, cure)


def _check_block(
    block: RawElement,
    gpu: RawElement,
    ranks: int,
    usage: Counter[tuple[str, int]],
    refusals: Refusals,
) -> None:
    """Check one thread block, and record violations in `refusals` in this order.

    1. `chan` below 0 or above the number of channels is refused; equal to it gives a warning.
    2. For `send`, then `recv`: a peer is refused if it is the block's rank or below -1 (-1: none),
       or at least `ranks` unless the runtime has both modes in a file. The 33rd thread block of the
       rank on this side and channel is refused, if its peer is at least 0; further ones are not
       reported.
    3. Steps: a missing required attribute is refused, once per file and name. `check_step` checks
       the steps with all attributes. Then `check_chains` checks all steps.

    `usage` counts the thread blocks of the rank by ("send" or "recv", channel): this block is added
    for each peer of at least 0, also if refused. Raises `KeyError` if `block` lacks `id`, `chan`,
    `send` or `recv`, or `gpu` lacks `id` or a number of chunks.
    """
    rank = read_number(gpu.attributes["id"])
    name = f"rank {rank}, thread block {block.attributes['id']}"
    # The parsers accept the limit itself by mistake.
    runtime = refusals.runtime
    channel = read_number(block.attributes["chan"])
    if channel > runtime.max_channels or channel < 0:
        last = runtime.max_channels - 1
        message = f"{name}: chan {channel} is not in 0..{last}, the channels of {runtime.title}"
        refusals.refuse("channel-range", message, block.line)
    elif channel == runtime.max_channels:
        message = f"{name}: chan {channel} passes the test, but indexes past an array"
        refusals.warn("channel-range", message, block.line)
    for side in ("send", "recv"):
        peer = read_number(block.attributes[side])
        # The other runtimes index out of bounds silently.
        is_beyond = peer >= ranks and not refusals.runtime.has_both_modes
        if peer == rank or peer < -1 or is_beyond:
            refusals.refuse("peer-range", f"{name}: {side} {peer} is not another rank", block.line)
        if peer >= 0:
            usage[side, channel] += 1
            # Reported only when the limit is exceeded first.
            if usage[side, channel] == MAX_BLOCKS_PER_CHANNEL + 1:
                excess = (
                    f"more than {MAX_BLOCKS_PER_CHANNEL} thread blocks {side} on channel {channel}"
                )
                refusals.refuse("too-many-thread-blocks", f"rank {rank}: {excess}", block.line)
    for step in block.children:
        if _has_all_attributes(step, refusals):
            check_step(step, gpu, block, name, refusals)
    # Checks all steps, because it requires no attribute.
    check_chains(block, name, refusals)


def _has_all_attributes(element: RawElement, refusals: Refusals) -> bool:
    """Return whether an element has all required attributes.

    Each missing name of a tag is refused once per file ("missing-attribute"), at the first element
    that lacks it. Attributes may be empty.
    """
    required = _REQUIRED[element.name]
    missing = [name for name in required if name not in element.attributes]
    for name in missing:
        message = f"<{element.name}> has no attribute {name!r}"
        refusals.refuse_once("missing-attribute", f"{element.name} {name}", message, element.line)
    return not missing


_BUFFERS = {"i": "i_chunks", "o": "o_chunks", "s": "s_chunks"}
_TYPES = frozenset({"s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop", "ra"})
_SENDING = frozenset({"s", "rcs", "rrs", "rrcs"})
_RECEIVING = frozenset({"r", "rcs", "rrc", "rrs", "rrcs"})
# Sides that the parsers compare with the declared sizes.
_CHECKED_SIDES = {
    "s": ("src",),
    "r": ("dst",),
    "rcs": ("dst",),
    "rrs": ("src",),
    "rrcs": ("src", "dst"),
    "cpy": ("src", "dst"),
    "re": ("src", "dst"),
}
_ChainKey = tuple[str | None, int, str | None]
"""dstbuf, dstoff and srcbuf, which are equal for all reductions of a fused chain."""


def check_step(
    step: RawElement,
    gpu: RawElement,
    block: RawElement,
    block_name: str,
    refusals: Refusals,
) -> None:
    """Check one step of a thread block and record its violations in `refusals`.

    `step` must have all required attributes, `block` its `send` and `recv`, and `gpu` its numbers
    of chunks; otherwise `KeyError`. Numbers are parsed as C's strtol does. `block_name`: name of
    the block for messages. In this order, refused are:

    1. an `s` outside 0..max_steps - 1 of the runtime; one finding per thread block
    2. a type that the runtime does not execute, once per type and file. The type `ra` gives a
       warning if the runtime has it.
    3. except in a nop: a `cnt` outside 0..71, then a `hasdep` other than 0 and 1
    4. a type that sends or receives in a block without that peer (below 0), once per block and side
    5. for src, then dst: a buffer other than i, o and s, in all types, also a nop. For a side that
       the parsers check for this type: an offset below -1, or not below the declared number of
       chunks of the buffer. `cnt` is ignored in this comparison. One finding per `<gpu>` and
       buffer.

    Between 4 and 5, a `depid` above 127 gives a warning.
    """
    runtime, attributes = refusals.runtime, step.attributes
    name = f"{block_name}, step {attributes['s']}"
    if not 0 <= read_number(attributes["s"]) < runtime.max_steps:
        message = f"{name}: {runtime.title} takes {runtime.max_steps} steps a thread block"
        refusals.refuse("too-many-steps", message, step.line, cause=block.line)
    kind = attributes["type"]
    if kind not in runtime.step_types:
        reason, cure = f"{kind!r} is no step type", ""
        if kind in _TYPES:
            reason = f"{runtime.title} has no step type {kind!r}"
            cure = f"'collhub convert -O runtime={runtime.name}' writes steps that it has"
        refusals.refuse_once("refused-type", kind, f"{name}: {reason}", step.line, cure)
    elif kind == "ra":
        message = f"{name}: the interpreter leaves the thread block at 'ra'"
        refusals.warn("refused-type", message, step.line)
    # The parsers check neither for a nop.
    if kind != "nop":
        if not 0 <= read_number(attributes["cnt"]) <= MAX_COUNT:
            message = f"{name}: cnt {attributes['cnt']} is not in 0..{MAX_COUNT}"
            refusals.refuse("count-limit", message, step.line)
        if read_number(attributes["hasdep"]) not in (0, 1):
            message = f"{name}: hasdep {attributes['hasdep']} is not 0 or 1"
            refusals.refuse("attribute-range", message, step.line)
        for side, types, words in (
            ("send", _SENDING, "sends"),
            ("recv", _RECEIVING, "receives"),
        ):
            peer = block.attributes[side]
            if kind in types and read_number(peer) < 0:
                message = f"{name}: {kind!r} {words}, but its thread block has {side}={peer!r}"
                cure = f"name the other rank in {side} of the thread block"
                refusals.refuse("no-peer", message, step.line, cure, cause=(block.line, side))
    if read_number(attributes["depid"]) > MAX_DEPENDENCY_BLOCK:
        stored = f"stored in 8 bits, and so corrupted above {MAX_DEPENDENCY_BLOCK}"
        message = f"{name}: depid {attributes['depid']} is {stored}"
        refusals.warn("dependency-limit", message, step.line)
    for side in ("src", "dst"):
        _check_operand(step, side, gpu, name, refusals)


def _check_operand(
    step: RawElement,
    side: str,
    gpu: RawElement,
    name: str,
    refusals: Refusals,
) -> None:
    """Check buffer and offset of one operand of a step, and add a violation to `refusals`.

    `side`: `src` or `dst`. `name`: name of the step for messages. The first violation is added:

    1. `unknown-buffer`: the buffer is not i, o or s, even if the type of the step does not use this
       side.
    2. `out-of-bounds`: the offset is neither -1 nor one of 0 to size - 1. The size is the
       `i_chunks`, `o_chunks` or `s_chunks` of `gpu`. This is checked only if the runtimes' parsers
       check this side for the type (`_CHECKED_SIDES`, for example only `src` of `s`).

    The number of chunks of the step is not considered, as in the parsers. `refusals` reports all
    `out-of-bounds` of one size of a `<gpu>` as one finding, with their number. Raises `KeyError` if
    an attribute that is needed for a check is missing.
    """
    attributes = step.attributes
    buffer = attributes[f"{side}buf"]
    if buffer not in _BUFFERS:
        message = f"{name}: {side}buf {buffer!r} is not one of i, o, s"
        refusals.refuse("unknown-buffer", message, step.line)
        return
    if side not in _CHECKED_SIDES.get(attributes["type"], ()):
        return
    offset = read_number(attributes[f"{side}off"])
    declared = _BUFFERS[buffer]
    size = read_number(gpu.attributes[declared])
    if not -1 <= offset < size:
        message = f"{name}: {side}off {offset} is not below the declared {declared} of {size}"
        cure = f"declare in <gpu> the {declared} that its steps use"
        refusals.refuse("out-of-bounds", message, step.line, cure, cause=(gpu.line, declared))


def check_chains(
    block: RawElement,
    name: str,
    refusals: Refusals,
) -> None:
    """Refuse steps that must continue the waiting of nops before them, but do not wait.

    A step waits if its `depid` is at least 0 or missing. A nop that waits opens a chain; any
    other nop is ignored. The next step that is no nop decides about an open chain:

    - If it waits, it closes the chain.
    - If it is a reduction that joins, the chain stays open for the next step that is no nop.
    - Otherwise it is refused (`unfinished-nop-chain`), and it closes the chain.

    A step `re` joins if the previous step that is no nop is a `re` with the same destination
    (buffer and offset) and source buffer. That `re` has `hasdep` 0 or none, and is not the
    16th of the thread block. A chain that is open at the end is permitted.
    """
    is_pending = False
    run: _ChainKey | None = None
    reductions = 0
    for step in block.children:
        kind = step.attributes.get("type")
        is_waiting = read_number(step.attributes.get("depid", "")) >= 0
        if kind == "nop":
            is_pending |= is_waiting
            continue
        current: _ChainKey | None = None
        if kind == "re":
            attributes = step.attributes
            offset = read_number(attributes.get("dstoff", ""))
            current = attributes.get("dstbuf"), offset, attributes.get("srcbuf")
        joins = current is not None and current == run and not is_waiting
        reductions += kind == "re"
        if is_pending and not is_waiting and not joins:
            follower = f"{name}, step {step.attributes.get('s')}"
            message = f"{follower}: follows a nop, but has no dependency itself"
            refusals.refuse("unfinished-nop-chain", message, step.line)
        if not joins:
            is_pending = False
        # A raised flag finishes a chain, and so does the 16th reduction of a thread block.
        is_end = read_number(step.attributes.get("hasdep", "")) != 0 or reductions == MAX_OPERANDS
        run = None if is_end else current
