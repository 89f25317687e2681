"""Confine a child process: end all processes that it leaves, and restrict its access to files.

A program may start processes, which may leave its process group and its parent (`setsid`, two
forks). On Linux this process becomes their parent then (PR_SET_CHILD_SUBREAPER of prctl(2)), so
that it can find and stop them. It is stopped itself when its own parent ends (PR_SET_PDEATHSIG). It
also monitors CPU time, memory and number of all these processes together. On other systems,
processes that have left the group are not found.

Access is restricted by Landlock, Linux's access control that needs no privileges. Source: the
kernel's documentation, Documentation/userspace-api/landlock.rst, and its stable user interface in
include/uapi/linux/landlock.h. The packages on PyPI that wrap it are young and change their
interface, so the three system calls are made directly.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

# <linux/prctl.h>
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
MAX_PROCESSES = 64
# Seconds between two measurements of the processes of a program.
_WATCH_S, _WATCH_SEVERAL_S = 0.1, 0.02
_CPU_SLACK_S = 3
# Equal numbers on all architectures, because the calls are newer than the unified tables.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_SET_NO_NEW_PRIVILEGES = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
# Rights that a rule for a single file may contain.
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_READ_RIGHTS = _EXECUTE | _READ_FILE | _READ_DIR
# Number of file rights by version of the interface; later versions have no others.
_FILE_RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}
_FILE_RIGHTS_OF_LATER_VERSIONS = 16
_TCP_RIGHTS = 0b11
_TCP_SINCE, _SCOPES_SINCE = 4, 6
# No abstract Unix sockets and no signals beyond the restricted processes.
_SCOPES = 0b11


class EndReason(IntEnum):
    """Exit status of this process if it stops a program because of a limit of all its processes."""

    TIME = 120
    MEMORY = 121
    PROCESSES = 122


def main(child: str, memory_limit_bytes: str, time_limit_s: str) -> None:
    """Start the program in a forked process, monitor it, and exit with its status.

    `child`: `module:function` that the forked process imports and calls; the function must end
    that process itself. The limits are whole numbers as text, in bytes and in s of CPU time.
    They apply to all processes of the program together, which are at most 64. This process
    exits, never returns, and closes its standard streams. Before it exits, it stops all
    remaining processes of the program. Its end is the first that occurs:

    - the program ends: the same exit status, or the same signal
    - CPU time above `time_limit_s` + 3: status 120
    - memory above `memory_limit_bytes`: status 121
    - more than 64 processes: status 122
    - SIGTERM, also when the parent of this process ends: status 1

    SIGXCPU is passed on to the program, which then reports its position. If this process is
    killed, the kernel kills the program (only on Linux).
    """
    # Read before the program starts, which would run on without limits after an error.
    memory_bytes, time_s = int(memory_limit_bytes), int(time_limit_s)
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
    status = _wait_within_limits(worker, memory_bytes, time_s)
    _stop_descendants()
    _exit_like(status)


def close_streams() -> None:
    """Redirect the standard streams (0, 1 and 2) of this process to the null device.

    The files to which they referred are closed in this process, unless another descriptor
    refers to them. One more descriptor, of the null device, remains open. Raises `OSError` if the
    null device cannot be opened; nothing is closed then.
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
    """Return the CPU time in s, memory in bytes, and number of this process's descendants.

    Memory and number are sums over the living descendants; zombies do not count. Memory is
    resident memory without shared pages. CPU time (user and system) is that of the living
    descendants, and of the ended ones whose end was waited for by this process or by a living
    descendant. This process itself does not count. A process that ends during the measurement
    does not count for memory and number. On systems without `/proc`, only CPU time of ended
    children counts.
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
    """Yield the ids of all living descendant processes, parents before their children.

    They are read from `/proc`, in which siblings have no particular order. Zombies and dead
    processes are omitted, together with their descendants. Yield no id on systems without
    `/proc`, that is, on any system except Linux.
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
    """Return the fields of /proc/PID/stat without the first two: the state is entry 0.

    The omitted fields are the process id and the name (see proc_pid_stat(5)). Raise
    `OSError` if the process does not exist.
    """
    text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    # They follow the name in parentheses, which may contain any character.
    return text.rpartition(")")[2].split()


def _exit_like(status: int) -> None:
    """End this process with the exit status, or by the signal, of the program's process.

    `status`: as returned by `waitpid`. If the signal does not end this process, its exit status is
    the negative number of the signal, modulo 256. The function does not return.
    """
    # A shell distinguishes a signal from an exit status.
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def landlock_version() -> int:
    """Return the version of Landlock of the running kernel, from 1 on; 0 without Landlock.

    The result is also 0 if Landlock is disabled, and on systems other than Linux.
    """
    if sys.platform != "linux":
        return 0
    version = _call(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    return max(0, version)


def landlock_features(version: int) -> dict[str, bool]:
    """Return by name which accesses a version of Landlock can restrict."""
    return {
        "files": version >= 1,
        "TCP connections": version >= _TCP_SINCE,
        "signals to other processes": version >= _SCOPES_SINCE,
    }


def restrict_this_process(readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Restrict this process and its later children to the given files, without TCP and signals.

    Returns True if the restrictions are active. They cannot be undone, and the process can gain
    no new privileges. Returns False, without these restrictions, if the kernel has no Landlock
    or refuses them. If it refuses only to activate them, new privileges remain excluded.

    - `readable`: these files, and all files in these folders, may be read and executed; the
      folders may be listed.
    - `writable`: the same, and existing files may also be written and truncated. No file may be
      created, removed or renamed anywhere.
    - From version 4 of Landlock, TCP ports can neither be bound nor connected. From version 6,
      signals and abstract Unix sockets cannot reach processes outside. Older versions lack
      these restrictions.

    Paths that do not exist or cannot be opened are ignored. Files that are already open remain
    usable.
    """
    version = landlock_version()
    if version == 0:
        return False
    count = _FILE_RIGHTS_BY_VERSION.get(version, _FILE_RIGHTS_OF_LATER_VERSIONS)
    handled = (1 << count) - 1
    attributes = [handled]
    if version >= _TCP_SINCE:
        attributes.append(_TCP_RIGHTS)
    if version >= _SCOPES_SINCE:
        attributes.append(_SCOPES)
    content = struct.pack(f"={len(attributes)}Q", *attributes)
    ruleset = _call(_CREATE_RULESET, content, len(content), 0)
    if ruleset < 0:
        return False
    try:
        for path in readable:
            _allow(ruleset, path, _READ_RIGHTS & handled)
        for path in writable:
            _allow(ruleset, path, (_READ_RIGHTS | _WRITE_FILE | _TRUNCATE) & handled)
        ctypes.CDLL(None).prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return _call(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not os.path.isdir(path):
                rights &= _FILE_RIGHTS
            _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, file), 0)
        finally:
            os.close(file)


def _call(number: int, *arguments: object) -> int:
    """Make the system call `number` and return its result, or -1 for an error.

    Integers are passed as C longs, all other arguments as ctypes converts them. The number
    of an error is available as `ctypes.get_errno()`.
    """
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *words))


def check_sandbox(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Report the accesses that Landlock restricts on this kernel, as one line `sandbox`.

    The check always passes. The line lists the accesses that this version restricts and, if there
    are any, those that only later versions do. Without Landlock, it says that programs run with the
    user's rights.
    """
    # Imported here: the process of a program imports this module and has no use for these names,
    # whose import takes 0.1 s.
    from hub_core.plugin_api import CheckLine, CheckReport

    del request, options
    version = landlock_version()
    if version == 0:
        details = "the kernel has no Landlock: programs run with the rights of the user"
        return CheckReport(ok=True, lines=(CheckLine("sandbox", True, details),))
    features = landlock_features(version)
    restricted = ", ".join(name for name, is_supported in features.items() if is_supported)
    missing = ", ".join(name for name, is_supported in features.items() if not is_supported)
    details = f"Landlock {version} restricts {restricted}"
    if missing:
        details = f"{details}; not {missing}"
    return CheckReport(ok=True, lines=(CheckLine("sandbox", True, details),))
