# ruff: noqa
"""All-reduce for small messages: every rank sends its input as packets to all, then adds up."""

import sys

from mscclpp.language.channel import *
from mscclpp.language.collectives import *
from mscclpp.language.general import *
from mscclpp.language.program import *
from mscclpp.language.rank import *

size = int(sys.argv[1])
program = CollectiveProgram(
    "packets", AllReduce(size, 1, True), size, protocol="LL", use_double_scratch_buffer=True
)

with program:
    scratch = [Buffer(rank, size * size) for rank in range(size)]
    for rank in range(size):
        vector = Rank(rank).get_input_buffer()[0:size]
        for peer in (peer for peer in range(size) if peer != rank):
            received = scratch[peer][rank * size : (rank + 1) * size]
            MemoryChannel(peer, rank).put_packets(received, vector, tb=0)
        parts = [
            scratch[rank][peer * size : (peer + 1) * size] for peer in range(size) if peer != rank
        ]
        for part in parts:
            Rank(rank).reduce(vector, [part], tb=0, packet=True)
    print(JSON())
