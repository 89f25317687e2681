"""Run the simulator's binary in a folder, in a separate process group, with a time limit."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from hub_core.model import InputError, PluginError

_CURE = (
    "build the public ASTRA-sim and name its binary: "
    "-O binary=PATH, or the environment variable ASTRA_SIM_BIN"
)


def found_binary(name: str | None) -> str:
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
    with _file_handles(handles), open(output, "wb") as sink:
        process = _started(command, folder, sink)
        try:
            return process.wait(time_limit_s)
        except subprocess.TimeoutExpired:
            raise InputError(
                f"ASTRA-sim did not finish within {time_limit_s:g} s",
                cure="raise it with -O time_limit_s=SECONDS",
                code="time-limit",
            ) from None
        finally:
            _end(process)


def _started(command: Sequence[str], folder: Path, sink: IO[bytes]) -> subprocess.Popen[bytes]:
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


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the remaining processes of the process group, also after Ctrl-C."""
    # The group no longer exists if all its processes have exited.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def _file_handles(needed: int) -> Iterator[None]:
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
