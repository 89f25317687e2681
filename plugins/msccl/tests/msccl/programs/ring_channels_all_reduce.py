# ruff: noqa
"""All-reduce around rings on several channels, each on its own part of the chunks, in place."""

import argparse

from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies import *


def all_reduce(size, channels, instances, policy, interleaved):
    topology = fully_connected(size)
    collective = AllReduce(size, size * channels, True)
    with MSCCLProgram(
        f"ring_{channels}_channels",
        topology,
        collective,
        instances,
        protocol="LL128",
        threadblock_policy=policy,
        interleaved_replication=interleaved,
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


parser = argparse.ArgumentParser()
parser.add_argument("size", type=int)
parser.add_argument("instances", type=int)
parser.add_argument("--channels", type=int, default=2)
parser.add_argument("--manual", action="store_true")
parser.add_argument("--blocked", action="store_true")
args = parser.parse_args()
policy = ThreadblockPolicy.manual if args.manual else ThreadblockPolicy.auto
all_reduce(args.size, args.channels, args.instances, policy, not args.blocked)
