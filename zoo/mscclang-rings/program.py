# ruff: noqa
"""All-reduce around rings on several channels, each with a part of the chunks, in place."""

import sys

from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies import *


def all_reduce(size, channels):
    topology = fully_connected(size)
    collective = AllReduce(size, size * channels, True)
    with MSCCLProgram(
        f"ring_{channels}_channels",
        topology,
        collective,
        1,
        protocol="LL128",
    ):
        for step in range(size - 1):
            for index in range(size * channels):
                rank = (index // channels + step) % size
                lane = index % channels
                c = chunk((rank + 1) % size, Buffer.input, index)
                c.reduce(chunk(rank, Buffer.input, index), ch=lane, sendtb=lane, recvtb=lane)
        for step in range(size - 1, 2 * size - 2):
            for index in range(size * channels):
                rank = (index // channels + step) % size
                lane = index % channels
                c = chunk(rank, Buffer.input, index)
                c = c.copy(
                    (rank + 1) % size, Buffer.input, index, ch=lane, sendtb=lane, recvtb=lane
                )
        XML()
        assert Check()


all_reduce(int(sys.argv[1]), channels=2)
