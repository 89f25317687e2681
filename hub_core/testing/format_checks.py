"""Conformance rules for readers and writers of formats."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import HubError
from hub_core.model.workload import Workload
from hub_core.network.topology import Topology
from hub_core.pipeline.artifacts import name_defect
from hub_core.plugin_api.formats import (
    FormatReader,
    FormatWriter,
    Source,
    TopologyReader,
    WorkloadReader,
)
from hub_core.registry.bind_options import reason_of
from hub_core.registry.compatibility import reference_of
from hub_core.testing import probe
from hub_core.testing.checked_plugin import (
    CheckedPlugin,
    Reader,
    Rendering,
    Skip,
    call,
    find_loss_problem,
    render,
    render_samples,
    title,
    to_source,
)
from hub_core.testing.isolation import capture_output, record_accesses
from hub_core.testing.samples import all_samples
from hub_core.verification import verify

# Type of the model that readers of each kind return.
_EXPECTED: dict[type, tuple[type, ...]] = {
    FormatReader: (Algorithm,),
    WorkloadReader: (Workload,),
    TopologyReader: (Topology,),
}
# Damage is random but equal in every run, so that a failure can be reproduced.
_SEED = 20240229
_CUTS = 12
_FLIPS = 12


def writers_write_samples(subject: CheckedPlugin) -> Iterator[str]:
    """Every writer writes at least one sample, with artifact names that fit its layout."""
    for writer in subject.offers(FormatWriter):
        written = render_samples(writer)
        layout = writer.format.layout
        if not written:
            yield f"{title(writer)} refuses every sample of hub_core.testing.samples"
        for sample, rendering in written.items():
            defects = (name_defect(name, layout) for name in rendering.artifacts)
            defect = next(filter(None, defects), None) if rendering.artifacts else "no artifact"
            if defect:
                yield f"{title(writer)}, sample {sample}: {defect}"


def writers_are_deterministic(subject: CheckedPlugin) -> Iterator[str]:
    """The same algorithm gives the same bytes in processes with different hash seeds."""
    first = probe.hash_artifacts(subject.plugin.name, "1")
    second = probe.hash_artifacts(subject.plugin.name, "2")
    for name in sorted(first.keys() | second.keys()):
        if first.get(name) != second.get(name):
            cure = "sort the elements of sets, write no times or addresses"
            yield f"{name} differs between two processes: {cure}"


def writers_keep_their_input(subject: CheckedPlugin) -> Iterator[str]:
    """Writing leaves the algorithm unchanged."""
    for writer in subject.offers(FormatWriter):
        for sample, algorithm in all_samples().items():
            before = copy.deepcopy(algorithm)
            # Also checked after a refusal.
            _ignore_refusal(partial(render, writer, algorithm))
            changed = before.differences(algorithm)
            if changed:
                names = ", ".join(changed)
                yield f"{title(writer)}, sample {sample}: writing changed {names}"


def losses_are_honest(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """The algorithm read back equals the written one, except for declared losses and restatements.

    Every loss names a part that differs. Without losses the algorithm read back is correct.
    """
    for writer in subject.offers(FormatWriter):
        reader = subject.find_reader(writer.format)
        if reader is None:
            missing = "no reader of the same format is installed"
            yield Skip(f"{title(writer)}: {missing}")
            continue
        samples = all_samples()
        for sample, rendering in render_samples(writer).items():
            problem = _find_round_trip_problem(samples[sample], rendering, writer, reader)
            if problem:
                yield f"{title(writer)}, sample {sample}: {problem}"


def readers_read_samples(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Every reader reads its valid inputs; algorithms read from correct ones are correct."""
    for reader in subject.readers():
        sources = subject.sources(reader)
        if not sources:
            missing = "it declares no samples or cannot make them here, and no writer is installed"
            yield Skip(f"{title(reader)}: {missing}")
        for name, source in sources.items():
            problem = _find_reading_problem(reader, source)
            if problem:
                yield f"{title(reader)}, {name}: {problem}"


def bad_input_is_refused(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Empty and random input raises a `HubError` that names the file.

    Damaged valid input is accepted or raises the same error, never another exception.
    """
    for reader in subject.readers():
        for description, content in generate_nonsense():
            read = partial(call, reader, Source.of_bytes("bad-input", content))
            place = f"{title(reader)}, {description}"
            yield from find_refusal_problems(read, place, must_refuse=True)
        # Executing a damaged program could do damage.
        if _executes(reader):
            reason = "it executes its input, so no damaged input is given to it"
            yield Skip(f"{title(reader)}: {reason}")
            continue
        for name, valid_source in subject.sources(reader).items():
            for damage, source in damage_source(valid_source):
                place = f"{title(reader)}, {name}, {damage}"
                # A flipped bit may give another valid file.
                yield from find_refusal_problems(
                    partial(call, reader, source), place, must_refuse=False
                )


def formats_leave_the_system_alone(subject: CheckedPlugin) -> Iterator[str]:
    """Readers and writers print nothing and open no file, process or network connection.

    A reader of programs may start the program that it reads.
    """
    # Keys of a dictionary: each problem once, in order.
    problems: dict[str, None] = {}
    for offer, work in _iterate_calls(subject):
        problems |= dict.fromkeys(_find_side_effects(offer, work))
    yield from problems


def _find_side_effects(offer: Reader | FormatWriter, work: Callable[[], object]) -> Iterator[str]:
    """Call `work` up to three times; yield a text per side effect, as a problem of the offer.

    1. The first call does the imports and is not observed.
    2. The second call is observed for output on standard output or error, which gives one text.
       Blanks only are no output.
    3. The third call is observed for accesses to files, processes and the network; each gives one
       text, in order of time. Reading files below the offer's package or the core is permitted.
       This call is omitted for a reader that executes its input.

    A `HubError` of `work` is ignored in all calls; other exceptions are raised.
    """
    tolerant = partial(_ignore_refusal, work)
    # The first call does the imports, so that they are not reported.
    tolerant()
    printed = capture_output(tolerant).strip()
    if printed:
        yield f"{title(offer)} prints {printed!r:.60}"
    if _executes(offer):
        return
    # Data files of the plugin, and schemas of the core, may be read.
    folders = (*_find_package_folders(__name__), *_find_package_folders(reference_of(offer)))
    for access in record_accesses(tolerant, folders):
        yield f"{title(offer)} does not only compute: {access}"


def _executes(offer: Reader | FormatWriter) -> bool:
    """Whether an offer is a reader that executes its source; writers never do."""
    return isinstance(offer, FormatReader) and offer.executes_source


# --- losses ---


def _find_round_trip_problem(
    algorithm: Algorithm,
    written: Rendering,
    writer: FormatWriter,
    reader: FormatReader,
) -> str | None:
    """Read a written algorithm back; return the first problem as a text, or None.

    The problems are, in this order: a difference that no loss or restatement declares; a
    loss that names only parts that do not differ; an algorithm that fails verification,
    which is checked only if no loss is declared. Raise `AssertionError` if the reader
    returns no `Algorithm`; its exceptions are not caught.
    """
    read_back = call(reader, to_source(written, writer.format))
    message = f"{reader.read} returned {type(read_back).__name__}, expected Algorithm"
    assert isinstance(read_back, Algorithm), message
    problem = find_loss_problem(algorithm, read_back, written)
    if problem:
        return problem
    # After a loss the algorithm may rightly be incorrect.
    if written.losses:
        return None
    report = verify(read_back)
    return None if report.ok else f"read back it is wrong: {report.diagnostics[0]}"


# --- reading ---


def _find_reading_problem(reader: Reader, source: Source) -> str | None:
    """Read a valid input with default options; return the problem as a text, or None.

    A result of another type than this kind of reader must return is a problem. So is an
    algorithm that fails verification; then the text has the first finding. Topologies and
    workloads are not verified. Exceptions of the reader are not caught.
    """
    model = call(reader, source)
    expected = _EXPECTED[type(reader)]
    if not isinstance(model, expected):
        names = " or ".join(kind.__name__ for kind in expected)
        return f"returned {type(model).__name__}, expected {names}"
    # A topology is checked when it is constructed.
    if not isinstance(model, Algorithm):
        return None
    report = verify(model)
    return None if report.ok else f"verification fails: {report.diagnostics[0]}"


def find_refusal_problems(
    read: Callable[[], object],
    place: str,
    *,
    must_refuse: bool,
    find_defects: Callable[[object], Iterable[str]] = lambda result: (),
) -> Iterator[str]:
    """Read a bad input; yield the problems, each after `place`, if it is not refused correctly.

    Correct is a `HubError` that names the file or, unless `must_refuse`, a result without defects.
    """
    try:
        result = read()
    except HubError as error:
        if error.diagnostics[0].location.file is None:
            yield f"{place}: the error names no file: {error}"
    except Exception as error:
        yield f"{place}: {reason_of(error)}, expected a HubError"
    else:
        if must_refuse:
            yield f"{place}: accepted as {type(result).__name__}"
        else:
            yield from (f"{place}: {defect}" for defect in find_defects(result))


# --- bad input ---


def generate_nonsense() -> Iterator[tuple[str, bytes]]:
    """Yield (description, content) of inputs that are valid in no format.

    They are an empty input, zero bytes, random bytes of three sizes, and plain text. They are equal
    in every run.
    """
    generator = random.Random(_SEED)
    yield "empty input", b""
    yield "100 zero bytes", bytes(100)
    for size in (1, 64, 5000):
        yield f"{size} random bytes", generator.randbytes(size)
    yield "plain text", b"this is no algorithm\n" * 20


def damage_source(source: Source) -> Iterator[tuple[str, Source]]:
    """Yield (description, source) of copies of a source whose first part is damaged.

    First the first part is truncated after `size * k // 12` bytes, for k = 1 to 11; equal positions
    are used once. An empty part gives one copy, cut after 0 bytes. Then, in 12 copies, one random
    bit of a random byte is flipped; there are none for an empty part. Other parts are unchanged.
    The random numbers are equal in every run. Findings that a reader reports on a copy are
    discarded.
    """
    generator = random.Random(_SEED)
    content = source.parts[0].load()
    # A set, because the positions in a short file coincide.
    cuts = {len(content) * number // _CUTS for number in range(1, _CUTS)}
    for cut in sorted(cuts):
        yield f"cut after {cut} bytes", _replace_first_part(source, content[:cut])
    for _ in range(_FLIPS if content else 0):
        position = generator.randrange(len(content))
        bit = generator.randrange(8)
        flipped = bytearray(content)
        flipped[position] ^= 1 << bit
        damaged = _replace_first_part(source, bytes(flipped))
        yield f"bit {bit} of byte {position} flipped", damaged


def _replace_first_part(source: Source, content: bytes) -> Source:
    """Return the source with other content in its first part.

    Its other parts are kept; findings that a reader reports are discarded.
    """
    first = replace(source.parts[0], load=lambda: content, size=len(content), open=None)
    return Source(source.name, (first, *source.parts[1:]), report=lambda diagnostic: None)


# --- calls ---


def _iterate_calls(
    subject: CheckedPlugin,
) -> Iterator[tuple[Reader | FormatWriter, Callable[[], object]]]:
    """Yield (offer, function without arguments) for the writers, then the readers of a plugin.

    There is one pair per writer of algorithms and sample algorithm of the kit, and one per
    reader of algorithms, workloads or topologies and valid input. Each reader has one more
    pair, for a text that no format accepts. The functions are not called here.
    """
    for writer in subject.offers(FormatWriter):
        for algorithm in all_samples().values():
            yield writer, partial(render, writer, algorithm)
    for reader in subject.readers():
        bad = Source.of_bytes("bad-input", b"no algorithm")
        for source in (*subject.sources(reader).values(), bad):
            yield reader, partial(call, reader, source)


def _ignore_refusal(work: Callable[[], object]) -> None:
    """Call `work`; ignore its result and a `HubError`."""
    try:
        work()
    except HubError:
        return


def _find_package_folders(reference: str) -> list[str]:
    """Return the folders of the top-level package of a reference and of all its subpackages.

    `reference`: a text `module:function`, or the name of a module; the part before the first
    `.` is the top-level package. Only packages that are already imported count. Packages are
    sorted by name; one with several folders has them in the order of its `__path__`. Modules
    that are not packages have none. The result is [] if no such package is imported.
    """
    package = _get_top_package(reference.partition(":")[0])
    folders: list[str] = []
    # Sorted, because the order of imports differs from run to run.
    for name, module in sorted(sys.modules.items()):
        if _get_top_package(name) == package:
            folders += map(str, getattr(module, "__path__", ()))
    return folders


def _get_top_package(module: str) -> str:
    return module.partition(".")[0]
