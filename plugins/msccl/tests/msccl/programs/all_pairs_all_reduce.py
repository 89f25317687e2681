# ruff: noqa
"""All-reduce in two steps: every rank sums its part, gathered through scratch, then sends it to all."""

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
    "all_pairs",
    fully_connected(size),
    AllReduce(size, size * size, True),
    args.instances,
    **options,
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
