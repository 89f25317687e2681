"""What each runtime's parser refuses of a file, as its own checks go."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from collhub_msccl.numbers import NumberState, parse_number
from collhub_msccl.runtimes.known_runtimes import (
    BLOCKS_PER_CHANNEL,
    FIFO_CAPACITY,
    MOST_CHILDREN,
    MOST_COUNT,
    MOST_DEPENDENCY_BLOCK,
    MOST_NODES,
    Runtime,
)
from collhub_msccl.runtimes.raw_xml import RawElement
from hub_core.diagnostics import Diagnostic, Location, Severity

_SHOWN_PER_RULE = 5
_REQUIRED = {
    "algo": ("ngpus", "nchunksperloop", "nchannels", "proto", "coll", "inplace"),
    "gpu": ("id", "i_chunks", "o_chunks", "s_chunks"),
    "tb": ("id", "send", "recv", "chan"),
    "step": ("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"),
}
_OWN_REQUIRED = {True: ("outofplace", "minBytes", "maxBytes"), False: ("name",)}
_BUFFERS = {"i": "i_chunks", "o": "o_chunks", "s": "s_chunks"}
_TYPES = frozenset({"s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop", "ra"})
# Which sides the parsers hold against the declared sizes.
_CHECKED_SIDES = {
    "s": ("src",),
    "r": ("dst",),
    "rcs": ("dst",),
    "rrs": ("src",),
    "rrcs": ("src", "dst"),
    "cpy": ("src", "dst"),
    "re": ("src", "dst"),
}


class Refusals:
    """What makes a runtime refuse a file, the first few of each kind, and what it takes but should not."""

    def __init__(self, file: str, runtime: Runtime) -> None:
        self.runtime = runtime
        self._file = file
        self._found: dict[str, list[Diagnostic]] = {}
        self._subjects: set[tuple[str, str]] = set()
        self.is_any = False

    def __iter__(self) -> Iterator[Diagnostic]:
        for found in self._found.values():
            yield from found[:_SHOWN_PER_RULE]
            if len(found) > _SHOWN_PER_RULE:
                more = f"and {len(found) - _SHOWN_PER_RULE} more findings of this kind"
                yield Diagnostic(found[0].code, more, Severity.NOTE, Location(self._file))

    def refuse(self, code: str, message: str, line: int, cure: str = "") -> None:
        """The runtime does not take the file."""
        self.is_any = True
        self._add(code, message, line, Severity.ERROR, cure)

    def refuse_once(self, code: str, subject: str, message: str, line: int, cure: str = "") -> None:
        """The same for what many elements have in common: told at the first one."""
        if (code, subject) not in self._subjects:
            self._subjects.add((code, subject))
            self.refuse(code, message, line, cure)

    def warn(self, code: str, message: str, line: int) -> None:
        """The runtime takes it, with consequences."""
        self._add(code, message, line, Severity.WARNING, "")

    def _add(self, code: str, message: str, line: int, severity: Severity, cure: str) -> None:
        self._found.setdefault(code, []).append(
            Diagnostic(code, message, severity, Location(self._file, line), cure)
        )


@lru_cache(maxsize=1 << 14)
def number(text: str) -> int:
    """A number as C's strtol has it: no digits is 0, and what follows the digits is cut."""
    value, state = parse_number(text)
    if state is NumberState.OUT_OF_RANGE:
        return int(text) if text.isdecimal() and len(text) <= 18 else (1 << 63) - 1
    return value


def check_algo(algo: RawElement, found: Refusals) -> None:
    """The attributes of `<algo>`, and how many ranks there are."""
    runtime, attributes = found.runtime, algo.attributes
    repair = f"'collhub convert -O runtime={runtime.name}' adds it"
    for name in (*_REQUIRED["algo"], *_OWN_REQUIRED[runtime.has_both_modes]):
        if name not in attributes:
            message = f"<algo> has no attribute {name!r}, which {runtime.title} requires"
            found.refuse_once("missing-attribute", f"algo {name}", message, algo.line, repair)
    if attributes.get("coll") not in runtime.collectives:
        known = ", ".join(sorted(runtime.collectives))
        message = f"{runtime.title} knows no coll={attributes.get('coll')!r}; it knows {known}"
        found.refuse(
            "unknown-collective",
            message,
            algo.line,
            f"'collhub convert -O runtime={runtime.name}' spells it right",
        )
    if "proto" in attributes and attributes["proto"] not in FIFO_CAPACITY:
        found.refuse(
            "unknown-protocol",
            f"proto {attributes['proto']!r} is not one of Simple, LL, LL128",
            algo.line,
        )
    _check_sizes(algo, found)
    if len(algo.children) > MOST_CHILDREN:
        found.refuse(
            "too-many-elements",
            f"{len(algo.children)} <gpu>; more than {MOST_CHILDREN} overrun an array",
            algo.line,
        )
    _check_ranks(algo, found)


def _check_sizes(algo: RawElement, found: Refusals) -> None:
    runtime, attributes = found.runtime, algo.attributes
    least, most = (number(attributes.get(name, "0")) for name in ("minBytes", "maxBytes"))
    if not runtime.has_both_modes and "maxBytes" in attributes and least > most:
        found.refuse("size-range", f"minBytes {least} is greater than maxBytes {most}", algo.line)
    channels = number(attributes.get("nchannels", "1"))
    if channels > runtime.max_channels:
        message = f"nchannels {channels} is more than the {runtime.max_channels} of {runtime.title}"
        (found.refuse if runtime.has_both_modes else found.warn)(
            "channel-range", message, algo.line
        )


def _check_ranks(algo: RawElement, found: Refusals) -> None:
    ids = sorted(number(gpu.attributes.get("id", "")) for gpu in algo.children)
    expected = number(algo.attributes.get("ngpus", "0"))
    if ids != list(range(expected)):
        message = f"the ids of <gpu> are not 0..{expected - 1}, each once: some rank has no program, or a mixed one"
        found.warn("missing-rank", message, algo.line)


def check_gpu(gpu: RawElement, algo: RawElement, found: Refusals) -> None:
    """The program of one rank, as the rank itself parses it."""
    if not _has_all(gpu, found):
        return
    runtime, blocks = found.runtime, gpu.children
    rank = number(gpu.attributes["id"])
    if number(gpu.attributes["s_chunks"]) < 0:
        found.refuse("attribute-range", f"rank {rank}: s_chunks is negative", gpu.line)
    if not runtime.has_both_modes:
        _check_chunks(gpu, algo, found)
    steps = sum(len(block.children) for block in blocks)
    nodes = 1 + len(algo.children) + len(blocks) + steps
    if nodes > MOST_NODES:
        found.refuse(
            "too-many-elements",
            f"rank {rank} reads {nodes} elements, more than {MOST_NODES}",
            gpu.line,
        )
    ids = sorted(number(block.attributes.get("id", "")) for block in blocks)
    if ids != list(range(len(blocks))):
        found.refuse(
            "thread-block-gap",
            f"rank {rank}: the ids of its thread blocks are not 0, 1, 2, ...",
            gpu.line,
        )
    if len(blocks) > runtime.max_blocks:
        message = f"rank {rank} has {len(blocks)} thread blocks, more than the {runtime.max_blocks} of {runtime.title}"
        found.refuse("too-many-thread-blocks", message, gpu.line)
    usage: dict[tuple[str, int], int] = {}
    for block in blocks:
        if _has_all(block, found):
            _check_block(block, gpu, number(algo.attributes.get("ngpus", "0")), usage, found)


def _check_chunks(gpu: RawElement, algo: RawElement, found: Refusals) -> None:
    """microsoft/msccl holds declared sizes against nchunksperloop."""
    coll, ranks, whole = (
        algo.attributes.get(name, "") for name in ("coll", "ngpus", "nchunksperloop")
    )
    for name, divided in (("i_chunks", "allgather"), ("o_chunks", "reduce_scatter")):
        size = number(gpu.attributes[name])
        factor = number(ranks) if coll == divided else 1
        if size > 0 and size * factor != number(whole):
            message = f"{name} {size} does not agree with nchunksperloop {whole}"
            cure = f"'collhub convert -O runtime={found.runtime.name}' declares sizes that it takes"
            found.refuse("chunks-inconsistent", message, gpu.line, cure)


def _check_block(
    block: RawElement,
    gpu: RawElement,
    ranks: int,
    usage: dict[tuple[str, int], int],
    found: Refusals,
) -> None:
    runtime, attributes = found.runtime, block.attributes
    rank, channel = number(gpu.attributes["id"]), number(attributes["chan"])
    name = f"rank {rank}, thread block {attributes['id']}"
    if channel > runtime.max_channels or channel < 0:
        message = f"{name}: chan {channel} is more than the {runtime.max_channels - 1} that {runtime.title} has"
        found.refuse("channel-range", message, block.line)
    elif channel == runtime.max_channels:
        found.warn(
            "channel-range",
            f"{name}: chan {channel} passes the test, but indexes past an array",
            block.line,
        )
    for side in ("send", "recv"):
        peer = number(attributes[side])
        if peer == rank or peer < -1 or (peer >= ranks and not runtime.has_both_modes):
            found.refuse("peer-range", f"{name}: {side} {peer} is no other rank", block.line)
        if peer >= 0:
            usage[side, channel] = usage.get((side, channel), 0) + 1
            if usage[side, channel] == BLOCKS_PER_CHANNEL + 1:
                message = f"rank {rank}: more than {BLOCKS_PER_CHANNEL} thread blocks {side} on channel {channel}"
                found.refuse("too-many-thread-blocks", message, block.line)
    for step in block.children:
        if _has_all(step, found):
            _check_step(step, gpu, name, found)
    _check_chains(block, name, found)


def _check_step(step: RawElement, gpu: RawElement, block: str, found: Refusals) -> None:
    runtime, attributes = found.runtime, step.attributes
    kind, name = attributes["type"], f"{block}, step {attributes['s']}"
    if number(attributes["s"]) >= runtime.max_steps or number(attributes["s"]) < 0:
        message = f"{name}: {runtime.title} takes {runtime.max_steps} steps a thread block"
        found.refuse_once("too-many-steps", block, message, step.line)
    if kind not in runtime.step_types:
        what = (
            f"{runtime.title} has no step type {kind!r}"
            if kind in _TYPES
            else f"{kind!r} is no step type"
        )
        cure = (
            f"'collhub convert -O runtime={runtime.name}' writes steps that it has"
            if kind in _TYPES
            else ""
        )
        found.refuse_once("refused-type", kind, f"{name}: {what}", step.line, cure)
    elif kind == "ra":
        found.warn(
            "refused-type", f"{name}: the interpreter leaves the thread block at 'ra'", step.line
        )
    if kind != "nop" and not 0 <= number(attributes["cnt"]) <= MOST_COUNT:
        found.refuse(
            "count-limit", f"{name}: cnt {attributes['cnt']} is not in 0..{MOST_COUNT}", step.line
        )
    if number(attributes["hasdep"]) not in (0, 1):
        found.refuse(
            "attribute-range", f"{name}: hasdep {attributes['hasdep']} is not 0 or 1", step.line
        )
    if number(attributes["depid"]) > MOST_DEPENDENCY_BLOCK:
        message = f"{name}: depid {attributes['depid']} is stored in 8 bits, and so corrupted above {MOST_DEPENDENCY_BLOCK}"
        found.warn("dependency-limit", message, step.line)
    _check_places(step, gpu, name, found)


def _check_places(step: RawElement, gpu: RawElement, name: str, found: Refusals) -> None:
    attributes = step.attributes
    for side in ("src", "dst"):
        buffer, offset = attributes[f"{side}buf"], number(attributes[f"{side}off"])
        if buffer not in _BUFFERS:
            found.refuse(
                "unknown-buffer", f"{name}: {side}buf {buffer!r} is not one of i, o, s", step.line
            )
        elif side in _CHECKED_SIDES.get(attributes["type"], ()):
            size = number(gpu.attributes[_BUFFERS[buffer]])
            if not -1 <= offset < size:
                message = f"{name}: {side}off {offset} is not below the declared {_BUFFERS[buffer]} of {size}"
                found.refuse("out-of-bounds", message, step.line)


def _check_chains(block: RawElement, name: str, found: Refusals) -> None:
    """A nop passes its wait to the next step, which must have one of its own."""
    for step, following in pairwise(block.children):
        is_chain = (
            step.attributes.get("type") == "nop" and number(step.attributes.get("depid", "")) >= 0
        )
        if is_chain and number(following.attributes.get("depid", "")) < 0:
            message = f"{name}, step {following.attributes.get('s')}: follows a nop, but waits for nothing itself"
            found.refuse("unfinished-nop-chain", message, following.line)


def _has_all(element: RawElement, found: Refusals) -> bool:
    missing = [name for name in _REQUIRED[element.name] if name not in element.attributes]
    for name in missing:
        message = f"<{element.name}> has no attribute {name!r}"
        found.refuse_once("missing-attribute", f"{element.name} {name}", message, element.line)
    return not missing
