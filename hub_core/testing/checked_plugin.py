"""The plugin under check: call its offers, write into memory, compare losses with differences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TypeVar

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import HubError, Loss
from hub_core.model.steps import StepTable
from hub_core.model.workload import Workload
from hub_core.network.topology import Topology
from hub_core.plugin_api.formats import (
    Format,
    FormatReader,
    FormatWriter,
    Layout,
    Source,
    SourcePart,
    TopologyReader,
    TopologyWriter,
    WorkloadReader,
    WorkloadWriter,
)
from hub_core.plugin_api.offers import Offer, kind_of
from hub_core.plugin_api.options import NoOptions, resolve
from hub_core.plugin_api.outputs import WriteResult
from hub_core.registry.bind_options import bind_options
from hub_core.registry.compatibility import reference_of
from hub_core.registry.plugins import Plugin, Registry
from hub_core.testing.samples import all_samples

T = TypeVar("T", bound=Offer)

Reader = FormatReader | TopologyReader

AnyReader = FormatReader | TopologyReader | WorkloadReader

AnyWriter = FormatWriter | TopologyWriter | WorkloadWriter

_RANK_IN_NAME = re.compile(r"\.(\d+)\.[^.]+\Z")

Model = Algorithm | Topology | Workload

# Per part of a model: words by which the feature of a loss may name it, if not its field name.
_FEATURE_WORDS = {
    "collective_bytes": ("collective bytes", "size"),
    "control_indices": ("dependenc",),
    "control_indptr": ("dependenc",),
    "data_indices": ("dependenc",),
    "data_indptr": ("dependenc",),
    "duration_ns": ("duration",),
    "extensions": ("extension",),
    "links": ("links", "bandwidth", "latency", "planes"),
    "num_nodes": ("nodes", "switches"),
    "num_npus": ("nodes", "number of npus"),
}

_STEP_COLUMNS = frozenset(field.name for field in fields(StepTable))

_COLLECTIVE_FIELDS = frozenset(field.name for field in fields(Collective))

_TOPOLOGY_PARTS = frozenset(
    ("num_npus", "num_nodes", "dimensions", "node_names", "groups", "links", "link_order")
)


@dataclass(frozen=True, slots=True)
class Skip:
    """Yielded by a rule for an offer that it could not check. `reason`: shown to the user."""

    reason: str


@dataclass(frozen=True, slots=True)
class CheckedPlugin:
    """A loaded plugin and the registry that contains it."""

    plugin: Plugin
    registry: Registry

    def offers(self, kind: type[T]) -> list[T]:
        """The plugin's offers that are instances of `kind`, in the plugin's order."""
        return [offer for offer in self.plugin.offers if isinstance(offer, kind)]

    def readers(self) -> list[Reader]:
        """The plugin's readers of algorithms, then its readers of topologies."""
        return [*self.offers(FormatReader), *self.offers(TopologyReader)]

    def find_writer(self, format: Format) -> FormatWriter | None:
        """A writer of the format by name, preferably of this plugin; None if there is no writer."""
        return self._find_by_format(FormatWriter, format)

    def find_reader(self, format: Format) -> FormatReader | None:
        """A reader of the format by name, preferably of this plugin; None if there is no reader."""
        return self._find_by_format(FormatReader, format)

    def sources(self, reader: Reader) -> dict[str, Source]:
        """Return valid inputs of a reader by name.

        They are the samples that the reader declares. A reader of algorithms also gets the sample
        algorithms of the test kit, if there is an installed writer of the same format. A writer of
        this plugin is preferred. It writes them with its default options; a sample that it refuses
        with a `HubError` is left out. A written sample replaces a declared one of the same name.
        """
        sources = load_declared_samples(reader)
        # There are no kit samples for readers of topologies.
        writer = self.find_writer(reader.format) if isinstance(reader, FormatReader) else None
        if writer is not None:
            for name, rendering in render_samples(writer).items():
                sources[name] = to_source(rendering, writer.format)
        return sources

    def _find_by_format(self, kind: type[T], format: Format) -> T | None:
        """Return the registry's first offer of a kind with the name of a format, or None.

        Offers of the plugin under check are preferred; otherwise the order is that of the
        registry.
        """
        candidates = [entry for entry in self.registry.all(kind) if entry.name == format.name]
        candidates.sort(key=lambda entry: entry.plugin != self.plugin)
        return candidates[0].offer if candidates else None


def load_declared_samples(reader: AnyReader) -> dict[str, Source]:
    """Return the valid inputs that a reader declares by its field `samples`, by name.

    Empty without such a field. Of samples with equal names, the last one counts. Raises
    `AssertionError` if the function to which `samples` refers returns neither a list nor a tuple.
    Exceptions of that function are not caught.
    """
    if not reader.samples:
        return {}
    samples = resolve(reader.samples)()
    message = f"{reader.samples} returned {type(samples).__name__}, expected a list of Source"
    assert isinstance(samples, list | tuple), message
    return {source.name: source for source in samples}


@dataclass(frozen=True, slots=True)
class Rendering:
    """Output of a writer for one model.

    `artifacts`: contents by name, in the writer's order. `losses`: declared losses. `restated`:
    parts of the model that the file expresses in another form.
    """

    artifacts: dict[str, bytes]
    losses: tuple[Loss, ...]
    restated: tuple[str, ...] = ()


def call(offer: Offer, *arguments: object) -> object:
    """Call the function of an offer with default options as last argument and return its result.

    The environment is not read. The type of the result is not checked, and exceptions of the
    function are not caught.
    """
    record: type = getattr(offer, "options", NoOptions)
    # No options and an empty environment: the kit checks the defaults only.
    options = bind_options(record, {}, {}, title(offer))
    function = resolve(reference_of(offer))
    return function(*arguments, options)


def title(offer: Offer) -> str:
    """Name of an offer in problem texts: its kind and its name, such as `reader msccl`."""
    return f"{kind_of(offer).noun} {offer.name}"


def render(writer: AnyWriter, model: Algorithm | Topology | Workload) -> Rendering:
    """Write a model with a writer's default options, and return its artifacts in memory.

    The result has the contents by name of the artifact (of equal names, the last one counts), the
    losses, and the restated parts. Each content is loaded before the next artifact is requested.
    Raises `AssertionError` if the writer returns no `WriteResult`, or one without artifacts.
    Exceptions of the writer are not caught.
    """
    result = call(writer, model)
    message = f"{writer.write} returned {type(result).__name__}, expected WriteResult"
    assert isinstance(result, WriteResult), message
    artifacts: dict[str, bytes] = {}
    # `artifacts` may be a generator: read each content before the generator advances.
    for artifact in result.artifacts:
        artifacts[artifact.name] = bytes(artifact.content())
    assert artifacts, f"{writer.write} returned no file"
    return Rendering(artifacts, tuple(result.losses), tuple(result.restated))


def render_samples(writer: FormatWriter) -> dict[str, Rendering]:
    """Write every sample algorithm of the kit with a writer; results by sample name.

    The writer's default options apply. Samples that it refuses with a `HubError` are omitted; other
    exceptions pass.
    """
    rendered: dict[str, Rendering] = {}
    for name, algorithm in all_samples().items():
        try:
            rendered[name] = render(writer, algorithm)
        except HubError:
            continue
    return rendered


def to_source(rendering: Rendering, format: Format) -> Source:
    """Convert artifacts to a `Source`, as if they were written and opened again.

    No file is written. The format's layout decides:

    - Single file: the source has only the first artifact. Its name is `sample` with the first
      suffix of the format, if there is one.
    - Files with a common prefix: the source is named `sample`. Each artifact is a part, in
      their order, named `sample` directly followed by the artifact's name.
    - Folder: the same, but part names begin with `sample/`.

    The rank of a part is the number between dots before its last suffix, such as 3 for
    `sample.3.et`; it is None without such a number. Raises `StopIteration` for a single file
    without artifacts, which `render` does not return.
    """
    suffix = format.suffixes[0] if format.suffixes else ""
    if format.layout is Layout.FILE:
        contents = iter(rendering.artifacts.values())
        return Source.of_bytes(f"sample{suffix}", next(contents))
    lead = "sample" if format.layout is Layout.PREFIX else "sample/"
    parts = []
    for artifact, content in rendering.artifacts.items():
        name = f"{lead}{artifact}"
        match = _RANK_IN_NAME.search(name)
        rank = int(match[1]) if match else None
        parts.append(SourcePart(name, partial(bytes, content), rank, len(content)))
    return Source("sample", tuple(parts))


def find_loss_problem(model: Model, read_model: object, written: Rendering) -> str | None:
    """Describe the first contradiction between declared losses and the model read back, or None.

    Parts of a model have the names of `find_differences`, such as a column of the steps; provenance
    is none. A feature (text of a loss, or an entry of `written.restated`) names a part if it
    contains the name or a synonym of the part. Case is ignored; underscores count as spaces.
    The contradictions, in this order:

    1. Parts differ, and no feature names them. The text lists all these parts.
    2. A loss names parts, none of which differs. The text has the first such loss. This rule
       ignores restated parts, losses that name no part, and all workloads.

    Raises `AssertionError` if `read_model` is of another type.
    """
    differences = find_differences(model, read_model)
    features = [*(loss.feature for loss in written.losses), *written.restated]
    undeclared = [name for name in differences if not is_declared(name, features)]
    if undeclared:
        names = ", ".join(undeclared)
        return f"read back with another {names}, and no loss names that as its feature"
    known: set[str] = set()
    if isinstance(model, Topology):
        known = {*_TOPOLOGY_PARTS}
    if isinstance(model, Algorithm):
        further = ("collective_bytes", "extensions", "scratch_units")
        known = {*_STEP_COLUMNS, *_COLLECTIVE_FIELDS, *further}
    for loss in written.losses:
        text = _normalize(loss.feature)
        parts = {name for name in known if any(word in text for word in _get_synonyms(name))}
        if parts and not parts & set(differences):
            return f"a loss names {loss.feature!r}, but that is read back unchanged"
    return None


def find_differences(model: Model, read_model: object) -> list[str]:
    """Return the names of the parts in which a model and the model read back differ.

    The names and their order are those of the method `differences` of the model; [] if no
    part differs. The provenance of algorithms and workloads is not compared. Raise
    `AssertionError` if `read_model` is not of exactly the same type.
    """
    message = f"read back it is {type(read_model).__name__}, expected {type(model).__name__}"
    assert type(read_model) is type(model), message
    if isinstance(model, Topology) and isinstance(read_model, Topology):
        return model.differences(read_model)
    if isinstance(model, Algorithm) and isinstance(read_model, Algorithm):
        return model.differences(replace(read_model, provenance=model.provenance))
    assert isinstance(model, Workload), message
    assert isinstance(read_model, Workload), message
    return model.differences(replace(read_model, provenance=model.provenance))


def is_declared(difference: str, features: Sequence[str]) -> bool:
    """Return whether one of the features of losses names the part `difference` of a model.

    A feature names the part if it contains one of the words of `_get_synonyms` for it. Case
    is ignored, and underscores count as spaces. `steps` names every column of the step
    table.
    """
    synonyms = _get_synonyms(difference)
    return any(synonym in _normalize(feature) for feature in features for synonym in synonyms)


def _get_synonyms(part: str) -> tuple[str, ...]:
    """Return the words by which a feature of a loss may name a part of a model.

    They are those of `_FEATURE_WORDS`; for a part that is not listed there, its name with
    spaces for underscores. For a column of the step table, `steps` is added. All are in
    lower case.
    """
    words = _FEATURE_WORDS.get(part, (part.replace("_", " "),))
    return (*words, "steps") if part in _STEP_COLUMNS else words


def _normalize(feature: str) -> str:
    return feature.lower().replace("_", " ")
