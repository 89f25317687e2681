# ruff: noqa
"""All-reduce in two steps: every rank sums its part in scratch, then sends it to all ranks."""

import sys

from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

size = int(sys.argv[1])

with MSCCLProgram(
    "all_pairs",
    fully_connected(size),
    AllReduce(size, size * size, True),
    1,
    protocol="LL",
):
    for rank in range(size):
        for peer in range(size):
            if rank != peer:
                c = chunk(rank, Buffer.input, peer * size, size)
                c.copy(peer, "scratch", sendtb=peer, recvtb=rank)
    for rank in range(size):
        for index in range(size * (size - 1)):
            c = chunk(rank, Buffer.input, rank * size + index % size)
            c.reduce(chunk(rank, "scratch", index), sendtb=rank)
    for rank in range(size):
        for peer in range(size):
            if rank != peer:
                chunk(rank, Buffer.input, rank * size, size).copy(
                    peer, Buffer.input, rank * size, sendtb=peer, recvtb=rank
                )
    XML()
    assert Check()
