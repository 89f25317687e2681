"""Convert with every pair of reader and writer, read back, and compare up to declared losses.

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
from hub_core.plugin_api.formats import (
    FormatOffer,
    FormatReader,
    FormatWriter,
    Source,
    TopologyReader,
    TopologyWriter,
    WorkloadReader,
    WorkloadWriter,
)
from hub_core.registry.bind_options import reason_of
from hub_core.registry.plugins import Registry
from hub_core.testing.checked_plugin import (
    AnyReader,
    AnyWriter,
    CheckedPlugin,
    Model,
    call,
    find_differences,
    find_loss_problem,
    load_declared_samples,
    render,
    to_source,
)
from hub_core.testing.samples import all_samples
from hub_core.testing.workloads import sample_topologies, sample_workloads

_Family = tuple[type[Model], type[AnyReader], type[AnyWriter], Callable[[], Mapping[str, Model]]]
# Per kind of model: its class, its kind of reader, its kind of writer, its samples.
_FAMILIES: tuple[_Family, ...] = (
    (Algorithm, FormatReader, FormatWriter, all_samples),
    (Topology, TopologyReader, TopologyWriter, sample_topologies),
    (Workload, WorkloadReader, WorkloadWriter, sample_workloads),
)


class Outcome(StrEnum):
    """Outcome of a conversion.

    EQUAL: reading back gives the same model. LOSSY: it gives another model, and the writer declared
    every difference. WRITTEN: no installed reader reads the written format. REFUSED: the writer
    refused the model. WRONG: an undeclared difference, a declared loss without a difference, or an
    unexpected exception.
    """

    EQUAL = "equal"
    LOSSY = "lossy"
    WRITTEN = "written"
    REFUSED = "refused"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Conversion:
    """Conversion of a sample, read from format `read` and written in format `written`.

    `detail`: the problem or the reason of a refusal; for LOSSY the names of the losses.
    """

    sample: str
    read: str
    written: str
    outcome: Outcome
    detail: str = ""

    def __str__(self) -> str:
        """Return one line for users: sample, formats, outcome and, if there is one, the detail."""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.sample}, {self.read} to {self.written}: {self.outcome}{detail}"


def conversions(registry: Registry, formats: Collection[str] | None = None) -> Iterator[Conversion]:
    """Yield the conversions of all samples by all pairs of a reader and a writer of a registry.

    A reader's samples are those that it declares and the kit's samples as written by a writer of
    its format. Readers that execute their source are omitted. `formats`: only conversions from or
    to one of these formats; None: all.
    """
    for family in _FAMILIES:
        for reader in _find_readers(registry, family).values():
            is_named = formats is None or reader.name in formats
            yield from _convert_from(reader, registry, family, None if is_named else formats)


def conversions_are_honest(subject: CheckedPlugin) -> Iterator[str]:
    """A model read from any installed format, written in any other and read back is unchanged.

    Exceptions are the declared losses, which name exactly the parts that differ.
    """
    formats = [offer.name for offer in subject.plugin.offers if isinstance(offer, FormatOffer)]
    for conversion in conversions(subject.registry, formats):
        if conversion.outcome is Outcome.WRONG:
            yield str(conversion)


def _find_readers(registry: Registry, family: _Family) -> dict[str, AnyReader]:
    """Return the installed readers of one kind of model by name of the format.

    The type of an offer must be exactly the reader type of `family`; readers of a subclass,
    which read other models, are omitted. Readers that execute their source are omitted too.
    The order is that of the names. Of several readers with one name, the last one counts.
    """
    readers = {}
    for provided in registry.all(family[1]):
        offer: AnyReader = provided.offer
        # Compare exact types: a reader of workloads is a `FormatReader` too.
        if type(offer) is family[1] and not getattr(offer, "executes_source", False):
            readers[offer.name] = offer
    return readers


def _convert_from(
    reader: AnyReader, registry: Registry, family: _Family, formats: Collection[str] | None
) -> Iterator[Conversion]:
    """Yield the conversions of the sample models of one reader to `formats` (None for all).

    Each model of `_read_samples` is written by each writer of the family in `formats` and
    read back by the reader of that format (`_write_and_read_back`); without such a reader
    it is only written. The conversions are ordered by writer name, then by sample. If no
    writer is in `formats`, the result is empty and the samples are not read.
    """
    writers: list[AnyWriter] = [provided.offer for provided in registry.all(family[2])]
    targets = [writer for writer in writers if formats is None or writer.name in formats]
    if not targets:
        return
    models = dict(_read_samples(reader, writers, family))
    readers = _find_readers(registry, family)
    for writer in targets:
        for sample, model in models.items():
            outcome, detail = _write_and_read_back(model, writer, readers.get(writer.name))
            yield Conversion(sample, reader.name, writer.name, outcome, detail)


def _read_samples(
    reader: AnyReader, writers: Sequence[AnyWriter], family: _Family
) -> Iterator[tuple[str, Model]]:
    """Yield (sample name, model) for all samples of a reader.

    First come the samples that the reader declares. Then come the kit's samples of the
    family, as written by each writer whose format has the reader's name. A written sample
    replaces a declared one with the same name. Samples that a writer refuses with
    `HubError` are omitted, and so are results that are not of the family's model class.
    Exceptions of the reader are not caught; its findings are discarded.
    """
    sources = load_declared_samples(reader)
    for writer in writers:
        if writer.name == reader.name:
            for name, model in family[3]().items():
                with contextlib.suppress(HubError):
                    sources[name] = to_source(render(writer, model), writer.format)
    for name, source in sources.items():
        # Reports of the reader are discarded.
        read_model = call(reader, replace(source, report=lambda finding: None))
        if isinstance(read_model, family[0]):
            yield name, read_model


def _write_and_read_back(
    model: Model, writer: AnyWriter, reader: AnyReader | None
) -> tuple[Outcome, str]:
    """Write a model, and read it back unless `reader` is None; return (outcome, detail).

    Findings of the reader are discarded. The first case that applies:

    1. The writer raises a `HubError`: REFUSED with its message.
    2. The writer raises another exception, or returns no artifact: WRONG with the reason.
    3. There is no reader: WRITTEN with "", also if there are losses.
    4. The reader raises an exception, or returns another type of model: WRONG with the message.
    5. A part differs that no loss or restated feature names, or (not for workloads) a loss names
       only parts that do not differ: WRONG with the reason (`find_loss_problem`).
    6. There are losses: LOSSY with their features in order, joined by ", ". Otherwise: EQUAL, "".
    """
    try:
        written = render(writer, model)
    except HubError as error:
        return Outcome.REFUSED, str(error)
    # A plugin may raise anything.
    except Exception as error:
        return Outcome.WRONG, reason_of(error)
    if reader is None:
        return Outcome.WRITTEN, ""
    source = replace(to_source(written, writer.format), report=lambda finding: None)
    try:
        problem = find_loss_problem(model, call(reader, source), written)
    except HubError as error:
        return Outcome.WRONG, f"the reader refuses the written file: {error}"
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
    """Assert that N texts are read as this model, and that M expected texts are written for it.

    `read`: texts by format. `write`: expected output by format: bytes for a single file, contents
    by artifact name for several, None for any output. The model and all models read from the texts
    are written, so one call checks (N + 1) times M conversions. Default options are used, and
    differences of provenance are ignored.

    Raises:
        AssertionError: One line per text that is read as another model, then one per different
            output, with its first difference. At once if a text is read as another kind of
            model. Exceptions of readers and writers are not caught.
        KeyError: The registry has no reader or writer of a format, or only a reader that executes
            its source.
    """
    family = next(family for family in _FAMILIES if isinstance(model, family[0]))
    readers = _find_readers(registry, family)
    writers: dict[str, AnyWriter] = {entry.name: entry.offer for entry in registry.all(family[2])}
    problems: list[str] = []
    models = {"the model": model}
    for name, text in read.items():
        source = text if isinstance(text, Source) else Source.of_bytes(f"text of {name}", text)
        read_model = call(readers[name], source)
        differences = find_differences(model, read_model)
        assert isinstance(read_model, family[0])
        models[f"the text of {name}"] = read_model
        if differences:
            problems.append(f"read as {name}: another {', '.join(differences)}")
    for name, expected in write.items():
        for origin, source_model in models.items():
            artifacts = render(writers[name], source_model).artifacts
            contents = {"": expected} if isinstance(expected, bytes) else expected
            if contents is not None and artifacts != dict(contents):
                problem = _describe_first_difference(artifacts, contents)
                problems.append(f"written as {name} from {origin}: {problem}")
    assert not problems, "\n".join(problems)


def _describe_first_difference(
    artifacts: Mapping[str, bytes], expected: Mapping[str, bytes]
) -> str:
    """Describe the first difference between written artifacts and expected ones.

    If the names differ, the text lists both sets of names. Otherwise the first artifact of
    `expected` that differs is compared line by line. The text has the number of the first
    different line and both lines, each as `repr` and cut to 80 characters. If all common
    lines are equal, the text reports another length. At least one artifact must differ.
    """
    if artifacts.keys() != expected.keys():
        return f"artifacts {sorted(artifacts)}, expected {sorted(expected)}"
    name = next(name for name in expected if artifacts[name] != expected[name])
    pairs = zip(artifacts[name].splitlines(), expected[name].splitlines(), strict=False)
    for number, (actual_line, expected_line) in enumerate(pairs, 1):
        if actual_line != expected_line:
            position = f"{name or 'the file'}:{number}"
            return f"{position}: {actual_line!r:.80}, expected {expected_line!r:.80}"
    return f"{name or 'the file'} is shorter or longer than expected"
