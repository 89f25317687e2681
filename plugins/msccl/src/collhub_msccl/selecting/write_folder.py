"""Write a selection as the folder of programs that a runtime loads: one file a window of sizes.

The runtimes parse every file of the folder and take the first that fits, in the order in which the
system lists them, which is none: windows do not overlap. They count the bytes of the full buffer,
as the hub does. `MSCCL_ALGO_DIR`, and `src/misc/msccl/msccl_lifecycle.cc` of ROCm/rccl.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from collhub_msccl.options import SelectionOptions, WriteOptions
from collhub_msccl.runtimes.known_runtimes import RUNTIMES, Runtime
from collhub_msccl.runtimes.versions import notes_on_versions
from collhub_msccl.selecting.load_calls import judged
from collhub_msccl.writing.write_xml import write as write_xml
from hub_core.model import Collective, CollectiveKind, HubError, Loss, UsageError, format_bytes
from hub_core.plugin_api import (
    Artifact,
    LoadableCall,
    SelectedCollective,
    SelectedWindow,
    Selection,
    Source,
    WriteResult,
)

_NO_LIMIT = 1 << 62
# Of float32, the type of most gradients.
_ELEMENT_BYTES = 4
_FULL = "the FIFOs of its connections can fill up at such sizes"
_MODES = ("in-place", "out-of-place")


@dataclass(slots=True)
class _Folder:
    """What has been written so far."""

    runtime: Runtime
    protocol: str | None
    files: list[Artifact] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lose(self, feature: str, where: str, consequence: str) -> None:
        """Note what the files cannot carry."""
        self.losses.append(Loss(feature, where, consequence))


@dataclass(frozen=True, slots=True)
class _Task:
    """A window of a collective; `mode`: the one that its files serve, None for both."""

    selected: SelectedCollective
    window: SelectedWindow
    mode: str | None

    @property
    def kind(self) -> CollectiveKind:
        """The collective."""
        return self.selected.collective.kind

    @property
    def size_of_steps(self) -> int:
        """The measured size in the middle of the window, for which its steps are made."""
        return self.window.sizes[len(self.window.sizes) // 2]

    def candidates(self) -> Iterator[str]:
        """The algorithm of the window, then the others that fit its sizes, the best first."""
        yield self.window.algorithm
        others = self.selected.slowdowns(self.window.sizes)
        yield from (name for name in others if name != self.window.algorithm)

    def where(self, first: int) -> str:
        """`all-reduce, 16 KiB to below 512 KiB`: the window, from a size on."""
        last = self.window.max_bytes
        if last is None:
            return f"{self.kind}, from {format_bytes(first)}"
        return f"{self.kind}, {format_bytes(first)} to below {format_bytes(last + 1)}"

    def file_name(self, first: int, largest: int | None) -> str:
        """`all-reduce-0-16383.xml`, with the mode where the file serves that one alone."""
        parts = (str(self.kind), str(first), str(largest or "inf"), self.mode)
        return "-".join(part for part in parts if part) + ".xml"


@dataclass(frozen=True, slots=True)
class _File:
    """One program, and the largest size for which its runtime takes it; None for no limit."""

    content: bytes
    largest: int | None


def write(selection: Selection, options: SelectionOptions) -> WriteResult:
    """The folder, below the name of its runtime; each file is one that the runtime takes.

    Where the best algorithm cannot be written for a window, or not for its larger sizes, the next
    best takes them; what none can take is left to the runtime. Both are losses.
    """
    folder = _Folder(RUNTIMES[options.runtime], options.proto)
    for selected in selection.collectives:
        reason = _refusal(selected, folder.runtime)
        if reason:
            folder.lose("collective", str(selected.collective.kind), reason)
            continue
        for mode in _modes(selected, folder):
            for window in selected.windows(None):
                _add_window(folder, _Task(selected, window, mode))
    place = f"set MSCCL_ALGO_DIR to this folder's {folder.runtime.name}/"
    multiples = "sizes that the chunks of a file do not divide are left to the runtime"
    notes = [
        place,
        *notes_on_versions(folder.runtime.name, "the files are"),
        multiples,
        *folder.notes,
    ]
    return WriteResult(folder.files, folder.losses, (), notes)


def _refusal(selected: SelectedCollective, runtime: Runtime) -> str:
    """Why a collective is left to the runtime; empty where it is not."""
    kind = selected.collective.kind
    if kind.traits.is_rooted:
        # Its header names no root, and the runtimes do not compare that of the call.
        return f"a file would be used for calls of every root; {runtime.title} keeps them"
    if kind not in runtime.spelling:
        return f"{runtime.title} has no such collective"
    return ""


def _modes(selected: SelectedCollective, folder: _Folder) -> list[str | None]:
    """Modes of files that are needed: None for one file that serves both."""
    collective = selected.collective
    claims = {"in-place": collective.in_place, "out-of-place": collective.out_of_place}
    wanted: list[str | None] = [mode for mode in _MODES if claims[mode]]
    if folder.runtime.has_both_modes:
        return [None] if len(wanted) > 1 else wanted
    if collective.kind is CollectiveKind.ALL_TO_ALL and "in-place" in wanted:
        wanted.remove("in-place")
        reason = f"{folder.runtime.title} refuses calls in place"
        folder.lose("in_place", str(collective.kind), reason)
    return wanted


def _add_window(folder: _Folder, task: _Task) -> None:
    """Files for all sizes of a window, by the best algorithms that can be written."""
    first: int | None = task.window.min_bytes
    refused: dict[tuple[str, str], list[str]] = {}
    takers: dict[str, str] = {}
    for name in task.candidates():
        if first is None:
            break
        try:
            made = _file(folder, task, name, first)
        except HubError as error:
            reason = error.diagnostics[0].message
            refused.setdefault((task.where(first), reason), []).append(name)
            continue
        _keep(folder, task, name, made, first)
        takers[task.where(first)] = name
        first = _behind(made, task.window)
        if first is not None:
            refused.setdefault((task.where(first), _FULL), []).append(name)
    for (where, reason), names in refused.items():
        cost = _cost(task, takers.get(where))
        folder.lose("algorithm", where, f"not {', '.join(names)}: {reason}{cost}")
    if first is not None:
        reason = "left to the runtime: nothing can be written"
        folder.lose("algorithm", task.where(first), reason)


def _cost(task: _Task, taker: str | None) -> str:
    """What it costs that an algorithm takes a window that is not the fastest one's."""
    slowdown = task.selected.slowdowns(task.window.sizes).get(taker) if taker else None
    return f"; {taker} takes {slowdown:.2f} times the time of the fastest" if slowdown else ""


def _behind(made: _File, window: SelectedWindow) -> int | None:
    """The first size of a window that a file leaves to others, None where it leaves none."""
    if made.largest is None or made.largest == window.max_bytes:
        return None
    return made.largest + 1


def _file(folder: _Folder, task: _Task, name: str, first: int) -> _File:
    """A program for a window, from a size on, that the runtime takes. Raises `HubError`."""
    algorithm = task.selected.made(name, task.size_of_steps)
    is_open = task.window.max_bytes is None and folder.runtime.has_both_modes
    # Elsewhere a missing upper end is a default, and 0 is no size at all.
    last = None if is_open else task.window.max_bytes or _NO_LIMIT
    options = WriteOptions(
        runtime=folder.runtime.name,
        name=name,
        proto=folder.protocol,
        mode=task.mode,
        min_bytes=first,
        max_bytes=last,
    )
    (artifact,) = write_xml(algorithm, options).artifacts
    content = artifact.content()
    _check_multiples(algorithm.collective, task.window)
    calls = judged(Source.of_bytes(f"{name}.xml", content), folder.runtime)
    _check_modes(calls, task)
    largest = min(_NO_LIMIT if one.max_bytes is None else one.max_bytes for one in calls)
    return _File(content, None if largest >= _NO_LIMIT else largest)


def _check_modes(calls: Sequence[LoadableCall], task: _Task) -> None:
    """Raise `UsageError` for a file that does not serve all calls that it is for."""
    served = {_MODES[0] if call.in_place else _MODES[1] for call in calls}
    collective = task.selected.collective
    claims = (collective.in_place, collective.out_of_place)
    wanted = {one for one, is_wanted in zip(_MODES, claims, strict=True) if is_wanted}
    missing = sorted(({task.mode} if task.mode else wanted) - served)
    if missing:
        raise UsageError(f"it does not claim to be usable {missing[0].replace('-', ' ')}")


def _check_multiples(collective: Collective, window: SelectedWindow) -> None:
    """Raise `UsageError` for a file that the runtime uses for no measured size of its window."""
    chunks = collective.unit_count
    # Buffers of parts for all ranks have as many elements in each.
    part = collective.num_ranks * _ELEMENT_BYTES if collective.kind.traits.is_split else 1
    whole = [size - size % part for size in window.sizes]
    if all(size % (chunks * _ELEMENT_BYTES) for size in whole):
        reason = "elements would be served, and no measured size of float32 has so many"
        raise UsageError(f"only multiples of {chunks} {reason}")


def _keep(folder: _Folder, task: _Task, name: str, made: _File, first: int) -> None:
    """Add a file, and say where its steps are not those of all sizes."""
    file = task.file_name(first, made.largest)
    folder.files.append(Artifact(f"{folder.runtime.name}/{file}", made.content))
    size = format_bytes(task.size_of_steps)
    folder.notes.append(f"{file}: {name} as made for {size}")
    steps = task.selected.made(name, task.size_of_steps).steps
    ends = (task.window.sizes[0], task.window.sizes[-1])
    if any(task.selected.made(name, end).steps.differences(steps) for end in ends):
        what = f"{name} has the steps for {size}, and was measured with those for each size"
        folder.lose("steps", task.where(first), what)
