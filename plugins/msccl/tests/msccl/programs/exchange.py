# ruff: noqa
"""Two ranks exchange their chunks; a third buffer is appended to without an index."""

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

with MSCCLProgram("exchange", fully_connected(2), SendRecv(2, 2, False), args.instances, **options):
    for rank in range(2):
        for index in range(2):
            chunk(rank, Buffer.input, index).copy(1 - rank, Buffer.scratch, sendtb=0, recvtb=0)
    for rank in range(2):
        chunk(rank, Buffer.scratch, 0, 2).copy(rank, Buffer.output, 0, sendtb=1)
    XML()
    assert Check()
