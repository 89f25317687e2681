"""Inject faults into commands: failing operations on files, failing allocations, and kills.

`Fault` fails in this process. `run_with_faults` runs a command in forked processes, each with a
fault of its own, since a failed allocation may end the interpreter.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# Audit events of operations that make or change files, and the position of the changed path.
EVENTS = {"open": 0, "os.mkdir": 0, "os.rename": 1, "os.chmod": 0, "os.link": 1, "os.symlink": 1}
NO_MEMORY = "error: not enough memory for this input\n"

# A command line; OUT stands for the output, RING for an input.
COMMANDS = {
    "file": "convert RING -o OUT/one.json",
    "file in new folders": "convert RING -o OUT/a/b/one.json",
    "set of ranks": "convert RING -o OUT/set --to chakra",
    "smaller set over another": "convert RING -o OUT/old --to chakra --force",
    "plugin": "plugins new mine --directory OUT/mine",
}
WITH_PLUGINS = {
    "synthesized": "synthesize ring --collective all-gather --topology ring:8 --size 1MiB -o OUT/old --to chakra --force",
    "tuned folder": "tune --collective all-reduce --topology ring:4 --size 1KiB --with ring --no-cache -o OUT/tuned",
}  # fmt: skip


class Fault:
    """Fail the n-th operation on files below a folder; an audit hook cannot be removed, so it is one.

    The fault happens before the operation. `action` raises, or ends the process. Opening a file to
    read it is an operation if `counts_reads`.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self.left = 0
        self.counts_reads = False
        self.action: Callable[[str], None] = fail_with(errno.EIO)
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None or event not in EVENTS:
            return
        path = arguments[EVENTS[event]]
        if not isinstance(path, str | bytes | os.PathLike):
            return
        if not os.fsdecode(path).startswith(self.folder):
            return
        if event == "open" and not (self.counts_reads or arguments[2] & WRITING):
            return
        self.left -= 1
        if self.left == 0:
            self.folder = None
            self.action(os.fsdecode(path))


def fail_with(code: int) -> Callable[[str], None]:
    """The action that fails as the operating system does."""

    def fail(path: str) -> None:
        raise OSError(code, os.strerror(code), path)

    return fail


def lack_memory(path: str) -> None:
    """The action that fails as an allocation does."""
    raise MemoryError


def count_operations(fault: Fault, folder: Path, run: Callable[[], int]) -> int:
    """The number of operations of a run, which must succeed, on files below a folder."""
    fault.folder, fault.left = str(folder), sys.maxsize
    assert run() == 0
    fault.folder = None
    return sys.maxsize - fault.left


def contents(folder: Path) -> dict[str, bytes | None]:
    """All files below a folder with their bytes, and its folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def restore(folder: Path, before: Path) -> None:
    """Give a folder the contents of another one."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(before, folder)


def words(command: str, ring: Path, out: Path) -> list[str]:
    """The arguments of a command line of `COMMANDS`."""
    return command.replace("OUT", str(out)).replace("RING", str(ring)).split()


@dataclass(frozen=True)
class Injection:
    """A fault of a forked process.

    `operation`: the fault waits for this operation on the folder, counted from 1; 0: it starts with
    the command. `allocation`: this allocation of the interpreter fails after that, counted from 1;
    0: the process is killed instead. `free_bytes`: the limit of further address space, in place of
    both. `is_none`: no fault. `continues`: the folder keeps what the run before has left.
    """

    operation: int = 0
    allocation: int = 0
    free_bytes: int | None = None
    is_none: bool = False
    continues: bool = False


@dataclass(frozen=True)
class Outcome:
    """Exit code, streams and the contents of the folder after a run with a fault."""

    injection: Injection
    code: int
    out: str
    error: str
    contents: dict[str, bytes | None]


def run_with_faults(
    command: Sequence[str],
    folder: Path,
    injections: Sequence[Injection],
    *,
    before: Path,
    counts_reads: bool = False,
) -> list[Outcome]:
    """Run a command once for each injection, in processes forked after all modules are imported.

    `folder`: its operations are counted. It gets the contents of `before` in front of each run.
    """
    request = {
        "command": list(command),
        "folder": str(folder),
        "before": str(before),
        "counts_reads": counts_reads,
        "injections": [asdict(injection) for injection in injections],
    }
    start = [sys.executable, "-P", "-B", str(Path(__file__))]
    result = subprocess.run(
        start, input=json.dumps(request), capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    outcomes = []
    for line in result.stdout.splitlines():
        injection, code, out, error, texts = json.loads(line)
        files = {
            name: None if text is None else bytes.fromhex(text) for name, text in texts.items()
        }
        outcomes.append(Outcome(Injection(**injection), code, out, error, files))
    assert len(outcomes) == len(injections)
    return outcomes


def main() -> None:
    """Serve a request of `run_with_faults`: an outcome a line."""
    from hub_core.cli.main import main as run_command

    request = json.load(sys.stdin)
    # The outcomes stay apart from what the command prints.
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder, before, command = Path(request["folder"]), Path(request["before"]), request["command"]
    fault = Fault()
    fault.counts_reads = request["counts_reads"]
    # Imports all modules and compiles what the command needs.
    run_command(command)
    for fields in request["injections"]:
        injection = Injection(**fields)
        if not injection.continues:
            restore(folder, before)
        code, out, error = forked_run(fault, folder, command, injection)
        texts = {
            name: None if data is None else data.hex() for name, data in contents(folder).items()
        }
        print(json.dumps([fields, code, out, error, texts]), file=report, flush=True)


def forked_run(
    fault: Fault, folder: Path, command: list[str], injection: Injection
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command in a forked process."""
    from hub_core.cli.main import main as run_command

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        process = os.fork()
        if process == 0:
            code = 99
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(error.fileno(), 2)
                inject(fault, folder, injection)
                code = run_command(command)
            finally:
                remove_limits()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(process, 0)
        out.seek(0)
        error.seek(0)
        return os.waitstatus_to_exitcode(status), out.read(), error.read()


def inject(fault: Fault, folder: Path, injection: Injection) -> None:
    """Let the fault happen in this process."""
    import _testcapi

    def start(path: str = "") -> None:
        if injection.allocation:
            _testcapi.set_nomemory(injection.allocation, injection.allocation + 1)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    if injection.is_none:
        return
    if injection.free_bytes is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + injection.free_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    elif injection.operation:
        fault.action = start
        fault.folder, fault.left = str(folder), injection.operation
    else:
        start()


def remove_limits() -> None:
    """Let the end of this process have all memory."""
    import _testcapi

    _testcapi.remove_mem_hooks()
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
