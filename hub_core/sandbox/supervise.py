"""Run a program in a process below this one, and end with it all that it leaves behind.

A program may start processes of its own, and these may leave its process group and its parent
(`setsid`, two forks). On Linux this process then becomes their parent (PR_SET_CHILD_SUBREAPER of
prctl(2)), so that it finds and ends them; and it ends itself with the process that started it
(PR_SET_PDEATHSIG). It also watches the CPU time, the memory and the number of all these processes
together. Elsewhere, processes that have left the group are not found.
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
# Seconds between two looks at the processes of a program.
_WATCH_S, _WATCH_SEVERAL_S = 0.1, 0.02
_CPU_SLACK_S = 3


class EndReason(IntEnum):
    """Exit status of this process if it ends a program for a limit of all its processes."""

    TIME = 120
    MEMORY = 121
    PROCESSES = 122


def main(child: str, memory_limit_bytes: str, time_limit_s: str) -> None:
    """Start the program, watch it, end what is left, and end as it did.

    `child`: `module:function` that runs the job. The limits are of all processes of the program
    together; each of them has limits of its own too.
    """
    _control(_SET_CHILD_SUBREAPER, 1)
    _control(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    # Before the program starts: its end is waited for by this signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        _control(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        module, _, function = child.partition(":")
        # Only here, as this process needs nothing of the language.
        getattr(importlib.import_module(module), function)()
    _close_streams()

    def pass_on(number: int, _frame: FrameType | None) -> None:
        """Send the signal on to the program, unless it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, number)

    def stop(_number: int, frame: FrameType | None) -> None:
        # By name too, as not every system lists children.
        pass_on(signal.SIGKILL, frame)
        _end_descendants()
        os._exit(1)

    # Asked where the program is, which its own process knows; or told to end.
    signal.signal(signal.SIGXCPU, pass_on)
    signal.signal(signal.SIGTERM, stop)
    status = _watch(worker, int(memory_limit_bytes), int(time_limit_s))
    _end_descendants()
    _end_like(status)


def _watch(worker: int, memory_limit_bytes: int, time_limit_s: int) -> int:
    """Wait for the end of the program's process; end this one if all together exceed a limit."""
    while True:
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            return status
        usage = _tree_usage()
        # The process itself tells its line at its own limit, so that one comes first.
        if usage.cpu_s > time_limit_s + _CPU_SLACK_S:
            _end_for(EndReason.TIME)
        if usage.memory_bytes > memory_limit_bytes:
            _end_for(EndReason.MEMORY)
        if usage.processes > MAX_PROCESSES:
            _end_for(EndReason.PROCESSES)
        # Several processes can grow fast; a single one has limits of its own.
        wait_s = _WATCH_S if usage.processes == 1 else _WATCH_SEVERAL_S
        signal.sigtimedwait({signal.SIGCHLD}, wait_s)


def _end_for(reason: EndReason) -> NoReturn:
    _end_descendants()
    os._exit(reason)


@dataclass(frozen=True, slots=True)
class _Usage:
    """CPU seconds, resident bytes that are not shared, and number of all processes below this."""

    cpu_s: float
    memory_bytes: int
    processes: int


def _tree_usage() -> _Usage:
    """Sum over all living processes below this one; the CPU time of ended ones is included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = ended.ru_utime + ended.ru_stime
    memory = processes = 0
    for process in _descendants():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = _stat_fields(process)
            # utime, stime, and those of children that were waited for: proc_pid_stat(5).
            cpu_s += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
            memory += (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")
            processes += 1
    return _Usage(cpu_s, memory, processes)


def _control(option: int, value: int) -> None:
    """Set an attribute of this process, where the system has such."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _close_streams() -> None:
    """Leave the streams to the program: they end when it does."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _end_descendants() -> None:
    """End all processes below this one until none is left.

    All are stopped before the first is killed, so that they cannot start others meanwhile.
    """
    while True:
        stopped: set[int] = set()
        while found := set(_descendants()) - stopped:
            _send(found, signal.SIGSTOP)
            stopped |= found
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


def _descendants() -> Iterator[int]:
    """Numbers of all processes below this one that have not ended."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = _stat_fields(int(entry.name))[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.name))
    below = [os.getpid()]
    # The list grows while it is read.
    for process in below:
        below += children.get(process, [])
    yield from below[1:]


def _stat_fields(process: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on: proc_pid_stat(5)."""
    text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    # Before them is the name, in parentheses, which may contain any character.
    return text.rpartition(")")[2].split()


def _end_like(status: int) -> None:
    """End with the exit status or the signal of the program's process."""
    # A shell tells a signal from an exit status.
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
