# ruff: noqa
"""The other programs and routines that come with the language, one chosen by the size."""

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

from msccl.collectives import *
from msccl.language.routines import *
from msccl.programs.allreduce_allpairs import allreduce_allpairs
from msccl.programs.allreduce_ring import allreduce_ring
from msccl.programs.alltoall_hierarchical import alltoall_hierarchical

chunks = {2: 4, 3: 3, 4: 4, 5: 5}[size]
programs = {
    2: allreduce_allpairs,
    3: allreduce_ring,
    4: lambda size: alltoall_hierarchical(2, 2),
    5: allreduce_ring_inplace,
}
outcome = AllToAll(size, 1, False) if size == 4 else AllReduce(size, chunks, True)
with MSCCLProgram(
    "shipped",
    fully_connected(size),
    outcome,
    args.instances,
    interleaved_replication=not args.blocked,
):
    programs[size](size)
    XML()
    assert Check()
