# ruff: noqa
"""A collective of the program itself: every rank but the last sends its input to the next one, in halves by two ways."""

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


class AllToNext(Collective):
    def __init__(self, num_ranks, chunk_factor, inplace):
        Collective.__init__(self, num_ranks, chunk_factor, inplace)

    def init_buffers(self):
        buffers = []
        for rank in range(self.num_ranks):
            data = [Chunk(rank, index, rank + 1, index) for index in range(self.chunk_factor)]
            buffers.append({Buffer.input: data, Buffer.output: [None] * self.chunk_factor})
        return buffers

    def check(self, prog):
        correct = True
        for rank in range(1, self.num_ranks):
            for index in range(self.chunk_factor):
                found = prog.buffers[rank][Buffer.output][index]
                if found is None or found.origin_rank != rank - 1 or found.origin_index != index:
                    print(f"rank {rank} chunk {index} is {found}")
                    correct = False
        return correct


with MSCCLProgram(
    "all_to_next", fully_connected(size), AllToNext(size, 4, False), args.instances, **options
):
    for rank in range(size - 1):
        direct, indirect = chunk(rank, Buffer.input, 0, 4).split(2)
        direct.copy(rank + 1, Buffer.output, 0, sendtb=0, recvtb=0)
        over = (rank + 2) % size
        waiting = indirect.copy(over, f"from {rank}", 0, sendtb=1, recvtb=1)
        waiting.copy(rank + 1, Buffer.output, 2, sendtb=2, recvtb=2)
    XML()
    assert Check()
