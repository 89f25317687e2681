"""Number the steps of a file, find their minimal waits, and convert them to depid, deps, hasdep.

Steps are visited in a possible order of execution. Each block has a vector clock (Fidge 1988,
Mattern 1989): for every other block, its last step known to be finished. A pair that the clock
already implies needs no wait; for any other pair a wait is added, and the clocks are merged.
Invariant: a clock contains exactly the order implied by the chosen waits and by sequential
execution within blocks. Cost: waits times the blocks in their clocks.

The program is printed as XML in the form that every runtime's parser accepts: one element per line,
one space between attributes, double quotes, no declaration and no tab. The parsers accept only a
subset of XML, see `runtimes.raw_xml`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from collhub_msccl.accesses import Edges
from collhub_msccl.runtimes.known_runtimes import MAX_OPERANDS
from collhub_msccl.thread_block_program import STEP_TYPE_NAMES, StepType, ThreadBlockProgram
from collhub_msccl.writing.blocks import Blocks
from collhub_msccl.writing.reduction_runs import REGION, Steps, is_fusable_pair
from hub_core.columns import BoolArray, Int64Array, run_mask


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
    """Return a mask of the `re` steps that need `hasdep` only to prevent a fusion: bool per step.

    The runtimes fuse consecutive `re` steps of a thread block with the same destination and source
    buffer if the first has no `hasdep` and the second no wait. A step needs the flag if it would be
    fused with the next one although they must not be (`is_fusable_pair`), or if the chain has
    reached `MAX_OPERANDS` operands. `columns`: columns of the file. `depid`, `has_dependents`:
    attributes that the waits require; the flags that these already have are not repeated.
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

    `attributes`: attributes of `<algo>` in their order; their values are not escaped. Within it,
    every rank is a `<gpu>` with `id` and the sizes of its buffers, even without thread blocks. It
    has its thread blocks `<tb>`, and each has its steps `<step>`, in the order of the program. A
    step without a source or destination buffer gets "s" for it, because the parsers require one.
    The file ends with a line feed. Raises `UnicodeEncodeError` for text that is not ASCII.
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


Clock = dict[int, int]


@dataclass(slots=True)
class WaitHistory:
    """Steps of a block that waited, by ordinal, and its clock after each."""

    ordinals: list[int] = field(default_factory=list)
    clocks: list[Clock] = field(default_factory=list)

    def clock_at(self, ordinal: int) -> Clock:
        """Return the clock of the thread block when step `ordinal` begins; {} if none is recorded.

        A clock maps other thread blocks to the ordinal of their last step that is known to be
        finished. The result is the clock of the last recorded step up to and including
        `ordinal`; it is not copied.
        """
        index = bisect_right(self.ordinals, ordinal)
        return self.clocks[index - 1] if index else {}

    def last_clock(self) -> Clock:
        """Clock of the block after all its waits so far."""
        return self.clocks[-1] if self.clocks else {}

    def add(self, ordinal: int, clock: Clock) -> None:
        """Record the clock that holds from step `ordinal` on.

        The clock is stored, not copied. If `ordinal` is the last recorded one, the clock replaces
        that one's. Earlier ordinals are not allowed, which is not checked.
        """
        if self.ordinals and self.ordinals[-1] == ordinal:
            self.clocks[-1] = clock
            return
        self.ordinals.append(ordinal)
        self.clocks.append(clock)


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """Waits, and the order implied by them and by sequential execution within thread blocks.

    Per step, int64: `block`, `ordinal` (position in the block), `time` (a possible order of
    execution); `step_of_row`: int64 per row. `parents`, `children`: the waits between steps of
    different blocks, sorted by the waiting step. `history`: by block.
    """

    block: Int64Array
    ordinal: Int64Array
    time: Int64Array
    step_of_row: Int64Array
    parents: Int64Array
    children: Int64Array
    history: dict[int, WaitHistory]

    def is_before(
        self,
        parent_block: int,
        at: int,
        block_of_step: int,
        start: int,
    ) -> bool:
        """Return whether step `at` of one block is known to finish before step `start` of another.

        `parent_block`: thread block of `at`; `block_of_step`: that of `start`; steps are
        counted within their block. Within one block the result is `at` < `start`. Otherwise it
        is True only if the recorded waits of the second block up to and including `start` imply
        it.
        """
        if parent_block == block_of_step:
            return at < start
        history = self.history.get(block_of_step)
        return history is not None and history.clock_at(start).get(parent_block, -1) >= at


def find_waits(
    block: Int64Array,
    ordinal: Int64Array,
    time: Int64Array,
    step_of_row: Int64Array,
    edges: Edges,
) -> Knowledge:
    """Find the waits between thread blocks that must be written.

    `block`, `ordinal`, `time`: for each step its thread block, its position in it, and its position
    in the order of execution. `step_of_row`: step of each row. `edges`: pairs of rows that must
    keep their order. A wait is left out if the order within a block or other waits imply it; a step
    waits for at most one step of each other block, the last required one. The pairs (parent, child)
    of the result are sorted by waiting step, then by the other step. It also has, for every block,
    which steps of other blocks are known to be finished at each step.
    """
    parents, children = step_of_row[edges[0]], step_of_row[edges[1]]
    # Order within a block needs no wait.
    is_crossing = block[parents] != block[children]
    parents, children = parents[is_crossing], children[is_crossing]
    # Only the latest parent of each (waiting step, block of the parent): a finished step implies
    # that the earlier steps of its block are finished.
    order = np.lexsort((ordinal[parents], block[parents], children))
    parents, children = parents[order], children[order]
    # The last parent of a group precedes the first of the next.
    is_last = np.roll(run_mask(children, block[parents]), -1)
    parents, children = parents[is_last], children[is_last]
    # In order of execution, so that the clocks of parents are final; the latest parent first,
    # because it implies most.
    order = np.lexsort((-time[parents], children, time[children]))
    parents, children = parents[order], children[order]
    kept, history = _select_unknown_waits(block, ordinal, parents, children)
    parents, children = parents[kept], children[kept]
    order = np.lexsort((parents, children))
    return Knowledge(
        block,
        ordinal,
        time,
        step_of_row,
        parents[order],
        children[order],
        history,
    )


def _select_unknown_waits(
    block: Int64Array,
    ordinal: Int64Array,
    parents: Int64Array,
    children: Int64Array,
) -> tuple[list[int], dict[int, WaitHistory]]:
    """Return the indices of the necessary waits, ascending, and the clock history of each block.

    `block`, `ordinal`: thread block of each step, and its position in this block. Pair i is that
    step `children[i]` must wait for step `parents[i]` of another block. The pairs must be in order
    of execution of the children, for each child the latest parent first.

    A clock of a block maps other blocks to the ordinal of their last step that is known to be
    finished. A pair is left out if the clock of the child's block already has the parent's ordinal
    or a later one for the parent's block. Otherwise it is necessary: from the child's ordinal on,
    the clock also has the parent, and the clock of the parent's block at the parent's ordinal. Of
    two ordinals of one block the larger one is kept.

    The histories are by block. Every block with a child has one; a block without a child has none.
    Without pairs, both results are empty.
    """
    histories: dict[int, WaitHistory] = {}
    kept: list[int] = []
    columns = (block[children], ordinal[children], block[parents], ordinal[parents])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for index, (block_of_step, at, parent_block, parent_ordinal) in enumerate(rows):
        history = histories.setdefault(block_of_step, WaitHistory())
        clock = history.last_clock()
        # Implied by earlier waits of this block, or of the blocks that it waited for.
        if clock.get(parent_block, -1) >= parent_ordinal:
            continue
        kept.append(index)
        parent_history = histories.get(parent_block)
        learned = parent_history.clock_at(parent_ordinal) if parent_history is not None else {}
        # A copy: the clocks of earlier steps must not change.
        merged = dict(clock)
        for other, step in learned.items():
            merged[other] = max(step, merged.get(other, -1))
        merged[parent_block] = max(parent_ordinal, merged.get(parent_block, -1))
        history.add(at, merged)
    return kept, histories
