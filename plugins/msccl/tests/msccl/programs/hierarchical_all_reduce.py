# ruff: noqa
"""All-reduce over nodes of two GPUs: reduce-scatter in the node, all-reduce between nodes, all-gather in the node."""

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

nodes, gpus = size // 2, 2
topology = distributed_fully_connected(fully_connected(gpus), nodes, 1)
with MSCCLProgram("hierarchical", topology, AllReduce(size, size, True), args.instances, **options):
    for node in range(nodes):
        for gpu in range(gpus):
            mine, other = node * gpus + gpu, node * gpus + 1 - gpu
            c = chunk(mine, Buffer.input, gpu * nodes, nodes)
            c.reduce(chunk(other, Buffer.input, gpu * nodes, nodes), sendtb=0, recvtb=0, ch=0)
    for gpu in range(gpus):
        for start in range(nodes):
            index = gpu * nodes + start
            c = chunk(start * gpus + gpu, Buffer.input, index)
            for step in range(1, nodes):
                own = chunk((start + step) % nodes * gpus + gpu, Buffer.input, index)
                c = own.reduce(c, sendtb=1, recvtb=1, ch=1)
            for step in range(nodes, 2 * nodes - 1):
                c = c.copy(
                    (start + step) % nodes * gpus + gpu,
                    Buffer.input,
                    index,
                    sendtb=1,
                    recvtb=1,
                    ch=1,
                )
    for node in range(nodes):
        for gpu in range(gpus):
            c = chunk(node * gpus + gpu, Buffer.input, gpu * nodes, nodes)
            c.copy(node * gpus + 1 - gpu, sendtb=2, recvtb=2, ch=2)
    XML()
    assert Check()
