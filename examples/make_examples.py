"""Write the three MSCCL-IR examples of this folder: `python make_examples.py [FOLDER]`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

RANKS = 8
NODES = 2
# Two runtimes read a maxBytes of 0 as no limit, microsoft/msccl as never.
_LIMITS = 'minBytes="0" maxBytes="134217728"'


def step(
    type: str, src: str, dst: str, wait: tuple[int, int] | None = None, flag: bool = False
) -> str:
    """One step on one chunk.

    `src` and `dst` such as `i3`; `wait`: (thread block, step); `flag`: others wait for it.
    """
    depid, deps = wait or (-1, -1)
    return (
        f'type="{type}" srcbuf="{src[0]}" srcoff="{src[1:]}" '
        f'dstbuf="{dst[0]}" dstoff="{dst[1:]}" cnt="1"'
        f' depid="{depid}" deps="{deps}" hasdep="{int(flag)}"'
    )


def block(steps: Iterable[str], send: int = -1, recv: int = -1) -> list[str]:
    """A thread block on channel 0, without its id."""
    lines = [f'      <step s="{number}" {text}/>' for number, text in enumerate(steps)]
    return [f'send="{send}" recv="{recv}" chan="0">', *lines, "    </tb>"]


def program(header: str, sizes: str, ranks: Iterable[list[list[str]]]) -> str:
    """A whole file from the thread blocks of every rank."""
    lines = [f'<algo {header} nchannels="1" nchunksperloop="{RANKS}" ngpus="{RANKS}" {_LIMITS}>']
    for rank, blocks in enumerate(ranks):
        lines.append(f'  <gpu id="{rank}" {sizes}>')
        for number, (first, *rest) in enumerate(blocks):
            lines += [f'    <tb id="{number}" {first}', *rest]
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def ring_all_reduce() -> str:
    """Reduce-scatter and all-gather around a ring, in place, with fused receives and sends.

    One thread block a rank.
    """
    header = 'name="ring_all_reduce_8" proto="LL128" coll="allreduce" inplace="1" outofplace="0"'
    return program(
        header, f'i_chunks="{RANKS}" o_chunks="0" s_chunks="0"', map(_ring_blocks, range(RANKS))
    )


def _ring_blocks(rank: int) -> list[list[str]]:
    def both(type: str, behind: int) -> str:
        chunk = f"i{(rank - behind) % RANKS}"
        return step(type, chunk, chunk)

    steps = [
        both("s", 0),
        *(both("rrcs", behind) for behind in range(1, RANKS - 1)),
        both("rrc", RANKS - 1),
    ]
    steps += [
        both("s", RANKS - 1),
        *(both("rcs", behind) for behind in range(RANKS, 2 * RANKS - 2)),
        both("r", 2 * RANKS - 2),
    ]
    return [block(steps, (rank + 1) % RANKS, (rank - 1) % RANKS)]


def all_pairs_all_reduce() -> str:
    """Every rank reduces one chunk of all ranks from its scratch, then sends it to all.

    In place or not.
    """
    header = 'name="all_pairs_all_reduce_8" proto="LL" coll="allreduce" inplace="1" outofplace="1"'
    sizes = f'i_chunks="{RANKS}" o_chunks="{RANKS}" s_chunks="{RANKS - 1}"'
    return program(header, sizes, map(_all_pairs_blocks, range(RANKS)))


def _all_pairs_blocks(rank: int) -> list[list[str]]:
    peers = [peer for peer in range(RANKS) if peer != rank]
    reducer, reduced = len(peers), 2 * len(peers) - 1
    own = f"o{rank}"
    blocks = []
    for number, peer in enumerate(peers):
        slot_there = f"s{rank if rank < peer else rank - 1}"
        steps = [
            step("s", f"i{peer}", slot_there),
            step("r", f"i{rank}", f"s{number}", flag=True),
            step("s", own, own, wait=(reducer, reduced)),
            step("r", f"o{peer}", f"o{peer}"),
        ]
        blocks.append(block(steps, peer, peer))
    # All peers must have sent before the first reduction: one dependency a step, and nops for the
    # others.
    nops = [step("nop", "i0", "o0", wait=(number, 1)) for number in range(len(peers) - 1)]
    sums = [
        step("re", f"s{number}", own, flag=number == len(peers) - 1)
        for number in range(1, len(peers))
    ]
    first = step("re", "s0", own, wait=(len(peers) - 1, 1))
    return [*blocks, block([step("cpy", f"i{rank}", own), *nops, first, *sums])]


def hierarchical_all_gather() -> str:
    """Exchange chunks with counterparts on the other node, then all-to-all within the node."""
    header = (
        'name="hierarchical_all_gather_8" proto="Simple" coll="allgather" '
        'inplace="0" outofplace="1"'
    )
    return program(
        header,
        f'i_chunks="1" o_chunks="{RANKS}" s_chunks="0"',
        map(_hierarchical_blocks, range(RANKS)),
    )


def _hierarchical_blocks(rank: int) -> list[list[str]]:
    per_node = RANKS // NODES
    far = (rank + per_node) % RANKS
    own, far_own = f"o{rank}", f"o{far}"
    blocks = [block([step("s", "i0", own), step("r", "i0", far_own, flag=True)], far, far)]
    first = rank - rank % per_node
    for peer in range(first, first + per_node):
        if peer != rank:
            peer_far = f"o{(peer + per_node) % RANKS}"
            steps = [
                step("s", "i0", own),
                step("r", "i0", f"o{peer}"),
                step("s", far_own, far_own, wait=(0, 1)),
                step("r", peer_far, peer_far),
            ]
            blocks.append(block(steps, peer, peer))
    return [*blocks, block([step("cpy", "i0", own)])]


EXAMPLES = {
    "ring_all_reduce_8.xml": ring_all_reduce,
    "all_pairs_all_reduce_8.xml": all_pairs_all_reduce,
    "hierarchical_all_gather_8.xml": hierarchical_all_gather,
}


def main() -> None:
    """Write all examples into the folder that is named, or beside this file."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, make in EXAMPLES.items():
        (folder / name).write_text(make(), encoding="ascii", newline="\n")


if __name__ == "__main__":
    main()
