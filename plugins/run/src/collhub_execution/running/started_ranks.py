"""Run an algorithm in processes that somebody else has started, one a rank.

Data come from rank 0, and the verdict is there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

import hub_core
from collhub_execution.data.averages import averaged
from collhub_execution.data.checked_inputs import background, checked_inputs
from collhub_execution.data.element_types import Array
from collhub_execution.levelling.levelled_program import levelled_program
from collhub_execution.levelling.program import LevelledProgram
from collhub_execution.ranks.engine import RankEngine, RankLog, run_task
from collhub_execution.ranks.plans import RankPlans, RankTask
from collhub_execution.rendezvous.positions import positions
from collhub_execution.running.options import RunOptions, run_options_of
from collhub_execution.running.outcome import RunOutcome
from collhub_execution.running.setup import RunSetup
from hub_core.columns import Float64Array
from hub_core.model import Algorithm, Buffer, Diagnostic, JsonValue, ReduceOp, UsageError

V = TypeVar("V")


class ByteChannel(Protocol):
    """How processes find each other; `send` and `receive` block."""

    @property
    def rank(self) -> int:
        """Of this process."""

    @property
    def num_ranks(self) -> int:
        """Number of processes."""

    def send(self, array: Array, peer: int) -> None:
        """Send an array of bytes."""

    def receive(self, array: Array, peer: int) -> None:
        """Receive as many bytes as the array has."""


@dataclass(frozen=True, slots=True)
class StartedRunReport:
    """What rank 0 says at the end.

    `fields`: those of `collhub run --json` that apply here; `diagnostics`: what is wrong.
    """

    fields: Mapping[str, JsonValue]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def ok(self) -> bool:
        """Whether every rank holds what the collective promises."""
        return bool(self.fields["ok"])

    def text(self) -> str:
        """One line a field."""
        return "\n".join(f"{name:32}{value}" for name, value in self.fields.items())


@dataclass(frozen=True, slots=True)
class StartedRun:
    """What is to be run: the same on every rank."""

    setup: RunSetup
    program: LevelledProgram

    @classmethod
    def of(cls, algorithm: Algorithm, options: RunOptions, name: str, num_ranks: int) -> StartedRun:
        """Check the options and level the algorithm, which messages call `name`.

        Raises `HubError`, on all ranks the same.
        """
        wanted = algorithm.num_ranks
        if wanted != num_ranks:
            message = f"{name} has {wanted} ranks, but {num_ranks} processes were started"
            raise UsageError(message, cure=f"start {wanted}", code="other-ranks")
        setup = RunSetup.of(algorithm, options, name)
        return cls(setup, levelled_program(algorithm, setup.in_place))

    @classmethod
    def read(cls, name: str, values: Mapping[str, Any], num_ranks: int) -> StartedRun:
        """Read the algorithm, with what `run_options` gave to a command. Raises `HubError`."""
        return cls.of(hub_core.read(name), run_options_of(values), name, num_ranks)

    @property
    def background(self) -> np.generic:
        """What undefined memory holds; an average's is that of a sum."""
        return background(self.setup.dtype, self.setup.op)

    def inputs(self) -> tuple[Array, ...]:
        """What all ranks start with."""
        collective = self.setup.algorithm.collective
        made = self.setup.inputs()
        return checked_inputs(collective, self.program.blocks, made, self.background)

    def blank(self, rank: int, buffer: Buffer) -> Array:
        """An array for a rank's buffer."""
        # Ranks other than 0 get sizes from the program, not from data.
        blocks = int(self.program.layout.size[rank, buffer])
        return np.empty(blocks * self.setup.elements, self.setup.dtype)

    def task(self, rank: int, given: Array) -> RankTask:
        """What one rank does with its input."""
        setup = self.setup
        collective = setup.algorithm.collective
        return RankTask(
            plan=RankPlans(self.program, setup.elements).plan(rank),
            collective=collective.kind,
            root=collective.root or 0,
            reduce_op=ReduceOp.SUM if setup.op is ReduceOp.AVG else setup.op,
            input=given,
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
    """Do this rank's part, and at rank 0, which makes all inputs and gets all outputs, report.

    Times are the longest of any rank, each counted from a barrier on, since clocks of machines
    differ. `late` is called in another thread, with the position of this rank, when the time limit
    is over, and should end the process.
    """
    inputs = run.inputs() if channel.rank == 0 else ()
    task = run.task(channel.rank, _dealt(run, channel, inputs))
    log = RankLog.blank(task)
    timeout_s = run.setup.options.timeout
    watch = threading.Timer(timeout_s, lambda: late(_position(run, channel.rank, log)))
    watch.daemon = True
    watch.start()
    output = run_task(task, engine_of(task), log)
    watch.cancel()
    spans = _durations(channel, log.times[:, task.warmups :])
    native = _durations(channel, log.native_times)
    # At the other ranks this sends, and yields nothing.
    outputs = tuple(_collected(run, channel, output))
    if channel.rank:
        return None
    return _report(run.setup, inputs, outputs, spans, native)


def _dealt(run: StartedRun, channel: ByteChannel, inputs: Sequence[Array]) -> Array:
    """The input of this rank, from rank 0."""
    # One after the other: ranks other than 0 wait for nothing else.
    if channel.rank == 0:
        for peer in range(1, channel.num_ranks):
            channel.send(_bytes(inputs[peer]), peer)
        return inputs[0]
    given = run.blank(channel.rank, Buffer.INPUT)
    channel.receive(_bytes(given), 0)
    return given


def _collected(run: StartedRun, channel: ByteChannel, output: Array) -> Iterator[Array]:
    """At rank 0 the outputs of all ranks."""
    if channel.rank:
        channel.send(_bytes(output), 0)
        return
    yield output
    for peer in range(1, channel.num_ranks):
        theirs = run.blank(peer, Buffer.OUTPUT)
        channel.receive(_bytes(theirs), peer)
        yield theirs


def _durations(channel: ByteChannel, times: Float64Array) -> Float64Array:
    """At rank 0 the longest of all ranks, run by run; `times` are starts and ends."""
    # Differences travel, not times: those of different machines cannot be compared.
    mine = np.ascontiguousarray(times[1] - times[0])
    if channel.rank:
        channel.send(_bytes(mine), 0)
        return mine
    longest, theirs = mine.copy(), np.empty_like(mine)
    for peer in range(1, channel.num_ranks):
        channel.receive(_bytes(theirs), peer)
        np.maximum(longest, theirs, out=longest)
    return longest


def _bytes(array: Array) -> Array:
    """What a `ByteChannel` takes; a view where the array is contiguous."""
    return np.ascontiguousarray(array).view(np.uint8)


def _position(run: StartedRun, rank: int, log: RankLog) -> list[Diagnostic]:
    """Where this rank stands, to be said when time is up."""
    at = int(log.at[0])
    # Of the others nothing is known here; each says where it stands itself.
    places: list[int | None] = [None] * run.program.num_ranks
    if at >= 0:
        places[rank] = at
    found = positions(run.setup.algorithm, run.program, places)
    if found:
        return found
    message = f"rank {rank} has not ended after {run.setup.options.timeout:g} s"
    return [Diagnostic("timeout", message)]


def _report(
    setup: RunSetup,
    inputs: tuple[Array, ...],
    outputs: tuple[Array, ...],
    spans: Float64Array,
    native: Float64Array,
) -> StartedRunReport:
    """The verdict and the times, at rank 0."""
    if setup.op is ReduceOp.AVG:
        outputs = averaged(setup.algorithm.collective, outputs)
    judgement = setup.judge(inputs, outputs)
    # Times that were never written are zeros: the library has no such collective.
    native_times = tuple(native.tolist()) if native.all() else ()
    outcome = RunOutcome(setup, judgement, tuple(spans.tolist()), native_times)
    return StartedRunReport(outcome.fields(), (*setup.notes(), *judgement.diagnostics))
