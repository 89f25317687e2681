# ruff: noqa
"""Reduce-scatter around a ring, in place, with the results named as output."""

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
    "reduce_scatter", ring(size), ReduceScatter(size, 1, True), args.instances, **options
):
    for index in range(size):
        c = chunk((index + 1) % size, Buffer.input, index)
        for step in range(2, size):
            c = chunk((index + step) % size, Buffer.input, index).reduce(c, sendtb=0, recvtb=0)
        chunk(index, Buffer.output, 0).reduce(c, sendtb=0, recvtb=0)
    XML()
    assert Check()
