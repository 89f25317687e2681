"""The offer `SelectionWriter`: a tuned selection becomes files by which a runtime chooses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hub_core.plugin_api.formats import Format
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference

if TYPE_CHECKING:
    from hub_core.model import Algorithm, Collective, CollectiveKind
    from hub_core.network import Topology


@dataclass(frozen=True, slots=True)
class SelectedWindow:
    """The best `algorithm` from `min_bytes` to `max_bytes` (None: no limit); `sizes`: measured."""

    min_bytes: int
    max_bytes: int | None
    algorithm: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SelectedCollective:
    """What was measured for a collective, whose modes are those of the calls that it is for.

    `windows(names)`: of these algorithms alone (None: of all), from 0 bytes on without gap or
    overlap. `slowdowns(sizes)`: mean time over that of the fastest, by algorithm that fits all of
    the sizes, the best first. `made(name, size)`: the verified algorithm; raises `HubError`.
    """

    collective: Collective
    windows: Callable[[Collection[str] | None], tuple[SelectedWindow, ...]]
    slowdowns: Callable[[Collection[int]], Mapping[str, float]]
    made: Callable[[str, int], Algorithm]


@dataclass(frozen=True, slots=True)
class Selection:
    """The best algorithms of `num_ranks` ranks on a topology of `num_nodes` nodes.

    `topology`: its name. `network`: the topology itself, if the caller has it.
    """

    topology: str
    num_ranks: int
    num_nodes: int
    collectives: tuple[SelectedCollective, ...]
    network: Topology | None = None


@dataclass(frozen=True, slots=True)
class ServedCalls:
    """Calls that files give to `by`, if the full buffer has sizes that they serve.

    `element_multiple` divides the number of its elements, and `byte_multiple` that of its bytes.
    """

    kind: CollectiveKind
    in_place: bool
    out_of_place: bool
    min_bytes: int
    max_bytes: int | None
    by: str
    element_multiple: int = 1
    byte_multiple: int = 1


@dataclass(frozen=True, slots=True)
class SelectionWriter:
    """Consumer: `write(selection, options) -> WriteResult`, files of a folder.

    `read(source) -> Sequence[ServedCalls]`, as the runtime has them; errors go to `source.report`.
    """

    format: Format
    write: Reference
    read: Reference
    options: type = NoOptions

    @property
    def name(self) -> str:
        """The name of the format."""
        return self.format.name
