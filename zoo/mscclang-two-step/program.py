# ruff: noqa
"""All-to-all over nodes of two GPUs: data for a node is collected on one GPU, then sent once."""

import sys

from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

size = int(sys.argv[1])

nodes, gpus = size // 2, 2
with MSCCLProgram("two_step", fully_connected(size), AllToAll(size, 1, False), 1, protocol="LL"):
    for source in range(size):
        for target in range(size):
            c = chunk(source, Buffer.input, target)
            if source // gpus == target // gpus:
                c.copy(target, Buffer.output, c.get_dst_index(), sendtb=target, recvtb=source)
            else:
                collector = source // gpus * gpus + target % gpus
                into = ("for", target)
                c.copy(
                    collector, into, source % gpus, sendtb=size + target, recvtb=size + source, ch=1
                )
                assert chunk(collector, into, source % gpus).get_dst_rank() == target
    for node in range(nodes):
        for target in range(size):
            if node != target // gpus:
                collector = node * gpus + target % gpus
                c = chunk(collector, ("for", target), 0, gpus)
                c.copy(
                    target,
                    Buffer.output,
                    node * gpus,
                    sendtb=2 * size + target,
                    recvtb=2 * size + collector,
                    ch=2,
                )
    XML()
    assert Check()
