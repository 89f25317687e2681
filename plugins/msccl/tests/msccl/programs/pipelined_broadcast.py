# ruff: noqa
"""Broadcast down a line, chunk after chunk, in place."""

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
    "pipeline", line(size), Broadcast(size, 4, True, root=0), args.instances, **options
):
    for index in range(4):
        c = chunk(0, Buffer.input, index)
        for rank in range(1, size):
            c = c.copy(rank, sendtb=0, recvtb=0)
    XML()
    assert Check()
