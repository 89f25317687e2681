# ruff: noqa
"""All-gather: every rank writes its part into the output of every other rank."""

import sys

from mscclpp.language.channel import *
from mscclpp.language.collectives import *
from mscclpp.language.general import *
from mscclpp.language.program import *
from mscclpp.language.rank import *

size = int(sys.argv[1])

with CollectiveProgram("direct", AllGather(size, 1, True), size):
    for rank in range(size):
        for index, peer in enumerate(peer for peer in range(size) if peer != rank):
            channel = MemoryChannel(peer, rank)
            # Both ranks are ready before the first of them writes.
            channel.signal(tb=index, relaxed=True)
            channel.wait(tb=index, relaxed=True)
            part = Rank(rank).get_output_buffer()[rank : rank + 1]
            remote = Rank(peer).get_output_buffer()[rank : rank + 1]
            channel.put(remote, part, tb=index)
            channel.signal(tb=index)
            channel.wait(tb=index)
    print(JSON())
