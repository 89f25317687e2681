"""The only caller of plugins' work: from what a user names to a model, and from a model to files and results."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hub_core.execution.data import averaged, background, checked_inputs
from hub_core.execution.levels import levelled_program
from hub_core.execution.program import LevelledProgram
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import Diagnostic, HubError, PluginError, UsageError
from hub_core.model.kinds import ReduceOp
from hub_core.model.losses import Loss, LossPolicy, apply_policy
from hub_core.model.rank_lists import parse_ranks
from hub_core.network.builders import OWN_BUILDERS, parse_topology
from hub_core.network.links import Occupancy
from hub_core.network.topology import Topology
from hub_core.pipeline.artifacts import Content, destination, name_defect
from hub_core.pipeline.detection import may_be_topology_file, reader_for, writer_for
from hub_core.pipeline.sources import STANDARD_STREAM, open_input
from hub_core.plugin_api.contract import (
    ExecutionRequest,
    ExecutionResult,
    Executor,
    FormatReader,
    FormatWriter,
    HealthCheck,
    HealthLine,
    Layout,
    LoadCheck,
    LoadReport,
    Options,
    SimulationResult,
    Simulator,
    Source,
    SynthesisRequest,
    SynthesisResult,
    Synthesizer,
    TopologyReader,
    WriteResult,
    log_diagnostic,
    resolve,
)
from hub_core.registry.bind_options import OptionText, bind_options
from hub_core.registry.border import blamed_on
from hub_core.registry.descriptions import reference_of
from hub_core.registry.discovery import discover
from hub_core.registry.plugins import KINDS, Offer, Plugin, Provided, Registry

PathText = str | os.PathLike[str]
Report = Callable[[Diagnostic], None]
R = TypeVar("R", FormatReader, TopologyReader)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Written:
    """What a writing left behind: the files in order (none for standard output), and what could not be carried."""

    paths: tuple[Path, ...]
    losses: tuple[Loss, ...]


@dataclass(frozen=True, slots=True)
class OpenedAlgorithm:
    """An input whose reader is known and of which only the first bytes are read."""

    source: Source
    reader: Provided[FormatReader]

    @property
    def name(self) -> str:
        """What messages call the input."""
        return self.source.name

    def read(self, options: OptionText | None = None) -> Algorithm:
        """Read it, with options of the reader. Raises `HubError`."""
        return _work(self.reader, Algorithm, self.source, _bound(self.reader, options))


def open_algorithm(
    path: PathText,
    *,
    format: str | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
) -> OpenedAlgorithm:
    """Open what `read` would read, and find its reader."""
    return OpenedAlgorithm(*_open(path, FormatReader, format, registry or discover(), report))


def read(
    path: PathText,
    *,
    format: str | None = None,
    options: OptionText | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
) -> Algorithm:
    """Read an algorithm from a file, standard input (`-`) or a set of rank files named by its prefix.

    The format is told by suffix, then by content, unless named. `registry` defaults to a new discovery of the
    installed plugins. Warnings of the reader go to `report`, by default the logger `collhub`. Raises `HubError`.
    """
    return open_algorithm(path, format=format, registry=registry, report=report).read(options)


def read_topology(
    text_or_path: PathText,
    *,
    format: str | None = None,
    options: OptionText | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
) -> Topology:
    """Build the topology that a text such as `torus:4x4` or a file names; a builder's name goes before a file's.

    Behind a file, options of its reader may stand as in `machine.xml?profile=h100&nodes=2`, and `npus=0-3` for a part of it.
    """
    text = os.fspath(text_or_path)
    registry = registry or discover()
    path, stated = _with_query(text)
    if format is None and text != STANDARD_STREAM:
        is_builder = re.split(r"[:?*]", text)[0] in OWN_BUILDERS
        if is_builder or not (os.path.lexists(path) or may_be_topology_file(path, registry)):
            return parse_topology(text)
    npus = stated.pop("npus", None)
    source, reader = _open(path, TopologyReader, format, registry, report)
    topology = _work(reader, Topology, source, _bound(reader, {**stated, **(options or {})}))
    if npus is not None:
        topology = topology.subset(parse_ranks(npus))
    return topology if path == text else replace(topology, name=text)


def _with_query(text: str) -> tuple[str, dict[str, str]]:
    """The file that a text names, and the `key=value` pairs behind it; a file whose name has a `?` stays as it is."""
    path, mark, query = text.partition("?")
    if not mark or os.path.lexists(text) or not os.path.lexists(path):
        return text, {}
    pairs = [item.partition("=") for item in filter(None, query.split("&"))]
    if wrong := [key for key, equals, _ in pairs if not (key and equals)]:
        raise UsageError(
            f"topology {text!r}: {wrong[0]!r} is not KEY=VALUE",
            cure="write for example FILE?nodes=2&latency=1us",
        )
    if len({key for key, _, _ in pairs}) < len(pairs):
        raise UsageError(f"topology {text!r}: a key is stated twice", cure="state each option once")
    return path, {key: value for key, _, value in pairs}


def write(
    algorithm: Algorithm,
    out: PathText,
    *,
    format: str | None = None,
    options: OptionText | None = None,
    policy: LossPolicy = LossPolicy.WARN,
    force: bool = False,
    registry: Registry | None = None,
) -> Written:
    """Write an algorithm to a file, a prefix, a folder or standard output (`-`), as its format lies on disk.

    The format is told by the suffix of `out` unless named; without suffix it is the canonical trace set. Losses
    are returned; under `LossPolicy.REFUSE` they raise `LossyError` before anything is written. Output appears
    complete or not at all; `force` is needed to replace what would be mixed otherwise. Raises `HubError`.
    """
    registry = registry or discover()
    text = os.fspath(out)
    writer = (
        registry.find(FormatWriter, format) if format is not None else writer_for(text, registry)
    )
    place = destination(text, writer.offer.format, force=force)
    result = _work(writer, WriteResult, algorithm, _bound(writer, options))
    losses = _losses(writer, result)
    apply_policy(losses, policy)
    return Written(place.put(_contents(writer, result)), losses)


def simulate(
    algorithm: Algorithm,
    topology: Topology,
    collective_bytes: int,
    *,
    backend: str = "analytical",
    options: OptionText | None = None,
    registry: Registry | None = None,
) -> SimulationResult:
    """Time an algorithm for a collective of `collective_bytes` on a topology with the simulator `backend`."""
    if collective_bytes < 1:
        raise UsageError(
            f"a collective of {collective_bytes} bytes moves nothing",
            cure="state a size, such as 1MiB",
        )
    if topology.num_npus < algorithm.num_ranks:
        message = f"topology {topology.name} has {topology.num_npus} NPUs, the algorithm {algorithm.num_ranks} ranks"
        raise UsageError(
            message,
            cure="choose a topology with at least one NPU a rank",
            code="topology-too-small",
        )
    simulator = (registry or discover()).find(Simulator, backend)
    result = _work(
        simulator,
        SimulationResult,
        algorithm,
        topology,
        collective_bytes,
        _bound(simulator, options),
    )
    if len(result.rank_finish_ns) != algorithm.num_ranks:
        raise PluginError(
            f"{simulator.plugin}: {backend} returned {len(result.rank_finish_ns)} times for {algorithm.num_ranks} ranks"
        )
    return result


def synthesize(
    collective: Collective,
    topology: Topology,
    collective_bytes: int,
    *,
    name: str,
    options: OptionText | None = None,
    npus: Sequence[int] | None = None,
    occupancy: Occupancy = Occupancy.SERIALIZATION,
    wanted: Sequence[int] | None = None,
    backend: str = "analytical",
    progress: Callable[[float, str], None] = lambda fraction, what: None,
    registry: Registry | None = None,
) -> SynthesisResult:
    """Make an algorithm for a collective on a topology with the synthesizer `name`.

    `npus`: the NPU of each rank, default NPU r for rank r; all other NPUs may relay. `wanted`: the NPUs whose
    steps are needed (default: all). `backend`: the simulator by which a synthesizer may judge; where it is not
    installed, it judges by its own account. Raises `HubError`.
    """
    registry = registry or discover()
    chosen = tuple(range(collective.num_ranks)) if npus is None else tuple(npus)
    _check_synthesis(collective, topology, collective_bytes, chosen, wanted)
    synthesizer = registry.find(Synthesizer, name)
    request = SynthesisRequest(
        collective,
        topology,
        collective_bytes,
        chosen,
        occupancy,
        None if wanted is None else tuple(wanted),
        _judge(topology, collective_bytes, occupancy, backend, registry),
        progress,
    )
    return _work(synthesizer, SynthesisResult, request, _bound(synthesizer, options))


def _check_synthesis(
    collective: Collective,
    topology: Topology,
    collective_bytes: int,
    npus: Sequence[int],
    wanted: Sequence[int] | None,
) -> None:
    if collective_bytes < 1:
        raise UsageError(
            f"a collective of {collective_bytes} bytes moves nothing",
            cure="state a size, such as 1MiB",
        )
    if len(npus) != collective.num_ranks:
        raise UsageError(
            f"{len(npus)} NPUs are named for {collective.num_ranks} ranks",
            cure="name one NPU a rank",
        )
    for npu in (*npus, *(wanted or ())):
        if not 0 <= npu < topology.num_npus:
            message = f"topology {topology.name} has no NPU {npu}"
            raise UsageError(
                message, cure=f"name NPUs of 0..{topology.num_npus - 1}", code="npu-range"
            )
    if len(set(npus)) < len(npus):
        raise UsageError(
            "an NPU is named for two ranks", cure="name each NPU once", code="npu-range"
        )


def _judge(
    topology: Topology,
    collective_bytes: int,
    occupancy: Occupancy,
    backend: str,
    registry: Registry,
) -> Callable[[Algorithm], int | None]:
    """The simulator as a synthesizer may use it; it answers None where the simulator is missing or has no such link model."""
    found = [provided.offer for provided in registry.all(Simulator) if provided.name == backend]
    has_choice = bool(found) and any(option.name == "occupancy" for option in found[0].options)
    if not found or not (has_choice or occupancy is Occupancy.SERIALIZATION):
        return lambda algorithm: None
    options = {"occupancy": str(occupancy)} if has_choice else {}

    def time_ns(algorithm: Algorithm) -> int | None:
        return simulate(
            algorithm,
            topology,
            collective_bytes,
            backend=backend,
            options=options,
            registry=registry,
        ).time_ns

    return time_ns


def execute(
    algorithm: Algorithm,
    inputs: Sequence[npt.NDArray[np.generic]],
    *,
    name: str = "numpy",
    in_place: bool | None = None,
    program: LevelledProgram | None = None,
    reduce_op: ReduceOp | None = None,
    repeats: int = 1,
    warmups: int = 0,
    timeout_s: float = 60.0,
    wants_step_times: bool = False,
    options: OptionText | None = None,
    registry: Registry | None = None,
) -> ExecutionResult:
    """Run an algorithm on real data, one array a rank that fills its INPUT, with the executor `name`; inputs stay as they are.

    `in_place`: default out of place where the algorithm claims that. `program`: what `levelled_program` made of the
    algorithm, which then decides whether in place. `reduce_op`: default that of the collective; an
    average is a sum that is divided behind the timed part. Raises `InputError` for what cannot run (see
    `hub_core.execution.levels`), `UsageError` for inputs of wrong sizes.
    """
    executor = (registry or discover()).find(Executor, name)
    bound = _bound(executor, options)
    op = reduce_op or algorithm.collective.reduce_op
    if program is None:
        program = levelled_program(
            algorithm, not algorithm.collective.out_of_place if in_place is None else in_place
        )
    fill = background(inputs[0].dtype, op)
    request = ExecutionRequest(
        algorithm,
        program,
        checked_inputs(algorithm.collective, program, inputs, fill),
        ReduceOp.SUM if op is ReduceOp.AVG else op,
        fill,
        repeats,
        warmups,
        timeout_s,
        wants_step_times,
    )
    result = _work(executor, ExecutionResult, request, bound)
    if len(result.outputs) != algorithm.num_ranks:
        raise PluginError(
            f"{executor.plugin}: {name} returned {len(result.outputs)} outputs for {algorithm.num_ranks} ranks"
        )
    return (
        replace(result, outputs=averaged(algorithm.collective, result.outputs))
        if op is ReduceOp.AVG
        else result
    )


def check_load(
    path: PathText,
    *,
    runtime: str,
    options: OptionText | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
) -> LoadReport:
    """Ask whether a runtime will use a file as it stands, for which calls and sizes, and if not, why."""
    registry = registry or discover()
    check = registry.find(LoadCheck, runtime)
    formats = [provided.offer.format for provided in registry.all(FormatReader)]
    opened = open_input(path, formats, report)
    return _work(check, LoadReport, opened.source, _bound(check, options))


def check_health(registry: Registry) -> list[tuple[Plugin, HealthLine]]:
    """Run every plugin's health checks; one that fails becomes an unhealthy line."""
    environment = dict(os.environ)
    return [
        (check.plugin, line)
        for check in registry.all(HealthCheck)
        for line in _health_lines(check, environment)
    ]


def _open(
    path: PathText, kind: type[R], format: str | None, registry: Registry, report: Report
) -> tuple[Source, Provided[R]]:
    chosen = registry.find(kind, format) if format is not None else None
    formats = (
        [chosen.offer.format]
        if chosen
        else [provided.offer.format for provided in registry.all(kind)]
    )
    opened = open_input(path, formats, report)
    return opened.source, chosen or reader_for(opened, kind, registry)


def _bound(provided: Provided[Offer], options: OptionText | None) -> Options:
    """The options of an offer, checked; the only place where the environment gives values to options."""
    owner = f"{KINDS[type(provided.offer)]} {provided.name}"
    declared = () if isinstance(provided.offer, HealthCheck) else provided.offer.options
    return bind_options(declared, options or {}, os.environ, owner)


def _work(provided: Provided[Offer], returns: type[T], *arguments: object) -> T:
    """Call the function behind an offer; what it raises, and a result of another type, is its plugin's fault."""
    reference = reference_of(provided.offer)
    with _blamed(provided):
        result = resolve(reference)(*arguments)
    if not isinstance(result, returns):
        raise _misfit(provided, f"returned {type(result).__name__}, expected {returns.__name__}")
    return result


def _blamed(provided: Provided[Offer]) -> AbstractContextManager[None]:
    # A failure of the core itself is no plugin's: it stays what it is, a bug.
    return (
        nullcontext()
        if provided.plugin.is_core
        else blamed_on(str(provided.plugin), reference_of(provided.offer))
    )


def _misfit(provided: Provided[Offer], what: str) -> PluginError:
    return PluginError(
        f"{provided.plugin}: {reference_of(provided.offer)} {what}",
        cure="report it to the plugin's authors",
    )


def _losses(writer: Provided[FormatWriter], result: WriteResult) -> tuple[Loss, ...]:
    with _blamed(writer):
        losses = tuple(result.losses)
    if not all(isinstance(loss, Loss) for loss in losses):
        raise _misfit(writer, "returned losses that are not Loss")
    return losses


def _contents(writer: Provided[FormatWriter], result: WriteResult) -> Iterator[Content]:
    """Produce the artifacts one by one, each checked: no name leads out of its place, none comes twice."""
    layout = writer.offer.format.layout
    seen: set[str] = set()
    with _blamed(writer):
        artifacts = iter(result.artifacts)
    while True:
        with _blamed(writer):
            artifact = next(artifacts, None)
            data = artifact.content() if artifact is not None else b""
        if artifact is None:
            break
        if reason := name_defect(artifact.name, layout) or _repetition(artifact.name, seen, layout):
            raise _misfit(writer, f"returned an artifact whose name {reason}")
        if not isinstance(data, bytes | bytearray | memoryview):
            raise _misfit(
                writer,
                f"returned an artifact whose content is {type(data).__name__}, expected bytes",
            )
        yield Content(artifact.name, bytes(data), artifact.executable)
    if not seen:
        raise _misfit(writer, "returned no artifact")


def _repetition(name: str, seen: set[str], layout: Layout) -> str | None:
    if name in seen:
        return (
            "comes twice"
            if layout is not Layout.FILE
            else "comes twice, though the format is one file"
        )
    seen.add(name)
    return None


def _health_lines(check: Provided[HealthCheck], environment: Mapping[str, str]) -> list[HealthLine]:
    try:
        found = _work(check, object, environment)
        if not isinstance(found, list | tuple) or not all(
            isinstance(line, HealthLine) for line in found
        ):
            raise _misfit(check, f"returned {type(found).__name__}, expected a list of HealthLine")
        return list(found)
    except HubError as error:
        return [HealthLine(check.name, False, str(error))]
