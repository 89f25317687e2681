# ruff: noqa
"""All-gather by recursive doubling, out of place; references of growing size overlap each other."""

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
    "recursive_doubling",
    fully_connected(size),
    AllGather(size, 1, False),
    args.instances,
    **options,
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
