"""Outputs of plugins: artifacts, reports on runs, and tuned selections of algorithms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hub_core.model.losses import Loss
from hub_core.plugin_api.formats import Format, FormatOffer
from hub_core.plugin_api.options import NoOptions, Reference

if TYPE_CHECKING:
    from hub_core.columns import Int64Array
    from hub_core.model import Algorithm, Collective, CollectiveKind
    from hub_core.model.workload import Workload
    from hub_core.network import Topology
    from hub_core.plugin_api.runs import LinkLoad


@dataclass(frozen=True, slots=True, init=False)
class Artifact:
    """One file to write.

    `name`: FILE: empty; PREFIX: what follows the prefix (`.0.et`); FOLDER: a relative path.
    `content`: the bytes, or a function that returns them, called once, when the file is written.
    `executable` sets the mode of scripts. Raises `TypeError` for any other content.
    """

    name: str
    content: Callable[[], bytes]
    executable: bool = False

    def __init__(
        self, name: str, content: bytes | Callable[[], bytes], executable: bool = False
    ) -> None:
        if not isinstance(content, bytes) and not callable(content):
            kind = f"{type(content).__name__}, expected bytes or a function that returns bytes"
            raise TypeError(f"the content of the artifact {name!r:.80} is {kind}")
        made = (lambda: content) if isinstance(content, bytes) else content
        for field, value in (("name", name), ("content", made), ("executable", executable)):
            object.__setattr__(self, field, value)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Artifacts in the order of writing (may be a generator), and what they cannot carry.

    `restated`: features, named as in `Loss`, that the format states in another form with the same
    meaning, such as steps in another possible order. No loss: the same program is read back, if not
    the same table. `notes`: what the user should know of the files, one sentence each.
    """

    artifacts: Iterable[Artifact]
    losses: Sequence[Loss] = ()
    restated: Sequence[str] = ()
    notes: Sequence[str] = ()


class Shown(StrEnum):
    """What a report shows, and which fields of its request are set.

    TOPOLOGY: `topology`, and after a simulation its `link_loads` and `time_ns`, by `topology draw`.
    RUN: `algorithm`, `collective_bytes` and the times of its steps, by `--timeline` of `simulate`
    and `run`. JOB: `workload` and the times of its nodes, by `--timeline` of `simulate`.
    COMPARISON: `sizes`, `series` and `bound`, by `--picture` of `compare`.
    """

    TOPOLOGY = "topology"
    RUN = "run"
    JOB = "job"
    COMPARISON = "comparison"


@dataclass(frozen=True, slots=True)
class BandwidthSeries:
    """Bus bandwidths of one algorithm in bytes per second, one a size; None where there is none."""

    name: str
    bandwidths: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """What is to be shown; `title` names it.

    `step_start_ns`, `step_end_ns`: int64 per row of the steps or nodes, -1 for what never started
    (ended). `time_ns`: time of the run, None if it never ends. `sizes`: of the full buffer, in
    bytes, ascending. `bound`: the bandwidth that no algorithm exceeds, as a series. `collapse`:
    whether groups of a topology are drawn as single nodes: `auto` (if it is large), `always` or
    `never`.
    """

    title: str
    topology: Topology | None = None
    algorithm: Algorithm | None = None
    workload: Workload | None = None
    collective_bytes: int = 0
    step_start_ns: Int64Array | None = None
    step_end_ns: Int64Array | None = None
    link_loads: Sequence[LinkLoad] = ()
    time_ns: int | None = None
    sizes: tuple[int, ...] = ()
    series: Sequence[BandwidthSeries] = ()
    bound: BandwidthSeries | None = None
    collapse: str = "auto"


@dataclass(frozen=True, slots=True)
class ReportWriter(FormatOffer):
    """Consumer: `write(request: ReportRequest, options) -> WriteResult`."""

    shows: Shown
    write: Reference
    options: type = NoOptions


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
