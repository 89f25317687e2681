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
            folder.losses.append(Loss("collective", str(selected.collective.kind), reason))
            continue
        for mode in _modes(selected, folder.runtime):
            for window in selected.windows(None):
                _add_window(folder, selected, window, mode)
    place = f"set MSCCL_ALGO_DIR to this folder's {folder.runtime.name}/"
    multiples = "sizes that the chunks of a file do not divide are left to the runtime"
    return WriteResult(folder.files, folder.losses, (), [place, multiples, *folder.notes])


def _refusal(selected: SelectedCollective, runtime: Runtime) -> str:
    """Why a collective is left to the runtime; empty where it is not."""
    kind = selected.collective.kind
    if kind.traits.is_rooted:
        # Its header names no root, and the runtimes do not compare that of the call.
        return f"a file would be used for calls of every root; {runtime.title} keeps them"
    if kind not in runtime.spelling:
        return f"{runtime.title} has no such collective"
    return ""


def _modes(selected: SelectedCollective, runtime: Runtime) -> list[str | None]:
    """Modes of files that are needed: None for one file that serves both."""
    collective = selected.collective
    claims = {"in-place": collective.in_place, "out-of-place": collective.out_of_place}
    wanted: list[str | None] = [mode for mode in _MODES if claims[mode]]
    if runtime.has_both_modes:
        return [None] if len(wanted) > 1 else wanted
    # Its all-to-all refuses calls in place.
    is_all_to_all = collective.kind is CollectiveKind.ALL_TO_ALL
    return [mode for mode in wanted if not (is_all_to_all and mode == "in-place")]


def _add_window(
    folder: _Folder, selected: SelectedCollective, window: SelectedWindow, mode: str | None
) -> None:
    """Files for all sizes of a window, by the best algorithms that can be written."""
    kind = str(selected.collective.kind)
    first: int | None = window.min_bytes
    refused: dict[tuple[str, str], list[str]] = {}
    for name in _candidates(selected, window):
        assert first is not None
        try:
            made = _file(folder, selected, window, name, (first, mode))
        except HubError as error:
            reason = error.diagnostics[0].message
            where = f"{kind}, {_sizes(first, window.max_bytes)}"
            refused.setdefault((where, reason), []).append(name)
            continue
        _keep(folder, selected, (first, made.largest, name, mode), made.content)
        folder.notes.append(
            f"{_name(selected, first, made.largest, mode)}: {name} as made for"
            f" {format_bytes(_size_of_steps(window))}"
        )
        is_whole = made.largest is None or made.largest == window.max_bytes
        first = None if is_whole or made.largest is None else made.largest + 1
        if first is None:
            break
        where = f"{kind}, {_sizes(first, window.max_bytes)}"
        refused.setdefault((where, _FULL), []).append(name)
    for (where, reason), names in refused.items():
        folder.losses.append(Loss("algorithm", where, f"not {', '.join(names)}: {reason}"))
    if first is not None:
        where = f"{kind}, {_sizes(first, window.max_bytes)}"
        reason = "left to the runtime: nothing can be written"
        folder.losses.append(Loss("algorithm", where, reason))


def _candidates(selected: SelectedCollective, window: SelectedWindow) -> Iterator[str]:
    """The algorithm of a window, then the others that fit its sizes, the best first."""
    yield window.algorithm
    yield from (name for name in selected.slowdowns(window.sizes) if name != window.algorithm)


def _file(
    folder: _Folder,
    selected: SelectedCollective,
    window: SelectedWindow,
    name: str,
    place: tuple[int, str | None],
) -> _File:
    """A program for a window, from a size on, that the runtime takes. Raises `HubError`."""
    first, mode = place
    algorithm = selected.made(name, _size_of_steps(window))
    is_open = window.max_bytes is None and folder.runtime.has_both_modes
    # Elsewhere a missing upper end is a default, and 0 is no size at all.
    last = None if is_open else window.max_bytes or _NO_LIMIT
    options = WriteOptions(
        runtime=folder.runtime.name,
        name=name,
        proto=folder.protocol,
        mode=mode,
        min_bytes=first,
        max_bytes=last,
    )
    (artifact,) = write_xml(algorithm, options).artifacts
    content = artifact.content()
    _check_multiples(algorithm.collective, window)
    calls = judged(Source.of_bytes(f"{name}.xml", content), folder.runtime)
    _check_modes(calls, selected, mode)
    largest = min(_NO_LIMIT if one.max_bytes is None else one.max_bytes for one in calls)
    return _File(content, None if largest >= _NO_LIMIT else largest)


def _check_modes(
    calls: Sequence[LoadableCall], selected: SelectedCollective, mode: str | None
) -> None:
    """Raise `UsageError` for a file that does not serve all calls that it is for."""
    served = {_MODES[0] if call.in_place else _MODES[1] for call in calls}
    claims = (selected.collective.in_place, selected.collective.out_of_place)
    wanted = {one for one, is_wanted in zip(_MODES, claims, strict=True) if is_wanted}
    missing = sorted(({mode} if mode else wanted) - served)
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


def _size_of_steps(window: SelectedWindow) -> int:
    """The measured size in the middle of a window, for which its steps are made."""
    return window.sizes[len(window.sizes) // 2]


def _keep(
    folder: _Folder,
    selected: SelectedCollective,
    window: tuple[int, int | None, str, str | None],
    content: bytes,
) -> None:
    first, largest, _, mode = window
    name = f"{folder.runtime.name}/{_name(selected, first, largest, mode)}"
    folder.files.append(Artifact(name, content))


def _name(selected: SelectedCollective, first: int, largest: int | None, mode: str | None) -> str:
    """`all-reduce-0-16383.xml`, with the mode where the file serves that one alone."""
    parts = (str(selected.collective.kind), str(first), str(largest or "inf"), mode)
    return "-".join(part for part in parts if part) + ".xml"


def _sizes(first: int, last: int | None) -> str:
    """`from 512 KiB`, `16 KiB to below 512 KiB`."""
    if last is None:
        return f"from {format_bytes(first)}"
    return f"{format_bytes(first)} to below {format_bytes(last + 1)}"
