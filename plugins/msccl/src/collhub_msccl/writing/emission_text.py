"""Print a program as XML in the form that every runtime's parser accepts.

One element per line, one space between attributes, double quotes, no declaration and no tab: the
parsers accept only a subset of XML, see `runtimes.raw_xml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from collhub_msccl.thread_block_program import STEP_TYPE_NAMES, ThreadBlockProgram

_STEP = (
    '      <step s="%d" type="%s" srcbuf="%s" srcoff="%d" dstbuf="%s" dstoff="%d" cnt="%d"'
    ' depid="%d" deps="%d" hasdep="%d"/>\n'
)
_BLOCK = '    <tb id="%d" send="%d" recv="%d" chan="%d">\n'
_RANK = '  <gpu id="%d" i_chunks="%d" o_chunks="%d" s_chunks="%d">\n'
# The runtimes require a buffer even if a step has none.
_BUFFERS = "ioss"


def format_xml(attributes: Mapping[str, str], program: ThreadBlockProgram) -> bytes:
    """The complete file in ASCII.

    `attributes`: those of `<algo>`, whose values must not need escaping.
    """
    header = " ".join(f'{name}="{value}"' for name, value in attributes.items())
    blocks = _format_blocks(program)
    lines = [f"<algo {header}>\n"]
    sizes = zip(
        program.input_chunks.tolist(),
        program.output_chunks.tolist(),
        program.scratch_chunks.tolist(),
        strict=True,
    )
    borders = pairwise(program.block_indptr.tolist())
    for rank, (chunks, (start, stop)) in enumerate(zip(sizes, borders, strict=True)):
        lines.append(_RANK % (rank, *chunks))
        lines += blocks[start:stop]
        lines.append("  </gpu>\n")
    lines.append("</algo>\n")
    return "".join(lines).encode("ascii")


def _format_blocks(program: ThreadBlockProgram) -> list[str]:
    """Text of every thread block."""
    steps = _format_steps(program)
    heads = zip(
        program.block_id.tolist(),
        program.send.tolist(),
        program.recv.tolist(),
        program.channel.tolist(),
        strict=True,
    )
    # Steps are sorted by thread block.
    bounds = program.block.searchsorted(range(len(program.block_id) + 1))
    texts: list[str] = []
    for head, (start, stop) in zip(heads, pairwise(bounds.tolist()), strict=True):
        lines = [_BLOCK % head, *steps[start:stop], "    </tb>\n"]
        texts.append("".join(lines))
    return texts


def _format_steps(program: ThreadBlockProgram) -> list[str]:
    """Text of every step; one formatting operation per step, as there can be millions."""
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
