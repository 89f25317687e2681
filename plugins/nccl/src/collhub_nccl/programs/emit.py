"""Write the folder of a library for NCCL, and of a program that checks and times it.

It contains the schedule as tables, one fixed runtime with its build files, a test double of NCCL
for the CPU, and a Python entry point. The schedule is data, so that one library is tested for all
algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files

import numpy as np
from collhub_execution import RecordKind, levelled_program

from collhub_nccl.options import NcclProgramOptions
from collhub_nccl.programs.names import (
    LibraryNames,
    choose_names,
    header,
    macros,
    makefile_part,
    manifest,
)
from collhub_nccl.programs.schedule_tables import (
    Tables,
    build_tables,
    format_schedule_cpp,
    format_schedule_json,
)
from hub_core.model import COLUMN_DEFAULTS, Algorithm, Buffer, Loss, StepKind, StepTable, UsageError
from hub_core.plugin_api import Artifact, WriteResult

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
    """Writer of the format `nccl`.

    Raises `InputError` for algorithms that cannot be executed (see `levelled_program`), and
    `UsageError` for a mode that the algorithm does not serve.
    """
    in_place = _is_in_place(algorithm, options.mode)
    names = choose_names(algorithm, options.name)
    program = levelled_program(algorithm, in_place)
    tables = build_tables(algorithm, program, options.lanes)
    losses = tuple(_losses(algorithm))
    return WriteResult(_artifacts(tables, names), losses)


def _is_in_place(algorithm: Algorithm, mode: str | None) -> bool:
    """Whether the program serves in-place calls, by the option `mode`. Raises `UsageError`."""
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
    """Yield the files that are equal for every algorithm."""
    for name in _RUNTIME:
        yield _shipped("runtime", name, name)
    for name in _DOUBLE:
        yield _shipped("double", name, f"double/{name}")


def _shipped(folder: str, name: str, target: str) -> Artifact:
    """A file of this distribution as an artifact."""
    file = files("collhub_nccl") / folder / name
    return Artifact(target, file.read_bytes, executable=name in _SCRIPTS)


def _artifacts(tables: Tables, names: LibraryNames) -> Iterator[Artifact]:
    """Yield all files of the folder; the tables are formatted on demand."""
    yield from fixed_files()
    yield from named_files(tables, names)
    yield _text("schedule.cpp", lambda: format_schedule_cpp(tables))
    yield _text("schedule.json", lambda: format_schedule_json(tables))


def named_files(tables: Tables, names: LibraryNames) -> Iterator[Artifact]:
    """Yield the files that contain the names of the library and its functions."""
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
    """Yield properties of the algorithm that the program does not represent."""
    yield from _losses_of_collective(algorithm)
    for feature, consequence in _LOST_COLUMNS:
        if _is_set(algorithm.steps, feature):
            yield Loss(feature, "steps", consequence)
    yield Loss(
        "data and control dependencies",
        "steps",
        "levels take their place, which order more than they must",
    )
    if algorithm.extensions:
        yield Loss("extensions", ", ".join(sorted(algorithm.extensions)), "not in the tables")


def _losses_of_collective(algorithm: Algorithm) -> Iterator[Loss]:
    """Yield properties of the collective that the program does not represent."""
    collective = algorithm.collective
    if algorithm.steps.is_kind(StepKind.COMPUTE).any():
        yield Loss("steps", "COMPUTE", "opaque work between messages is left out")
    if collective.contract is not None and collective.contract.expected is None:
        yield Loss(
            "contract",
            "the custom collective states no result",
            "the program times the schedule and checks nothing",
        )


def _is_set(steps: StepTable, column: str) -> bool:
    """Whether a column has any value other than its default."""
    values = getattr(steps, column)
    unset = COLUMN_DEFAULTS.get(column, Buffer.INPUT)
    return bool(np.any(values != unset))
