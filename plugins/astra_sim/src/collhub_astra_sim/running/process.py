"""Run the simulator's binary in a folder with a time limit, and parse its output."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hub_core.model import InputError, PluginError

_CURE = (
    "build the public ASTRA-sim and name its binary: "
    "-O binary=PATH, or the environment variable ASTRA_SIM_BIN"
)


def find_binary(name: str | None) -> str:
    """Return the absolute path of the binary that the user named.

    Raises `PluginError` if there is no executable.
    """
    if not name:
        message = "the simulator astra-sim runs a binary, and none is named"
        raise PluginError(message, cure=_CURE, code="no-binary")
    # A name without a folder is searched on the path, as in a shell.
    path = os.path.abspath(name) if os.sep in name else name
    executable = shutil.which(path)
    if executable is None:
        message = f"the ASTRA-sim binary {name!r} is not a program that can be run"
        raise PluginError(message, cure=_CURE, code="no-binary")
    return os.path.abspath(executable)


def run(
    command: Sequence[str], folder: Path, output: Path, *, time_limit_s: float, handles: int
) -> int:
    """Run the binary to completion and return the exit status, negative for a signal.

    Standard output and standard error are written to the file `output`. Raises `InputError` if the
    time limit passes (the process and its children are killed), `PluginError` if the binary cannot
    be started.
    """
    with _raise_file_limit(handles), open(output, "wb") as sink:
        process = _start_process(command, folder, sink)
        try:
            return process.wait(time_limit_s)
        except subprocess.TimeoutExpired:
            raise InputError(
                f"ASTRA-sim did not finish within {time_limit_s:g} s",
                cure="raise it with -O time_limit_s=SECONDS",
                code="time-limit",
            ) from None
        finally:
            _stop_process(process)


def _start_process(
    command: Sequence[str], folder: Path, sink: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start the binary. Raises `PluginError` if the system cannot start it."""
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            # A new session, so that its children can be killed, too.
            start_new_session=True,
        )
    except OSError as error:
        message = f"{command[0]} cannot be run: {error.strerror}"
        raise PluginError(message, cure=_CURE, code="no-binary") from None


def _stop_process(process: subprocess.Popen[bytes]) -> None:
    """Kill the remaining processes of the process group, also after Ctrl-C."""
    # The group no longer exists if all its processes have exited.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def _raise_file_limit(needed: int) -> Iterator[None]:
    """Raise the soft limit of open files, which the child inherits, while it starts and runs.

    Raises `InputError` if the hard limit is below `needed`.
    """
    # Imported here: Unix only, like the simulator.
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        yield
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InputError(
            f"ASTRA-sim would open {needed} files at once, the system allows {hard}",
            cure="raise the limit (ulimit -H -n), or simulate with the simulator analytical",
            code="file-handles",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


_FINISHED = re.compile(r"sys\[(\d{1,9})\] finished, (\d{1,19}) cycles")
_UNRELEASED = re.compile(r"!!!Hardware Resource sys\.id=(\d{1,9}) has unreleased nodes!!!")
_LOST_EVENT = "a callable is removed before call"
_KEPT_LINES = 5
_LONGEST_LINE = 300


@dataclass(frozen=True, slots=True)
class AstraPrinted:
    """Contents of the output of a run.

    `finish_ns`: cycles by NPU, for those that finished. `unreleased`: NPUs reported with unreleased
    nodes. `lost_event`: the simulator dropped an event after an exception. `tail`: the last lines
    that are not blank.
    """

    finish_ns: Mapping[int, int]
    unreleased: frozenset[int]
    lost_event: bool
    tail: tuple[str, ...]


def parse_output(lines: Iterable[str]) -> AstraPrinted:
    """Parse the lines of standard output and standard error.

    The tail has the last five lines that are not blank, each cut after 300 characters.
    """
    finish_ns: dict[int, int] = {}
    unreleased = set()
    lost_event = False
    tail: deque[str] = deque(maxlen=_KEPT_LINES)
    for line in lines:
        # Searched instead of matched, because a logger prefixes its lines.
        finished = _FINISHED.search(line)
        stuck = _UNRELEASED.search(line)
        if finished:
            finish_ns[int(finished[1])] = int(finished[2])
        elif stuck:
            unreleased.add(int(stuck[1]))
        lost_event = lost_event or _LOST_EVENT in line
        text = line.strip()
        if text:
            tail.append(text[:_LONGEST_LINE])
    return AstraPrinted(finish_ns, frozenset(unreleased), lost_event, tuple(tail))
