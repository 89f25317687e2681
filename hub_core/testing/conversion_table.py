"""Every reader times every writer: what is converted comes back, but for what the writer said.

After sqlglot's tests, in which one statement names N dialects that are read and M that are written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import HubError
from hub_core.model.workload import Workload
from hub_core.network.topology import Topology
from hub_core.plugin_api.formats import FormatOffer
from hub_core.plugin_api.reader import FormatReader
from hub_core.plugin_api.sources import Source
from hub_core.plugin_api.topology_reader import TopologyReader
from hub_core.plugin_api.topology_writer import TopologyWriter
from hub_core.plugin_api.workload_reader import WorkloadReader
from hub_core.plugin_api.workload_writer import WorkloadWriter
from hub_core.plugin_api.writer import FormatWriter
from hub_core.registry.border import reason_of
from hub_core.registry.plugins import Registry
from hub_core.testing.checked_plugin import (
    AnyReader,
    AnyWriter,
    CheckedPlugin,
    call,
    render,
    source_of,
    stated_samples,
)
from hub_core.testing.declared import Model, differences_of, loss_problem
from hub_core.testing.samples import all_samples
from hub_core.testing.topology_samples import sample_topologies
from hub_core.testing.workload_samples import sample_workloads

_Family = tuple[type[Model], type[AnyReader], type[AnyWriter], Callable[[], Mapping[str, Model]]]
# Kinds of models, their readers and writers, and what all of them are tried on.
_FAMILIES: tuple[_Family, ...] = (
    (Algorithm, FormatReader, FormatWriter, all_samples),
    (Topology, TopologyReader, TopologyWriter, sample_topologies),
    (Workload, WorkloadReader, WorkloadWriter, sample_workloads),
)


class Outcome(StrEnum):
    """What became of a conversion.

    EQUAL: the same comes back. LOSSY: what differs was declared. WRITTEN: nobody reads the format
    back. REFUSED: by the writer, with a reason. WRONG: something differs that nobody said, or is
    said and does not differ.
    """

    EQUAL = "equal"
    LOSSY = "lossy"
    WRITTEN = "written"
    REFUSED = "refused"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Conversion:
    """One cell of the table: `sample` read as format `read` and written as format `written`."""

    sample: str
    read: str
    written: str
    outcome: Outcome
    detail: str = ""

    def __str__(self) -> str:
        """One line for people."""
        said = f": {self.detail}" if self.detail else ""
        return f"{self.sample}, {self.read} to {self.written}: {self.outcome}{said}"


def conversions(registry: Registry, formats: Collection[str] | None = None) -> Iterator[Conversion]:
    """All readers of a registry times all writers of it, over the kit's samples.

    A format that is installed later takes part without a word. Readers get what a writer of their
    format makes of the samples, and the samples that they name themselves; readers that execute
    their source are left out. `formats`: only conversions from or to one of these.
    """
    for family in _FAMILIES:
        for reader in _readers(registry, family).values():
            is_named = formats is None or reader.name in formats
            yield from _from(reader, registry, family, None if is_named else formats)


def conversions_are_honest(subject: CheckedPlugin) -> Iterator[str]:
    """Read in any installed format and written in any other, a model comes back as it was read.

    Losses name what differs, and nothing that does not: they are what reading back shows.
    """
    own = [offer.name for offer in subject.plugin.offers if isinstance(offer, FormatOffer)]
    for found in conversions(subject.registry, own):
        if found.outcome is Outcome.WRONG:
            yield str(found)


def _readers(
    registry: Registry,
    family: _Family,
) -> dict[str, AnyReader]:
    """The readers of one kind of model by format."""
    found = {}
    for provided in registry.all(family[1]):
        offer: AnyReader = provided.offer
        # A reader of workloads is a reader of formats too.
        if type(offer) is family[1] and not getattr(offer, "executes_source", False):
            found[offer.name] = offer
    return found


def _from(
    reader: AnyReader, registry: Registry, family: _Family, formats: Collection[str] | None
) -> Iterator[Conversion]:
    """All conversions from one format: what the reader makes of its inputs, by every writer."""
    writers: list[AnyWriter] = [provided.offer for provided in registry.all(family[2])]
    wanted = [one for one in writers if formats is None or one.name in formats]
    if not wanted:
        return
    models = dict(_read_samples(reader, writers, family))
    back = _readers(registry, family)
    for writer in wanted:
        for sample, model in models.items():
            outcome, detail = _outcome(model, writer, back.get(writer.name))
            yield Conversion(
                sample,
                reader.name,
                writer.name,
                outcome,
                detail,
            )


def _read_samples(
    reader: AnyReader,
    writers: Sequence[AnyWriter],
    family: _Family,
) -> Iterator[tuple[str, Model]]:
    """The models that a reader makes of the samples, by name of sample."""
    sources = stated_samples(reader)
    for writer in writers:
        if writer.name == reader.name:
            for name, model in family[3]().items():
                with contextlib.suppress(HubError):
                    sources[name] = source_of(render(writer, model), writer.format)
    for name, source in sources.items():
        # What the reader reports is not listened to.
        quiet = replace(source, report=lambda finding: None)
        found = call(reader, quiet)
        if isinstance(found, family[0]):
            yield name, found


def _outcome(model: Model, writer: AnyWriter, reader: AnyReader | None) -> tuple[Outcome, str]:
    """What becomes of a model that is written, and read back where somebody can."""
    try:
        written = render(writer, model)
    except HubError as error:
        return Outcome.REFUSED, str(error)
    # A plugin may raise anything.
    except Exception as error:
        return Outcome.WRONG, reason_of(error)
    if reader is None:
        return Outcome.WRITTEN, ""
    source = replace(source_of(written, writer.format), report=lambda finding: None)
    try:
        back = call(reader, source)
        problem = loss_problem(model, back, written)
    except HubError as error:
        return Outcome.WRONG, f"what is written is refused when it is read: {error}"
    except Exception as error:
        return Outcome.WRONG, reason_of(error)
    if problem:
        return Outcome.WRONG, problem
    features = ", ".join(loss.feature for loss in written.losses)
    return (Outcome.LOSSY, features) if written.losses else (Outcome.EQUAL, "")


def validate_all(
    model: Model,
    *,
    read: Mapping[str, bytes | Source],
    write: Mapping[str, bytes | Mapping[str, bytes] | None],
    registry: Registry,
) -> None:
    """Assert that N texts are read as this model, and that M texts are written of it.

    `read`: texts by format. `write`: what is expected by format, by name of artifact where there
    are several, None for anything. Of every text that is read the same is written, so that one
    call checks N times M conversions.

    Raises:
        AssertionError: All that is wrong, a line each.
    """
    family = next(one for one in _FAMILIES if isinstance(model, one[0]))
    readers = _readers(registry, family)
    writers: dict[str, AnyWriter] = {one.name: one.offer for one in registry.all(family[2])}
    problems: list[str] = []
    models = {"the model": model}
    for name, text in read.items():
        source = text if isinstance(text, Source) else Source.of_bytes(f"text of {name}", text)
        found = call(readers[name], source)
        different = differences_of(model, found)
        assert isinstance(found, family[0])
        models[f"the text of {name}"] = found
        if different:
            problems.append(f"read as {name}: another {', '.join(different)}")
    for name, expected in write.items():
        for origin, each in models.items():
            artifacts = render(writers[name], each).artifacts
            wanted = {"": expected} if isinstance(expected, bytes) else expected
            if wanted is not None and artifacts != dict(wanted):
                problem = _first_difference(artifacts, wanted)
                problems.append(f"written as {name} from {origin}: {problem}")
    assert not problems, "\n".join(problems)


def _first_difference(
    artifacts: Mapping[str, bytes],
    expected: Mapping[str, bytes],
) -> str:
    """The first artifact that is another, and the first line of it that is."""
    if artifacts.keys() != expected.keys():
        return f"artifacts {sorted(artifacts)}, expected {sorted(expected)}"
    name = next(name for name in expected if artifacts[name] != expected[name])
    pairs = zip(artifacts[name].splitlines(), expected[name].splitlines(), strict=False)
    for number, (found, wanted) in enumerate(pairs, 1):
        if found != wanted:
            return f"{name or 'the file'}:{number}: {found!r:.80}, expected {wanted!r:.80}"
    return f"{name or 'the file'} is shorter or longer than expected"
