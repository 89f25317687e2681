# ruff: noqa
"""All-reduce by recursive halving and doubling, in place."""

import sys

from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

size = int(sys.argv[1])


def exchange(rank, peer, start, count, step):
    c = chunk(rank, Buffer.input, start, count)
    c.reduce(chunk(peer, Buffer.input, start, count), sendtb=step, recvtb=step, ch=step)


with MSCCLProgram(
    "halving_doubling",
    fully_connected(size),
    AllReduce(size, size, True),
    1,
    protocol="LL",
):
    count, step = size // 2, 0
    while count:
        for rank in range(size):
            exchange(rank, rank ^ count, rank // count * count, count, step)
        count, step = count // 2, step + 1
    count = 1
    while count < size:
        for rank in range(size):
            start = rank // count * count
            chunk(rank, Buffer.input, start, count).copy(
                rank ^ count, sendtb=step, recvtb=step, ch=step
            )
        count, step = count * 2, step + 1
    XML()
    assert Check()
