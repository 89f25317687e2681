# ruff: noqa
"""All-gather to all at once, in place, naming the sender's part as input on both ends."""

import argparse

from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

parser = argparse.ArgumentParser()
parser.add_argument("size", type=int)
parser.add_argument("instances", type=int)
parser.add_argument("--manual", action="store_true")
parser.add_argument("--blocked", action="store_true")
args = parser.parse_args()
size = args.size
policy = ThreadblockPolicy.manual if args.manual else ThreadblockPolicy.auto
options = dict(threadblock_policy=policy, interleaved_replication=not args.blocked, protocol="LL")

with MSCCLProgram(
    "direct", fully_connected(size), AllGather(size, 2, True), args.instances, **options
):
    for rank in range(size):
        for peer in range(size):
            if rank != peer:
                both = chunk(rank, Buffer.input, 0, 2)
                first, second = both.split(2)
                assert first.group(second) == both
                first.copy(peer, Buffer.input, 0, sendtb=peer, recvtb=rank)
                second.copy(peer, Buffer.output, rank * 2 + 1, sendtb=peer, recvtb=rank)
    XML()
    assert Check()
