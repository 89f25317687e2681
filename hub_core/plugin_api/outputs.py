"""Outputs of plugins: artifacts, reports on runs, and tuned selections of algorithms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, get_args

from hub_core.model.diagnostics import Loss
from hub_core.model.notebook_display import NotebookDisplay
from hub_core.plugin_api.formats import Format, FormatOffer
from hub_core.plugin_api.options import NoOptions, Reference
from hub_core.plugin_api.runtimes import Runtime

if TYPE_CHECKING:
    from hub_core.columns import Int64Array
    from hub_core.model import Algorithm, Collective, CollectiveKind
    from hub_core.model.algorithm import JsonValue
    from hub_core.model.workload import Workload
    from hub_core.network import Topology
    from hub_core.plugin_api.runs import LinkLoad, SimulationResult


@dataclass(frozen=True, slots=True, init=False)
class Artifact:
    """One file to write.

    `name`: empty for the layout FILE, the part after the prefix (`.0.et`) for PREFIX, a relative
    path for FOLDER. `content`: bytes, or a function that returns them and is called once, when the
    file is written. `executable`: whether the file is a script. Raises `TypeError` for any other
    content.
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
        load = (lambda: content) if isinstance(content, bytes) else content
        for field, value in (("name", name), ("content", load), ("executable", executable)):
            object.__setattr__(self, field, value)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Artifacts in the order of writing (may be a generator), and losses of the conversion.

    `restated`: features, named as in `Loss`, that the format represents in another form with the
    same meaning, such as steps in another valid order. They are no losses: the same program is read
    back, though not the same table. `notes`: notes on the files for the user, one sentence each.
    `runtimes`: of a selection, products and versions that read these files, as in
    `SelectionWriter`; empty for those of the writer.
    """

    artifacts: Iterable[Artifact]
    losses: Sequence[Loss] = ()
    restated: Sequence[str] = ()
    notes: Sequence[str] = ()
    runtimes: Sequence[str] = ()


class Shown(StrEnum):
    """Subject of a report, by the record that a writer of such reports gets.

    TOPOLOGY: `TopologyDrawing`, of `topology draw`. RUN: `RunTimeline`, of `simulate --timeline`
    and `run --timeline`. JOB: `JobTimeline`, the same for a workload. COMPARISON:
    `BandwidthComparison`, of `compare --picture`. WAITS: `WaitForGraph`, of `diagnose --picture`.
    PAGE: `InteractivePage`, of the option `--view`.
    """

    TOPOLOGY = "topology"
    RUN = "run"
    JOB = "job"
    COMPARISON = "comparison"
    WAITS = "wait-for graph"
    PAGE = "page"


@dataclass(frozen=True, slots=True)
class RunExcerpt:
    """The part of a run to show: ranks, and a window of time in ns from the start of the run.

    `ranks`: None for all. `start_ns`, `end_ns`: None for the start and the end of the run. Writers
    show rows that run within the window. The default is the entire run.
    """

    ranks: tuple[int, ...] | None = None
    start_ns: float | None = None
    end_ns: float | None = None

    @property
    def is_all(self) -> bool:
        """Whether neither ranks nor a window were requested."""
        return self == RunExcerpt()

    def find_defect(self, num_ranks: int, last_ns: int) -> str | None:
        """Return why the excerpt does not fit a run, as a text; None if it fits.

        The run has the ranks 0 to `num_ranks` - 1 and ends at `last_ns`. The first of these reasons
        is returned: a rank is `num_ranks` or more (negative ranks are not checked); `start_ns` is
        given and after `last_ns`; `start_ns` or `end_ns` is given, and the start (default 0) is not
        before the end (default `last_ns`). An end after the end of the run is allowed.
        """
        from hub_core.model.quantities import format_time

        unknown = [rank for rank in self.ranks or () if rank >= num_ranks]
        if unknown:
            return f"there is no rank {unknown[0]}: the ranks are 0 to {num_ranks - 1}"
        start, end = self.start_ns or 0, last_ns if self.end_ns is None else self.end_ns
        if self.start_ns is not None and start > last_ns:
            return f"the window begins at {format_time(start)}, after the end of the run"
        if start >= end and not self.is_all and (self.start_ns, self.end_ns) != (None, None):
            return f"the window from {format_time(start)} to {format_time(end)} is empty"
        return None


@dataclass(frozen=True, slots=True)
class TopologyDrawing:
    """A network to draw.

    `link_loads`, `time_ns`: results of a simulation, if there was one; `time_ns` is None if the run
    never ends. `collapse`: whether groups are drawn as single nodes: `auto` (if the network is
    large), `always` or `never`.
    """

    shows: ClassVar[Shown] = Shown.TOPOLOGY
    title: str
    topology: Topology
    link_loads: Sequence[LinkLoad] = ()
    time_ns: int | None = None
    collapse: str = "auto"


@dataclass(frozen=True, slots=True)
class RunTimeline:
    """Steps of an algorithm's run, for a timeline.

    `step_start_ns`, `step_end_ns`: int64 per row of the step table, -1 for a step that never
    started (ended); None if the simulator or executor does not report them. `topology`, `result`:
    the network and the other results of a simulation, None for an execution. `timing`: a sentence
    that says whose times they are.
    """

    shows: ClassVar[Shown] = Shown.RUN
    title: str
    algorithm: Algorithm
    collective_bytes: int
    step_start_ns: Int64Array | None = None
    step_end_ns: Int64Array | None = None
    topology: Topology | None = None
    result: SimulationResult | None = None
    excerpt: RunExcerpt = RunExcerpt()
    timing: str = ""


@dataclass(frozen=True, slots=True)
class JobTimeline:
    """Nodes of a simulated workload, for a timeline.

    `step_start_ns`, `step_end_ns`: int64 per node, -1 for a node that never started (ended); None
    if the simulator does not report them. Other fields as in `RunTimeline`.
    """

    shows: ClassVar[Shown] = Shown.JOB
    title: str
    workload: Workload
    step_start_ns: Int64Array | None = None
    step_end_ns: Int64Array | None = None
    topology: Topology | None = None
    result: SimulationResult | None = None
    excerpt: RunExcerpt = RunExcerpt()
    timing: str = ""


@dataclass(frozen=True, slots=True)
class BandwidthSeries:
    """Bus bandwidths of one algorithm in bytes per second, one per size; None if not measured."""

    name: str
    bandwidths: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class BandwidthComparison(NotebookDisplay):
    """Bus bandwidths of several algorithms by size, for a picture.

    `sizes`: of the full buffer in bytes, ascending. `bound`: the bandwidth that no algorithm
    exceeds, None if unknown.
    """

    shows: ClassVar[Shown] = Shown.COMPARISON
    title: str
    sizes: tuple[int, ...]
    series: Sequence[BandwidthSeries]
    bound: BandwidthSeries | None = None


@dataclass(frozen=True, slots=True)
class WaitingRanks:
    """Ranks that wait in one operation, and the ranks for which they wait there, both sorted."""

    ranks: tuple[int, ...]
    awaited: tuple[int, ...]
    operation: str


@dataclass(frozen=True, slots=True)
class WaitForGraph:
    """Which ranks of a hung job wait for which, for a picture.

    `culprits`: sorted ranks that cause the hang; they may wait, too, as in a deadlock.
    """

    shows: ClassVar[Shown] = Shown.WAITS
    title: str
    culprits: tuple[int, ...]
    waits: Sequence[WaitingRanks]


@dataclass(frozen=True, slots=True)
class ReportDocument:
    """A JSON report of a command, such as `compare`, to be shown on a page."""

    title: str
    document: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Text files to be shown on a page, such as those of a tuned folder: (name, text) each."""

    title: str
    files: tuple[tuple[str, str], ...]


PageSubject = (
    TopologyDrawing
    | RunTimeline
    | JobTimeline
    | BandwidthComparison
    | WaitForGraph
    | ReportDocument
    | TextFiles
)
"""What an interactive page can show."""


@dataclass(frozen=True, slots=True)
class InteractivePage:
    """Subjects to show on one page, runs on one time axis."""

    shows: ClassVar[Shown] = Shown.PAGE
    title: str
    subjects: tuple[PageSubject, ...]


ReportSubject = (
    TopologyDrawing
    | RunTimeline
    | JobTimeline
    | BandwidthComparison
    | WaitForGraph
    | InteractivePage
)
"""Any record that a report writer may get; `shows` names its kind."""


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """Deprecated, removed in version 0.2: use the record of the kind, such as `TopologyDrawing`.

    It has the fields of all kinds. Writers of reports read fields of the same names.
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

    def __post_init__(self) -> None:
        import warnings

        replacement = " or ".join(kind.__name__ for kind in get_args(ReportSubject))
        message = f"ReportRequest is deprecated: use {replacement}"
        warnings.warn(message, DeprecationWarning, stacklevel=3)


@dataclass(frozen=True, slots=True)
class ReportWriter(FormatOffer):
    """Consumer: `write(subject, options) -> WriteResult`; `subject`: the record of `shows`."""

    shows: Shown
    write: Reference
    options: type = NoOptions


@dataclass(frozen=True, slots=True)
class SelectedWindow:
    """The best `algorithm` for sizes in bytes from `min_bytes` to `max_bytes` (None: no limit).

    `sizes`: the sizes in this window at which the algorithms were timed.
    """

    min_bytes: int
    max_bytes: int | None
    algorithm: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SelectedCollective:
    """Timed algorithms of a collective. Its modes are the modes of the calls to be served.

    `windows(names)`: windows of the named algorithms (None: of all), ascending and without
    overlaps; sizes outside of them keep the default of the runtime. `slowdowns(sizes)`: mean time
    divided by the time of the fastest algorithm, by algorithm that runs at all of the sizes, the
    fastest first. `made(name, size)`: returns the verified algorithm; raises `HubError`.
    `protocol(name, size)`: the protocol for which the algorithm was timed: `ll`, `ll128`, `simple`,
    or "" if times do not depend on one.
    """

    collective: Collective
    windows: Callable[[Collection[str] | None], tuple[SelectedWindow, ...]]
    slowdowns: Callable[[Collection[int]], Mapping[str, float]]
    made: Callable[[str, int], Algorithm]
    protocol: Callable[[str, int], str] = lambda name, size: ""


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
    """Calls that files serve with the algorithm `by`, for sizes of the full buffer in bytes.

    A call is served only if `element_multiple` divides the number of elements of the full buffer,
    and `byte_multiple` divides its bytes. `max_bytes`: None for no limit.
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
    """Consumer: `write(selection, options) -> WriteResult` returns the files of a folder.

    `read(source) -> Sequence[ServedCalls]` returns the calls that the runtime serves with such
    files; it reports errors to `source.report`. `runtimes`: products and versions that read the
    files, such as `RCCL of ROCm 7.13 and later`; reports of tuning list them. `programs_for`:
    runtimes that execute the programs in the files, as `FormatWriter.runtimes`; empty if the files
    contain no programs.
    """

    format: Format
    write: Reference
    read: Reference
    options: type = NoOptions
    runtimes: Sequence[str] = ()
    programs_for: Sequence[Runtime] = ()

    @property
    def name(self) -> str:
        """The name of the format."""
        return self.format.name
