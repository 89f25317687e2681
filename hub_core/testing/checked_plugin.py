"""The plugin under check, and how the conformance kit calls what it offers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import HubError
from hub_core.model.losses import Loss
from hub_core.model.workload import Workload
from hub_core.network.topology import Topology
from hub_core.plugin_api.artifacts import WriteResult
from hub_core.plugin_api.formats import Format, Layout
from hub_core.plugin_api.offers import Offer, kind_of
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.reader import FormatReader
from hub_core.plugin_api.references import resolve
from hub_core.plugin_api.sources import Source, SourcePart
from hub_core.plugin_api.topology_reader import TopologyReader
from hub_core.plugin_api.topology_writer import TopologyWriter
from hub_core.plugin_api.workload_reader import WorkloadReader
from hub_core.plugin_api.workload_writer import WorkloadWriter
from hub_core.plugin_api.writer import FormatWriter
from hub_core.registry.bind_options import bind_options
from hub_core.registry.descriptions import reference_of
from hub_core.registry.plugins import Plugin, Registry
from hub_core.testing.samples import all_samples

T = TypeVar("T", bound=Offer)
Reader = FormatReader | TopologyReader
AnyReader = FormatReader | TopologyReader | WorkloadReader
AnyWriter = FormatWriter | TopologyWriter | WorkloadWriter

_RANK_IN_NAME = re.compile(r"\.(\d+)\.[^.]+\Z")


@dataclass(frozen=True, slots=True)
class Skip:
    """Why one offer was not checked."""

    reason: str


@dataclass(frozen=True, slots=True)
class CheckedPlugin:
    """A loaded plugin and the registry that it stands in."""

    plugin: Plugin
    registry: Registry

    def offers(self, kind: type[T]) -> list[T]:
        """What the plugin offers of one kind."""
        return [offer for offer in self.plugin.offers if isinstance(offer, kind)]

    def readers(self) -> list[Reader]:
        """The plugin's readers of algorithms and of topologies."""
        # Both read files of strangers.
        return [*self.offers(FormatReader), *self.offers(TopologyReader)]

    def writer_of(self, format: Format) -> FormatWriter | None:
        """A writer of the format, of this plugin or another."""
        return self._of_format(FormatWriter, format)

    def reader_of(self, format: Format) -> FormatReader | None:
        """A reader of the format, of this plugin or another."""
        return self._of_format(FormatReader, format)

    def sources(self, reader: Reader) -> dict[str, Source]:
        """Valid inputs of a reader by name.

        Its own samples, and what a writer of its format makes of the kit's.
        """
        return {**stated_samples(reader), **self._written_samples(reader)}

    def _of_format(self, kind: type[T], format: Format) -> T | None:
        found = [provided for provided in self.registry.all(kind) if provided.name == format.name]
        # A plugin is judged by its own partner where it has one.
        found.sort(key=lambda provided: provided.plugin != self.plugin)
        return found[0].offer if found else None

    def _written_samples(self, reader: Reader) -> dict[str, Source]:
        """The kit's algorithms in the format of a reader, where somebody writes it."""
        # No offer writes topologies.
        if not isinstance(reader, FormatReader):
            return {}
        writer = self.writer_of(reader.format)
        if writer is None:
            return {}
        written = renderings(writer).items()
        return {name: source_of(rendering, writer.format) for name, rendering in written}


def stated_samples(reader: AnyReader) -> dict[str, Source]:
    """The samples that a reader names itself."""
    if not reader.samples:
        return {}
    stated = resolve(reader.samples)()
    message = f"{reader.samples} returned {type(stated).__name__}, expected a list of Source"
    assert isinstance(stated, list | tuple), message
    return {source.name: source for source in stated}


@dataclass(frozen=True, slots=True)
class Rendering:
    """What a writer made of an algorithm.

    Artifacts by name, in order, the losses that it declared, and what it restated.
    """

    artifacts: dict[str, bytes]
    losses: tuple[Loss, ...]
    restated: tuple[str, ...] = ()


def call(offer: Offer, *arguments: object) -> object:
    """Call the work behind an offer with its default options; what it raises passes through."""
    record: type = getattr(offer, "options", NoOptions)
    # Nothing is given, and the environment is empty: the kit judges the defaults alone.
    options = bind_options(record, {}, {}, title(offer))
    work = resolve(reference_of(offer))
    return work(*arguments, options)


def title(offer: Offer) -> str:
    """How problems name an offer."""
    return f"{kind_of(offer).noun} {offer.name}"


def render(writer: AnyWriter, model: Algorithm | Topology | Workload) -> Rendering:
    """Write a model into memory."""
    result = call(writer, model)
    message = f"{writer.write} returned {type(result).__name__}, expected WriteResult"
    assert isinstance(result, WriteResult), message
    artifacts: dict[str, bytes] = {}
    # Artifacts may come from a generator: each is made before the next one is asked for.
    for artifact in result.artifacts:
        artifacts[artifact.name] = bytes(artifact.content())
    return Rendering(artifacts, tuple(result.losses), tuple(result.restated))


def renderings(writer: FormatWriter) -> dict[str, Rendering]:
    """The kit's samples as a writer writes them.

    Those that it refuses with a `HubError` are left out.
    """
    found: dict[str, Rendering] = {}
    for name, algorithm in all_samples().items():
        try:
            found[name] = render(writer, algorithm)
        except HubError:
            continue
    return found


def source_of(rendering: Rendering, format: Format) -> Source:
    """Artifacts as a source, as if they had been written to disk and opened."""
    suffix = format.suffixes[0] if format.suffixes else ""
    if format.layout is Layout.FILE:
        contents = iter(rendering.artifacts.values())
        return Source.of_bytes(f"sample{suffix}", next(contents))
    # What follows a prefix begins with its rank, what lies in a folder is a path.
    lead = "sample" if format.layout is Layout.PREFIX else "sample/"
    parts = [_part(f"{lead}{name}", content) for name, content in rendering.artifacts.items()]
    return Source("sample", tuple(parts))


def _part(name: str, content: bytes) -> SourcePart:
    match = _RANK_IN_NAME.search(name)
    rank = int(match[1]) if match else None
    return SourcePart(name, lambda: content, rank, len(content))
