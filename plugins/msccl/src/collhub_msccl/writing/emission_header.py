"""Attributes of `<algo>` (collective, modes, sizes, protocol, name) in the form of the runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

import numpy as np

from collhub_msccl.findings import NumberState, parse_number
from collhub_msccl.plugin import WriteOptions
from collhub_msccl.runtimes.known_runtimes import (
    DEFAULT_MAX_BYTES,
    FIFO_CAPACITY,
    RUNTIMES,
    RuntimeRules,
)
from collhub_msccl.runtimes.load_check import FifoSafety
from collhub_msccl.thread_block_program import ThreadBlockProgram
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, Collective, CollectiveKind, InputError, Location, UsageError

# microsoft/msccl keeps at most 63 characters.
_MAX_NAME_CHARACTERS = 63
_DIVIDED_KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Header of the file to write, and its runtime.

    `collective`: with the modes that the file claims; `spelling`: its `coll`; `declared_chunks`:
    `i_chunks` and `o_chunks` of every rank; `min_bytes`, `max_bytes`: sizes for which the file may
    be used (None: no limit); `imported`: `<algo>` attributes of the file from which the algorithm
    was read.
    """

    runtime: RuntimeRules
    collective: Collective
    spelling: str
    declared_chunks: tuple[Int64Array, Int64Array]
    protocol: str
    name: str
    min_bytes: int
    max_bytes: int | None
    imported: Mapping[str, str]

    def build_attributes(self, program: ThreadBlockProgram, largest: int | None) -> dict[str, str]:
        """Return the attributes of `<algo>` for a program, as texts in the order of the file.

        First come `name`, `proto`, `nchannels`, `nchunksperloop` (units of the collective), `ngpus`
        (ranks), `coll` and `inplace` (1 or 0). `nchannels` is the highest channel plus 1, or a
        larger imported number that the runtime permits. The others depend on the runtime:

        - It has both modes in one file (`has_both_modes`): `outofplace` (1 or 0), `minBytes`, and
          `maxBytes`, which is `largest`, or 0 for None.
        - Otherwise: `minBytes`, `maxBytes`, and `nthreads` if the imported file has one above 0.
          `maxBytes` is `largest` + 1, because the runtime excludes it, or `DEFAULT_MAX_BYTES` for
          None.

        `minBytes` is `self.min_bytes`. `largest`: largest size in bytes, None for no limit.
        """
        # The runtimes open connections only for channels below nchannels.
        channels = int(program.channel.max(initial=0)) + 1
        imported_channels = _parse_size(self.imported.get("nchannels", ""))
        if imported_channels is not None and imported_channels <= self.runtime.max_channels:
            channels = max(channels, imported_channels)
        written: dict[str, str | int] = {
            "name": self.name,
            "proto": self.protocol,
            "nchannels": channels,
            "nchunksperloop": self.collective.unit_count,
            "ngpus": self.collective.num_ranks,
            "coll": self.spelling,
            "inplace": int(self.collective.in_place),
        }
        if self.runtime.has_both_modes:
            written["outofplace"] = int(self.collective.out_of_place)
            written["minBytes"] = self.min_bytes
            written["maxBytes"] = largest or 0
        else:
            written["minBytes"] = self.min_bytes
            # microsoft/msccl excludes maxBytes itself, and uses a default if it is missing.
            written["maxBytes"] = DEFAULT_MAX_BYTES if largest is None else largest + 1
            threads = _parse_size(self.imported.get("nthreads", ""))
            if threads:
                written["nthreads"] = threads
        return {name: str(value) for name, value in written.items()}


def choose_target(algorithm: Algorithm, options: WriteOptions) -> Target:
    """Choose the values of the header: runtime, modes, collective, sizes, protocol and name.

    The order of choice is option, imported attribute, default. Imported are the attributes of
    `<algo>` in the extension `msccl`, which the reader stored.

    - Runtime: the option. Otherwise `msccl` for a custom collective whose name (option, else
      imported) `executor` does not know or that has no name; else `executor`.
    - Protocol: default Simple. An unknown one also becomes Simple.
    - Sizes in bytes, both inclusive: default 0 and no maximum.
    - Name: default is the source file's name, else `coll_ranks`. It is cut to 63 characters;
      special characters become `_`, and `2D` of an all-to-all becomes `2D_file`.
    - Collective: the imported name is used only for a custom collective and if the runtime knows
      it. Default: the runtime's name of this kind; if it has none, its name of custom collectives.
    - Modes: default are those of the algorithm; if the runtime has one mode per file,
      `_choose_modes` selects it.

    Raises `UsageError` if the runtime or the algorithm does not support a collective or mode, and
    if the maximum is below the minimum. Raises `InputError` if the runtime has neither of both
    names (`unknown-collective`) or a buffer is too large for it (`runtime-limit`).
    """
    # Attributes of `<algo>` stored by the reader of this plugin.
    extension = algorithm.extensions.get("msccl")
    written = extension.get("algo") if isinstance(extension, dict) else None
    if not isinstance(written, dict):
        imported = {}
    else:
        imported = {name: text for name, text in written.items() if isinstance(text, str)}
    if options.runtime is not None:
        runtime = RUNTIMES[options.runtime]
    else:
        # Only microsoft/msccl accepts all custom collectives.
        is_custom = algorithm.collective.kind is CollectiveKind.CUSTOM
        coll = options.collective or imported.get("coll", "")
        executor, msccl = RUNTIMES["executor"], RUNTIMES["msccl"]
        runtime = msccl if is_custom and coll not in executor.collectives else executor
    collective = _choose_modes(algorithm.collective, runtime, options)
    spelling = _choose_spelling(algorithm, runtime, options, imported)
    protocol = options.proto or imported.get("proto", "Simple")
    smallest, largest = _choose_sizes(options, imported)
    source = PurePath(algorithm.provenance.source_name).stem
    default = f"{spelling}_{algorithm.num_ranks}"
    chosen_name = options.name or imported.get("name") or source or default
    # The parsers decode no entities.
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", chosen_name)[:_MAX_NAME_CHARACTERS]
    # For this name microsoft/msccl runs a built-in algorithm instead of the file's.
    if name == "2D" and spelling == "alltoall":
        name = "2D_file"
    return Target(
        runtime,
        collective,
        spelling,
        declared_chunks=_choose_declared_chunks(algorithm, runtime),
        protocol=protocol if protocol in FIFO_CAPACITY else "Simple",
        name=name,
        min_bytes=smallest,
        max_bytes=largest,
        imported=imported,
    )


def compute_largest_size(
    algorithm: Algorithm,
    target: Target,
    safety: FifoSafety,
) -> int | None:
    """Return the maximum size in bytes for which the file may be used; None for no limit.

    It is the smaller one of two limits: `target.max_bytes`, and the limit without deadlock. The
    latter is unit_count * (slice_bytes // `safety.min_units`), with the units of the collective and
    the slice of the target's protocol. There is none if `safety.min_units` is None or at most 1.
    Reason: a transfer moves as many chunks as fit into a slice. In larger calls a step takes more
    transfers, which can fill the FIFOs. Raises `InputError` (`size-range`) if the result is below
    the minimum size of the file (at least 1 byte).
    """
    largest = target.max_bytes
    if safety.min_units is not None and safety.min_units > 1:
        slice_bytes = target.runtime.slice_bytes[target.protocol]
        # Size of the chunk of which `min_units` fit into a slice, times the chunks of the call.
        safe = algorithm.collective.unit_count * (slice_bytes // safety.min_units)
        largest = safe if largest is None else min(safe, largest)
    if largest is not None and largest < max(target.min_bytes, 1):
        raise InputError(
            f"cannot be written for {target.runtime.title}:"
            f" it may only be used up to {largest} bytes, or the FIFOs of connections fill up,"
            f" and only from {target.min_bytes} bytes on",
            location=_get_location(algorithm),
            cure="choose a smaller min_bytes, or another proto",
            code="size-range",
        )
    return largest


def _get_location(algorithm: Algorithm) -> Location:
    """Location of the file from which the algorithm was read, if any."""
    return Location(algorithm.provenance.source_name or None)


def _choose_modes(
    collective: Collective,
    runtime: RuntimeRules,
    options: WriteOptions,
) -> Collective:
    """Return the collective with the modes (`in_place`, `out_of_place`) that the file declares.

    - With the option `mode`: only this mode.
    - Otherwise, for a runtime with both modes: the modes of the collective, unchanged.
    - Otherwise only one mode: out of place for an all-to-all that supports it; for any other case
      in place if the collective supports that, otherwise out of place.

    Raises `UsageError` if the collective does not support the chosen mode.
    """
    mode = options.mode
    if mode is None and not runtime.has_both_modes:
        # One file cannot serve both modes: in place, if the algorithm claims it and the runtime
        # supports it.
        is_all_to_all = collective.kind is CollectiveKind.ALL_TO_ALL
        if is_all_to_all and collective.out_of_place:
            mode = "out-of-place"
        else:
            mode = "in-place" if collective.in_place else "out-of-place"
    if mode is None:
        return collective
    claims = {"in-place": collective.in_place, "out-of-place": collective.out_of_place}
    if not claims[mode]:
        mode_text = mode.replace("-", " ")
        raise UsageError(f"option mode: the algorithm does not claim to be usable {mode_text}")
    return replace(
        collective,
        in_place=mode == "in-place",
        out_of_place=mode == "out-of-place",
    )


def _choose_spelling(
    algorithm: Algorithm,
    runtime: RuntimeRules,
    options: WriteOptions,
    imported: Mapping[str, str],
) -> str:
    """Return the value of the attribute `coll`, the name of the collective in the runtime.

    The first rule that applies:

    1. The option `collective` is given: its value; `UsageError` if the runtime does not know it.
    2. The collective is custom and the runtime knows `imported["coll"]`: this name, with which the
       algorithm was read.
    3. The runtime's name of the kind of collective, if it has one.
    4. The runtime's name of custom collectives, if it has one.

    Otherwise raises `InputError` (`unknown-collective`).
    """
    if options.collective is not None:
        if options.collective in runtime.collectives:
            return options.collective
        known = ", ".join(sorted(runtime.collectives))
        raise UsageError(
            f"option collective: {runtime.title} knows no {options.collective!r}",
            cure=f"use one of {known}",
        )
    kind = algorithm.collective.kind
    if kind is CollectiveKind.CUSTOM and imported.get("coll") in runtime.collectives:
        return imported["coll"]
    # If the runtime has no name for a collective, only custom calls can use the file.
    spelling = runtime.spelling.get(kind) or runtime.spelling.get(CollectiveKind.CUSTOM)
    if spelling is None:
        raise InputError(
            f"cannot be written for {runtime.title}: it has no {kind} collective",
            location=_get_location(algorithm),
            cure=f"-O runtime=msccl writes it for {RUNTIMES['msccl'].title}, which has one",
            code="unknown-collective",
        )
    return spelling


def _choose_declared_chunks(
    algorithm: Algorithm, runtime: RuntimeRules
) -> tuple[Int64Array, Int64Array]:
    """Return the attributes `i_chunks` and `o_chunks` of every rank: two arrays, int64[ranks].

    They are the sizes of INPUT and OUTPUT in units. Exception: for microsoft/msccl (a runtime
    that does not have both modes), unless the kind is all-gather or reduce-scatter, every
    buffer that is not empty gets nchunksperloop (units of the collective), as this runtime
    requires. Raises `InputError` (`runtime-limit`) if such a buffer is larger than that.
    """
    collective = algorithm.collective
    inputs, outputs = collective.input_units(), collective.output_units()
    if runtime.has_both_modes or collective.kind in _DIVIDED_KINDS:
        return inputs, outputs
    chunk_count = collective.unit_count
    if max(int(inputs.max()), int(outputs.max())) > chunk_count:
        raise InputError(
            f"cannot be written for {runtime.title}:"
            f" a rank has a buffer of more than the {chunk_count} chunks of nchunksperloop",
            location=_get_location(algorithm),
            code="runtime-limit",
        )
    return np.where(inputs > 0, chunk_count, 0), np.where(outputs > 0, chunk_count, 0)


def _choose_sizes(options: WriteOptions, imported: Mapping[str, str]) -> tuple[int, int | None]:
    """Return the minimum and maximum size in bytes, both inclusive; a maximum of None is no limit.

    Each comes from the options. Without an option it comes from the imported `minBytes` or
    `maxBytes`; a text that is missing, negative or no number counts as 0 (`_parse_size`). An
    imported `maxBytes` of 0 is no limit. For imported attributes without `outofplace`, `maxBytes`
    itself is excluded, so the maximum is `maxBytes` - 1. Raises `UsageError` if the maximum is
    below the minimum.
    """
    smallest, largest = options.min_bytes, options.max_bytes
    if smallest is None:
        smallest = _parse_size(imported.get("minBytes", "")) or 0
    if largest is None:
        # microsoft/msccl, whose files have no `outofplace`, excludes maxBytes itself.
        max_bytes = _parse_size(imported.get("maxBytes", "")) or 0
        if max_bytes <= 0:
            largest = None
        else:
            largest = max_bytes if "outofplace" in imported else max_bytes - 1
    if largest is not None and largest < smallest:
        raise UsageError(
            f"no size is at least {smallest} and at most {largest} bytes",
            cure="give min_bytes and max_bytes",
        )
    return smallest, largest


def _parse_size(text: str) -> int | None:
    """Parse a size in bytes; return None if it is negative, too large, or not a number.

    A decimal number of up to 18 digits that does not begin with 0 is accepted. Any other
    text is read as the runtimes read numbers (`parse_number`): hexadecimal and octal
    numbers are possible, text after the number is ignored, and numbers from 2^31 on are too
    large.
    """
    if re.fullmatch(r"[1-9][0-9]{0,17}", text):
        return int(text)
    value, state = parse_number(text)
    is_read = state in (NumberState.FINE, NumberState.CUT)
    return value if is_read and value >= 0 else None
