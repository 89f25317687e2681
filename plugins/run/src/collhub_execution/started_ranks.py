"""Run an algorithm in processes that an external launcher has started, one per rank.

Rank 0 creates the data and compares the results. The scripts that torchrun and mpirun start share
their arguments, messages and exit status.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

import click
import numpy as np

import hub_core
from collhub_execution.command_options import RunOptions, run_options, run_options_of
from collhub_execution.input_data import Array, check_inputs, choose_background, divide_averages
from collhub_execution.levelling import levelled_program
from collhub_execution.program_levels import LevelledProgram
from collhub_execution.rank_engine import RankEngine, RankLog, run_task
from collhub_execution.rank_plans import RankPlans, RankTask
from collhub_execution.rendezvous import positions
from collhub_execution.run_setup import RunOutcome, RunSetup
from hub_core.columns import Float64Array
from hub_core.model import (
    Algorithm,
    Buffer,
    Diagnostic,
    ExitCode,
    HubError,
    JsonValue,
    ReduceOp,
    UsageError,
)

V = TypeVar("V")


class ByteChannel(Protocol):
    """Communication between the processes; `send` and `receive` block."""

    @property
    def rank(self) -> int:
        """Rank of this process."""

    @property
    def num_ranks(self) -> int:
        """Number of processes."""

    def send(self, array: Array, peer: int) -> None:
        """Send an array of bytes."""

    def receive(self, array: Array, peer: int) -> None:
        """Receive bytes into the array, as many as its size."""


@dataclass(frozen=True, slots=True)
class StartedRunReport:
    """Final report of rank 0.

    `fields`: those of `collhub run --json` that apply; `diagnostics`: the errors and notes.
    """

    fields: Mapping[str, JsonValue]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def ok(self) -> bool:
        """Whether every rank's output is as the collective defines it."""
        return bool(self.fields["ok"])

    def text(self) -> str:
        """Return one line per field."""
        return "\n".join(f"{name:32}{value}" for name, value in self.fields.items())


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The options and the levelled program of a run whose processes exist; equal on every rank."""

    setup: RunSetup
    program: LevelledProgram

    @classmethod
    def of(cls, algorithm: Algorithm, options: RunOptions, name: str, num_ranks: int) -> StartedRun:
        """Check the options, and bring the algorithm into the form that ranks run.

        `num_ranks`: number of processes that were started. `name`: used in messages. Raises
        `UsageError` (`other-ranks`) if the algorithm has another number of ranks, then the
        errors of `RunSetup.of` and `levelled_program`. All ranks have the same errors, except
        those for too little memory or a missing package, which depend on the host.
        """
        required = algorithm.num_ranks
        if required != num_ranks:
            message = f"{name} has {required} ranks, but {num_ranks} processes were started"
            raise UsageError(message, cure=f"start {required}", code="other-ranks")
        setup = RunSetup.of(algorithm, options, name)
        return cls(setup, levelled_program(algorithm, setup.in_place))

    @classmethod
    def read(cls, name: str, values: Mapping[str, Any], num_ranks: int) -> StartedRun:
        """Read the algorithm, with the values of `run_options`. Raises `HubError`."""
        return cls.of(hub_core.read(name), run_options_of(values), name, num_ranks)

    @property
    def background(self) -> np.generic:
        """The initial value of undefined memory; for an average that of a sum."""
        return choose_background(self.setup.dtype, self.setup.op)

    def inputs(self) -> tuple[Array, ...]:
        """Create the inputs of all ranks as read-only flat arrays, by rank.

        The option `data` decides whether their values are exact or random; every call returns equal
        values. If the collective defines no INPUT for a rank, all elements of its array are
        `background`. Raises `UsageError` if the arrays do not fit the program.
        """
        collective = self.setup.algorithm.collective
        inputs = self.setup.inputs()
        return check_inputs(collective, self.program.blocks, inputs, self.background)

    def blank(self, rank: int, buffer: Buffer) -> Array:
        """Return an uninitialized array with the size of a rank's buffer (INPUT or OUTPUT).

        Its elements have the type of the run.
        """
        # Ranks other than 0 have no data; they get sizes from the program.
        blocks = int(self.program.layout.size[rank, buffer])
        return np.empty(blocks * self.setup.elements, self.setup.dtype)

    def task(self, rank: int, rank_input: Array) -> RankTask:
        """Return the task of one rank: its plan, its input, the operator and the numbers of runs.

        `rank_input` is neither copied nor checked. The numbers of warm-ups and of repeats are those
        of the options, the initial value of other memory is `background`. Kind and root of the
        collective are those of the algorithm; the root is 0 if it has none. The operator of an
        average is a sum, which rank 0 divides for the report. Times of single steps are not
        measured.
        """
        setup = self.setup
        collective = setup.algorithm.collective
        return RankTask(
            plan=RankPlans(self.program, setup.elements).plan(rank),
            collective=collective.kind,
            root=collective.root or 0,
            reduce_op=ReduceOp.SUM if setup.op is ReduceOp.AVG else setup.op,
            input=rank_input,
            background=self.background,
            warmups=setup.options.warmups,
            repeats=setup.options.repeats,
            wants_step_times=False,
        )


def run_rank(
    run: StartedRun,
    channel: ByteChannel,
    engine_of: Callable[[RankTask], RankEngine[V]],
    late: Callable[[Sequence[Diagnostic]], None],
) -> StartedRunReport | None:
    """Run this rank's part of the program; return the report at rank 0, None at other ranks.

    Every rank calls this. Rank 0 creates the inputs of all ranks and sends each rank its own.
    `engine_of(task)` returns the engine with which the rank executes its task: warm-ups, timed
    runs, and the library's own collective if the engine has one. Then rank 0 receives the
    durations and outputs of all ranks, compares the outputs with the inputs, and builds the
    report. With AVG, the outputs are sums, which are divided first. The report has no times of the
    library's collective if one of them is 0. Its diagnostics are the notes of the setup, then those
    of the comparison.

    The time of a run, in seconds, is the longest duration of all ranks, each measured from a
    barrier, because the clocks of hosts differ. Warm-ups do not count.

    The time limit (option `timeout`, in s) covers building the engine and executing the task,
    not the transfer of inputs and outputs. When it passes, `late` is called in another thread
    with diagnostics of the records for which this rank waits; it should end the process.

    Errors of the engine and the channel pass through, and the time limit then remains active.
    Rank 0 also raises `UsageError` if the inputs do not fit the program; other ranks then wait.
    """
    inputs: tuple[Array, ...] = ()
    if channel.rank == 0:
        inputs = run.inputs()
        rank_input = inputs[0]
        # One after the other: the other ranks wait only for this.
        for peer in range(1, channel.num_ranks):
            channel.send(_as_bytes(inputs[peer]), peer)
    else:
        rank_input = run.blank(channel.rank, Buffer.INPUT)
        channel.receive(_as_bytes(rank_input), 0)
    task = run.task(channel.rank, rank_input)
    log = RankLog.blank(task)
    timeout_s = run.setup.options.timeout
    watch = threading.Timer(timeout_s, lambda: late(_report_position(run, channel.rank, log)))
    watch.daemon = True
    watch.start()
    output = run_task(task, engine_of(task), log)
    watch.cancel()
    spans = _collect_durations(channel, log.times[:, task.warmups :])
    native = _collect_durations(channel, log.native_times)
    if channel.rank:
        channel.send(_as_bytes(output), 0)
        return None
    received = [output]
    for peer in range(1, channel.num_ranks):
        peer_output = run.blank(peer, Buffer.OUTPUT)
        channel.receive(_as_bytes(peer_output), peer)
        received.append(peer_output)
    setup, outputs = run.setup, tuple(received)
    if setup.op is ReduceOp.AVG:
        # The outputs are sums.
        outputs = divide_averages(setup.algorithm.collective, outputs)
    judgement = setup.judge(inputs, outputs)
    # Times that were never written are zeros: the library has no such collective.
    native_times = tuple(native.tolist()) if native.all() else ()
    outcome = RunOutcome(setup, judgement, tuple(spans.tolist()), native_times)
    return StartedRunReport(outcome.fields(), (*setup.notes(), *judgement.diagnostics))


def _collect_durations(channel: ByteChannel, times: Float64Array) -> Float64Array:
    """Return at rank 0, for every run, the maximum duration of all ranks in seconds.

    All ranks must call this. `times`: starts and ends of this rank's runs, float64[2, runs]. Other
    ranks send their durations to rank 0 and return only their own. Durations are sent, because the
    clocks of hosts differ.
    """
    # Differences are sent, because times of different hosts cannot be compared.
    durations = np.ascontiguousarray(times[1] - times[0])
    if channel.rank:
        channel.send(_as_bytes(durations), 0)
        return durations
    longest, peer_durations = durations.copy(), np.empty_like(durations)
    for peer in range(1, channel.num_ranks):
        channel.receive(_as_bytes(peer_durations), peer)
        np.maximum(longest, peer_durations, out=longest)
    return longest


def _as_bytes(array: Array) -> Array:
    """Return the array as bytes; a view if the array is contiguous."""
    return np.ascontiguousarray(array).view(np.uint8)


def _report_position(run: StartedRun, rank: int, log: RankLog) -> list[Diagnostic]:
    """Return one diagnostic on this rank after the time limit: `blocked` or `timeout`.

    `blocked` has the record (operation) for which the rank waits, or the last one for which
    it waited in the current run. It is `timeout` if there is none: before the first wait of
    the first run, after a run until the next wait, and in the library's own collective.
    Positions of other ranks are not known here, so each rank reports its own.
    """
    at = int(log.at[0])
    # The positions of the other ranks are unknown here; each rank reports its position.
    record_of_rank: list[int | None] = [None] * run.program.num_ranks
    if at >= 0:
        record_of_rank[rank] = at
    diagnostics = positions(run.setup.algorithm, run.program, record_of_rank)
    if diagnostics:
        return diagnostics
    message = f"rank {rank} has not finished after {run.setup.options.timeout:g} s"
    return [Diagnostic("timeout", message)]


_HELP = """Run an algorithm, a process per rank.

ALGORITHM is a file, or the prefix of a trace set; every rank reads it.
"""


def script_command(function: Callable[..., None]) -> click.Command:
    """Return a click command for the program of one rank that is started by a launcher.

    It has the argument ALGORITHM, the flag `--json` and all run options. They are passed to
    `function` by keyword: `algorithm` (text), `as_json` (bool), and one per field of
    `RunOptions`, which `run_options_of` converts.
    """
    as_json = click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
    # click lists arguments first if they are the outermost decorators.
    with_arguments = click.argument("algorithm")(as_json(run_options(function)))
    return click.command(help=_HELP)(with_arguments)


def run_script(run: Callable[[], int], *, is_first: bool) -> NoReturn:
    """Call `run` and exit the process with the status that it returns, or that of its error.

    If `run` raises a `HubError`, its exit code is the status, and its diagnostics are
    printed on standard error, but only if `is_first`, because all ranks have the same
    error. Other exceptions pass through.
    """
    try:
        status = run()
    except HubError as error:
        # All ranks have the same error, so only the first one prints it.
        if is_first:
            print_findings(error.diagnostics)
        sys.exit(error.exit_code)
    sys.exit(status)


def script_rank(
    run: StartedRun,
    channel: ByteChannel,
    engine_of: Callable[[RankTask], RankEngine[V]],
    late: Callable[[Sequence[Diagnostic]], None],
    *,
    as_json: bool,
) -> int:
    """Run this rank and return the exit status of the process; rank 0 also prints the report.

    The report is printed as lines of text, or as one line of JSON with `as_json`, and its
    diagnostics follow on standard error. The status is `INVALID` at rank 0 if a result is
    wrong, otherwise `DONE`. `engine_of` builds the engine that runs a task. When the time
    limit passes, `late` is called in another thread with the position of this rank; it
    should end the process. Errors are those of `run_rank`.
    """
    report = run_rank(run, channel, engine_of, late)
    # Only rank 0 has a report.
    if report is None:
        return ExitCode.DONE
    text = json.dumps(report.fields) if as_json else report.text()
    # Flush, because launchers may kill processes without notice.
    print(text, flush=True)
    print_findings(report.diagnostics)
    return ExitCode.DONE if report.ok else ExitCode.INVALID


def print_findings(findings: Iterable[Diagnostic]) -> None:
    """Print findings on standard error, one per line."""
    for diagnostic in findings:
        print(diagnostic, file=sys.stderr, flush=True)
