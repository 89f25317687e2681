"""Write the folder of a library for NCCL and of a program that checks and times it.

The folder contains the schedule as tables, one fixed runtime with its build files, a test double of
NCCL for the CPU, and a Python entry point. The schedule is data, so that one library is tested for
all algorithms. The module also names files and functions, and checks the compilers of this host.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath

import numpy as np
from collhub_execution import RecordKind, levelled_program

from collhub_nccl.options import NcclProgramOptions
from collhub_nccl.programs.schedule_tables import (
    ScheduleTables,
    build_tables,
    format_schedule_cpp,
    format_schedule_json,
)
from hub_core.model import (
    COLUMN_DEFAULTS,
    UNEVEN_KINDS,
    Algorithm,
    Buffer,
    CollectiveKind,
    Loss,
    StepKind,
    UsageError,
)
from hub_core.network import Topology
from hub_core.plugin_api import (
    Artifact,
    CheckLine,
    CheckReport,
    CheckRequest,
    NoOptions,
    RuntimeFit,
    WriteResult,
)

# Listed explicitly, so that no other file of the folders is ever emitted.
_SCRIPTS = frozenset({"run_nccl4py.py"})
_RUNTIME = (
    "CMakeLists.txt",
    "Makefile",
    "README.md",
    "arguments.hpp",
    "binding.hpp",
    "call.hpp",
    "calls.hpp",
    "elements.hpp",
    "jobs.hpp",
    "kernels.cuh",
    "lanes.hpp",
    "library.cu",
    "main.cu",
    "memory.hpp",
    "places.hpp",
    "plan.hpp",
    "run_nccl4py.py",
    "schedule.hpp",
    "together.hpp",
    "values.hpp",
    "workspace.hpp",
)
_DOUBLE = (
    "cuda_double.cpp",
    "cuda_runtime.h",
    "exchange.hpp",
    "nccl.h",
    "nccl_double.cpp",
    "world.hpp",
)
# Columns that the tables do not contain, and the consequence.
_LOST_COLUMNS = (
    ("channel", "channels that share no memory are lanes; NCCL chooses its own channels"),
    ("lane", "what runs on one stream follows from the channels"),
    ("duration_ns", "the device decides how long a step takes"),
    ("source_line", "records do not name the lines of the source"),
)


def write(algorithm: Algorithm, options: NcclProgramOptions) -> WriteResult:
    """Convert an algorithm to a folder of format `nccl`: a C++ and a Python program with tables.

    The program is for calls out of place, or in place if the algorithm supports only these; the
    option `mode` selects one. The result has the losses (properties of the algorithm that the
    program does not have), and the files, which are not written here: `fixed_files`, `named_files`,
    `schedule.cpp` and `schedule.json`.

    Raises `InputError` if the algorithm cannot be executed (see `levelled_program`) or is too large
    for the tables. Raises `UsageError` for a mode that the algorithm does not support, and for a
    `name` that cannot be part of a function's name.
    """
    in_place = _is_in_place(algorithm, options.mode)
    names = choose_names(algorithm, options.name)
    program = levelled_program(algorithm, in_place)
    tables = build_tables(algorithm, program, options.lanes)
    # The texts are built only when they are written.
    artifacts = (
        *fixed_files(),
        *named_files(tables, names),
        _text("schedule.cpp", lambda: format_schedule_cpp(tables)),
        _text("schedule.json", lambda: format_schedule_json(tables)),
    )
    return WriteResult(artifacts, tuple(_losses(algorithm)))


def fit(algorithm: Algorithm, collective_bytes: int, topology: Topology) -> RuntimeFit:
    """Return the resources that the program of `write` would need on GPUs, with default options.

    A lane is a set of channels whose records run one after another; different lanes run at the same
    time.

    - `blocks` (thread blocks): lanes x the most peers of a rank. NCCL runs a group of sends and
      receives on one thread block per concurrent lane and peer.
    - `operations`, `block_operations`: the most records (messages and local work) of a rank.
    - `channels`: the number of lanes.
    - `units`: the number of equal blocks into which the program divides the data.

    The size and the topology have no influence. Raises the errors of `write`.
    """
    options = NcclProgramOptions()
    program = levelled_program(algorithm, _is_in_place(algorithm, options.mode))
    tables = build_tables(algorithm, program, options.lanes)
    operations = int(np.diff(program.rank_indptr).max(initial=0))
    peers_of_rank: list[set[int]] = [set() for _ in range(algorithm.num_ranks)]
    steps = algorithm.steps
    for rank, peer in zip(steps.rank.tolist(), steps.peer.tolist(), strict=True):
        if peer >= 0:
            peers_of_rank[rank].add(peer)
    peers = max(map(len, peers_of_rank))
    return RuntimeFit(
        blocks=tables.num_lanes * peers,
        operations=operations,
        block_operations=operations,
        channels=tables.num_lanes,
        units=program.unit_count,
    )


def _is_in_place(algorithm: Algorithm, mode: str | None) -> bool:
    """Return whether the program is for calls in place, as the option `mode` or the algorithm says.

    Without the option, the program is for calls in place only if the algorithm does not support
    calls out of place. Raises `UsageError` if the algorithm does not support the mode of the
    option.
    """
    collective = algorithm.collective
    if mode is None:
        return not collective.out_of_place
    in_place = mode == "in-place"
    is_served = collective.in_place if in_place else collective.out_of_place
    if not is_served:
        served_mode = "out-of-place" if in_place else "in-place"
        raise UsageError(
            f"option mode: the algorithm does not serve calls {mode}",
            cure=f"leave it out, or use {served_mode}",
        )
    return in_place


def fixed_files() -> Iterator[Artifact]:
    """Yield the files that are the same for every algorithm.

    They are the files of the runtime, followed by those of the CPU double in the folder `double/`.
    """
    for name in _RUNTIME:
        yield _shipped("runtime", name, name)
    for name in _DOUBLE:
        yield _shipped("double", name, f"double/{name}")


def _shipped(folder: str, name: str, target: str) -> Artifact:
    """Return a file of this package as an artifact with path `target` in the output.

    `folder` and `name` are its place in the package. It is executable if `name` is in `_SCRIPTS`.
    The file is read when the artifact is written.
    """
    file = files("collhub_nccl") / folder / name
    return Artifact(target, file.read_bytes, executable=name in _SCRIPTS)


def named_files(tables: ScheduleTables, names: LibraryNames) -> Iterator[Artifact]:
    """Yield the files whose texts contain the names of the library.

    They are the header `LIBRARY.h`, the macros `names.hpp`, the makefile part `names.mk` and the
    manifest `collhub.json`, in this order. Their texts are built only when they are written, again
    each time.
    """
    collective, ranks = tables.collective, tables.program.num_ranks
    root = collective.root
    reduces = bool((tables.records[:, 0] == RecordKind.REDUCE).any())
    yield _text(f"{names.library}.h", lambda: header(names, ranks, root))
    yield _text("names.hpp", lambda: macros(names))
    yield _text("names.mk", lambda: makefile_part(names))
    yield _text("collhub.json", lambda: manifest(names, ranks, root, reduces))


def _text(name: str, content: Callable[[], str]) -> Artifact:
    return Artifact(name, lambda: content().encode())


def _losses(algorithm: Algorithm) -> Iterator[Loss]:
    """Yield the properties of an algorithm that the program does not have, as losses.

    The order is:

    - `steps`, once, if there are steps of kind COMPUTE: they are left out
    - `contract`, if a custom collective has no expected result: the program measures the time of
      the schedule but cannot check its output
    - the columns of steps `channel`, `lane`, `duration_ns` and `source_line`, each if some value
      differs from the default of the column
    - `data and control dependencies`: always, because levels replace them
    - `extensions`, if the algorithm has any, with their names in ascending order
    """
    collective = algorithm.collective
    if algorithm.steps.is_kind(StepKind.COMPUTE).any():
        yield Loss("steps", "COMPUTE", "opaque work between messages is left out")
    if collective.contract is not None and collective.contract.expected is None:
        yield Loss(
            "contract",
            "the custom collective states no result",
            "the program times the schedule and checks nothing",
        )
    for feature, consequence in _LOST_COLUMNS:
        values = getattr(algorithm.steps, feature)
        unset = COLUMN_DEFAULTS.get(feature, Buffer.INPUT)
        if np.any(values != unset):
            yield Loss(feature, "steps", consequence)
    yield Loss(
        "data and control dependencies",
        "steps",
        "levels take their place, which order more than they must",
    )
    if algorithm.extensions:
        yield Loss("extensions", ", ".join(sorted(algorithm.extensions)), "not in the tables")


# Long enough for readable names, short enough for every linker.
_MAX_NAME_CHARACTERS = 48
_WORD = re.compile(r"[a-z][a-z0-9_]*")

_HEADER = """\
/* {collective} of {ranks} ranks by the schedule of this folder; made by Collective Hub.

   Link lib{library}.so, or load it: see README.md. */
#ifndef {guard}
#define {guard}

#include <cuda_runtime.h>
#include <nccl.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {{
#endif

/* Enqueues the collective on `stream`, as ncclAllReduce and the like do. `count` is
   {count}.
   `op` is read only where the schedule reduces{root}. Returns an error of NCCL, and then
   {error} says why. */
ncclResult_t {run}(const void* send, void* recv, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream);

/* Gives back what the calls of a communicator have made: before ncclCommDestroy, on every rank. */
ncclResult_t {release}(ncclComm_t communicator);

/* Why the last call of this thread failed; empty after success. */
const char* {error}(void);

/* The level of the schedule that the last call has posted, -1 before: where a rank hangs. */
int {level}(ncclComm_t communicator);

#ifdef __cplusplus
}}
#endif
#endif
"""

_MACROS = """\
// The names of this schedule's functions, for library.cu and main.cu.
#pragma once

#include "{library}.h"

#define COLLHUB_EXPORT __attribute__((visibility("default")))
#define COLLHUB_RUN {run}
#define COLLHUB_RELEASE {release}
#define COLLHUB_ERROR {error}
#define COLLHUB_LEVEL {level}
"""

_COUNTS = {
    CollectiveKind.ALL_REDUCE: "the number of elements of the vector",
    CollectiveKind.BROADCAST: "the number of elements of the vector",
    CollectiveKind.REDUCE: "the number of elements of the vector",
    CollectiveKind.ALL_GATHER: "the number of elements that a rank sends",
    CollectiveKind.REDUCE_SCATTER: "the number of elements that a rank receives",
    CollectiveKind.ALL_TO_ALL: "the number of elements that a rank sends to one other",
    CollectiveKind.GATHER: "the number of elements that a rank sends",
    CollectiveKind.SCATTER: "the number of elements that a rank receives",
    **dict.fromkeys(
        (*UNEVEN_KINDS, CollectiveKind.CUSTOM),
        "the number of elements of a block of the schedule",
    ),
}


@dataclass(frozen=True, slots=True)
class LibraryNames:
    """Names of one library.

    `name` distinguishes it from libraries of other algorithms in a process.
    """

    kind: CollectiveKind
    name: str

    @property
    def functions(self) -> dict[str, str]:
        """Return the names of the exported C functions by role: run, release, error and level.

        `run` is `collhub_<kind>_<name>`, where `_` replaces `-` in the kind. The others are
        `collhub_<role>_<name>`.
        """
        kind = self.kind.replace("-", "_")
        names = {"run": f"collhub_{kind}_{self.name}"}
        for role in ("release", "error", "level"):
            names[role] = f"collhub_{role}_{self.name}"
        return names

    @property
    def library(self) -> str:
        """Stem of the library and its header."""
        return f"collhub_{self.name}"


def choose_names(algorithm: Algorithm, name: str | None) -> LibraryNames:
    """Return the names of a library, for the kind of the collective and a word.

    The word is the option `name`, or, if it is None, derived from the algorithm
    (`_derive_name`). Raises `UsageError` (`library-name`) unless the option is a letter a-z
    followed by letters a-z, digits and `_`, with at most `_MAX_NAME_CHARACTERS` (48) characters
    in total.
    """
    kind = algorithm.collective.kind
    if name is None:
        return LibraryNames(kind, _derive_name(algorithm))
    if not _WORD.fullmatch(name) or len(name) > _MAX_NAME_CHARACTERS:
        raise UsageError(
            f"option name: {name[:_MAX_NAME_CHARACTERS]!r} cannot be part of a function's name",
            cure=f"use up to {_MAX_NAME_CHARACTERS} small letters, digits and _, a letter first",
            code="library-name",
        )
    return LibraryNames(kind, name)


def _derive_name(algorithm: Algorithm) -> str:
    """Return a name derived from the algorithm's source file or producer, else `schedule`.

    The candidates are the file name of the source without folders and its last suffix, then the
    producer. A candidate is made lower case, `_` replaces each run of characters other than a-z
    and 0-9, leading digits and `_` are removed, the rest is cut to `_MAX_NAME_CHARACTERS` (48),
    and `_` at the end is removed. The first candidate is used that is not empty then and was
    not "unknown" before. `2-Ring v1.xml` gives `ring_v1`.
    """
    origin = algorithm.provenance
    for text in (PurePath(origin.source_name).stem, origin.producer):
        word = re.sub(r"[^a-z0-9]+", "_", text.lower()).lstrip("_0123456789")
        word = word[:_MAX_NAME_CHARACTERS].rstrip("_")
        if _WORD.fullmatch(word) and text != "unknown":
            return word
    return "schedule"


def header(names: LibraryNames, ranks: int, root: int | None) -> str:
    """Return the text of the library's C header; it states the root if the collective has one."""
    return _HEADER.format(
        collective=names.kind,
        ranks=ranks,
        library=names.library,
        guard=names.library.upper() + "_H",
        count=_COUNTS[names.kind],
        root="" if root is None else f"; the root is rank {root}",
        **names.functions,
    )


def macros(names: LibraryNames) -> str:
    """Text of `names.hpp`, which gives the names to the fixed sources."""
    return _MACROS.format(library=names.library, **names.functions)


def makefile_part(names: LibraryNames) -> str:
    """Text of `names.mk`, for make and CMake."""
    return f"LIBRARY = {names.library}\n"


def manifest(names: LibraryNames, ranks: int, root: int | None, reduces: bool) -> str:
    """Return the text of `collhub.json`, for programs that load the library.

    It is a JSON object with an indent of 2, which ends with a line feed. Its keys, in this order:

    - `format`: `collhub-nccl-library`; `version`: 1
    - `name`, `collective` (kind), `num_ranks`, `root` (null for None)
    - `reduces`: whether the program reduces data
    - `library`: `cuda` is `libLIBRARY.so`, `cpu` is `libLIBRARY_double.so`
    - `functions`: the names of the functions, as in `names.functions`
    """
    document = {
        "format": "collhub-nccl-library",
        "version": 1,
        "name": names.name,
        "collective": str(names.kind),
        "num_ranks": ranks,
        "root": root,
        "reduces": reduces,
        "library": {"cuda": f"lib{names.library}.so", "cpu": f"lib{names.library}_double.so"},
        "functions": names.functions,
    }
    return json.dumps(document, indent=2) + "\n"


# Compiler, what works with it, advice if it is missing.
_TOOLS = (
    (
        "g++",
        "programs of the format nccl run here, on the test double of NCCL",
        "install g++ and make to run them without GPU",
    ),
    (
        "nvcc",
        "programs of the format nccl compile for GPUs",
        "install the CUDA toolkit to compile them; `make double` needs none",
    ),
)


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Report for each compiler in `_TOOLS` whether it is on the `PATH`; the check always succeeds.

    There is one line per compiler, in this order. It has the path of the compiler in the `PATH`
    of the request's environment (or of this process if that has none) and its use. If it is
    missing, the line has advice instead, and still counts as successful: programs are written
    without compilers, and the executor numpy runs algorithms.
    """
    del options
    path = request.environment.get("PATH")
    lines = []
    for tool, works, cure in _TOOLS:
        executable = shutil.which(tool, path=path)
        details = f"{executable}: {works}" if executable else f"not found; {cure}"
        lines.append(CheckLine(tool, True, details))
    return CheckReport(True, lines=tuple(lines))
