"""What a file says of itself: collective, modes, sizes, protocol and name, as its runtime spells them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from collhub_msccl.numbers import NumberState, parse_number
from collhub_msccl.runtimes.known_runtimes import (
    DEFAULT_MAX_BYTES,
    FIFO_CAPACITY,
    RUNTIMES,
    Runtime,
)
from collhub_msccl.thread_block_program import ThreadBlockProgram
from hub_core.algorithm import Algorithm
from hub_core.collectives import Collective, CollectiveKind
from hub_core.diagnostics import InputError, Location, UsageError
from hub_core.plugins.contract import Options
from hub_core.verification import FifoSafety

Int64Array = npt.NDArray[np.int64]

_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True)
class Target:
    """What is written for whom.

    `collective`: with the modes that the file claims; `spelling`: its `coll`. `declared_chunks`: `i_chunks` and `o_chunks`
    of every rank. `min_bytes`, `max_bytes`: sizes for which the file may be used (None: no limit). `imported`: attributes
    of the file that the algorithm was read from.
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
        """The attributes of `<algo>`."""
        channels = int(program.channel.max(initial=0)) + 1
        stated = _number(self.imported.get("nchannels", ""))
        if stated is not None and channels < stated <= self.runtime.max_channels:
            channels = stated
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
            written |= {
                "outofplace": int(self.collective.out_of_place),
                "minBytes": self.min_bytes,
                "maxBytes": largest or 0,
            }
        else:
            # Here the upper end is the first size that is not served.
            written |= {
                "minBytes": self.min_bytes,
                "maxBytes": DEFAULT_MAX_BYTES if largest is None else largest + 1,
            }
            threads = _number(self.imported.get("nthreads", ""))
            written |= {"nthreads": threads} if threads else {}
        return {name: str(value) for name, value in written.items()}


def target_of(algorithm: Algorithm, options: Options) -> Target:
    """Decide what the file says. Raises `UsageError` for options and `InputError` for algorithms that do not fit."""
    runtime = RUNTIMES[str(options.get("runtime") or "executor")]
    imported = _imported(algorithm)
    collective = _with_modes(algorithm.collective, runtime, options)
    spelling = _spelling(algorithm, runtime, options, imported)
    protocol = str(options.get("proto") or imported.get("proto") or "Simple")
    smallest, largest = _sizes(options, imported)
    return Target(
        runtime,
        collective,
        spelling,
        _declared_chunks(algorithm, runtime),
        protocol if protocol in FIFO_CAPACITY else "Simple",
        _name(algorithm, spelling, options, imported),
        smallest,
        largest,
        imported,
    )


def largest_size(algorithm: Algorithm, target: Target, safety: FifoSafety) -> int | None:
    """The largest size in bytes for which the file may be used, None for no limit: as stated, and without deadlock."""
    largest = target.max_bytes
    if safety.min_units is not None and safety.min_units > 1:
        slice_bytes = target.runtime.slice_bytes[target.protocol]
        safe = algorithm.collective.unit_count * (slice_bytes // safety.min_units)
        largest = safe if largest is None else min(safe, largest)
    if largest is not None and largest < max(target.min_bytes, 1):
        raise InputError(
            f"cannot be written for {target.runtime.title}: it may only be used up to {largest} bytes, lest the FIFOs of"
            f" connections fill up, and only from {target.min_bytes} bytes on",
            location=Location(algorithm.provenance.source_name or None),
            cure="choose a smaller min_bytes, or another proto",
            code="size-range",
        )
    return largest


def _imported(algorithm: Algorithm) -> Mapping[str, str]:
    extension = algorithm.extensions.get("msccl")
    written = extension.get("algo") if isinstance(extension, dict) else None
    return (
        {name: text for name, text in written.items() if isinstance(text, str)}
        if isinstance(written, dict)
        else {}
    )


def _with_modes(collective: Collective, runtime: Runtime, options: Options) -> Collective:
    """The collective with the modes that the file will claim."""
    claims = {"in-place": collective.in_place, "out-of-place": collective.out_of_place}
    wanted = options.get("mode")
    if wanted is None and not runtime.has_both_modes:
        is_in_place = collective.in_place and not (
            collective.kind is CollectiveKind.ALL_TO_ALL and collective.out_of_place
        )
        wanted = "in-place" if is_in_place else "out-of-place"
    if wanted is None:
        return collective
    if not claims.get(str(wanted), False):
        raise UsageError(
            f"option mode: the algorithm does not claim to be usable {str(wanted).replace('-', ' ')}"
        )
    return replace(collective, in_place=wanted == "in-place", out_of_place=wanted == "out-of-place")


def _spelling(
    algorithm: Algorithm, runtime: Runtime, options: Options, imported: Mapping[str, str]
) -> str:
    kind = algorithm.collective.kind
    stated = options.get("collective")
    if stated is not None:
        if stated not in runtime.collectives:
            known = ", ".join(sorted(runtime.collectives))
            raise UsageError(
                f"option collective: {runtime.title} knows no {stated!r}",
                cure=f"use one of {known}",
            )
        return str(stated)
    if kind is CollectiveKind.CUSTOM and imported.get("coll") in runtime.collectives:
        return imported["coll"]
    # Only custom calls reach a file of a collective that the runtime has no name for.
    found = runtime.spelling.get(kind) or runtime.spelling.get(CollectiveKind.CUSTOM)
    if found is None:
        raise InputError(
            f"cannot be written for {runtime.title}: it has no {kind} collective",
            location=Location(algorithm.provenance.source_name or None),
            cure="name the collective whose calls the file is for, such as -O collective=broadcast",
            code="unknown-collective",
        )
    return found


def _declared_chunks(algorithm: Algorithm, runtime: Runtime) -> tuple[Int64Array, Int64Array]:
    """True sizes, but for custom collectives in microsoft/msccl, which refuses any other size than nchunksperloop."""
    collective = algorithm.collective
    sizes = collective.input_units(), collective.output_units()
    if runtime.has_both_modes or collective.kind in (
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
    ):
        return sizes
    whole = collective.unit_count
    if max(int(size.max()) for size in sizes) > whole:
        raise InputError(
            f"cannot be written for {runtime.title}: a rank has a buffer of more than the {whole} chunks of nchunksperloop",
            location=Location(algorithm.provenance.source_name or None),
            code="runtime-limit",
        )
    return np.where(sizes[0] > 0, whole, 0), np.where(sizes[1] > 0, whole, 0)


def _name(
    algorithm: Algorithm, spelling: str, options: Options, imported: Mapping[str, str]
) -> str:
    source = PurePath(algorithm.provenance.source_name).stem
    chosen = str(
        options.get("name") or imported.get("name") or source or f"{spelling}_{algorithm.num_ranks}"
    )
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", chosen)[:_LONGEST_NAME]
    # This name makes microsoft/msccl run an algorithm of its own instead of the file's.
    return "2D_file" if name == "2D" and spelling == "alltoall" else name


def _sizes(options: Options, imported: Mapping[str, str]) -> tuple[int, int | None]:
    """The smallest and the largest size, both included."""
    smallest, largest = options.get("min_bytes"), options.get("max_bytes")
    if not isinstance(smallest, int):
        smallest = _number(imported.get("minBytes", "")) or 0
    if not isinstance(largest, int):
        stated = _number(imported.get("maxBytes", "")) or 0
        # Files without outofplace are of microsoft/msccl, where the upper end is not included.
        largest = (stated if "outofplace" in imported else stated - 1) if stated > 0 else None
    if largest is not None and largest < smallest:
        raise UsageError(
            f"no size is at least {smallest} and at most {largest} bytes",
            cure="state min_bytes and max_bytes",
        )
    return smallest, largest


def _number(text: str) -> int | None:
    """A number as the runtimes read it, of up to 64 bits, or None."""
    if re.fullmatch(r"[1-9][0-9]{0,17}", text):
        return int(text)
    value, state = parse_number(text)
    return value if state in (NumberState.FINE, NumberState.CUT) and value >= 0 else None
