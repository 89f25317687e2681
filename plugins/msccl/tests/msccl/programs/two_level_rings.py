# ruff: noqa
"""All-reduce by rings in every node and between nodes, every part of the vector on its own ring."""

import argparse

from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

parser = argparse.ArgumentParser()
parser.add_argument("size", type=int)
parser.add_argument("instances", type=int)
parser.add_argument("--nodes", type=int, default=2)
parser.add_argument("--protocol", default="Simple")
parser.add_argument("--channels", action="store_true", help="state channels, but no thread blocks")
parser.add_argument("--shared", action="store_true", help="rings between nodes share channels")
parser.add_argument("--manual", action="store_true")
parser.add_argument("--blocked", action="store_true")
args = parser.parse_args()
size, nodes = args.size, args.nodes
gpus = size // nodes
policy = ThreadblockPolicy.manual if args.manual else ThreadblockPolicy.auto
options = dict(
    threadblock_policy=policy, interleaved_replication=not args.blocked, protocol=args.protocol
)


def stated(ring):
    if args.manual:
        return dict(sendtb=ring, recvtb=ring, ch=ring)
    return dict(ch=ring) if args.channels else {}


def reduce_around(ranks, indices, ring):
    for first, index in enumerate(indices):
        for step in range(1, len(ranks)):
            before = chunk(ranks[(first + step) % len(ranks)], Buffer.input, index)
            after = chunk(ranks[(first + step + 1) % len(ranks)], Buffer.input, index)
            after.reduce(before, **stated(ring))


def copy_around(ranks, indices, ring):
    for first, index in enumerate(indices):
        for step in range(len(ranks) - 1):
            before = chunk(ranks[(first + step) % len(ranks)], Buffer.input, index)
            before.copy(ranks[(first + step + 1) % len(ranks)], **stated(ring))


inside = [[node * gpus + gpu for gpu in range(gpus)] for node in range(nodes)]
between = [[node * gpus + gpu for node in range(nodes)] for gpu in range(gpus)]
strided = [[gpu * nodes + part for gpu in range(gpus)] for part in range(nodes)]
own = [[gpu * nodes + part for part in range(nodes)] for gpu in range(gpus)]
with MSCCLProgram(
    "two_level_rings", fully_connected(size), AllReduce(size, size, True), args.instances, **options
):
    for ranks in inside:
        for part in range(nodes):
            reduce_around(ranks, strided[part], part)
    for gpu, ranks in enumerate(between):
        channels = 2 * [2 * nodes + gpu % 2] if args.shared else [nodes, nodes + 1]
        reduce_around(ranks, own[gpu], channels[0])
        copy_around(ranks, own[gpu], channels[1])
    for ranks in inside:
        for part in range(nodes):
            copy_around(ranks, strided[part], nodes + part + (0 if args.shared else 2))
    XML()
    assert Check()
