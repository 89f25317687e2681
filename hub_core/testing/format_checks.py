"""Checks on readers and writers."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial

from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import HubError
from hub_core.model.steps import StepTable
from hub_core.network.topology import Topology
from hub_core.pipeline.artifacts import name_defect
from hub_core.plugin_api.reader import FormatReader
from hub_core.plugin_api.sources import Source
from hub_core.plugin_api.writer import FormatWriter
from hub_core.registry.border import reason_of
from hub_core.registry.descriptions import reference_of
from hub_core.testing import probe
from hub_core.testing.isolation import accesses_of, output_of
from hub_core.testing.samples import all_samples
from hub_core.testing.subject import (
    Reader,
    Rendering,
    Skip,
    Subject,
    call,
    render,
    renderings,
    source_of,
    title,
)
from hub_core.verification import verify

# How losses name what the model has under another name.
_FEATURE_WORDS = {
    "collective_bytes": ("collective bytes", "size"),
    "control_indices": ("dependenc",),
    "control_indptr": ("dependenc",),
    "data_indices": ("dependenc",),
    "data_indptr": ("dependenc",),
    "duration_ns": ("duration",),
    "extensions": ("extension",),
}
_OF_STEPS = frozenset(field.name for field in fields(StepTable))
_SEED = 20240229
_CUTS = 12
_FLIPS = 12


def writers_write_samples(subject: Subject) -> Iterator[str]:
    """Every writer writes at least one sample, with names and bytes that fit its layout."""
    for writer in subject.offers(FormatWriter):
        written = renderings(writer)
        if not written:
            yield f"{title(writer)} refuses every sample of hub_core.testing.samples"
        for sample, rendering in written.items():
            names = rendering.artifacts
            defects = [
                reason for name in names if (reason := name_defect(name, writer.format.layout))
            ]
            if defects or not names:
                yield f"{title(writer)}, sample {sample}: {defects[0] if defects else 'no artifact'}"


def writers_are_deterministic(subject: Subject) -> Iterator[str]:
    """The same algorithm gives the same bytes, in processes with different hash seeds too."""
    one, other = (probe.digests(subject.plugin.name, seed) for seed in ("1", "2"))
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            cure = "sort what comes from sets, keep out times and addresses"
            yield f"{name} differs between two processes: {cure}"


def writers_keep_their_input(subject: Subject) -> Iterator[str]:
    """Writing changes nothing in the algorithm."""
    for writer in subject.offers(FormatWriter):
        for sample, algorithm in all_samples().items():
            before = copy.deepcopy(algorithm)
            _tolerating_refusal(partial(render, writer, algorithm))
            if changed := before.differences(algorithm):
                yield f"{title(writer)}, sample {sample}: writing changed {', '.join(changed)}"


def losses_are_honest(subject: Subject) -> Iterator[str | Skip]:
    """What is read back equals what was written, or a loss or restatement names what differs.

    Without losses it is correct.
    """
    for writer in subject.offers(FormatWriter):
        reader = subject.reader_of(writer.format)
        if reader is None:
            yield Skip(
                f"{title(writer)}: no reader of the same format is installed, so nothing can be read back"
            )
            continue
        for sample, rendering in renderings(writer).items():
            problem = _undeclared_loss(all_samples()[sample], rendering, writer, reader)
            if problem:
                yield f"{title(writer)}, sample {sample}: {problem}"


def readers_read_samples(subject: Subject) -> Iterator[str | Skip]:
    """Every reader reads valid inputs; algorithms that it makes of correct ones are correct."""
    for reader in subject.readers():
        sources = subject.sources(reader)
        if not sources:
            yield Skip(
                f"{title(reader)}: it names no samples, and no writer of its format is installed"
            )
        for name, source in sources.items():
            if problem := _reading_problem(reader, source):
                yield f"{title(reader)}, {name}: {problem}"


def bad_input_is_refused(subject: Subject) -> Iterator[str | Skip]:
    """Empty and random input raises a `HubError` that names the file.

    Damaged valid input nothing else than that.
    """
    for reader in subject.readers():
        for name, content in _nonsense():
            yield from _refusal_problems(
                reader, Source.of_bytes("bad-input", content), name, must_refuse=True
            )
        if _executes(reader):
            yield Skip(
                f"{title(reader)}: it executes its input, so no damaged input is given to it"
            )
            continue
        for name, source in subject.sources(reader).items():
            for damage, damaged in _damaged(source):
                yield from _refusal_problems(
                    reader, damaged, f"{name}, {damage}", must_refuse=False
                )


def formats_leave_the_system_alone(subject: Subject) -> Iterator[str]:
    """Readers and writers print nothing and open no file, process or network connection.

    A reader of programs may start the program that it reads.
    """
    problems: dict[str, None] = {}
    for offer, work in _works(subject):
        # The first call imports what the work needs.
        _tolerating_refusal(work)
        if printed := output_of(partial(_tolerating_refusal, work)).strip():
            problems[f"{title(offer)} prints {printed!r:.60}"] = None
        if _executes(offer):
            continue
        folders = (*_package_folders(__name__), *_package_folders(reference_of(offer)))
        for access in accesses_of(partial(_tolerating_refusal, work), folders):
            problems[f"{title(offer)} does not only compute: {access}"] = None
    yield from problems


def _executes(offer: Reader | FormatWriter) -> bool:
    return isinstance(offer, FormatReader) and offer.executes_source


def _undeclared_loss(
    algorithm: Algorithm, written: Rendering, writer: FormatWriter, reader: FormatReader
) -> str | None:
    read_back = call(reader, source_of(written, writer.format))
    assert isinstance(read_back, Algorithm), (
        f"{reader.read} returned {type(read_back).__name__}, expected Algorithm"
    )
    # Who read a file and from where is not part of what the file says.
    changed = algorithm.differences(replace(read_back, provenance=algorithm.provenance))
    features = [*(loss.feature for loss in written.losses), *written.restated]
    undeclared = [name for name in changed if not _is_declared(name, features)]
    if undeclared:
        return (
            f"read back with another {', '.join(undeclared)}, and no loss names that as its feature"
        )
    if written.losses:
        return None
    return (
        None
        if verify(read_back).ok
        else f"read back it is wrong: {verify(read_back).diagnostics[0]}"
    )


def _is_declared(difference: str, features: Sequence[str]) -> bool:
    """Whether a loss or a restatement names what differs, or `steps` for the whole table."""
    words = _FEATURE_WORDS.get(difference, (difference.replace("_", " "),))
    words += ("steps",) if difference in _OF_STEPS else ()
    return any(word in feature.lower().replace("_", " ") for feature in features for word in words)


def _reading_problem(reader: Reader, source: Source) -> str | None:
    model = call(reader, source)
    expected = Algorithm if isinstance(reader, FormatReader) else Topology
    if not isinstance(model, expected):
        return f"returned {type(model).__name__}, expected {expected.__name__}"
    if isinstance(model, Algorithm) and not (report := verify(model)).ok:
        return f"verification fails: {report.diagnostics[0]}"
    return None


def _nonsense() -> Iterator[tuple[str, bytes]]:
    generator = random.Random(_SEED)
    yield "empty input", b""
    yield "100 zero bytes", bytes(100)
    for size in (1, 64, 5000):
        yield f"{size} random bytes", generator.randbytes(size)
    yield "plain text", b"this is no algorithm\n" * 20


def _damaged(source: Source) -> Iterator[tuple[str, Source]]:
    """A valid source with its first part cut short, or one bit turned, at places all over it."""
    generator = random.Random(_SEED)
    first = source.parts[0]
    content = first.load()
    for cut in sorted({len(content) * k // _CUTS for k in range(1, _CUTS)}):
        yield f"cut after {cut} bytes", _with_first_part(source, content[:cut])
    for _ in range(_FLIPS if content else 0):
        position, bit = generator.randrange(len(content)), generator.randrange(8)
        turned = (
            content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]
        )
        yield f"bit {bit} of byte {position} turned", _with_first_part(source, turned)


def _with_first_part(source: Source, content: bytes) -> Source:
    first = replace(source.parts[0], load=lambda: content, size=len(content))
    return Source(source.name, (first, *source.parts[1:]), report=lambda diagnostic: None)


def _refusal_problems(
    reader: Reader, source: Source, what: str, must_refuse: bool
) -> Iterable[str]:
    try:
        model = call(reader, source)
    except HubError as error:
        if error.diagnostics[0].location.file is None:
            yield f"{title(reader)}, {what}: the error names no file: {error}"
    except Exception as error:
        yield f"{title(reader)}, {what}: {reason_of(error)}, expected a HubError"
    else:
        if must_refuse:
            yield f"{title(reader)}, {what}: accepted as {type(model).__name__}"


def _works(subject: Subject) -> Iterator[tuple[Reader | FormatWriter, Callable[[], object]]]:
    for writer in subject.offers(FormatWriter):
        for algorithm in all_samples().values():
            yield writer, partial(render, writer, algorithm)
    for reader in subject.readers():
        for source in (
            *subject.sources(reader).values(),
            Source.of_bytes("bad-input", b"no algorithm"),
        ):
            yield reader, partial(call, reader, source)


def _tolerating_refusal(work: Callable[[], object]) -> None:
    try:
        work()
    except HubError:
        return


def _package_folders(reference: str) -> list[str]:
    """Folders of the distribution that a module lies in: its own data files may be read."""
    package = reference.partition(":")[0].partition(".")[0]
    modules = [
        module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] == package
    ]
    return [str(folder) for module in modules for folder in getattr(module, "__path__", ())]
