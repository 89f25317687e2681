# ruff: noqa
"""All-reduce in two steps, with stated thread blocks: every rank sums its part pairwise, in a tree."""

import argparse

from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

parser = argparse.ArgumentParser()
parser.add_argument("size", type=int)
parser.add_argument("instances", type=int)
args = parser.parse_args()
size = args.size

with MSCCLProgram(
    "tree_sum",
    fully_connected(size),
    AllReduce(size, size, True),
    args.instances,
    protocol="LL",
    interleaved_replication=False,
    threadblock_policy=ThreadblockPolicy.manual,
):
    for rank in range(size):
        for peer in range(size):
            if rank != peer:
                part = chunk(rank, Buffer.input, peer)
                part.copy(peer, "gathered", sendtb=peer, recvtb=rank)
    for rank in range(size):
        # Operand 0 is the rank's own part, operand k the k-th one that it gathered.
        width = size
        while width > 1:
            half = width // 2
            for index in range(half):
                target = (
                    chunk(rank, "gathered", index - 1) if index else chunk(rank, Buffer.input, rank)
                )
                target.reduce(chunk(rank, "gathered", index + half - 1), sendtb=index)
            width = half
    for rank in range(size):
        for peer in range(size):
            if rank != peer:
                total = chunk(rank, Buffer.input, rank)
                total.copy(peer, Buffer.input, rank, sendtb=peer, recvtb=rank)
    XML()
    assert Check()
