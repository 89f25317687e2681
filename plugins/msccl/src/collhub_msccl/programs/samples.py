"""Two small correct MSCCLang programs for the conformance kit."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Source

_START = b"""\
from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

"""
_RING = b"""\
with MSCCLProgram("ring", fully_connected(3), AllReduce(3, 3, True), 1):
    for start in range(3):
        c = chunk(start, Buffer.input, start)
        for step in (1, 2):
            c = chunk((start + step) % 3, Buffer.input, start).reduce(c)
        for step in (3, 4):
            c = c.copy((start + step) % 3, Buffer.input, start)
    XML()
    Check()
"""
_STAGED = (
    b'with MSCCLProgram("staged", fully_connected(4), AllToAll(4, 1, False), 2,'
    b" threadblock_policy=ThreadblockPolicy.manual):\n"
    b"    for source in range(4):\n"
    b"        for target in range(4):\n"
    b'            c = chunk(source, Buffer.input, target).copy(target, "staged", source,'
    b" sendtb=target, recvtb=source)\n"
    b"            (c or chunk(source, Buffer.input, target))"
    b".copy(target, Buffer.output, source, sendtb=4)\n"
    b"    XML()\n"
    b"    Check()\n"
)


def samples() -> Sequence[Source]:
    """In-place ring all-reduce of 3 ranks.

    All-to-all of 4 ranks via scratch with explicit thread blocks.
    """
    ring = Source.of_bytes("ring.py", _START + _RING)
    staged = Source.of_bytes("staged.py", _START + _STAGED)
    return [ring, staged]
