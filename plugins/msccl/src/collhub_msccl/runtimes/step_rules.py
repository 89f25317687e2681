"""Refusals of each runtime's parser that concern steps; see `load_rules`.

Linear in steps.
"""

from __future__ import annotations

from collhub_msccl.runtimes.known_runtimes import (
    MOST_COUNT,
    MOST_DEPENDENCY_BLOCK,
    MOST_OPERANDS,
)
from collhub_msccl.runtimes.raw_xml import RawElement
from collhub_msccl.runtimes.refusals import Refusals, number

_BUFFERS = {"i": "i_chunks", "o": "o_chunks", "s": "s_chunks"}
_TYPES = frozenset({"s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop", "ra"})
_SENDING = frozenset({"s", "rcs", "rrs", "rrcs"})
_RECEIVING = frozenset({"r", "rcs", "rrc", "rrs", "rrcs"})
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
_Run = tuple[str | None, int, str | None]
"""dstbuf, dstoff and srcbuf of reductions that are done in one pass."""


def check_step(
    step: RawElement,
    gpu: RawElement,
    block: RawElement,
    block_name: str,
    found: Refusals,
) -> None:
    """One step of a thread block."""
    runtime, attributes = found.runtime, step.attributes
    name = f"{block_name}, step {attributes['s']}"
    if not 0 <= number(attributes["s"]) < runtime.max_steps:
        message = f"{name}: {runtime.title} takes {runtime.max_steps} steps a thread block"
        found.refuse("too-many-steps", message, step.line, cause=block.line)
    _check_type(step, name, found)
    # Of a nop, neither is tested.
    if attributes["type"] != "nop":
        _check_numbers(step, name, found)
        _check_peers_of_step(step, block, name, found)
    if number(attributes["depid"]) > MOST_DEPENDENCY_BLOCK:
        stored = f"stored in 8 bits, and so corrupted above {MOST_DEPENDENCY_BLOCK}"
        message = f"{name}: depid {attributes['depid']} is {stored}"
        found.warn("dependency-limit", message, step.line)
    for side in ("src", "dst"):
        _check_place(step, side, gpu, name, found)


def _check_numbers(
    step: RawElement,
    name: str,
    found: Refusals,
) -> None:
    """`cnt` and `hasdep` are numbers that a step can have."""
    attributes = step.attributes
    if not 0 <= number(attributes["cnt"]) <= MOST_COUNT:
        message = f"{name}: cnt {attributes['cnt']} is not in 0..{MOST_COUNT}"
        found.refuse("count-limit", message, step.line)
    if number(attributes["hasdep"]) not in (0, 1):
        message = f"{name}: hasdep {attributes['hasdep']} is not 0 or 1"
        found.refuse("attribute-range", message, step.line)


def _check_peers_of_step(
    step: RawElement,
    block: RawElement,
    name: str,
    found: Refusals,
) -> None:
    """The thread block of a step that sends or receives has somebody to do so with."""
    kind = step.attributes["type"]
    for side, types, words in (
        ("send", _SENDING, "sends"),
        ("recv", _RECEIVING, "receives"),
    ):
        peer = block.attributes[side]
        if kind in types and number(peer) < 0:
            message = f"{name}: {kind!r} {words}, but its thread block has {side}={peer!r}"
            cure = f"name the other rank in {side} of the thread block"
            found.refuse("no-peer", message, step.line, cure, cause=(block.line, side))


def _check_type(
    step: RawElement,
    name: str,
    found: Refusals,
) -> None:
    """The type is one that the runtime executes; each wrong one is told once."""
    runtime, kind = found.runtime, step.attributes["type"]
    if kind in runtime.step_types:
        if kind == "ra":
            message = f"{name}: the interpreter leaves the thread block at 'ra'"
            found.warn("refused-type", message, step.line)
        return
    what, cure = f"{kind!r} is no step type", ""
    if kind in _TYPES:
        what = f"{runtime.title} has no step type {kind!r}"
        cure = f"'collhub convert -O runtime={runtime.name}' writes steps that it has"
    found.refuse_once("refused-type", kind, f"{name}: {what}", step.line, cure)


def _check_place(
    step: RawElement,
    side: str,
    gpu: RawElement,
    name: str,
    found: Refusals,
) -> None:
    """The buffer is known, and the first chunk lies in the declared size.

    -1 passes, and where the last chunk lies is never tested.
    """
    attributes = step.attributes
    buffer = attributes[f"{side}buf"]
    if buffer not in _BUFFERS:
        message = f"{name}: {side}buf {buffer!r} is not one of i, o, s"
        found.refuse("unknown-buffer", message, step.line)
        return
    if side not in _CHECKED_SIDES.get(attributes["type"], ()):
        return
    offset = number(attributes[f"{side}off"])
    declared = _BUFFERS[buffer]
    size = number(gpu.attributes[declared])
    if not -1 <= offset < size:
        message = f"{name}: {side}off {offset} is not below the declared {declared} of {size}"
        cure = f"declare in <gpu> the {declared} that its steps use"
        found.refuse("out-of-bounds", message, step.line, cure, cause=(gpu.line, declared))


def check_chains(
    block: RawElement,
    name: str,
    found: Refusals,
) -> None:
    """A nop passes its wait to the next step that moves data, which must have one of its own.

    Nops without a wait change nothing, and neither do reductions that join the one before.
    """
    is_pending = False
    run: _Run | None = None
    reductions = 0
    for step in block.children:
        kind = step.attributes.get("type")
        is_waiting = number(step.attributes.get("depid", "")) >= 0
        if kind == "nop":
            is_pending |= is_waiting
            continue
        current = _run_of(step) if kind == "re" else None
        joins = current is not None and current == run and not is_waiting
        reductions += kind == "re"
        if is_pending and not is_waiting and not joins:
            follower = f"{name}, step {step.attributes.get('s')}"
            message = f"{follower}: follows a nop, but waits for nothing itself"
            found.refuse("unfinished-nop-chain", message, step.line)
        if not joins:
            is_pending = False
        # A raised flag ends a run, and so does the 16th reduction of a block.
        is_end = number(step.attributes.get("hasdep", "")) != 0 or reductions == MOST_OPERANDS
        run = None if is_end else current


def _run_of(step: RawElement) -> _Run:
    """What reductions have in common that are done in one pass."""
    attributes = step.attributes
    offset = number(attributes.get("dstoff", ""))
    return attributes.get("dstbuf"), offset, attributes.get("srcbuf")
