"""Run a program in a child process, and stop all processes that it leaves.

A program may start processes, which may leave its process group and its parent (`setsid`, two
forks). On Linux this process becomes their parent then (PR_SET_CHILD_SUBREAPER of prctl(2)), so
that it can find and stop them. It is stopped itself when its own parent ends (PR_SET_PDEATHSIG). It
also monitors CPU time, memory and number of all these processes together. On other systems,
processes that have left the group are not found.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import NoReturn

# <linux/prctl.h>
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
MAX_PROCESSES = 64
# Seconds between two measurements of the processes of a program.
_WATCH_S, _WATCH_SEVERAL_S = 0.1, 0.02
_CPU_SLACK_S = 3


class EndReason(IntEnum):
    """Exit status of this process if it stops a program because of a limit of all its processes."""

    TIME = 120
    MEMORY = 121
    PROCESSES = 122


def main(child: str, memory_limit_bytes: str, time_limit_s: str) -> None:
    """Start the program, monitor it, stop its remaining processes, and exit with its status.

    `child`: `module:function` that runs the job in a forked process. The limits, in bytes and in s
    of CPU time, apply to all processes of the program together; each process also has limits of its
    own. SIGXCPU is passed on to the program, which then reports its position; SIGTERM stops all its
    processes and exits with status 1. If this process is killed, the kernel kills the program. The
    function does not return.
    """
    _set_process_attribute(_SET_CHILD_SUBREAPER, 1)
    _set_process_attribute(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    # Blocked before the program starts: `sigtimedwait` waits for its end by this signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        _set_process_attribute(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        module, _, function = child.partition(":")
        # Imported only in the child, because this process does not need the language.
        getattr(importlib.import_module(module), function)()
    # The pipes then end with the program.
    close_streams()

    def pass_on(number: int, _frame: FrameType | None) -> None:
        """Forward the signal to the program, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, number)

    def stop(_number: int, frame: FrameType | None) -> None:
        # Stopped directly as well, because not every system lists children.
        pass_on(signal.SIGKILL, frame)
        _stop_descendants()
        os._exit(1)

    # SIGXCPU requests the position of the program, which its process reports; SIGTERM stops it.
    signal.signal(signal.SIGXCPU, pass_on)
    signal.signal(signal.SIGTERM, stop)
    status = _wait_within_limits(worker, int(memory_limit_bytes), int(time_limit_s))
    _stop_descendants()
    _exit_like(status)


def close_streams() -> None:
    """Redirect the standard streams (0, 1 and 2) of this process to the null device.

    What they were is closed in this process; copies of the descriptors remain usable.
    """
    null_device = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null_device, stream)


def _wait_within_limits(worker: int, memory_limit_bytes: int, time_limit_s: int) -> int:
    """Wait for the end of the program and return its status as `waitpid` states it.

    If all its processes together exceed a limit, they are stopped, and this process exits with the
    reason. The limits are `time_limit_s` plus 3 s of CPU time, `memory_limit_bytes`, and
    `MAX_PROCESSES` (64) processes; the first one in this order that is exceeded is the reason. They
    are measured every 0.1 s, or every 0.02 s if there is not exactly one process.
    """
    while True:
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            return status
        usage = _measure_usage()
        # The process reports its line at its own limit, so that limit has priority.
        if usage.cpu_s > time_limit_s + _CPU_SLACK_S:
            _exit_for(EndReason.TIME)
        if usage.memory_bytes > memory_limit_bytes:
            _exit_for(EndReason.MEMORY)
        if usage.processes > MAX_PROCESSES:
            _exit_for(EndReason.PROCESSES)
        # Several processes can use memory fast; a single one has limits of its own.
        wait_s = _WATCH_S if usage.processes == 1 else _WATCH_SEVERAL_S
        signal.sigtimedwait({signal.SIGCHLD}, wait_s)


def _exit_for(reason: EndReason) -> NoReturn:
    _stop_descendants()
    os._exit(reason)


@dataclass(frozen=True, slots=True)
class _Usage:
    """CPU seconds, unshared resident bytes, and number of all descendants of this process."""

    cpu_s: float
    memory_bytes: int
    processes: int


def _measure_usage() -> _Usage:
    """Return CPU time in s, memory in bytes and number of all living descendants.

    CPU time of ended processes is included, shared memory is not. Processes that end meanwhile are
    skipped.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = ended.ru_utime + ended.ru_stime
    memory = processes = 0
    for process in _find_descendants():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = _read_stat(process)
            # utime, stime, and those of children that were waited for: proc_pid_stat(5).
            cpu_s += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
            memory += (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")
            processes += 1
    return _Usage(cpu_s, memory, processes)


def _set_process_attribute(option: int, value: int) -> None:
    """Set an attribute of this process by prctl; no effect on other systems than Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _stop_descendants() -> None:
    """Stop all descendants of this process and wait for their ends.

    All are suspended before the first one is killed, so that they cannot start new processes in
    between. Repeated until none is left; children that have ended already are reaped too.
    """
    while True:
        stopped: set[int] = set()
        while running := set(_find_descendants()) - stopped:
            _send(running, signal.SIGSTOP)
            stopped |= running
        _send(stopped, signal.SIGKILL)
        try:
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            if not stopped:
                return


def _send(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def _find_descendants() -> Iterator[int]:
    """Yield the process ids of all living descendants of this process, parents before children.

    They are read from `/proc`; zombies and dead processes are omitted, together with their
    descendants. Nothing on systems without `/proc`, that is elsewhere than on Linux.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = _read_stat(int(entry.name))[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.name))
    below = [os.getpid()]
    # The list grows during the loop.
    for process in below:
        below += children.get(process, [])
    yield from below[1:]


def _read_stat(process: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third one, the state, on: see proc_pid_stat(5).

    Raises `OSError` if the process does not exist.
    """
    text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    # They follow the name in parentheses, which may contain any character.
    return text.rpartition(")")[2].split()


def _exit_like(status: int) -> None:
    """End this process with the exit status, or by the signal, of the program's process.

    `status`: as `waitpid` states it. If the signal does not end this process, its exit status is
    the negative number of the signal modulo 256. The function does not return.
    """
    # A shell distinguishes a signal from an exit status.
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
