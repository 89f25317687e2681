"""Write the folder of a program for NCCL: the schedule as tables, one fixed runtime, builds, a test double, a Python entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files

import numpy as np

from collhub_nccl.programs.schedule_tables import schedule_cpp, schedule_json, tables_of
from hub_core.algorithm import Algorithm
from hub_core.collectives import Buffer
from hub_core.diagnostics import UsageError
from hub_core.execution.levels import levelled_program
from hub_core.losses import Loss
from hub_core.plugins.contract import Artifact, Options, WriteResult
from hub_core.steps import COLUMN_DEFAULTS, StepKind, StepTable

_SCRIPTS = frozenset({"run_nccl4py.py"})
_RUNTIME = (
    "CMakeLists.txt",
    "Makefile",
    "README.md",
    "arguments.hpp",
    "elements.hpp",
    "main.cu",
    "run_nccl4py.py",
    "runtime.cuh",
    "schedule.hpp",
    "together.hpp",
    "values.hpp",
)
_DOUBLE = ("cuda_runtime.h", "nccl.h", "nccl_double.cpp")


def write(algorithm: Algorithm, options: Options) -> WriteResult:
    """Writer of the format `nccl`. Raises `InputError` for what cannot be executed (see `hub_core.execution.levels`)."""
    in_place = _is_in_place(algorithm, options.get("mode"))
    tables = tables_of(algorithm, levelled_program(algorithm, in_place))
    schedule = {
        "schedule.cpp": lambda: schedule_cpp(tables).encode(),
        "schedule.json": lambda: schedule_json(tables).encode(),
    }
    return WriteResult(_artifacts(schedule), tuple(_losses(algorithm, in_place)))


def _is_in_place(algorithm: Algorithm, mode: object) -> bool:
    collective = algorithm.collective
    if mode is None:
        return not collective.out_of_place
    if not (collective.in_place if mode == "in-place" else collective.out_of_place):
        other = "out-of-place" if mode == "in-place" else "in-place"
        raise UsageError(
            f"option mode: the algorithm does not serve calls {mode}",
            cure=f"leave it out, or use {other}",
        )
    return mode == "in-place"


def fixed_files() -> Iterator[Artifact]:
    """The files that are the same for every algorithm."""
    package = files("collhub_nccl")
    for folder, prefix, names in (("runtime", "", _RUNTIME), ("double", "double/", _DOUBLE)):
        for name in names:
            yield Artifact(
                f"{prefix}{name}", (package / folder / name).read_bytes, executable=name in _SCRIPTS
            )


def _artifacts(schedule: dict[str, Callable[[], bytes]]) -> Iterator[Artifact]:
    yield from fixed_files()
    for name, content in schedule.items():
        yield Artifact(name, content)


def _losses(algorithm: Algorithm, in_place: bool) -> Iterator[Loss]:
    """What the program does not show of the algorithm."""
    collective, steps = algorithm.collective, algorithm.steps
    if collective.in_place and collective.out_of_place:
        mode = "in-place" if in_place else "out-of-place"
        yield Loss(
            "in_place" if not in_place else "out_of_place",
            mode,
            "write a second folder with -O mode for the other calls",
        )
    if steps.is_kind(StepKind.COMPUTE).any():
        yield Loss("steps", "COMPUTE", "opaque work between messages is left out")
    if collective.contract is not None and collective.contract.expected is None:
        yield Loss(
            "contract",
            "the custom collective states no result",
            "the program times the schedule and checks nothing",
        )
    for feature, consequence in (
        ("channel", "all messages use one communicator and one stream; NCCL chooses its channels"),
        ("lane", "all records of a rank run on one stream, level by level"),
        ("duration_ns", "the device decides how long a step takes"),
        ("source_line", "records do not name the lines of the source"),
    ):
        if _is_set(steps, feature):
            yield Loss(feature, "steps", consequence)
    yield Loss(
        "data and control dependencies",
        "steps",
        "levels take their place, which order more than they must",
    )
    if algorithm.extensions:
        yield Loss("extensions", ", ".join(sorted(algorithm.extensions)), "not in the tables")


def _is_set(steps: StepTable, column: str) -> bool:
    values = getattr(steps, column)
    return bool(np.any(values != COLUMN_DEFAULTS.get(column, Buffer.INPUT)))
