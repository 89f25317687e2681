"""Read algorithms, workloads and topologies from the inputs that users name.

A topology is a file or a text such as `torus:4x4`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from hub_core.model import (
    Algorithm,
    Diagnostic,
    InputError,
    Location,
    UsageError,
    Workload,
    parse_ranks,
)
from hub_core.network import Topology, TopologyFunction, build_topology, split_link_changes
from hub_core.pipeline.calls import bound_options, call
from hub_core.pipeline.detection import find_reader, may_be_topology_file
from hub_core.pipeline.sources import STANDARD_STREAM, content_of, open_input, open_rank_files
from hub_core.plugin_api import (
    FormatReader,
    NoOptions,
    Option,
    Source,
    TopologyBuilder,
    TopologyReader,
    WorkloadReader,
    log_diagnostic,
)
from hub_core.registry.bind_options import OptionText
from hub_core.registry.compatibility import options_of
from hub_core.registry.discovery import load_core_only, run_registry
from hub_core.registry.plugins import Provided, Registry

PathText = str | os.PathLike[str]
WORKLOAD = "workload-trace"
Report = Callable[[Diagnostic], None]
R = TypeVar("R", FormatReader, TopologyReader)


@dataclass(frozen=True, slots=True)
class OpenedAlgorithm:
    """An input whose reader is chosen; only the first bytes are read."""

    source: Source
    reader: Provided[FormatReader]

    @property
    def name(self) -> str:
        """Name of the input in messages."""
        return self.source.name

    @property
    def format_name(self) -> str:
        """Name of the format as which the input is read."""
        return self.reader.name

    @property
    def options(self) -> tuple[Option, ...]:
        """Options of the reader."""
        return options_of(self.reader.offer)

    @property
    def holds_workload(self) -> bool:
        """Whether the reader reads workloads."""
        return isinstance(self.reader.offer, WorkloadReader)

    def read_any(self, options: OptionText | None = None) -> Algorithm | Workload:
        """Read the input, an algorithm or a workload, with options of its reader.

        Raises `HubError` for an invalid input or option, and if the reader fails.
        """
        bound = bound_options(self.reader, options)
        if self.holds_workload:
            return call(self.reader, Workload, self.source, bound)
        return call(self.reader, Algorithm, self.source, bound)

    def read(self, options: OptionText | None = None) -> Algorithm:
        """Read the input; raises `InputError` also if it is a workload."""
        return require_algorithm(self.read_any(options), self.name)


def require_algorithm(model: Algorithm | Workload, name: str) -> Algorithm:
    """Return the model if it is an algorithm; raise `InputError` for a workload.

    `name`: the input from which it was read, for the message. The code of the error is
    `workload-trace`.
    """
    if isinstance(model, Workload):
        cure = "inspect, verify, simulate and convert take workloads"
        message = "is a workload, not an algorithm"
        raise InputError(message, location=Location(name), code=WORKLOAD, cure=cure)
    return model


def require_workload(model: Algorithm | Workload, name: str) -> Workload:
    """Return the model if it is a workload; raise `InputError` for an algorithm.

    `name`: the input from which it was read, for the message. The code of the error is `algorithm`.
    """
    if isinstance(model, Algorithm):
        message = "is an algorithm, not a workload"
        cure = "inspect, verify, simulate and convert take algorithms"
        raise InputError(message, location=Location(name), code="algorithm", cure=cure)
    return model


def open_algorithm(
    path: PathText,
    *,
    format: str | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
    more: Sequence[str] = (),
) -> OpenedAlgorithm:
    """Open an input and find its reader from the name and the first bytes.

    The reader may also be one of workloads. `format`: name of the reader; None detects it.
    `registry`: None for the installed plugins. `report`: gets warnings about the file.
    `more`: further files that are, together with `path`, the rank files of one job, with
    any names. Raises `HubError` if the input cannot be opened, and if no reader or several
    readers fit.
    """
    request = path, FormatReader, format, registry or run_registry(), report
    return OpenedAlgorithm(*open_source(*request, more))


def read(
    path: PathText,
    *,
    format: str | None = None,
    options: OptionText | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
) -> Algorithm:
    """Read an algorithm from a file, standard input (`-`) or a set of rank files, by its prefix.

    `format`: default by suffix, then by content. `registry`: default the installed plugins.
    `report`: called with warnings of the reader; default the logger `collhub`. The algorithm is not
    verified. Raises `HubError`.
    """
    return open_algorithm(path, format=format, registry=registry, report=report).read(options)


def read_workload(
    path: PathText,
    *,
    format: str | None = None,
    options: OptionText | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
) -> Workload:
    """Read a workload from a file, folder, set of rank files or standard input (`-`).

    The workload is not checked. `format`: name of the reader; None chooses it by suffix and
    content. `options`: texts by name of the reader's option. `registry`: None for the
    installed plugins. `report`: gets warnings. Raises `HubError` for an invalid input or
    option, and for an input that is an algorithm.
    """
    opened = open_algorithm(path, format=format, registry=registry, report=report)
    return require_workload(opened.read_any(options), opened.name)


def open_source(
    path: PathText,
    kind: type[R],
    format: str | None,
    registry: Registry,
    report: Report,
    more: Sequence[str] = (),
) -> tuple[Source, Provided[R]]:
    """Open a file and find its reader among the readers of `kind`; return both.

    `format`: name of the reader; None chooses it by suffix and content. `more`: further rank files
    of the same job. `report`: gets warnings about the file. The source is decompressed when it is
    read, if the reader accepts gzip. Raises `HubError` if the file cannot be opened, if no reader
    or several readers fit, and if the file is compressed and the reader does not accept gzip.
    """
    chosen = registry.find(kind, format) if format is not None else None
    readers = registry.all(kind) if chosen is None else [chosen]
    if more:
        opened = open_rank_files([os.fspath(path), *more], report)
    else:
        opened = open_input(path, [provided.offer.format for provided in readers], report)
    reader = chosen or find_reader(opened, kind, registry)
    return content_of(opened, reader.offer.format), reader


def parse_topology(text: str, registry: Registry | None = None) -> Topology:
    """Build the topology of a text such as `torus:4x4`, by a builder of the core or of a plugin.

    Changes of links in the text (`without=`, `degrade=`) are applied; the name of the
    result is then the text. With a registry, only its builders are used. Without one, the
    core's builders are tried first, and plugins are discovered only if the text names
    another builder. Raises `HubError` for an invalid text and an unknown builder.
    """
    complete, changes = split_link_changes(text)
    topology = build_topology(complete, _Builders(registry))
    return replace(changes.apply(topology), name=text) if changes else topology


def read_topology(
    text_or_path: PathText,
    *,
    format: str | None = None,
    options: OptionText | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
) -> Topology:
    """Build the topology that a text such as `torus:4x4`, or a file, describes.

    The first rule that applies:

    1. With `format` (name of a reader), or if the text is `-` (standard input): a file.
    2. The text up to its first `:`, `?` or `*` is the name of a builder: no file.
    3. A file if the text, or its part before the first `?`, exists as a path; or if the text
       contains `/` or ends with the suffix of a reader. Otherwise no file.

    Unless the text is an existing path, parameters follow after the first `?`, separated by `&`.
    For an existing file, `npus=0-3` selects NPUs, and unknown keys are options of the reader
    (`options` take precedence). Then, also for a text, `degrade=5-6=0.5` slows links and
    `without=3-4` removes links. The name is the text if a file has parameters or links are changed.
    `report` gets warnings. Raises `HubError` for invalid texts and files.
    """
    text = os.fspath(text_or_path)
    registry = registry or run_registry()
    if not os.path.lexists(text):
        complete, changes = split_link_changes(text)
        if changes:
            topology = read_topology(
                complete, format=format, options=options, registry=registry, report=report
            )
            return replace(changes.apply(topology), name=text)
    path, query = _split_query(text)
    if format is None and text != STANDARD_STREAM:
        is_builder = re.split(r"[:?*]", text)[0] in _list_builders(registry)
        if is_builder or not (os.path.lexists(path) or may_be_topology_file(path, registry)):
            return parse_topology(text, registry)
    npus = query.pop("npus", None)
    source, reader = open_source(path, TopologyReader, format, registry, report)
    merged = {**query, **(options or {})}
    topology = call(reader, Topology, source, bound_options(reader, merged))
    if npus is not None:
        topology = topology.subset(parse_ranks(npus))
    return topology if path == text else replace(topology, name=text)


def own_topology(opened: OpenedAlgorithm, registry: Registry) -> Topology | None:
    """Read the network that an input contains in addition to its model; None if there is no reader.

    It is read from the same source. The reader is the first of these that exists:

    1. for a workload: the function `network` that the workload's reader declares, without options
    2. the topology reader with the same name as the format of the input, with default options

    Raises `HubError` if the network cannot be read.
    """
    offer = opened.reader.offer
    if isinstance(offer, WorkloadReader) and offer.network:
        network = TopologyReader(offer.format, offer.network)
        provided = Provided(opened.reader.plugin, network)
        return call(provided, Topology, opened.source, NoOptions())
    name = opened.format_name
    if name not in {provided.name for provided in registry.all(TopologyReader)}:
        return None
    reader = registry.find(TopologyReader, name)
    return call(reader, Topology, opened.source, bound_options(reader, None))


def as_topology(topology: Topology | str, registry: Registry) -> Topology:
    """Return a topology unchanged; read a text or a file as `read_topology` does."""
    return read_topology(topology, registry=registry) if isinstance(topology, str) else topology


@dataclass(slots=True)
class _Builders:
    """Builders by name.

    Plugins are discovered once, for the first name that the core does not have.

    Discovery reads the installed distributions, which takes longer than building most networks.
    """

    registry: Registry | None

    def __call__(self, name: str) -> TopologyFunction:
        """Return the function that builds the networks of a name, such as `mesh`.

        If `registry` was given from the start, only its builders are used. Otherwise the
        builders of the core are used first. For a name that the core lacks, all plugins are
        loaded; they are kept in `registry`, and only it is used from then on. Raises `HubError`
        if no plugin or several plugins offer the name.
        """
        if self.registry is None:
            core = load_core_only()
            if name in _list_builders(core):
                return _find_builder(name, core)
            self.registry = run_registry()
        return _find_builder(name, self.registry)


def _find_builder(name: str, registry: Registry) -> TopologyFunction:
    """Return the builder that exactly one plugin offers for a name.

    Raises `HubError` for an unknown name (`unknown-topology`), with the closest name as remedy, and
    if several plugins offer the name.
    """
    known = _list_builders(registry)
    if name not in known:
        everything = f"use one of {', '.join(known)}, or a file"
        message = f"unknown topology {name!r}"
        raise registry.unknown_name(message, name, known, everything, "unknown-topology")
    return partial(call, registry.find(TopologyBuilder, name), Topology)


def _list_builders(registry: Registry) -> list[str]:
    """List the names of all builders, sorted."""
    return sorted({provided.name for provided in registry.all(TopologyBuilder)})


def _split_query(text: str) -> tuple[str, dict[str, str]]:
    """Split a text into the path of a file and the `key=value` pairs after the first `?`.

    The entire text is returned without pairs if it has no `?`, if it is itself an existing path
    (also of a folder or a broken link), or if the part before `?` is no existing path. Pairs are
    separated by `&`, empty parts are ignored, and a value may contain `=` or be empty. Raises
    `UsageError` for a part without `=` or without a key, and for a repeated key.
    """
    path, mark, query = text.partition("?")
    if not mark or os.path.lexists(text) or not os.path.lexists(path):
        return text, {}
    pairs = [item.partition("=") for item in filter(None, query.split("&"))]
    wrong = [key for key, equals, _ in pairs if not (key and equals)]
    if wrong:
        message = f"topology {text!r}: {wrong[0]!r} is not KEY=VALUE"
        raise UsageError(message, cure="write for example FILE?nodes=2&latency=1us")
    if len({key for key, _, _ in pairs}) < len(pairs):
        raise UsageError(f"topology {text!r}: a key is given twice", cure="state each option once")
    return path, {key: value for key, _, value in pairs}
