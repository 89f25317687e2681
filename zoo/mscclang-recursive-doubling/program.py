# ruff: noqa
"""All-gather by recursive doubling, out of place."""

import sys

from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

size = int(sys.argv[1])

with MSCCLProgram(
    "recursive_doubling",
    fully_connected(size),
    AllGather(size, 1, False),
    1,
    protocol="LL",
):
    for rank in range(size):
        chunk(rank, Buffer.input, 0).copy(rank, Buffer.output, rank, sendtb=99)
    count, step = 1, 0
    while count < size:
        for rank in range(size):
            peer = rank ^ count
            start = rank // count * count
            c = chunk(rank, Buffer.output, start, count)
            c.copy(peer, Buffer.output, start, sendtb=step, recvtb=step)
        count, step = count * 2, step + 1
    XML()
    assert Check()
