"""Attributes of `<algo>`: collective, modes, sizes, protocol and name, as the runtime has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

import numpy as np
from collhub_columns import Int64Array

from collhub_msccl.numbers import NumberState, parse_number
from collhub_msccl.options import WriteOptions
from collhub_msccl.runtimes.fifo_safety import FifoSafety
from collhub_msccl.runtimes.known_runtimes import (
    DEFAULT_MAX_BYTES,
    FIFO_CAPACITY,
    RUNTIMES,
    Runtime,
)
from collhub_msccl.thread_block_program import ThreadBlockProgram
from hub_core.model import Algorithm, Collective, CollectiveKind, InputError, Location, UsageError

# microsoft/msccl keeps so many characters.
_LONGEST_NAME = 63
_DIVIDED_KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Header of the file to write, and its runtime.

    `collective`: with the modes that the file claims; `spelling`: its `coll`. `declared_chunks`:
    `i_chunks` and `o_chunks` of every rank. `min_bytes`, `max_bytes`: sizes for which the file may
    be used (None: no limit). `imported`: attributes of the file that the algorithm was read from.
    """

    runtime: Runtime
    collective: Collective
    spelling: str
    declared_chunks: tuple[Int64Array, Int64Array]
    protocol: str
    name: str
    min_bytes: int
    max_bytes: int | None
    imported: Mapping[str, str]

    def attributes(self, program: ThreadBlockProgram, largest: int | None) -> dict[str, str]:
        """The attributes of `<algo>`; `largest`: bytes of the largest call, None for no limit."""
        written: dict[str, str | int] = {
            "name": self.name,
            "proto": self.protocol,
            "nchannels": self._channel_count(program),
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
            # Here the upper end is the first size that is not served, and none means the default.
            written["maxBytes"] = DEFAULT_MAX_BYTES if largest is None else largest + 1
            threads = _number(self.imported.get("nthreads", ""))
            if threads:
                written["nthreads"] = threads
        return {name: str(value) for name, value in written.items()}

    def _channel_count(self, program: ThreadBlockProgram) -> int:
        """Channels that the program uses, or as many more as the imported file stated."""
        # Connections are opened for channels below nchannels only.
        used = int(program.channel.max(initial=0)) + 1
        stated = _number(self.imported.get("nchannels", ""))
        if stated is not None and used < stated <= self.runtime.max_channels:
            return stated
        return used


def target_of(algorithm: Algorithm, options: WriteOptions) -> Target:
    """Decide what the file says.

    Raises `UsageError` for options and `InputError` for algorithms that do not fit.
    """
    imported = _imported(algorithm)
    runtime = _runtime(algorithm, options, imported)
    collective = _with_modes(algorithm.collective, runtime, options)
    spelling = _spelling(algorithm, runtime, options, imported)
    protocol = options.proto or imported.get("proto", "Simple")
    smallest, largest = _sizes(options, imported)
    return Target(
        runtime,
        collective,
        spelling,
        declared_chunks=_declared_chunks(algorithm, runtime),
        protocol=protocol if protocol in FIFO_CAPACITY else "Simple",
        name=_name(algorithm, spelling, options, imported),
        min_bytes=smallest,
        max_bytes=largest,
        imported=imported,
    )


def _runtime(
    algorithm: Algorithm,
    options: WriteOptions,
    imported: Mapping[str, str],
) -> Runtime:
    """The runtime that is asked for, else the usual one, or where that cannot the one that can."""
    if options.runtime is not None:
        return RUNTIMES[options.runtime]
    is_custom = algorithm.collective.kind is CollectiveKind.CUSTOM
    name = options.collective or imported.get("coll", "")
    usual, other = RUNTIMES["executor"], RUNTIMES["msccl"]
    return other if is_custom and name not in usual.collectives else usual


def largest_size(
    algorithm: Algorithm,
    target: Target,
    safety: FifoSafety,
) -> int | None:
    """The largest size in bytes for which the file may be used, None for no limit.

    As stated, and without deadlock: a transfer moves as many chunks as fit a slice, so the larger
    the call, the more transfers a step becomes, until they fill the FIFOs.
    """
    largest = target.max_bytes
    if safety.min_units is not None and safety.min_units > 1:
        slice_bytes = target.runtime.slice_bytes[target.protocol]
        # The largest chunk of which so many fit a slice, times the chunks of the call.
        safe = algorithm.collective.unit_count * (slice_bytes // safety.min_units)
        largest = safe if largest is None else min(safe, largest)
    if largest is not None and largest < max(target.min_bytes, 1):
        raise InputError(
            f"cannot be written for {target.runtime.title}:"
            f" it may only be used up to {largest} bytes, lest the FIFOs of connections fill up,"
            f" and only from {target.min_bytes} bytes on",
            location=_place(algorithm),
            cure="choose a smaller min_bytes, or another proto",
            code="size-range",
        )
    return largest


def _place(algorithm: Algorithm) -> Location:
    """The file that the algorithm was read from, if any."""
    return Location(algorithm.provenance.source_name or None)


def _imported(algorithm: Algorithm) -> Mapping[str, str]:
    """Attributes of `<algo>` that the reader of this plugin kept; extensions can be anything."""
    extension = algorithm.extensions.get("msccl")
    written = extension.get("algo") if isinstance(extension, dict) else None
    if not isinstance(written, dict):
        return {}
    return {name: text for name, text in written.items() if isinstance(text, str)}


def _with_modes(
    collective: Collective,
    runtime: Runtime,
    options: WriteOptions,
) -> Collective:
    """The collective with the modes that the file will claim."""
    wanted = options.mode
    if wanted is None and not runtime.has_both_modes:
        # Nothing was asked for, and both modes have no place in one file.
        wanted = _only_mode(collective)
    if wanted is None:
        return collective
    claims = {"in-place": collective.in_place, "out-of-place": collective.out_of_place}
    if not claims[wanted]:
        mode = wanted.replace("-", " ")
        raise UsageError(f"option mode: the algorithm does not claim to be usable {mode}")
    return replace(
        collective,
        in_place=wanted == "in-place",
        out_of_place=wanted == "out-of-place",
    )


def _only_mode(collective: Collective) -> str:
    """The mode for a runtime that takes one a file: in place, if the algorithm claims it."""
    is_all_to_all = collective.kind is CollectiveKind.ALL_TO_ALL
    # `ncclAllToAll` of microsoft/msccl refuses calls in place.
    if is_all_to_all and collective.out_of_place:
        return "out-of-place"
    return "in-place" if collective.in_place else "out-of-place"


def _spelling(
    algorithm: Algorithm,
    runtime: Runtime,
    options: WriteOptions,
    imported: Mapping[str, str],
) -> str:
    """`coll`: as the user states it, as imported for custom collectives, or by the kind."""
    if options.collective is not None:
        return _stated_spelling(options.collective, runtime)
    kind = algorithm.collective.kind
    if kind is CollectiveKind.CUSTOM and imported.get("coll") in runtime.collectives:
        return imported["coll"]
    # Only custom calls reach a file of a collective that the runtime has no name for.
    found = runtime.spelling.get(kind) or runtime.spelling.get(CollectiveKind.CUSTOM)
    if found is None:
        raise InputError(
            f"cannot be written for {runtime.title}: it has no {kind} collective",
            location=_place(algorithm),
            cure=f"-O runtime=msccl writes it for {RUNTIMES['msccl'].title}, which has",
            code="unknown-collective",
        )
    return found


def _stated_spelling(stated: str, runtime: Runtime) -> str:
    """A spelling that the runtime knows. Raises `UsageError` for others."""
    if stated in runtime.collectives:
        return stated
    known = ", ".join(sorted(runtime.collectives))
    raise UsageError(
        f"option collective: {runtime.title} knows no {stated!r}",
        cure=f"use one of {known}",
    )


def _declared_chunks(algorithm: Algorithm, runtime: Runtime) -> tuple[Int64Array, Int64Array]:
    """`i_chunks` and `o_chunks` of every rank: the true sizes.

    But for custom and rooted collectives in microsoft/msccl, which refuses any other size than
    nchunksperloop.
    """
    collective = algorithm.collective
    inputs, outputs = collective.input_units(), collective.output_units()
    if runtime.has_both_modes or collective.kind in _DIVIDED_KINDS:
        return inputs, outputs
    whole = collective.unit_count
    if max(int(inputs.max()), int(outputs.max())) > whole:
        raise InputError(
            f"cannot be written for {runtime.title}:"
            f" a rank has a buffer of more than the {whole} chunks of nchunksperloop",
            location=_place(algorithm),
            code="runtime-limit",
        )
    return np.where(inputs > 0, whole, 0), np.where(outputs > 0, whole, 0)


def _name(
    algorithm: Algorithm,
    spelling: str,
    options: WriteOptions,
    imported: Mapping[str, str],
) -> str:
    """A name that needs no escaping, which the parsers would not undo."""
    source = PurePath(algorithm.provenance.source_name).stem
    default = f"{spelling}_{algorithm.num_ranks}"
    chosen = options.name or imported.get("name") or source or default
    # The parsers decode no entities, so nothing may need them.
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", chosen)[:_LONGEST_NAME]
    # This name makes microsoft/msccl run an algorithm of its own instead of the file's.
    if name == "2D" and spelling == "alltoall":
        return "2D_file"
    return name


def _sizes(options: WriteOptions, imported: Mapping[str, str]) -> tuple[int, int | None]:
    """The smallest and the largest size in bytes, both included; None for no limit."""
    smallest, largest = options.min_bytes, options.max_bytes
    if smallest is None:
        smallest = _number(imported.get("minBytes", "")) or 0
    if largest is None:
        largest = _imported_largest(imported)
    if largest is not None and largest < smallest:
        raise UsageError(
            f"no size is at least {smallest} and at most {largest} bytes",
            cure="state min_bytes and max_bytes",
        )
    return smallest, largest


def _imported_largest(imported: Mapping[str, str]) -> int | None:
    """The largest size that the imported file served; 0 there is no limit."""
    stated = _number(imported.get("maxBytes", "")) or 0
    if stated <= 0:
        return None
    # Files without outofplace are of microsoft/msccl, where the upper end is not included.
    return stated if "outofplace" in imported else stated - 1


def _number(text: str) -> int | None:
    """A number as the runtimes read it, of up to 64 bits, or None."""
    if re.fullmatch(r"[1-9][0-9]{0,17}", text):
        return int(text)
    value, state = parse_number(text)
    is_read = state in (NumberState.FINE, NumberState.CUT)
    return value if is_read and value >= 0 else None
