# ruff: noqa
"""All-gather around a ring: every rank's chunk goes to its own output, then from rank to rank."""

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

with MSCCLProgram(
    "passed_on",
    ring(size),
    AllGather(size, 1, False),
    args.instances,
    threadblock_policy=policy,
    interleaved_replication=not args.blocked,
):
    for rank in range(size):
        c = chunk(rank, Buffer.input, 0).copy(rank, Buffer.output, rank, sendtb=0)
        for step in range(1, size):
            c = c.copy((rank + step) % size, Buffer.output, rank, sendtb=0, recvtb=0)
    XML()
    assert Check()
