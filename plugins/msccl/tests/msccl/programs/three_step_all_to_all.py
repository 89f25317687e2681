# ruff: noqa
"""All-to-all that comes with the language, over nodes of two GPUs."""

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

from msccl.programs import alltoall_three_step

with MSCCLProgram(
    "three_step",
    fully_connected(size),
    AllToAll(size, 1, False),
    args.instances,
    interleaved_replication=not args.blocked,
):
    alltoall_three_step(size // 2, 2)
    XML()
    assert Check()
