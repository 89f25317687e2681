"""The nodes of one rank before the ranks are joined to a job."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from collhub_pytorch.calls import Call
from collhub_pytorch.kineto.idle import StreamIdle
from hub_core.model import NodeKind

NONE = -1


def _column() -> array[int]:
    return array("q")


@dataclass(slots=True)
class RankFacts:
    """What one file shows besides its nodes.

    `has_device`: it records the work of a device. `unknown_kernels`: kernels of communication whose
    collective is unknown; `unrecorded`: collectives without a recorded time; `host_calls`:
    collectives of libraries of the host next to a device; `unknown_calls`:
    annotations of communication that name no known collective, counted by name.
    `memory_names`, `communication_names`: names of nodes that copy or set memory, and of nodes that
    communicate although their collective is unknown. `idle`: idle time by stream, None without a
    device.
    """

    has_device: bool = False
    unknown_kernels: int = 0
    unrecorded: int = 0
    host_calls: int = 0
    unknown_calls: dict[str, int] = field(default_factory=dict)
    memory_names: frozenset[str] = frozenset()
    communication_names: frozenset[str] = frozenset()
    idle: tuple[StreamIdle, ...] | None = None


@dataclass(slots=True)
class RankNodes:
    """Columns of nodes in order of time, and edges between their rows.

    `name`: index of `names`, `call`: index of `calls`, -1 for none. `duration_ns` -1 where the file
    states no time. `before`, `after`: ends of the edges; `is_stated`: 0 for those that are assumed.
    `facts`: what the file shows besides its nodes.
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
    facts: RankFacts = field(default_factory=RankFacts)

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
