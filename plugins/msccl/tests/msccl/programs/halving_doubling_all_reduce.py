# ruff: noqa
"""All-reduce by recursive halving and doubling, in place."""

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


def exchange(rank, peer, start, count, step):
    c = chunk(rank, Buffer.input, start, count)
    c.reduce(chunk(peer, Buffer.input, start, count), sendtb=step, recvtb=step, ch=step)


with MSCCLProgram(
    "halving_doubling",
    fully_connected(size),
    AllReduce(size, size, True),
    args.instances,
    **options,
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
