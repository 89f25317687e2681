"""Two small correct programs for the conformance kit; together they contain every step type."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Source

_RANKS = 4
_RING = (
    '<algo name="ring_4" proto="LL" nchannels="1" nchunksperloop="4" ngpus="4" coll="allreduce"'
    ' inplace="1" outofplace="0" minBytes="0" maxBytes="1048576">\n'
)
# Type, and distance (in ranks) from the chunk's first rank to this rank.
_RING_STEPS = (
    ("s", 0),
    ("rrs", 1),
    ("rrcs", 2),
    ("rrc", 3),
    ("s", 3),
    ("rcs", 4),
    ("rcs", 5),
    ("r", 6),
)
_RING_RANK = (
    '<gpu id="{rank}" i_chunks="4" o_chunks="0" s_chunks="0">\n'
    '<tb id="0" send="{after}" recv="{before}" chan="0">\n'
)
_RING_STEP = (
    '<step s="{number}" type="{type}" srcbuf="i" srcoff="{chunk}" dstbuf="i" dstoff="{chunk}"'
    ' cnt="1" depid="-1" deps="-1" hasdep="0"/>\n'
)

_EXCHANGE = (
    '<algo name="exchange_2" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="2"'
    ' coll="allreduce" inplace="0" outofplace="1" minBytes="0" maxBytes="1048576">\n'
)
# The runtimes' parsers require each element on a single line, hence the joined texts.
_EXCHANGE_RANK = (
    '<gpu id="{rank}" i_chunks="1" o_chunks="1" s_chunks="1">\n'
    '<tb id="0" send="{peer}" recv="{peer}" chan="0">\n'
    '<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0"'
    ' cnt="1" depid="-1" deps="-1" hasdep="0"/>\n'
    '<step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0"'
    ' cnt="1" depid="-1" deps="-1" hasdep="1"/>\n'
    "</tb>\n"
    '<tb id="1" send="-1" recv="-1" chan="0">\n'
    '<step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0"'
    ' cnt="1" depid="-1" deps="-1" hasdep="1"/>\n'
    "</tb>\n"
    '<tb id="2" send="-1" recv="-1" chan="0">\n'
    # One step with two waits: the first on the preceding nop, the second on the step itself.
    '<step s="0" type="nop" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0"'
    ' cnt="0" depid="0" deps="1" hasdep="0"/>\n'
    '<step s="1" type="re" srcbuf="s" srcoff="0" dstbuf="o" dstoff="0"'
    ' cnt="1" depid="1" deps="0" hasdep="0"/>\n'
    "</tb>\n"
    "</gpu>\n"
)


def samples() -> Sequence[Source]:
    """In-place ring all-reduce of 4 ranks with fused steps.

    Out-of-place exchange of 2 ranks via scratch.
    """
    texts = {
        "ring_4.xml": _RING + "".join(map(_format_ring_rank, range(_RANKS))),
        "exchange_2.xml": _EXCHANGE + "".join(map(_format_exchange_rank, range(2))),
    }
    return [Source.of_bytes(name, f"{text}</algo>\n".encode()) for name, text in texts.items()]


def _format_ring_rank(rank: int) -> str:
    """The `<gpu>` element of one rank of the ring."""
    after = (rank + 1) % _RANKS
    before = (rank - 1) % _RANKS
    lines = [_RING_RANK.format(rank=rank, after=after, before=before)]
    for number, (step_type, distance) in enumerate(_RING_STEPS):
        chunk = (rank - distance) % _RANKS
        lines.append(_RING_STEP.format(number=number, type=step_type, chunk=chunk))
    return "".join([*lines, "</tb>\n</gpu>\n"])


def _format_exchange_rank(rank: int) -> str:
    """The `<gpu>` element of one rank of the exchange."""
    return _EXCHANGE_RANK.format(rank=rank, peer=1 - rank)
