"""A small correct program for the conformance kit."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Source

_PROGRAM = b"""\
from mscclpp.language.channel import *
from mscclpp.language.collectives import *
from mscclpp.language.general import *
from mscclpp.language.program import *
from mscclpp.language.rank import *

size = 3
with CollectiveProgram("all_pairs", AllGather(size, 1, True), size):
    channels = {}
    for source in range(size):
        for target in range(size):
            if source != target:
                channels[target, source] = MemoryChannel(target, source)
    for source in range(size):
        peers = [target for target in range(size) if target != source]
        part = Rank(source).get_output_buffer()[source : source + 1]
        for target in peers:
            channels[target, source].signal(tb=0, relaxed=True)
        for target in peers:
            channels[target, source].wait(tb=0, relaxed=True)
        for target in peers:
            there = Rank(target).get_output_buffer()[source : source + 1]
            channels[target, source].put(there, part, tb=0)
            channels[target, source].signal(tb=0)
        for target in peers:
            channels[target, source].wait(tb=0)
    print(JSON())
"""


def samples() -> Sequence[Source]:
    """An all-gather in place among three ranks, each of which puts its part to all others."""
    return [Source.of_bytes("all_pairs.py", _PROGRAM)]
