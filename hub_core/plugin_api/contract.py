"""What plugins implement: frozen descriptions with lazy references, and the values that cross the border."""

from __future__ import annotations

import hashlib
import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from hub_core.model.diagnostics import Diagnostic, UsageError
from hub_core.model.losses import Loss

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hub_core.execution.program import LevelledProgram
    from hub_core.model.algorithm import Algorithm, JsonValue
    from hub_core.model.collectives import Collective
    from hub_core.model.kinds import ReduceOp
    from hub_core.network.links import Occupancy
    from hub_core.network.topology import Topology


API_VERSION = (1, 0)

OptionValue = str | int | float | bool | None
Options = Mapping[str, OptionValue]
Reference = str
"""`"package.module:function"`: imported only when the function is needed."""


class OptionType(StrEnum):
    """How the text of an option is read. SIZE: `1MiB` to bytes; BOOL: true or false; PATH: text kept as is."""

    TEXT = "text"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    SIZE = "size"
    PATH = "path"


@dataclass(frozen=True, slots=True)
class Option:
    """A declared option; command line, help and errors come from it. `default` None means: not given.

    `environment`: name of the environment variable that the program reads where the option is not given, empty
    for none. Plugins themselves never read the environment.
    """

    name: str
    type: OptionType
    default: OptionValue
    help: str
    choices: tuple[str, ...] = ()
    environment: str = ""


class Layout(StrEnum):
    """How a format's artifacts lie on disk: one file; one file a rank behind a common prefix; a folder."""

    FILE = "file"
    PREFIX = "prefix"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class Format:
    """A format by name. Detection is declarative: suffixes first, then `signature`.

    `suffixes`: file name endings with the dot (`.xml`). `signature`: a regular expression (bytes) searched in
    the first 4096 bytes, empty for none. PREFIX: part files are `PREFIX.<rank><suffix>`.
    """

    name: str
    description: str
    suffixes: tuple[str, ...]
    signature: bytes = b""
    layout: Layout = Layout.FILE


@dataclass(frozen=True, slots=True)
class SourcePart:
    """One file of a source: its name for messages, its rank where the name has one, and its bytes on demand."""

    name: str
    load: Callable[[], bytes]
    rank: int | None = None
    size: int | None = None


def log_diagnostic(diagnostic: Diagnostic) -> None:
    """Say a finding through the standard library's logger `collhub`: the default where nobody asked for findings."""
    logging.getLogger("collhub").warning("%s", diagnostic)


@dataclass(frozen=True, slots=True)
class Source:
    """What a reader gets: the name that the user gave, and the parts (one for FILE formats).

    `report`: where a reader says what it accepted but the user should know (warnings, notes); errors are raised.
    """

    name: str
    parts: tuple[SourcePart, ...]
    report: Callable[[Diagnostic], None] = log_diagnostic

    @classmethod
    def of_bytes(cls, name: str, content: bytes) -> Source:
        """A source of one part that is already in memory."""
        return cls(name, (SourcePart(name, lambda: content, None, len(content)),))

    def content(self) -> bytes:
        """Bytes of the only part."""
        if len(self.parts) != 1:
            raise UsageError(f"{self.name}: one file was expected, {len(self.parts)} were given")
        return self.parts[0].load()

    def sha256(self) -> str:
        """Hexadecimal SHA-256 of the bytes of all parts, one after the other, for `Provenance.source_sha256`."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(part.load())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file to write. `name`: FILE: empty; PREFIX: what follows the prefix (`.0.et`); FOLDER: a relative path.

    `content` is called once, when the file is written. `executable` sets the mode of scripts.
    """

    name: str
    content: Callable[[], bytes]
    executable: bool = False


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Artifacts in the order of writing (may be a generator) and everything that the format cannot carry.

    `restated`: features, named as in `Loss`, that the format states in another form with the same meaning, such as
    steps in another possible order. No loss: the same program is read back, if not the same table.
    """

    artifacts: Iterable[Artifact]
    losses: Sequence[Loss] = ()
    restated: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """Traffic on one directed link over a simulation: node ids, bytes, busy time."""

    source: int
    destination: int
    bytes: int
    busy_ns: int


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Outcome of a simulation; all times in nanoseconds from the common start.

    `rank_finish_ns`: when each rank's last step ended, None where it never did. `step_start_ns`,
    `step_end_ns`: int64 per row of the step table, -1 where a step never started (ended), or None where the
    simulator does not tell. `link_loads`: per link that carried traffic, busiest first.
    `diagnostics`: why ranks never finished, what was assumed.
    """

    rank_finish_ns: tuple[int | None, ...]
    step_start_ns: npt.NDArray[np.int64] | None = None
    step_end_ns: npt.NDArray[np.int64] | None = None
    link_loads: tuple[LinkLoad, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def time_ns(self) -> int | None:
        """When the last rank finished; None when a rank never does."""
        finished = [time for time in self.rank_finish_ns if time is not None]
        return max(finished) if len(finished) == len(self.rank_finish_ns) else None


@dataclass(frozen=True, slots=True)
class ExecutionRequest:
    """What an executor is asked for: to run a levelled program on real data, once or several times.

    `program`: the records of every rank, which are all that runs; `algorithm`: what they were made from. `inputs`: one
    read-only array a rank, which fills INPUT: its size is that of INPUT in blocks times the elements of a block, the same
    for all ranks; all of one dtype. `reduce_op`: never `avg`, which is asked for as a sum that the core divides. Before
    every run all memory but INPUT holds `background`, a value that shows in a result where it is read, and INPUT holds the
    inputs; where a rank's INPUT is not defined before the collective, it holds the background too. `warmups`: runs before
    the timed ones. `timeout_s`: when to give up and say where every rank stands. `wants_step_times`: whether the last run
    is to be timed step by step.
    """

    algorithm: Algorithm
    program: LevelledProgram
    inputs: tuple[npt.NDArray[np.generic], ...]
    reduce_op: ReduceOp
    background: np.generic
    repeats: int = 1
    warmups: int = 0
    timeout_s: float = 60.0
    wants_step_times: bool = False

    @property
    def in_place(self) -> bool:
        """Whether INPUT and OUTPUT share memory as the collective defines."""
        return self.program.in_place


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """Outcome of an execution on real data.

    `outputs`: OUTPUT of every rank after the last run. `repeat_times_s`: of each timed run, from the first rank's start to
    the last rank's end; moving inputs into place does not count. `native_times_s`: the same for the library's own
    collective on the same data in the same session, empty where it has none. `step_start_ns`, `step_end_ns`: int64 per row
    of the step table, from the start of the last run, -1 for rows that do nothing, or None where the executor does not tell.
    """

    outputs: tuple[npt.NDArray[np.generic], ...]
    repeat_times_s: tuple[float, ...] = ()
    native_times_s: tuple[float, ...] = ()
    step_start_ns: npt.NDArray[np.int64] | None = None
    step_end_ns: npt.NDArray[np.int64] | None = None
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class SynthesisRequest:
    """What a synthesizer is asked for: a collective of `collective_bytes` on a topology.

    `collective`: kind, ranks, root and operator; the synthesizer chooses the units. `npus`: the NPU on which each
    rank of it runs; other NPUs may only relay, and where there are any, the algorithm has one rank per NPU and is
    custom. `occupancy`: the link model of all times. `wanted`: the ranks (NPUs) whose steps are needed, None for
    all. `simulate(algorithm)`: its time in nanoseconds on the topology, for this size and link model, by the
    simulator of the user's choice, or None where there is none. `progress(fraction, what)`: how far the work is,
    from 0 to 1. Ctrl-C arrives as `KeyboardInterrupt`: a synthesizer with a result at hand returns it.
    """

    collective: Collective
    topology: Topology
    collective_bytes: int
    npus: tuple[int, ...]
    occupancy: Occupancy
    wanted: tuple[int, ...] | None = None
    simulate: Callable[[Algorithm], int | None] = lambda algorithm: None
    progress: Callable[[float, str], None] = lambda fraction, what: None


@dataclass(frozen=True, slots=True)
class SynthesisResult:
    """What a synthesizer made, and how good it is by its own account.

    `time_ns`: time of the algorithm under the request's link model. `bounds_ns`: lower bounds by name, such as
    `ingress`, `cut`, `diameter`; no algorithm is faster than the largest. `statistics`: what else the user should
    know, by name: seed, chunks, method. `is_partial`: the algorithm holds the steps of the wanted ranks alone, and
    `is_replayed` says that the whole was checked on the synthesizer's own arrays.
    """

    algorithm: Algorithm
    time_ns: int
    bounds_ns: Mapping[str, int] = field(default_factory=dict)
    statistics: Mapping[str, JsonValue] = field(default_factory=dict)
    is_partial: bool = False
    is_replayed: bool = False

    @property
    def bound_ns(self) -> int | None:
        """The largest of the lower bounds, None where there is none."""
        return max(self.bounds_ns.values(), default=None)

    @property
    def ratio_to_bound(self) -> float | None:
        """Time by bound, or None where no bound is known."""
        return self.time_ns / self.bound_ns if self.bound_ns else None


@dataclass(frozen=True, slots=True)
class LoadableCall:
    """Calls for which a runtime uses a file: the collective as the runtime names it, the number of ranks, whether in place,
    sizes in bytes with both ends included (None: no limit), and what else must hold."""

    collective: str
    num_ranks: int
    in_place: bool
    min_bytes: int
    max_bytes: int | None
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Whether a runtime takes a file, for which calls, and why not or what to beware of: `diagnostics`."""

    is_accepted: bool
    calls: tuple[LoadableCall, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there are calls that the file serves."""
        return self.is_accepted and bool(self.calls)


@dataclass(frozen=True, slots=True)
class PassReport:
    """What a pass changed, one line each."""

    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HealthLine:
    """One line of `collhub doctor`: what was looked at, whether it is as it should be, and the details."""

    subject: str
    is_healthy: bool
    details: str = ""
    cure: str = ""


class _Read(Protocol):
    def __call__(self, source: Source, options: Options) -> Algorithm: ...


class _Write(Protocol):
    def __call__(self, algorithm: Algorithm, options: Options) -> WriteResult: ...


class _Simulate(Protocol):
    def __call__(
        self, algorithm: Algorithm, topology: Topology, collective_bytes: int, options: Options
    ) -> SimulationResult: ...


class _Synthesize(Protocol):
    def __call__(self, request: SynthesisRequest, options: Options) -> SynthesisResult: ...


class _ReadTopology(Protocol):
    def __call__(self, source: Source, options: Options) -> Topology: ...


@dataclass(frozen=True, slots=True)
class FormatReader:
    """Producer: `read(source, options) -> Algorithm`. Never opens paths, prints, exits or reads the environment.

    `samples() -> Sequence[Source]`: small correct inputs that the conformance kit reads; may be left out where
    the format also has a writer. `executes_source`: the input is a program that reading executes, in a process of its
    own; such a reader may start that process, its description says so, and an option `arguments` (TEXT, quoted as in a
    shell) gets what follows `--` on the command line.
    """

    format: Format
    read: Reference
    options: tuple[Option, ...] = ()
    samples: Reference = ""
    executes_source: bool = False


@dataclass(frozen=True, slots=True)
class FormatWriter:
    """Consumer: `write(algorithm, options) -> WriteResult`."""

    format: Format
    write: Reference
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Synthesizer:
    """Producer: `synthesize(request, options) -> SynthesisResult`. What it cannot make is refused with an `InputError`."""

    name: str
    description: str
    synthesize: Reference
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Simulator:
    """Consumer: `simulate(algorithm, topology, collective_bytes, options) -> SimulationResult`."""

    name: str
    description: str
    simulate: Reference
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Executor:
    """Consumer: `execute(request, options) -> ExecutionResult` on real data; it starts and ends its own processes.

    What is missing (a library, a launcher, a device) is a `PluginError` that says how to get it; a deadlock, or a rank that
    ends early, is an `InputError` with one diagnostic a rank, and leaves no process and no shared memory behind.
    """

    name: str
    description: str
    execute: Reference
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadCheck:
    """`check(source, options) -> LoadReport`: whether the runtime `name` will use a file, from its text as it stands.

    What the runtime refuses is reported, not raised.
    """

    name: str
    description: str
    check: Reference
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class TopologyReader:
    """`read(source, options) -> Topology`; `samples` as in `FormatReader`."""

    format: Format
    read: Reference
    options: tuple[Option, ...] = ()
    samples: Reference = ""


@dataclass(frozen=True, slots=True)
class AlgorithmPass:
    """`run(algorithm, options) -> tuple[Algorithm, PassReport]`."""

    name: str
    description: str
    run: Reference
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadPass:
    """`run(workload, options) -> tuple[workload, PassReport]`, on workload traces."""

    name: str
    description: str
    run: Reference
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """`run(environment) -> Sequence[HealthLine]` for `collhub doctor`; `environment` is the process environment."""

    name: str
    run: Reference


def resolve(reference: Reference) -> Callable[..., object]:
    """Import the function that a reference names. Errors of the import pass through to the caller."""
    module, _, attribute = reference.partition(":")
    function: Callable[..., object] = getattr(importlib.import_module(module), attribute)
    return function
