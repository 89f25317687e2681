"""Load rules of each runtime's parser for steps; see `load_rules`. Cost: linear in steps."""

from __future__ import annotations

from collhub_msccl.runtimes.known_runtimes import (
    MAX_COUNT,
    MAX_DEPENDENCY_BLOCK,
    MAX_OPERANDS,
)
from collhub_msccl.runtimes.raw_xml import RawElement, Refusals, read_number

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
    """Check one step of a thread block; records violations in `refusals`.

    Counts and peers are not checked for a nop. Too many steps of a block count as one finding.
    """
    runtime, attributes = refusals.runtime, step.attributes
    name = f"{block_name}, step {attributes['s']}"
    if not 0 <= read_number(attributes["s"]) < runtime.max_steps:
        message = f"{name}: {runtime.title} takes {runtime.max_steps} steps a thread block"
        refusals.refuse("too-many-steps", message, step.line, cause=block.line)
    _check_type(step, name, refusals)
    # The parsers check neither for a nop.
    if attributes["type"] != "nop":
        _check_numbers(step, name, refusals)
        kind = attributes["type"]
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


def _check_numbers(
    step: RawElement,
    name: str,
    refusals: Refusals,
) -> None:
    """Refuse a `cnt` outside 0..71, and a `hasdep` other than 0 and 1."""
    attributes = step.attributes
    if not 0 <= read_number(attributes["cnt"]) <= MAX_COUNT:
        message = f"{name}: cnt {attributes['cnt']} is not in 0..{MAX_COUNT}"
        refusals.refuse("count-limit", message, step.line)
    if read_number(attributes["hasdep"]) not in (0, 1):
        message = f"{name}: hasdep {attributes['hasdep']} is not 0 or 1"
        refusals.refuse("attribute-range", message, step.line)


def _check_type(
    step: RawElement,
    name: str,
    refusals: Refusals,
) -> None:
    """Refuse a type that the runtime does not execute, once per type; warn of `ra`.

    The interpreter leaves the thread block at `ra`.
    """
    runtime, kind = refusals.runtime, step.attributes["type"]
    if kind in runtime.step_types:
        if kind == "ra":
            message = f"{name}: the interpreter leaves the thread block at 'ra'"
            refusals.warn("refused-type", message, step.line)
        return
    reason, cure = f"{kind!r} is no step type", ""
    if kind in _TYPES:
        reason = f"{runtime.title} has no step type {kind!r}"
        cure = f"'collhub convert -O runtime={runtime.name}' writes steps that it has"
    refusals.refuse_once("refused-type", kind, f"{name}: {reason}", step.line, cure)


def _check_operand(
    step: RawElement,
    side: str,
    gpu: RawElement,
    name: str,
    refusals: Refusals,
) -> None:
    """Refuse an unknown buffer, and a first chunk outside the declared size, on a side (`src` or
    `dst`).

    Like the parsers, accepts the offset -1 and does not check the last chunk. The offset is checked
    only if the type of the step uses the side.
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
    """Refuse steps that follow a waiting nop but do not wait themselves.

    A nop transfers its wait to the next step that moves data, which must have a dependency itself.
    Nops without a wait are ignored, and so are reductions that join the previous one.
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
        current = _get_chain_key(step) if kind == "re" else None
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


def _get_chain_key(step: RawElement) -> _ChainKey:
    """Return dstbuf, dstoff and srcbuf, which are equal for all reductions of a fused chain."""
    attributes = step.attributes
    offset = read_number(attributes.get("dstoff", ""))
    return attributes.get("dstbuf"), offset, attributes.get("srcbuf")
