"""Print a program as XML in the form that every runtime's parser takes: one element a line, one space, double quotes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from collhub_msccl.thread_block_program import STEP_TYPE_NAMES, ThreadBlockProgram

_STEP = '      <step s="%d" type="%s" srcbuf="%s" srcoff="%d" dstbuf="%s" dstoff="%d" cnt="%d" depid="%d" deps="%d" hasdep="%d"/>\n'
_BLOCK = '    <tb id="%d" send="%d" recv="%d" chan="%d">\n'
_RANK = '  <gpu id="%d" i_chunks="%d" o_chunks="%d" s_chunks="%d">\n'
# The runtimes want a buffer even where a step has none.
_BUFFERS = "ioss"


def xml_text(attributes: Mapping[str, str], program: ThreadBlockProgram) -> bytes:
    """The whole file; `attributes` are those of `<algo>`, of which no value needs escaping."""
    header = " ".join(f'{name}="{value}"' for name, value in attributes.items())
    blocks = _blocks(program)
    sizes = (program.input_chunks, program.output_chunks, program.scratch_chunks)
    lines = [f"<algo {header}>\n"]
    borders = pairwise(program.block_indptr.tolist())
    for rank, (chunks, (start, stop)) in enumerate(
        zip(zip(*map(list, sizes), strict=True), borders, strict=True)
    ):
        lines.append(_RANK % (rank, *chunks))
        lines += blocks[start:stop]
        lines.append("  </gpu>\n")
    return "".join([*lines, "</algo>\n"]).encode("ascii")


def _blocks(program: ThreadBlockProgram) -> list[str]:
    steps = _steps(program)
    columns = (program.block_id, program.send, program.recv, program.channel)
    bounds = program.block.searchsorted(range(len(program.block_id) + 1)).tolist()
    return [
        "".join([_BLOCK % head, *steps[start:stop], "    </tb>\n"])
        for head, (start, stop) in zip(
            zip(*(column.tolist() for column in columns), strict=True),
            pairwise(bounds),
            strict=True,
        )
    ]


def _steps(program: ThreadBlockProgram) -> list[str]:
    columns = (
        program.position.tolist(),
        [STEP_TYPE_NAMES[number] for number in program.type.tolist()],
        [_BUFFERS[number] for number in program.src_buffer.tolist()],
        program.src_offset.tolist(),
        [_BUFFERS[number] for number in program.dst_buffer.tolist()],
        program.dst_offset.tolist(),
        program.count.tolist(),
        program.depid.tolist(),
        program.deps.tolist(),
        program.has_dependents.tolist(),
    )
    return [_STEP % row for row in zip(*columns, strict=True)]
