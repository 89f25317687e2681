"""Emitted folders for tests: written, built for the CPU, run."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from collhub_execution import levelled_program
from collhub_nccl.programs.emit import LibraryNames, fixed_files, named_files
from collhub_nccl.programs.schedule_tables import ScheduleTables, build_tables, format_schedule_cpp

from hub_core.model import Algorithm, CollectiveKind
from hub_core.plugin_api import Artifact

SECONDS = 120
# One name for all schedules, so that what is built once fits them all.
NAMES = LibraryNames(CollectiveKind.ALL_REDUCE, "test")


@dataclass(frozen=True)
class Run:
    """A run of the emitted program: exit status, report, standard error.

    The report is None where it printed none.
    """

    status: int
    report: dict[str, object] | None
    errors: str


def missing_tools() -> str | None:
    """Why nothing can be built here."""
    missing = [name for name in ("g++", "make") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found" if missing else None


def tables(algorithm: Algorithm, in_place: bool | None = None, lanes: int = 1) -> ScheduleTables:
    """The tables of an algorithm."""
    mode = not algorithm.collective.out_of_place if in_place is None else in_place
    return build_tables(algorithm, levelled_program(algorithm, mode), lanes)


def write_fixed(folder: Path, stated: ScheduleTables) -> None:
    """Write the files that are the same for all algorithms, and those with names."""
    for artifact in (*fixed_files(), *named_files(stated, NAMES)):
        _write(folder, artifact)


def _write(folder: Path, artifact: Artifact) -> None:
    path = folder / artifact.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(artifact.content())


def make(folder: Path, *arguments: str) -> None:
    """Build what the arguments name, without optimisation."""
    done = _done(folder, ["make", "-s", "CXXFLAGS=-O0", *arguments])
    assert done.returncode == 0, done.stdout + done.stderr


def link(folder: Path, stated: ScheduleTables) -> None:
    """Build the program of another schedule.

    `folder` holds the objects that are the same for all.
    """
    (folder / "schedule.cpp").write_text(format_schedule_cpp(stated), encoding="ascii")
    # The clock of files may be too coarse for make to see the change.
    (folder / "schedule.o").unlink(missing_ok=True)
    make(folder, "double")


def run(folder: Path, *arguments: str, limit_s: float = 20, **variables: str) -> Run:
    """Run the program; a message waits at most `limit_s` seconds for its partner.

    `variables`: of the environment.
    """
    command = ["./collhub_double", "--repeats", "1", "--warmups", "0", *arguments]
    environment = {"COLLHUB_DOUBLE_TIMEOUT_S": str(limit_s), **variables}
    done = _done(folder, command, environment)
    return Run(done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr)


def _done(
    folder: Path, command: list[str], env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command that has run in a folder; without `env`, in the environment of the tests."""
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
    )
