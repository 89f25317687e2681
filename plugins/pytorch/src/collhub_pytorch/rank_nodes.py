"""The nodes of one rank before the ranks are joined to a job."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from collhub_pytorch.calls import Call
from hub_core.model import NodeKind

NONE = -1


def _column() -> array[int]:
    return array("q")


@dataclass(slots=True)
class RankNodes:
    """Columns of nodes in order of time, and edges between their rows.

    `name`: index of `names`, `call`: index of `calls`, -1 for none. `duration_ns` -1 where the file
    states no time. `before`, `after`: ends of the edges; `is_stated`: 0 for those that are assumed.
    `notes`: what there is to say of the file.
    """

    file: str
    rank: int
    world_size: int | None
    names: Sequence[str]
    calls: Sequence[Call]
    kind: array[int] = field(default_factory=_column)
    name: array[int] = field(default_factory=_column)
    duration_ns: array[int] = field(default_factory=_column)
    on_host: array[int] = field(default_factory=_column)
    call: array[int] = field(default_factory=_column)
    before: array[int] = field(default_factory=_column)
    after: array[int] = field(default_factory=_column)
    is_stated: array[int] = field(default_factory=_column)
    notes: list[str] = field(default_factory=list)

    def add(self, name: int, duration_ns: int, *, on_host: bool, call: int = NONE) -> int:
        """Append a node, of communication where `call` is one, and return its row."""
        kind = NodeKind.COMPUTE if call < 0 else self.calls[call].kind
        self.kind.append(int(kind))
        self.name.append(name)
        self.duration_ns.append(duration_ns)
        self.on_host.append(on_host)
        self.call.append(call)
        return len(self.kind) - 1

    def link(self, before: int, after: int, *, is_stated: bool = True) -> None:
        """Let the row `after` wait for the row `before`."""
        self.before.append(before)
        self.after.append(after)
        self.is_stated.append(is_stated)
