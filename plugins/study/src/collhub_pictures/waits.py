"""The picture of a wait-for graph: which ranks wait for which, and in which operation, as SVG.

Ranks with equal waits are one box. Culprits are in the first column; the column of every other
box is its distance from a culprit along the waits. An arrow leads from a waiting box to the box
for which it waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from collhub_drawing.node_shapes import escape_svg_text, truncate

from hub_core.model import format_ranks
from hub_core.plugin_api import Artifact, NoOptions, WaitForGraph, WriteResult

MAX_BOXES = 64
MAX_ARROWS = 256

_LEFT, _TOP, _BOX_WIDTH, _BOX_HEIGHT = 24.0, 64.0, 168.0, 36.0
_COLUMN_WIDTH, _ROW_HEIGHT = 420.0, 76.0
_LABEL_LENGTH, _BOX_LABEL_LENGTH = 36, 24
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.t{font-size:15px;font-weight:bold}"
    ".x{text-anchor:middle}"
    ".w{fill:#eef3fb;stroke:#557}.c{fill:#fbdcd8;stroke:#b22;stroke-width:2}"
    ".a{stroke:#557;stroke-width:1.4;fill:none;marker-end:url(#h)}"
)
_MARKER = (
    '<defs><marker id="h" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0L8 4L0 8z" fill="#557"/></marker></defs>'
)


@dataclass(frozen=True, slots=True)
class _Box:
    """Ranks with equal waits, and the position of their box."""

    ranks: tuple[int, ...]
    is_culprit: bool
    column: int
    row: int

    @property
    def x(self) -> float:
        return _LEFT + self.column * _COLUMN_WIDTH

    @property
    def y(self) -> float:
        return _TOP + self.row * _ROW_HEIGHT


@dataclass(frozen=True, slots=True)
class _Arrow:
    """A wait of one box for another; `operations` in the order of the waits."""

    waiting: int
    awaited: int
    operations: tuple[str, ...]


def write(request: WaitForGraph, options: NoOptions) -> WriteResult:
    """Return the SVG picture of the wait graph as one artifact without a suffix."""
    return WriteResult([Artifact("", draw(request))])


def draw(request: WaitForGraph) -> bytes:
    """Draw the graph as an ASCII SVG document; equal graphs give equal bytes.

    Ranks with equal waits are one box (`_group_ranks`), and boxes are sorted by first rank. Column
    0 has the boxes of culprits; without any, the boxes that wait for none; without these, the first
    box. The column of another box is its smallest number of waits to column 0. Boxes without such a
    path are in an additional last column.

    At most `MAX_BOXES` (64) boxes are drawn, the first by column, then row. Of the waits between
    drawn boxes, at most `MAX_ARROWS` (256) are drawn, the first by waiting box, then awaited box. A
    line below gives the numbers of omitted boxes and waits, unless both are 0. An empty graph gives
    only the title. Characters that are not ASCII become character references.
    """
    groups, arrows = _group_ranks(request)
    boxes = _place_boxes(groups, arrows, frozenset(request.culprits))
    in_order = sorted(boxes.items(), key=lambda item: (item[1].column, item[1].row))
    shown = {number for number, _ in in_order[:MAX_BOXES]}
    drawn = [one for one in arrows if one.waiting in shown and one.awaited in shown][:MAX_ARROWS]
    omitted = len(boxes) - len(shown), len(arrows) - len(drawn)
    lines = list(_draw_parts(request, {key: boxes[key] for key in sorted(shown)}, drawn, omitted))
    columns = max((boxes[key].column for key in shown), default=0) + 1
    rows = max((boxes[key].row for key in shown), default=0) + 1
    width = _LEFT + columns * _COLUMN_WIDTH
    height = _TOP + rows * _ROW_HEIGHT + 28
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}"><style>{_STYLE}</style>{_MARKER}'
    )
    text = "\n".join([head, *lines, "</svg>", ""])
    return text.encode("ascii", "xmlcharrefreplace")


def _group_ranks(request: WaitForGraph) -> tuple[list[tuple[int, ...]], list[_Arrow]]:
    """Group ranks with equal waits into boxes, and return (boxes, arrows between the boxes).

    Two ranks are in one box if they wait in the same waits of the request, are awaited in the same
    waits, and both or neither are culprits. A rank that no wait names, as waiting or as awaited,
    has a box only if it is a culprit. The ranks of a box are ascending. Boxes are sorted by their
    first rank, and arrows refer to boxes by their position.

    There is one arrow for each pair of a waiting box and an awaited box, sorted by this pair. An
    arrow lists each operation once, in the order of the waits. Waits within a box have no arrow.
    Without waits and culprits both lists are empty.
    """
    signs: dict[int, list[tuple[int, bool]]] = {rank: [] for rank in request.culprits}
    for number, wait in enumerate(request.waits):
        for rank in wait.ranks:
            signs.setdefault(rank, []).append((number, True))
        for rank in wait.awaited:
            signs.setdefault(rank, []).append((number, False))
    culprits = frozenset(request.culprits)
    by_sign: dict[tuple[object, ...], list[int]] = {}
    for rank in sorted(signs):
        by_sign.setdefault((rank in culprits, *signs[rank]), []).append(rank)
    groups = [tuple(ranks) for ranks in by_sign.values()]
    box_of = {rank: number for number, ranks in enumerate(groups) for rank in ranks}
    operations: dict[tuple[int, int], list[str]] = {}
    for wait in request.waits:
        awaited = sorted({box_of[rank] for rank in wait.awaited})
        for waiting in sorted({box_of[rank] for rank in wait.ranks}):
            for other in awaited:
                labels = operations.setdefault((waiting, other), [])
                if waiting != other and wait.operation not in labels:
                    labels.append(wait.operation)
    arrows = [_Arrow(*pair, tuple(labels)) for pair, labels in sorted(operations.items()) if labels]
    return groups, arrows


def _place_boxes(
    groups: Sequence[tuple[int, ...]], arrows: Sequence[_Arrow], culprits: frozenset[int]
) -> dict[int, _Box]:
    """Place each group of ranks as a box in the column that equals its distance from the start.

    The start is all groups whose first rank is a culprit; without such groups, all groups that wait
    for no group; without these, the first group. The start is column 0. The distance of another
    group is the smallest number of waits (arrows) that lead from this group to the start. Groups
    without such a path are in an additional last column. The rows of a column, from 0, follow the
    order of `groups`. The keys of the result are positions in `groups`; without groups it is empty.
    """
    waiting_of: dict[int, list[int]] = {}
    for arrow in arrows:
        waiting_of.setdefault(arrow.awaited, []).append(arrow.waiting)
    waits = {arrow.waiting for arrow in arrows}
    front = [number for number, ranks in enumerate(groups) if ranks[0] in culprits]
    front = front or [number for number in range(len(groups)) if number not in waits]
    front = front or list(range(min(1, len(groups))))
    column: dict[int, int] = dict.fromkeys(front, 0)
    while front:
        following = sorted({one for box in front for one in waiting_of.get(box, [])} - set(column))
        for box in following:
            column[box] = column[front[0]] + 1
        front = following
    last = max(column.values(), default=0) + 1
    rows: dict[int, int] = {}
    boxes = {}
    for number, ranks in enumerate(groups):
        at = column.get(number, last)
        rows[at] = rows.get(at, -1) + 1
        boxes[number] = _Box(ranks, ranks[0] in culprits, at, rows[at])
    return boxes


def _draw_parts(
    request: WaitForGraph,
    boxes: Mapping[int, _Box],
    arrows: Sequence[_Arrow],
    omitted: tuple[int, int],
) -> Iterator[str]:
    """Yield the SVG elements: title, explanation, arrows with labels, boxes, omitted parts.

    `boxes`: placed boxes by number, drawn in the order of the mapping; it must have both boxes of
    every arrow. A box has the text `rank 3`, or `ranks 0-3` for several ranks, cut to
    `_BOX_LABEL_LENGTH` (24) characters. The title is cut to 90 characters. An arrow to a column
    further left runs from the left side of the waiting box to the right side of the awaited one;
    any other is a bow from right side to right side, 60, 72, 84 or 96 units wide in turn. Its label
    is its first operation, cut to `_LABEL_LENGTH` (36) characters, and ` (and N more)`;
    `IndexError` without operations. `omitted`: numbers of omitted boxes and waits. A text below the
    boxes gives both; it is left out if both are 0.
    """
    title = escape_svg_text(truncate(request.title, 90))
    yield f'<text class="t" x="{_LEFT:g}" y="26">{title}</text>'
    yield f'<text x="{_LEFT:g}" y="46">red: culprits; arrows lead to the ranks waited for</text>'
    middle = _BOX_HEIGHT / 2
    for number, arrow in enumerate(arrows):
        waiting, awaited = boxes[arrow.waiting], boxes[arrow.awaited]
        x0, y0, x1, y1 = waiting.x, waiting.y + middle, awaited.x + _BOX_WIDTH, awaited.y + middle
        bend = max((x0 - x1) / 2, 30.0)
        if waiting.column <= awaited.column:
            # Waits within a column or back: a bow to the right of the boxes, distinguishable by
            # its width.
            x0, x1 = waiting.x + _BOX_WIDTH, awaited.x + _BOX_WIDTH
            bend = -(60.0 + 12.0 * (number % 4))
        yield (
            f'<path class="a" d="M{x0:g} {y0:g}C{x0 - bend:g} {y0:g} {x1 + abs(bend):g} {y1:g} '
            f'{x1:g} {y1:g}"/>'
        )
        more = f" (and {len(arrow.operations) - 1} more)" if len(arrow.operations) > 1 else ""
        text = escape_svg_text(truncate(arrow.operations[0], _LABEL_LENGTH) + more)
        x, y = (x0 + x1) / 2 + (abs(bend) if bend < 0 else 0), (y0 + y1) / 2 - 5
        yield f'<text class="x" x="{x:g}" y="{y:g}">{text}</text>'
    for box in boxes.values():
        kind = "c" if box.is_culprit else "w"
        name = truncate(f"ranks {format_ranks(box.ranks)}", _BOX_LABEL_LENGTH)
        if len(box.ranks) == 1:
            name = f"rank {box.ranks[0]}"
        yield (
            f'<rect class="{kind}" x="{box.x:g}" y="{box.y:g}" width="{_BOX_WIDTH:g}" '
            f'height="{_BOX_HEIGHT:g}" rx="5"/>'
        )
        center = box.x + _BOX_WIDTH / 2
        yield f'<text class="x" x="{center:g}" y="{box.y + 22:g}">{escape_svg_text(name)}</text>'
    if any(omitted):
        rows = max((box.row for box in boxes.values()), default=0) + 1
        text = f"{omitted[0]} more boxes and {omitted[1]} more waits are not drawn"
        yield f'<text x="{_LEFT:g}" y="{_TOP + rows * _ROW_HEIGHT + 12:g}">{text}</text>'
