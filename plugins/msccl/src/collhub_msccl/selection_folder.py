"""Folders of programs from which a runtime selects: write one, and find the calls that one serves.

A folder has one file per window of sizes. The runtimes parse every file of the folder and use the
first that fits. Azure/msccl-executor-nccl reads them sorted by name: for it, a window may have a
second file with fewer chunks, whose name comes later, for the sizes that the chunks of the first
do not divide. ROCm/rccl reads them in the unspecified order of the directory listing; there, a
second file could replace the first, so windows do not overlap. The runtimes count the bytes of the
full buffer, like the hub. Sources: `src/misc/msccl/msccl_lifecycle.cc` of
Azure/msccl-executor-nccl (c6f6b36) and ROCm/rccl.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collhub_msccl.plugin import SelectionOptions, WriteOptions
from collhub_msccl.runtimes.known_runtimes import (
    RUNTIMES,
    RuntimeRules,
    describe_versions,
    list_runtimes,
)
from collhub_msccl.runtimes.load_check import check_executor, check_msccl, check_rccl
from collhub_msccl.runtimes.raw_xml import parse_raw, read_number
from collhub_msccl.writing.write_xml import write as write_xml
from hub_core import verify
from hub_core.model import (
    CollectiveKind,
    Diagnostic,
    HubError,
    InputError,
    Location,
    Loss,
    Severity,
    UsageError,
    format_bytes,
)
from hub_core.plugin_api import (
    Artifact,
    CheckRequest,
    LoadableCall,
    NoOptions,
    SelectedCollective,
    SelectedWindow,
    Selection,
    ServedCalls,
    Source,
    SourcePart,
    WriteResult,
)
from hub_core.selections import iterate_candidates

# Size of float32, the type of most gradients.
_ELEMENT_BYTES = 4
_FULL = "the FIFOs of its connections can fill up at such sizes"
# Protocols of timed algorithms in files.
_PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
_MODES = ("in-place", "out-of-place")
# Ends the name of a second file for a window. It sorts after the name that ends with ".xml".
_REMAINDER_SUFFIX = "_rest.xml"
# Mean time of the algorithm of a second file by that of the fastest, at most. The runtime's own
# algorithms, which serve such calls otherwise, rarely take longer.
_MAX_SLOWDOWN = 2.0


@dataclass(slots=True)
class _Folder:
    """Files chosen so far for a runtime, with losses and notes. `protocol`: of all files; None:
    default.
    """

    runtime: RuntimeRules
    protocol: str | None
    files: list[Artifact] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_loss(self, feature: str, where: str, consequence: str) -> None:
        """Record a property of the selection that the files cannot represent, with place and
        consequence.
        """
        self.losses.append(Loss(feature, where, consequence))


@dataclass(frozen=True, slots=True)
class _Task:
    """A window of sizes of a collective. `mode`: the mode that its files serve, None for both."""

    selected: SelectedCollective
    window: SelectedWindow
    mode: str | None

    @property
    def kind(self) -> CollectiveKind:
        """Kind of the collective."""
        return self.selected.collective.kind

    @property
    def size_of_steps(self) -> int:
        """Size in bytes for which steps are synthesized: the middle one of the window's measured
        sizes.
        """
        return self.window.sizes[len(self.window.sizes) // 2]

    def describe_sizes(self, first: int) -> str:
        """Return a text for the sizes of the window from `first` bytes on, with the collective.

        For example `all-reduce, 16 KiB to below 512 KiB`, or `all-reduce, from 16 KiB` if the
        window has no upper limit.
        """
        last = self.window.max_bytes
        if last is None:
            return f"{self.kind}, from {format_bytes(first)}"
        return f"{self.kind}, {format_bytes(first)} to below {format_bytes(last + 1)}"

    def build_file_name(self, first: int, largest: int | None) -> str:
        """Return a file name such as `all-reduce-0-16383.xml`.

        `first`, `largest`: sizes in bytes. A `largest` of None (no limit), or of 0, is written
        as `inf`. The mode of the task, if any, follows: `all-reduce-0-inf-in-place.xml`.
        """
        parts = (str(self.kind), str(first), str(largest or "inf"), self.mode)
        return "-".join(part for part in parts if part) + ".xml"

    def limit_to(self, largest: int | None) -> _Task:
        """Return the task with only those sizes of its window that are at most `largest` bytes.

        `largest` also replaces the maximum of the window, even by a larger one. None keeps all
        sizes and removes the maximum. The window may be left without measured sizes.
        """
        sizes = tuple(size for size in self.window.sizes if largest is None or size <= largest)
        return replace(self, window=replace(self.window, max_bytes=largest, sizes=sizes))


@dataclass(frozen=True, slots=True)
class _File:
    """One program for a window of sizes.

    `largest`: maximum size in bytes for which its runtime uses it, None without a limit. `chunks`:
    number that must divide the elements of a call.
    """

    content: bytes
    largest: int | None
    chunks: int


def write(selection: Selection, options: SelectionOptions) -> WriteResult:
    """Return the XML files of a selection, in a folder with the name of the runtime; write nothing.

    A window is a range of sizes with one chosen algorithm. Its files have the chosen algorithm,
    then the other measured ones by speed. An algorithm that cannot be written is skipped. One that
    serves only the smaller sizes of the window leaves the larger ones to the next algorithm.

    Files are in the order of collectives, modes (in place first) and windows. A collective with
    both modes gets one file if the runtime reads both, else one per mode. The result has notes
    on usage, versions and chunks, then those of the files. Its losses are left to the runtime:

    - collectives with a root, or unknown to the runtime: no file
    - an all-to-all in place, if each mode needs its file
    - algorithms that were not written, and sizes without a file, with the reason
    """
    folder = _Folder(RUNTIMES[options.runtime], options.proto)
    for selected in selection.collectives:
        kind, title = selected.collective.kind, folder.runtime.title
        if kind.traits.is_rooted:
            # The header has no root, and the runtimes do not compare it with the root of the call.
            reason = f"a file would be used for calls with any root; {title} handles them"
            folder.add_loss("collective", str(kind), reason)
            continue
        if kind not in folder.runtime.spelling:
            folder.add_loss("collective", str(kind), f"{title} has no such collective")
            continue
        for mode in _choose_modes(selected, folder):
            for window in selected.windows(None):
                _add_window(folder, _Task(selected, window, mode))
    usage = f"set MSCCL_ALGO_DIR to this folder's {folder.runtime.name}/"
    multiples = "sizes that the chunks of no file divide are left to the runtime"
    notes = [
        usage,
        *describe_versions(folder.runtime.name, "the files are"),
        multiples,
        *folder.notes,
    ]
    runtimes = list_runtimes(folder.runtime.name)
    return WriteResult(folder.files, folder.losses, (), notes, runtimes)


def _choose_modes(selected: SelectedCollective, folder: _Folder) -> list[str | None]:
    """Return the modes for which a collective needs one file each; None is one file for both modes.

    A runtime that reads both modes needs one file: [None] if the collective supports both
    modes, otherwise its only mode. Other runtimes need one file per supported mode,
    in-place first. For these runtimes an in-place all-to-all, which microsoft/msccl
    refuses, is omitted, and a loss `in_place` is added to `folder`. The result is empty if
    no mode remains.
    """
    collective = selected.collective
    claims = {"in-place": collective.in_place, "out-of-place": collective.out_of_place}
    modes: list[str | None] = [mode for mode in _MODES if claims[mode]]
    if folder.runtime.has_both_modes:
        return [None] if len(modes) > 1 else modes
    if collective.kind is CollectiveKind.ALL_TO_ALL and "in-place" in modes:
        modes.remove("in-place")
        reason = f"{folder.runtime.title} refuses calls in place"
        folder.add_loss("in_place", str(collective.kind), reason)
    return modes


def _add_window(folder: _Folder, task: _Task) -> None:
    """Add files that serve all sizes of a window, by the fastest writable algorithms.

    Algorithms are tried in the order of `iterate_candidates` (the selected one, then by speed)
    until all sizes are served. If a file serves only sizes up to a limit, the next algorithm begins
    at the limit + 1 byte. For a runtime that selects files by name, `_add_remainder_file` may add a
    second file after each file. Each file adds a note. Losses are added to `folder` in this order:

    1. `steps`, with each file whose steps differ from those for other sizes (`_add_file`).
    2. `algorithm`: algorithms that cannot be written for the sizes that remain, or whose file
       serves only a part of the sizes. Algorithms with equal remaining sizes and reason share a
       loss. If a later algorithm serves these remaining sizes, the loss states its mean time
       relative to the fastest, if measured.
    3. `algorithm`: sizes that no file serves; they are left to the runtime.

    A `HubError` of writing is not raised; it becomes a loss of the second kind.
    """
    first: int | None = task.window.min_bytes
    refused: dict[tuple[str, str], list[str]] = {}
    takers: dict[str, str] = {}
    for name in iterate_candidates(task.selected, task.window):
        if first is None:
            break
        try:
            program_file = _write_file(folder, task, name, first)
        except HubError as error:
            reason = error.diagnostics[0].message
            refused.setdefault((task.describe_sizes(first), reason), []).append(name)
            continue
        _add_file(folder, task, name, program_file, first)
        if folder.runtime.reads_by_name:
            _add_remainder_file(folder, task.limit_to(program_file.largest), program_file, first)
        takers[task.describe_sizes(first)] = name
        # The next file serves the sizes that this one does not.
        if program_file.largest is None or program_file.largest == task.window.max_bytes:
            first = None
        else:
            first = program_file.largest + 1
        if first is not None:
            refused.setdefault((task.describe_sizes(first), _FULL), []).append(name)
    for (where, reason), names in refused.items():
        taker = takers.get(where)
        slowdown = task.selected.slowdowns(task.window.sizes).get(taker) if taker else None
        cost = f"; {taker} takes {slowdown:.2f} times the time of the fastest" if slowdown else ""
        folder.add_loss("algorithm", where, f"not {', '.join(names)}: {reason}{cost}")
    if first is not None:
        reason = "left to the runtime: no algorithm can be written"
        folder.add_loss("algorithm", task.describe_sizes(first), reason)


def _write_file(folder: _Folder, task: _Task, name: str, first: int) -> _File:
    """Write one algorithm for the sizes of a window from `first` bytes on, and check the file.

    `name`: the algorithm in the selection. Its steps and, without a protocol of the folder, its
    protocol are those for the measured size `size_of_steps`. The file's limit is that of the
    window. Without one, the file has no limit if the runtime has both modes, otherwise 2^62 bytes.
    `folder` is not changed. Returns the content, the number of chunks, and the largest size in
    bytes at which all calls of the file use it (None without a limit below 2^62).

    Raises `HubError` for the first of these:

    1. The algorithm cannot be built or written.
    2. No measured size of the window (also those below `first`) is a multiple of its chunks in
       float32 elements. For split collectives, sizes are first rounded down so that all ranks have
       equal parts.
    3. The runtime does not use the file, or only with warnings (`judge_file`).
    4. No call uses it in the mode of the task or, without one, in a mode of the collective.
    """
    algorithm = task.selected.made(name, task.size_of_steps)
    protocol = task.selected.protocol(name, task.size_of_steps)
    is_open = task.window.max_bytes is None and folder.runtime.has_both_modes
    # Otherwise a missing maxBytes means a default, and 0 means no size.
    last = None if is_open else task.window.max_bytes or _NO_LIMIT
    options = WriteOptions(
        runtime=folder.runtime.name,
        name=name,
        proto=folder.protocol or _PROTOCOLS.get(protocol),
        mode=task.mode,
        min_bytes=first,
        max_bytes=last,
    )
    (artifact,) = write_xml(algorithm, options).artifacts
    content = artifact.content()
    # The runtime uses a file only for element counts divisible by the number of chunks.
    collective = algorithm.collective
    chunks = collective.unit_count
    # Buffers with one part per rank have equal numbers of elements in all parts.
    part = collective.num_ranks * _ELEMENT_BYTES if collective.kind.traits.is_split else 1
    rounded_sizes = [size - size % part for size in task.window.sizes]
    if all(size % (chunks * _ELEMENT_BYTES) for size in rounded_sizes):
        raise UsageError(
            f"it serves only multiples of {chunks} elements, which no measured size of float32 is"
        )
    calls = judge_file(Source.of_bytes(f"{name}.xml", content), folder.runtime)
    served = {_MODES[0] if call.in_place else _MODES[1] for call in calls}
    collective = task.selected.collective
    claims = (collective.in_place, collective.out_of_place)
    claimed_modes = {mode for mode, is_claimed in zip(_MODES, claims, strict=True) if is_claimed}
    missing = sorted(({task.mode} if task.mode else claimed_modes) - served)
    if missing:
        raise UsageError(f"it does not claim to be usable {missing[0].replace('-', ' ')}")
    largest = min(_NO_LIMIT if call.max_bytes is None else call.max_bytes for call in calls)
    return _File(content, None if largest >= _NO_LIMIT else largest, chunks)


def _add_remainder_file(folder: _Folder, task: _Task, main_file: _File, first: int) -> None:
    """Add a second file for the sizes of a window that the chunks of its first file do not divide.

    Nothing is added, and no algorithm is built, if the task has no measured size, or if the chunks
    of `main_file` divide all sizes. This is so if they divide 1, or for split collectives the
    number of ranks.

    An algorithm is eligible if it takes at most `_MAX_SLOWDOWN` (2) times the mean time of the
    fastest at the measured sizes. Its chunks must be fewer than those of `main_file` and divide
    them, so that it also serves every size that the first file serves. It must be writable with the
    same largest size as `main_file`. The one with the fewest chunks is used, of equal ones the
    fastest. The name of its file comes later than that of the first file, so that the runtime uses
    it only for the other sizes. A note names the algorithm with its mean slowdown.

    A last note names the sizes that the runtime itself serves, if some remain. It is also added if
    no algorithm is eligible.
    """
    # Buffers with one part per rank have a multiple of this number of elements.
    parts = task.selected.collective.num_ranks if task.kind.traits.is_split else 1
    if not task.window.sizes or parts % main_file.chunks == 0:
        return
    slowdowns = task.selected.slowdowns(task.window.sizes)
    where = task.describe_sizes(first)
    finest = main_file.chunks
    for chunks, name in sorted(
        _list_chunks(task, slowdowns, main_file.chunks), key=lambda row: row[0]
    ):
        try:
            program_file = _write_file(folder, task, name, first)
        except HubError:
            continue
        if program_file.largest != main_file.largest:
            continue
        file = task.build_file_name(first, main_file.largest).replace(".xml", _REMAINDER_SUFFIX)
        folder.files.append(Artifact(f"{folder.runtime.name}/{file}", program_file.content))
        folder.notes.append(
            f"{file}: {name} serves the sizes that {main_file.chunks} chunks do not divide, in "
            f"multiples of {chunks} elements; it takes {slowdowns[name]:.2f} times the time of the "
            "fastest"
        )
        finest = chunks
        break
    if parts % finest:
        folder.notes.append(
            f"{where}: sizes that are no multiple of {finest} elements are served by the "
            "runtime's own algorithms, or padded by the caller"
        )


def _list_chunks(
    task: _Task, slowdowns: Mapping[str, float], limit: int
) -> Iterator[tuple[int, str]]:
    """Yield (chunks, name) of the algorithms with fewer chunks than `limit`, the fastest first.

    Their chunks divide `limit`. Algorithms that are too slow (`_MAX_SLOWDOWN`) or cannot be built
    again are left out.
    """
    for name, slowdown in slowdowns.items():
        if slowdown > _MAX_SLOWDOWN:
            continue
        try:
            chunks = task.selected.made(name, task.size_of_steps).collective.unit_count
        except HubError:
            continue
        if chunks < limit and limit % chunks == 0:
            yield chunks, name


def _add_file(folder: _Folder, task: _Task, name: str, program_file: _File, first: int) -> None:
    """Append a file and its note to `folder`, and a loss if its steps do not fit other sizes.

    The artifact is `<name of the runtime>/<file name>` (`build_file_name`) with the content of
    `program_file`. The note has the file name, the algorithm `name` and `task.size_of_steps`, i.e.
    the size in bytes for which the steps of the file were synthesized. `first`: smallest size in
    bytes that the file serves.

    The algorithm was measured with separate steps for each size. So its steps are also synthesized
    for the smallest and the largest size of `task.window`. One loss `steps` is added if one of
    these two results differs from the steps for `task.size_of_steps`, or raises `HubError`. A
    `HubError` for `task.size_of_steps` is passed on, after the file and its note were appended.
    """
    file = task.build_file_name(first, program_file.largest)
    folder.files.append(Artifact(f"{folder.runtime.name}/{file}", program_file.content))
    size = format_bytes(task.size_of_steps)
    folder.notes.append(f"{file}: {name} as synthesized for {size}")
    steps = task.selected.made(name, task.size_of_steps).steps
    extreme_sizes = (task.window.sizes[0], task.window.sizes[-1])
    try:
        is_same = not any(
            task.selected.made(name, size_limit).steps.differences(steps)
            for size_limit in extreme_sizes
        )
        consequence = f"{name} has the steps for {size}, but was measured with steps for each size"
    except HubError as error:
        is_same = False
        reason = error.diagnostics[0].message
        consequence = f"{name} has the steps for {size}, but not for each size: {reason}"
    if not is_same:
        folder.add_loss("steps", task.describe_sizes(first), consequence)


_CHECKS = {"msccl": check_msccl, "executor": check_executor, "rccl": check_rccl}
# Size limit of a file without one, for a runtime that requires a limit.
_NO_LIMIT = 1 << 62


def judge_file(source: Source, runtime: RuntimeRules) -> tuple[LoadableCall, ...]:
    """Return the calls for which the runtime uses a file; at least one.

    Raises `InputError` with all findings if the runtime refuses the file, uses it for no call, or
    if there is any finding above the severity NOTE.
    """
    report = _CHECKS[runtime.name](CheckRequest(source.name, source=source), NoOptions())
    # A program that loads but cannot run as intended causes a warning, and does not belong in a
    # folder.
    defects = [
        diagnostic for diagnostic in report.diagnostics if diagnostic.severity is not Severity.NOTE
    ]
    if not report.ok or defects:
        raise InputError(report.diagnostics)
    return report.calls


def read(source: Source) -> Sequence[ServedCalls]:
    """Return the calls that the files of a folder serve: one record per file, in order of parts.

    A part has a name such as `rccl/ring.xml`; its first folder must be a runtime. A file gives no
    record in these cases; the diagnostics are then reported to `source.report` as errors of this
    file, and the next files are read:

    - Its folder is no runtime, or it is in no folder (`unknown-file`).
    - The runtime refuses it, uses it for no call or warns of it.
    - Its steps are incorrect.

    Some runtimes try their files in the order of the names. Their records are joined: a record
    takes in a later file of the same runtime if both serve the same calls, and the number of
    chunks (element multiple) of the later file is smaller and divides that of the record. The
    joined record is at the place of the earlier file, and names both. The result may be empty.
    """
    served_calls: dict[str, ServedCalls] = {}
    for part in source.parts:
        folder, _, file = part.name.partition("/")
        try:
            if folder not in RUNTIMES or not file:
                known = ", ".join(RUNTIMES)
                raise InputError(f"is in no folder of a runtime ({known})", code="unknown-file")
            served_calls[part.name] = _read_served_calls(part, file, RUNTIMES[folder])
        except InputError as error:
            for diagnostic in error.diagnostics:
                location = Location(part.name, diagnostic.location.line)
                severity = Severity.ERROR
                source.report(
                    Diagnostic(
                        diagnostic.code, diagnostic.message, severity, location, diagnostic.cure
                    )
                )
    for name in sorted(served_calls):
        if RUNTIMES[name.partition("/")[0]].reads_by_name:
            _join_remainders(served_calls, name)
    return list(served_calls.values())


def _join_remainders(served_calls: dict[str, ServedCalls], name: str) -> None:
    """Join the record of a file with those of later files of its folder that serve the same calls.

    `served_calls`: records by file, such as `executor/a.xml`; it is changed. Later files are those
    of the same folder whose name sorts after `name`. They are examined in the order of their names,
    in which the runtime tries them. A later file is joined if both hold:

    - It serves the same collective, modes and sizes.
    - Its number of chunks is smaller than that of the record of `name` so far, and divides it.

    The record of a joined file is removed. The record of `name` then has the number of chunks of
    the joined file, and its text `by` names both, separated by `else`. For files with 8, 3 and 4
    chunks, in this order of names, the files with 8 and 4 are joined. Nothing happens if `name` has
    no record.
    """
    calls = served_calls.get(name)
    if calls is None:
        return
    folder = name.partition("/")[0]
    for other in sorted(served_calls):
        if other <= name or other.partition("/")[0] != folder:
            continue
        rest = served_calls[other]
        finest, multiple = rest.element_multiple, calls.element_multiple
        is_for_same_calls = replace(rest, by=calls.by, element_multiple=multiple) == calls
        if is_for_same_calls and finest < multiple and multiple % finest == 0:
            calls = replace(calls, by=f"{calls.by} else {rest.by}", element_multiple=finest)
            del served_calls[other]
    served_calls[name] = calls


def _read_served_calls(part: SourcePart, file: str, runtime: RuntimeRules) -> ServedCalls:
    """Return the calls that one file serves, as one record.

    - kind of the collective; whether any call is in place, and whether any is out of place
    - `min_bytes`, `max_bytes`: limits of the file. `max_bytes` is None without a limit, and for a
      limit of at least 2^62.
    - `element_multiple`: `nchunksperloop`, which must divide the number of elements of a call
    - `by`: `file`, the name of the program (without one `a program`), and its number of ranks

    Raises `InputError` with all diagnostics, in this order: the runtime refuses the file, uses it
    for no call or warns of it (`judge_file`); its steps cannot be read; its verification fails.
    """
    # Imported lazily: a check of the header reads no steps.
    from collhub_msccl.plugin import ReadOptions
    from collhub_msccl.reading.read_xml import read as read_xml

    content = part.load()
    checked_source = Source(part.name, (part,), lambda _: None)
    calls = judge_file(checked_source, runtime)
    # A source can be read only once.
    read_source = Source(part.name, (part,), lambda _: None)
    algorithm = read_xml(read_source, ReadOptions())
    verdict = verify(algorithm)
    if not verdict.ok:
        raise InputError(verdict.diagnostics)
    algo = parse_raw(content.decode("latin-1"), part.name)
    name = algo.attributes.get("name", "a program")
    # All calls of a file have the same size window.
    largest = calls[0].max_bytes
    return ServedCalls(
        algorithm.collective.kind,
        in_place=any(call.in_place for call in calls),
        out_of_place=any(not call.in_place for call in calls),
        min_bytes=calls[0].min_bytes,
        max_bytes=None if largest is None or largest >= _NO_LIMIT else largest,
        by=f"{file}: {name} of {calls[0].num_ranks} ranks",
        element_multiple=read_number(algo.attributes["nchunksperloop"]),
    )
