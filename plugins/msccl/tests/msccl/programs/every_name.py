# ruff: noqa
"""Use every public name of the language at least once; what star imports bring along too."""

import msccl
import msccl.collectives
import msccl.language.routines
import msccl.programs
from msccl.collectives import *
from msccl.language import *
from msccl.language.collectives import *
from msccl.language.routines import *
from msccl.topologies import *
from msccl.topologies.amd import *
from msccl.topologies.distributed import *
from msccl.topologies.generic import *
from msccl.topologies.nvidia import *

assert sys.argv[1:] == ["--all", "two words"]
assert functools.reduce(lambda a, b: a + b, [1, 2]) == 3 and heapq.nsmallest(1, [2, 1]) == [1]
assert issubclass(Instruction, Enum) and Instruction("rrcs") is Instruction.recv_reduce_copy_send


@dataclass
class Moved:
    counts: dict = field(default_factory=lambda: defaultdict(int))


moved = Moved()
assert Chunk(0, 1, 2, 3) == Chunk(0, 1) and len({Chunk(0, 1), Chunk(0, 1, 5)}) == 1
assert ReduceChunk(0, [Chunk(0, 0), Chunk(1, 0)]) == ReduceChunk(2, [Chunk(1, 0), Chunk(0, 0)])
assert [str(buffer) for buffer in (Buffer.input, Buffer.output, Buffer.scratch)] == ["i", "o", "s"]

with MSCCLProgram(
    "every_name",
    fully_connected(2),
    AllReduce(num_ranks=2, chunk_factor=2, inplace=False),
    instances=2,
    protocol="Simple",
    threadblock_policy=ThreadblockPolicy.auto,
    interleaved_replication=True,
    instr_fusion=False,
    check_xml=False,
    dependence_nop=True,
):
    create_scratch(0, "waiting room")
    assert chunk(0, Buffer.output, 0) is None
    for rank in range(2):
        both = chunk(rank, Buffer.input, 0, size=2)
        assert both.copy(rank) is None
        one, two = both.split(2)
        assert one.group(two) == both and isinstance(one, Ref)
        assert [(ref.get_origin_rank(), ref.get_origin_index()) for ref in (one, two)] == [
            (rank, 0),
            (rank, 1),
        ]
        assert (both.get_dst_rank(1), both.get_dst_index(1)) == (-1, 1)
        kept = both.copy(dst=rank, buffer=Buffer.output, index=0)
        sent = chunk(1 - rank, Buffer.input, 0, 2).copy(
            rank, ("from", 1 - rank), sendtb=0, recvtb=0, ch=1
        )
        assert kept.reduce(other=sent) == kept
        moved.counts[rank] += 1
    prog = kept.prog
    assert prog.buffers[0][Buffer.output][0] == prog.buffers[1][Buffer.output][0]
    assert (prog.num_ranks, prog.collective.name, prog.topo.num_nodes()) == (2, "allreduce", 2)
    assert all(isinstance(op, Op) and isinstance(op.src, ChunkRef) for op in prog.instr_dag)
    assert [str(op.inst) for op in prog.instr_dag] == ["cpy", "s", "r", "re"] * 2
    assert prog.check() and Check()
    Print()
    one.print_chunk_info()
    XML()
