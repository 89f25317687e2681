"""Shared by tests of executors: deliberately wrong programs, runs of samples, and processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import chdir, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import numpy.typing as npt

from collhub_execution.input_data import element_type, exact_inputs
from collhub_execution.levelling import (
    LevelledRequest,
    levelled_program,
    levelled_request,
)
from collhub_execution.output_judgement import OutputJudgement, judge
from collhub_execution.program_levels import LevelledProgram, RecordKind, block_counts
from hub_core.columns import BoolArray, group_pointer
from hub_core.model import Algorithm, InputError, ReduceOp
from hub_core.plugin_api import ExecutionRequest, ExecutionResult
from hub_core.testing import ring_all_reduce

# Launchers also have the command of the ranks among their arguments.
_LAUNCHERS = (b"mpiexec", b"mpirun", b"prterun")

# Values in /proc/net/tcp and tcp6: the state, and 127.0.0.1 and ::1 in little-endian byte order.
_LISTENING = "0A"
_LOOPBACK = ("0100007F:", "00000000000000000000000001000000:")

_NOT_BY_RECORD = frozenset({"rank_indptr", "layout"})


def select_records(program: LevelledProgram, is_kept: BoolArray) -> LevelledProgram:
    """Return a copy of the program with only the records for which `is_kept` is True.

    They keep their order, levels and message numbers; `rank_indptr` is recomputed. The memory
    layout is unchanged and shared.
    """
    # All arrays are columns except `rank_indptr`, which is recomputed, and `layout`, which is
    # unchanged.
    columns: dict[str, Any] = {}
    for field in fields(program):
        value = getattr(program, field.name)
        if isinstance(value, np.ndarray) and field.name not in _NOT_BY_RECORD:
            columns[field.name] = value[is_kept]
    pointer = group_pointer(program.rank[is_kept], program.num_ranks)
    return replace(program, **columns, rank_indptr=pointer)


def remove_send(program: LevelledProgram, message: int = 0) -> LevelledProgram:
    """Return a copy of the program without the SEND of one message; its receiver deadlocks.

    `message`: number of the message; if there is no such message, all records remain.
    """
    is_sending = (program.kind == RecordKind.SEND) & (program.message == message)
    return select_records(program, ~is_sending)


def in_threads(work: Callable[[int], Any], count: int, timeout_s: float = 60.0) -> list[Any]:
    """Run work(0) to work(count - 1) in one thread each; return the results in this order.

    All threads start at once. They are waited for one after another, each for at most `timeout_s`
    seconds from the end of the wait before. If one has not ended then, `AssertionError` is raised
    at once, even if another thread had an error; threads that still run are not stopped. If all
    end, the error that occurred first in any of them is raised. The result is [] for `count` 0.
    """
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def on_thread(number: int) -> None:
        try:
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=on_thread, args=(number,), daemon=True) for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]
    return results


def request_for(
    algorithm: Algorithm,
    dtype: npt.DTypeLike = np.int64,
    op: ReduceOp = ReduceOp.SUM,
    *,
    elements: int = 3,
    in_place: bool | None = None,
    **more: Any,
) -> ExecutionRequest:
    """Build a request with `exact_inputs`, by default out of place if the algorithm supports it.

    `elements`: per block. `more`: fields of the request, such as `repeats`.
    """
    if in_place is None:
        in_place = not algorithm.collective.out_of_place
    inputs = exact_inputs(block_counts(algorithm), elements, np.dtype(dtype), op)
    return ExecutionRequest(algorithm, inputs, in_place, op, **more)


def levelled_for(
    algorithm: Algorithm, program: LevelledProgram | None = None, **more: Any
) -> LevelledRequest:
    """Build a request for an executor of levels, as tests need it.

    `program` replaces the levelled program of the algorithm; `more` are arguments of `request_for`.
    """
    levelled = levelled_request(request_for(algorithm, **more))
    return levelled if program is None else replace(levelled, program=program)


def judged(
    request: ExecutionRequest, result: ExecutionResult, *, is_exact: bool = True
) -> OutputJudgement:
    """Compare a result's outputs with those that the collective defines for the request's inputs.

    With `is_exact` values must be bitwise equal, else within the error of rounding.
    """
    collective = request.algorithm.collective
    return judge(collective, request.inputs, result.outputs, request.reduce_op, is_exact)


def list_claimed_modes(algorithm: Algorithm) -> list[bool]:
    """Return the modes that the algorithm supports, as values of `in_place`.

    False (out of place) comes first, then True.
    """
    collective = algorithm.collective
    claims = {False: collective.out_of_place, True: collective.in_place}
    return [in_place for in_place, is_claimed in claims.items() if is_claimed]


def write_traps(folder: Path, *modules: str) -> Path:
    """Write modules into `folder` that create the file `executed` there when they are imported.

    Each of `modules` becomes `MODULE.py`. Return the path of `executed`, which is neither
    created nor removed here. Existing modules are overwritten. `folder` must exist; errors of
    the file system are raised as `OSError`.
    """
    mark = folder / "executed"
    for module in modules:
        (folder / f"{module}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    return mark


def find_processes(module: str) -> list[int]:
    """Return the process IDs of `python -m MODULE`, ascending; requires /proc.

    A process counts if one word of its command line is exactly `module`. It does not count if the
    first word contains the name of a launcher: `mpiexec`, `mpirun` or `prterun`. The calling
    process may count too. Processes that exit in the meantime, or that cannot be read, are ignored.
    """
    process_ids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            # The process has exited in the meantime.
            continue
        is_launcher = any(name in words[0] for name in _LAUNCHERS)
        if module.encode() in words and not is_launcher:
            process_ids.append(int(process.name))
    return sorted(process_ids)


def find_foreign_listeners(processes: Iterable[int]) -> set[str]:
    """Return the TCP addresses other than loopback on which processes listen; requires /proc.

    `processes`: process IDs. An address is `ADDRESS:PORT` in hexadecimal, as in /proc/net: port 80
    of 0.0.0.0 is `00000000:0050`. IPv4 and IPv6 are included. Loopback is only 127.0.0.1 and ::1;
    127.0.0.2 counts as foreign. Processes and descriptors that disappear or cannot be read are
    ignored. Raises `OSError` if a table of /proc/net is missing.
    """
    sockets = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            with suppress(OSError):
                sockets.add(os.readlink(descriptor))
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            address, state, inode = columns[1], columns[3], columns[9]
            is_listening = state == _LISTENING and f"socket:[{inode}]" in sockets
            if is_listening and not address.startswith(_LOOPBACK):
                addresses.add(address)
    return addresses


def _require_proc() -> None:
    """Skip the test if the system has no /proc to find the processes of ranks."""
    if not Path("/proc/self/cmdline").exists():
        raise SkipTest("finding the ranks needs /proc")


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Poll a condition every 50 ms until it is true or `limit_s` seconds have passed.

    Returns its value at the end.
    """
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@dataclass(frozen=True, slots=True)
class LaunchedExecutor:
    """An executor that uses a launcher to start one process per rank, with checks of its behaviour.

    `execute`, `run`: with its options bound. `module`: the module that a rank's process runs.
    `helpers`: number of processes of that module that are no rank.
    """

    execute: Callable[[ExecutionRequest], ExecutionResult]
    run: Callable[[LevelledRequest], ExecutionResult]
    module: str
    helpers: int = 0

    def check_result(
        self,
        algorithm: Algorithm,
        dtype_name: str = "int64",
        op: ReduceOp = ReduceOp.SUM,
        *,
        native_runs: int,
    ) -> None:
        """Run an algorithm with two repeats and assert that the result is correct and timed.

        Blocks have 500 elements of `dtype_name`. `native_runs`: expected number of times of the
        library's own collective, 0 if it has none. Raises `UsageError` for an unknown dtype, and
        `PluginError` for bfloat16 without the package ml_dtypes. Errors of the executor pass.
        """
        dtype = element_type(dtype_name)
        request = request_for(algorithm, dtype, op, elements=500, repeats=2)
        result = self.execute(request)
        assert len(result.repeat_times_s) == 2
        assert len(result.native_times_s) == native_runs
        assert judged(request, result).is_right

    def check_working_folder(self, folder: Path, *modules: str, native_runs: int) -> None:
        """Assert that ranks import no module of the user's working folder.

        Modules with the names `modules`, numpy and pickle are written to `folder`, and a ring
        all-reduce is run there.
        """
        mark = write_traps(folder, *modules, "numpy", "pickle")
        with chdir(folder):
            self.check_result(ring_all_reduce(4), native_runs=native_runs)
        assert not mark.exists()

    def check_deadlock(self, *, timeout_s: float, limit_s: float) -> None:
        """Assert that a run in which one send is missing fails as a deadlock, and in time.

        The executor runs an in-place ring all-reduce of 4 ranks with the time limit `timeout_s`.
        The following must hold, otherwise `AssertionError` is raised:

        - The run raises `InputError`. Other errors are passed on.
        - It takes less than `limit_s` seconds.
        - The first finding has the code `deadlock`; the second one has the text `waits for rank`.
        """
        program = remove_send(levelled_program(ring_all_reduce(4), in_place=True))
        start = time.monotonic()
        error = self._run_to_failure(program, timeout_s=timeout_s)
        assert time.monotonic() - start < limit_s
        assert error.diagnostics[0].code == "deadlock"
        assert "waits for rank" in error.diagnostics[1].message

    def check_killed_rank(self, *, timeout_s: float, limit_s: float) -> InputError:
        """Kill one rank of a long run, and assert that the run fails with the code `rank-died`.

        The run is a ring all-reduce of 4 ranks and must fail within `limit_s` seconds. Returns the
        error. Skips the test without /proc.
        """
        _require_proc()
        program = levelled_program(ring_all_reduce(4), in_place=True)
        killer = threading.Thread(target=self._kill_one_rank, args=(program.num_ranks,))
        killer.start()
        start = time.monotonic()
        error = self._run_to_failure(program, timeout_s=timeout_s, repeats=100000)
        killer.join()
        assert time.monotonic() - start < limit_s
        assert error.diagnostics[0].code == "rank-died"
        return error

    def find_foreign_listeners(self, *, seconds: float) -> set[str]:
        """Return the addresses other than loopback on which ranks listen during `seconds` of a run.

        The run is a ring all-reduce of 4 ranks with 100 000 repeats. Every 0.05 s, the addresses
        of all processes of `module` (ranks and helpers) are added to the result, in the form of
        the function `find_foreign_listeners`. This begins when all ranks run, or after 60 s. After
        `seconds` s the newest process is killed, so that the run fails. Raises `AssertionError` if
        the run finishes without an error, and the errors of the run except `InputError`. Raises
        `SkipTest` without /proc.
        """
        _require_proc()
        program = levelled_program(ring_all_reduce(4), in_place=True)
        addresses: set[str] = set()

        def look() -> None:
            self._wait_for_ranks(program.num_ranks)
            deadline = time.monotonic() + seconds
            # Sockets come and go while ranks start: collect all that ever exist.
            while time.monotonic() < deadline:
                addresses.update(find_foreign_listeners(find_processes(self.module)))
                time.sleep(0.05)
            self._kill_one_rank(program.num_ranks)

        observer = threading.Thread(target=look)
        observer.start()
        self._run_to_failure(program, timeout_s=60.0, repeats=100000)
        observer.join()
        return addresses

    def leaves_nothing(self, limit_s: float) -> bool:
        """Return whether all processes of ranks exit within the limit."""
        return wait_until(lambda: not find_processes(self.module), limit_s)

    def _kill_one_rank(self, ranks: int) -> None:
        """Kill a rank as soon as all ranks have started."""
        if self._wait_for_ranks(ranks):
            # The newest process is a rank, because helpers start ranks.
            os.kill(find_processes(self.module)[-1], signal.SIGKILL)

    def _wait_for_ranks(self, ranks: int) -> bool:
        """Wait up to 60 s until the processes of all ranks and the helpers run.

        Returns whether they do.
        """
        expected = ranks + self.helpers
        return wait_until(lambda: len(find_processes(self.module)) >= expected, 60.0)

    def _run_to_failure(
        self, program: LevelledProgram, *, timeout_s: float, repeats: int = 1
    ) -> InputError:
        """Run a program of a ring all-reduce of 4 ranks that must fail; return its `InputError`.

        It runs in place on blocks of 500 float32 elements. Other errors are raised; a run without
        an error raises `AssertionError`.
        """
        request = levelled_for(
            ring_all_reduce(4),
            program,
            dtype=np.float32,
            elements=500,
            in_place=True,
            timeout_s=timeout_s,
            repeats=repeats,
        )
        try:
            self.run(request)
        except InputError as error:
            return error
        raise AssertionError("the run finished without an error")
