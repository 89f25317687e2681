"""Names of the emitted library and its functions, and the files that contain them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePath

from hub_core.model import Algorithm, CollectiveKind, UsageError

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
    CollectiveKind.CUSTOM: "the number of elements of a block of the schedule",
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
        """Names of the exported functions by role: run, release, error, level."""
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
    """Names from the option `name`, else from the source or the producer of the algorithm.

    Raises `UsageError` for a name that is not a lower-case C identifier of at most 48 characters.
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
    """A valid name from the source file or the producer, which may be any text; else `schedule`."""
    origin = algorithm.provenance
    for text in (PurePath(origin.source_name).stem, origin.producer):
        word = re.sub(r"[^a-z0-9]+", "_", text.lower()).lstrip("_0123456789")
        word = word[:_MAX_NAME_CHARACTERS].rstrip("_")
        if _WORD.fullmatch(word) and text != "unknown":
            return word
    return "schedule"


def header(names: LibraryNames, ranks: int, root: int | None) -> str:
    """Text of the library's C header."""
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
    """Text of `collhub.json`, for programs that load the library, such as `collhub_torch.load`."""
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
