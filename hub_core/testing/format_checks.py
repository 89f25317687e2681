"""Checks on readers and writers."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import HubError
from hub_core.model.workload import Workload
from hub_core.network.topology import Topology
from hub_core.pipeline.artifacts import name_defect
from hub_core.plugin_api.formats import Layout
from hub_core.plugin_api.reader import FormatReader
from hub_core.plugin_api.sources import Source
from hub_core.plugin_api.topology_reader import TopologyReader
from hub_core.plugin_api.workload_reader import WorkloadReader
from hub_core.plugin_api.writer import FormatWriter
from hub_core.registry.border import reason_of
from hub_core.registry.descriptions import reference_of
from hub_core.testing import probe
from hub_core.testing.checked_plugin import (
    CheckedPlugin,
    Reader,
    Rendering,
    Skip,
    call,
    render,
    renderings,
    source_of,
    title,
)
from hub_core.testing.declared import loss_problem
from hub_core.testing.isolation import accesses_of, output_of
from hub_core.testing.samples import all_samples
from hub_core.verification import verify

# What readers of each kind return.
_EXPECTED: dict[type, tuple[type, ...]] = {
    FormatReader: (Algorithm,),
    WorkloadReader: (Workload,),
    TopologyReader: (Topology,),
}
# Damage is random, and the same in every run: whoever fixes a reader wants to see it again.
_SEED = 20240229
_CUTS = 12
_FLIPS = 12


def writers_write_samples(subject: CheckedPlugin) -> Iterator[str]:
    """Every writer writes at least one sample, with names and bytes that fit its layout."""
    for writer in subject.offers(FormatWriter):
        written = renderings(writer)
        layout = writer.format.layout
        if not written:
            yield f"{title(writer)} refuses every sample of hub_core.testing.samples"
        for sample, rendering in written.items():
            defect = _naming_defect(rendering, layout)
            if defect:
                yield f"{title(writer)}, sample {sample}: {defect}"


def _naming_defect(rendering: Rendering, layout: Layout) -> str | None:
    """The first name of an artifact that does not fit, or that there is none."""
    if not rendering.artifacts:
        return "no artifact"
    defects = (name_defect(name, layout) for name in rendering.artifacts)
    return next(filter(None, defects), None)


def writers_are_deterministic(subject: CheckedPlugin) -> Iterator[str]:
    """The same algorithm gives the same bytes, in processes with different hash seeds too."""
    one = probe.digests(subject.plugin.name, "1")
    other = probe.digests(subject.plugin.name, "2")
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            cure = "sort what comes from sets, keep out times and addresses"
            yield f"{name} differs between two processes: {cure}"


def writers_keep_their_input(subject: CheckedPlugin) -> Iterator[str]:
    """Writing changes nothing in the algorithm."""
    for writer in subject.offers(FormatWriter):
        for sample, algorithm in all_samples().items():
            before = copy.deepcopy(algorithm)
            # A refusal must not have changed anything either.
            _tolerating_refusal(partial(render, writer, algorithm))
            changed = before.differences(algorithm)
            if changed:
                names = ", ".join(changed)
                yield f"{title(writer)}, sample {sample}: writing changed {names}"


def losses_are_honest(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """What is read back equals what was written, or a loss or restatement names what differs.

    No loss names what comes back as it was. Without losses what is read back is correct.
    """
    for writer in subject.offers(FormatWriter):
        reader = subject.reader_of(writer.format)
        if reader is None:
            missing = "no reader of the same format is installed, so nothing can be read back"
            yield Skip(f"{title(writer)}: {missing}")
            continue
        samples = all_samples()
        for sample, rendering in renderings(writer).items():
            problem = _undeclared_loss(samples[sample], rendering, writer, reader)
            if problem:
                yield f"{title(writer)}, sample {sample}: {problem}"


def readers_read_samples(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Every reader reads valid inputs; algorithms that it makes of correct ones are correct."""
    for reader in subject.readers():
        sources = subject.sources(reader)
        # Whose format nobody writes has to bring inputs of its own.
        if not sources:
            missing = "it names no samples, and no writer of its format is installed"
            yield Skip(f"{title(reader)}: {missing}")
        for name, source in sources.items():
            problem = _reading_problem(reader, source)
            if problem:
                yield f"{title(reader)}, {name}: {problem}"


def bad_input_is_refused(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Empty and random input raises a `HubError` that names the file.

    Damaged valid input nothing else than that.
    """
    for reader in subject.readers():
        for what, content in _nonsense():
            source = Source.of_bytes("bad-input", content)
            yield from _refusal_problems(reader, source, what, must_refuse=True)
        # A damaged program might do anything.
        if _executes(reader):
            reason = "it executes its input, so no damaged input is given to it"
            yield Skip(f"{title(reader)}: {reason}")
            continue
        for what, source in _all_damaged(subject.sources(reader)):
            # A turned bit may give another valid file.
            yield from _refusal_problems(reader, source, what, must_refuse=False)


def formats_leave_the_system_alone(subject: CheckedPlugin) -> Iterator[str]:
    """Readers and writers print nothing and open no file, process or network connection.

    A reader of programs may start the program that it reads.
    """
    # A dictionary keeps the order and says everything once, however many samples show it.
    problems: dict[str, None] = {}
    for offer, work in _works(subject):
        problems |= dict.fromkeys(_side_effects(offer, work))
    yield from problems


def _side_effects(offer: Reader | FormatWriter, work: Callable[[], object]) -> Iterator[str]:
    """What a piece of work prints, and what it asks the system for."""
    tolerant = partial(_tolerating_refusal, work)
    # The first call imports what the work needs.
    tolerant()
    printed = output_of(tolerant).strip()
    if printed:
        yield f"{title(offer)} prints {printed!r:.60}"
    if _executes(offer):
        return
    # Data files of the plugin, and schemas of the core, may be read.
    folders = (*_package_folders(__name__), *_package_folders(reference_of(offer)))
    for access in accesses_of(tolerant, folders):
        yield f"{title(offer)} does not only compute: {access}"


def _executes(offer: Reader | FormatWriter) -> bool:
    """Whether an offer is a reader that executes its source; writers never do."""
    return isinstance(offer, FormatReader) and offer.executes_source


# --- losses ---


def _undeclared_loss(
    algorithm: Algorithm,
    written: Rendering,
    writer: FormatWriter,
    reader: FormatReader,
) -> str | None:
    """What is lost on the way out and in again and was not said, or that the result is wrong."""
    read_back = call(reader, source_of(written, writer.format))
    message = f"{reader.read} returned {type(read_back).__name__}, expected Algorithm"
    assert isinstance(read_back, Algorithm), message
    problem = loss_problem(algorithm, read_back, written)
    if problem:
        return problem
    # What was lost may be what made it correct.
    if written.losses:
        return None
    report = verify(read_back)
    return None if report.ok else f"read back it is wrong: {report.diagnostics[0]}"


# --- reading ---


def _reading_problem(reader: Reader, source: Source) -> str | None:
    """What is wrong with what a reader makes of a valid input."""
    model = call(reader, source)
    expected = _EXPECTED[type(reader)]
    if not isinstance(model, expected):
        names = " or ".join(kind.__name__ for kind in expected)
        return f"returned {type(model).__name__}, expected {names}"
    # A topology is checked where it is built.
    if not isinstance(model, Algorithm):
        return None
    # Samples are correct algorithms, so what is read must be one.
    report = verify(model)
    return None if report.ok else f"verification fails: {report.diagnostics[0]}"


def _refusal_problems(
    reader: Reader,
    source: Source,
    what: str,
    must_refuse: bool,
) -> Iterator[str]:
    """What is wrong with how a reader takes a bad input."""
    try:
        model = call(reader, source)
    except HubError as error:
        if error.diagnostics[0].location.file is None:
            yield f"{title(reader)}, {what}: the error names no file: {error}"
    # Whatever else a parser runs into is not for users to see.
    except Exception as error:
        yield f"{title(reader)}, {what}: {reason_of(error)}, expected a HubError"
    else:
        if must_refuse:
            yield f"{title(reader)}, {what}: accepted as {type(model).__name__}"


# --- bad input ---


def _nonsense() -> Iterator[tuple[str, bytes]]:
    """Inputs that are of no format, and what messages call them."""
    generator = random.Random(_SEED)
    # Parsers stumble over different things: no header, no text, no structure.
    yield "empty input", b""
    yield "100 zero bytes", bytes(100)
    for size in (1, 64, 5000):
        yield f"{size} random bytes", generator.randbytes(size)
    yield "plain text", b"this is no algorithm\n" * 20


def _all_damaged(sources: Mapping[str, Source]) -> Iterator[tuple[str, Source]]:
    """Every valid source, damaged in every way, and what messages call it."""
    for name, source in sources.items():
        for damage, damaged in _damaged(source):
            yield f"{name}, {damage}", damaged


def _damaged(source: Source) -> Iterator[tuple[str, Source]]:
    """A valid source with its first part cut short, or one bit turned, at places all over it."""
    generator = random.Random(_SEED)
    content = source.parts[0].load()
    # Of a short file, several places are the same.
    places = {len(content) * number // _CUTS for number in range(1, _CUTS)}
    for cut in sorted(places):
        yield f"cut after {cut} bytes", _with_first_part(source, content[:cut])
    for _ in range(_FLIPS if content else 0):
        position = generator.randrange(len(content))
        bit = generator.randrange(8)
        turned = bytearray(content)
        turned[position] ^= 1 << bit
        damaged = _with_first_part(source, bytes(turned))
        yield f"bit {bit} of byte {position} turned", damaged


def _with_first_part(source: Source, content: bytes) -> Source:
    """The source with another first part; what its reader reports is not listened to."""
    first = replace(source.parts[0], load=lambda: content, size=len(content))
    return Source(source.name, (first, *source.parts[1:]), report=lambda diagnostic: None)


# --- works ---


def _works(subject: CheckedPlugin) -> Iterator[tuple[Reader | FormatWriter, Callable[[], object]]]:
    """Everything that a plugin's readers and writers can be asked for, good and bad."""
    for writer in subject.offers(FormatWriter):
        for algorithm in all_samples().values():
            yield writer, partial(render, writer, algorithm)
    for reader in subject.readers():
        bad = Source.of_bytes("bad-input", b"no algorithm")
        for source in (*subject.sources(reader).values(), bad):
            yield reader, partial(call, reader, source)


def _tolerating_refusal(work: Callable[[], object]) -> None:
    try:
        work()
    except HubError:
        return


def _package_folders(reference: str) -> list[str]:
    """Folders of the distribution that a module lies in: its own data files may be read."""
    package = _top_package(reference.partition(":")[0])
    folders: list[str] = []
    # In the order of names, since the order of imports differs from run to run.
    for name, module in sorted(sys.modules.items()):
        if _top_package(name) == package:
            folders += map(str, getattr(module, "__path__", ()))
    return folders


def _top_package(module: str) -> str:
    return module.partition(".")[0]
