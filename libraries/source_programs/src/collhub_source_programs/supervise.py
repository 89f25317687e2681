"""Run a program in a process below this one, and end with it all that it leaves behind.

A program may start processes of its own, and these may leave its process group and its parent
(`setsid`, two forks). On Linux this process then becomes their parent (PR_SET_CHILD_SUBREAPER of
prctl(2)), so that it finds and ends them; and it ends itself with the process that started it
(PR_SET_PDEATHSIG). Elsewhere, what has left its group is not found.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

# <linux/prctl.h>
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36


def main(child: str) -> None:
    """Start the program, wait for it, end what is left, and end as it did.

    `child`: `module:function` that runs the job.
    """
    _control(_SET_CHILD_SUBREAPER, 1)
    _control(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    worker = os.fork()
    if worker == 0:
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
    _, status = os.waitpid(worker, 0)
    _end_descendants()
    _end_like(status)


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
    """End all children until none is left: those of an ended one become children of this one."""
    while True:
        for child in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> Iterator[int]:
    """Numbers of the processes whose parent this one is."""
    own = os.getpid()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # Behind the name, which is in parentheses and may hold any: state, then parent.
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == own:
                yield int(entry.parent.name)


def _end_like(status: int) -> None:
    """End with the exit status or the signal of the program's process."""
    # A shell tells a signal from an exit status.
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
