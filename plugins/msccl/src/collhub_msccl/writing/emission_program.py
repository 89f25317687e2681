"""Number the steps of a file, and convert their waits to depid, deps, hasdep.

The program is printed as XML in the form that every runtime's parser accepts: one element per line,
one space between attributes, double quotes, no declaration and no tab. The parsers accept only a
subset of XML, see `runtimes.raw_xml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from collhub_msccl.runtimes.known_runtimes import MAX_OPERANDS
from collhub_msccl.thread_block_program import STEP_TYPE_NAMES, StepType, ThreadBlockProgram
from collhub_msccl.writing.blocks import Blocks
from collhub_msccl.writing.reduction_runs import REGION, Steps, is_fusable_pair
from collhub_msccl.writing.waits import Knowledge
from hub_core.columns import BoolArray, Int64Array


def build_program(
    blocks: Blocks,
    steps: Steps,
    knowledge: Knowledge,
    sizes: tuple[Int64Array, Int64Array, Int64Array],
) -> ThreadBlockProgram:
    """Build the program of all ranks: number the steps, and convert waits to attributes.

    `steps` are the steps of the file, sorted by their original steps, those of `knowledge`. One or
    more steps come from each original step. Thread blocks are numbered from 0 on each rank, and
    steps from 0 in each block.

    - `depid`, `deps`: from the column `wait`, which has the original step for which a step waits.
      They are the thread block and the number of the last step that came from this original step.
      Without a wait (-1) both are -1.
    - `hasdep` is set on the last step that came from an original step for which another one waits
      (`knowledge.parents`). It is also set where it prevents a fusion of reductions that the
      runtimes would add (`_find_unwanted_fusions`).
    - `sizes`: `i_chunks`, `o_chunks` and `s_chunks` of every rank, as they are.
    - Lines are those of the file that `format_xml` writes, from 1.
    """
    block = knowledge.block[steps.row]
    position = np.arange(len(block)) - np.searchsorted(block, block)
    last_rows = np.flatnonzero(np.diff(steps.row))
    last = np.append(last_rows, len(steps.row) - 1)[: len(knowledge.block)]
    rank_borders = np.arange(len(sizes[2]) + 1)
    block_indptr = np.searchsorted(blocks.rank, rank_borders).astype(np.int64)
    block_id = np.arange(len(blocks)) - block_indptr[blocks.rank]
    # -1 for no wait.
    wait = steps.columns["wait"]
    is_waiting = wait >= 0
    target = last[wait[is_waiting]]
    depid = np.full(len(wait), -1, np.int64)
    depid[is_waiting] = block_id[block][target]
    deps = np.full(len(wait), -1, np.int64)
    deps[is_waiting] = position[target]
    has_dependents = np.zeros(len(block), np.bool_)
    has_dependents[last[knowledge.parents]] = True
    # The column `wait` is replaced by depid and deps.
    columns = {name: steps.columns[name] for name in (*REGION, "count", "type")}
    has_dependents |= _find_unwanted_fusions(columns, block, depid, has_dependents)
    numbers = np.arange(len(blocks))
    steps_before = np.searchsorted(block, numbers)
    return ThreadBlockProgram(
        input_chunks=sizes[0],
        output_chunks=sizes[1],
        scratch_chunks=sizes[2],
        block_indptr=block_indptr,
        block_rank=blocks.rank,
        block_id=block_id,
        send=blocks.send,
        recv=blocks.recv,
        channel=blocks.find_channels_of_blocks(),
        block_line=(steps_before + 2 * numbers + 2 * blocks.rank + 3),
        block=block,
        position=position,
        number=position,
        depid=depid,
        deps=deps,
        line=np.arange(len(block)) + 2 * block + 2 * blocks.rank[block] + 4,
        has_dependents=has_dependents,
        **columns,
    )


def _find_unwanted_fusions(
    columns: dict[str, Int64Array],
    block: Int64Array,
    depid: Int64Array,
    has_dependents: BoolArray,
) -> BoolArray:
    """Return which `re` steps need the flag `hasdep` only to prevent a fusion: bool[steps].

    The runtimes fuse consecutive `re` steps of a thread block if destination (buffer and offset)
    and source buffer are equal, the first has no `hasdep`, and the second has no wait. The first
    step gets the flag in two cases:

    - The two steps may not be fused (`is_fusable_pair` is False).
    - The chain of fused steps up to the first step already has `MAX_OPERANDS` steps. A new chain
      begins with the second step.

    `columns`: columns of the file. `block`: thread block of each step. `depid`: waits, -1 for none.
    `has_dependents`: steps that have `hasdep` because another step waits for them; they are False
    in the result. The arguments are not changed.
    """
    reductions = np.flatnonzero(columns["type"] == StepType.REDUCE)
    first, second = reductions[:-1], reductions[1:]
    # The condition of the parsers, see `reading.dependencies`.
    joins = (second == first + 1) & (block[first] == block[second])
    joins &= (depid[second] < 0) & ~has_dependents[first]
    for name in ("dst_buffer", "dst_offset", "src_buffer"):
        joins &= columns[name][first] == columns[name][second]
    is_parted = joins & ~is_fusable_pair(columns, first, second)
    joins &= ~is_parted
    # Pairs before which the chain has its maximum length.
    index = np.arange(len(joins))
    last_apart = np.maximum.accumulate(np.where(joins, -1, index))
    is_parted |= joins & ((index - last_apart) % MAX_OPERANDS == 0)
    needs_flag = np.zeros(len(block), np.bool_)
    # A raised flag separates the two.
    needs_flag[first[is_parted]] = True
    return needs_flag


_STEP = (
    '      <step s="%d" type="%s" srcbuf="%s" srcoff="%d" dstbuf="%s" dstoff="%d" cnt="%d"'
    ' depid="%d" deps="%d" hasdep="%d"/>\n'
)
_BLOCK = '    <tb id="%d" send="%d" recv="%d" chan="%d">\n'
_RANK = '  <gpu id="%d" i_chunks="%d" o_chunks="%d" s_chunks="%d">\n'
# The runtimes require a buffer even if a step has none.
_BUFFERS = "ioss"


def format_xml(attributes: Mapping[str, str], program: ThreadBlockProgram) -> bytes:
    """Return the complete file as ASCII bytes, one element per line, indented by 2 blanks a level.

    `attributes`: attributes of `<algo>` in their order; their values are not escaped. `<algo>`
    contains a `<gpu>` per rank, even without thread blocks, with `id` and the numbers of chunks of
    its buffers. A `<gpu>` contains its thread blocks `<tb>`, and a `<tb>` its steps `<step>`, both
    in the order of the program. A step without a source or destination buffer gets "s" for it,
    because the parsers require one. The file ends with a line feed. Raises `UnicodeEncodeError` if
    `attributes` are not ASCII.
    """
    header = " ".join(f'{name}="{value}"' for name, value in attributes.items())
    # One formatting operation per step, because there can be millions.
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
    steps = [_STEP % row for row in zip(*columns, strict=True)]
    heads = zip(
        program.block_id.tolist(),
        program.send.tolist(),
        program.recv.tolist(),
        program.channel.tolist(),
        strict=True,
    )
    # Steps are sorted by thread block.
    bounds = program.block.searchsorted(range(len(program.block_id) + 1))
    blocks: list[str] = []
    for head, (start, stop) in zip(heads, pairwise(bounds.tolist()), strict=True):
        lines = [_BLOCK % head, *steps[start:stop], "    </tb>\n"]
        blocks.append("".join(lines))
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
