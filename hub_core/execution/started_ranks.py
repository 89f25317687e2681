"""Run an algorithm in processes that somebody else has started, one a rank: data come from rank 0, and the verdict is there."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hub_core.execution import data
from hub_core.execution.bandwidth import algorithm_bandwidth, bus_bandwidth
from hub_core.execution.judgement import judge
from hub_core.execution.levels import levelled_program
from hub_core.execution.program import LevelledProgram
from hub_core.execution.rank_engine import Engine, RankLog, run_task
from hub_core.execution.rank_tasks import Plans, RankTask
from hub_core.execution.stall import positions
from hub_core.model.algorithm import Algorithm, JsonValue
from hub_core.model.diagnostics import Diagnostic, UsageError
from hub_core.model.kinds import Buffer, ReduceOp
from hub_core.model.quantities import parse_size

Array = npt.NDArray[Any]
V = TypeVar("V")


class Wire(Protocol):
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
class Report:
    """What rank 0 says at the end: the fields of `collhub run --json` that apply here, and what is wrong."""

    fields: Mapping[str, JsonValue]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def ok(self) -> bool:
        """Whether every rank holds what the collective promises."""
        return bool(self.fields["ok"])

    def text(self) -> str:
        """One line a field."""
        return "\n".join(f"{name:32}{value}" for name, value in self.fields.items())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that a `Trial` is made from; they mean what they mean to `collhub run`."""
    parser.add_argument("algorithm", help="file, or prefix of a trace set; every rank reads it")
    parser.add_argument("--size", required=True, help="of the full buffer, as 64MiB")
    parser.add_argument("--dtype", choices=data.DTYPE_NAMES, default="float32")
    parser.add_argument(
        "--op", choices=list(map(str, ReduceOp)), help="default: that of the collective"
    )
    parser.add_argument(
        "--in-place", action="store_true", help="default where the algorithm is for that alone"
    )
    parser.add_argument("--data", choices=["exact", "random"], default="exact")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--warmups", type=int, default=1)
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        help="seconds after which each rank says where it stands, and ends",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON")


@dataclass(frozen=True, slots=True)
class Trial:
    """What is to be run: the same on every rank."""

    algorithm: Algorithm
    program: LevelledProgram
    collective_bytes: int
    dtype: np.dtype[Any]
    op: ReduceOp
    is_random: bool
    warmups: int
    repeats: int

    @classmethod
    def of(cls, algorithm: Algorithm, wish: argparse.Namespace, num_ranks: int) -> Trial:
        """Level the algorithm. Raises `HubError`, on all ranks the same."""
        if algorithm.num_ranks != num_ranks:
            message = f"{wish.algorithm} has {algorithm.num_ranks} ranks, but {num_ranks} processes were started"
            raise UsageError(message, cure=f"start {algorithm.num_ranks}", code="other-ranks")
        if wish.repeats < 1 or wish.warmups < 0:
            raise UsageError(
                f"{wish.repeats} repeats and {wish.warmups} warm-ups cannot be run",
                cure="use 1 and 0, or more",
            )
        collective = algorithm.collective
        program = levelled_program(algorithm, wish.in_place or not collective.out_of_place)
        op = ReduceOp(wish.op) if wish.op else collective.reduce_op
        dtype, size = data.element_type(wish.dtype), parse_size(wish.size)
        data.block_elements(program, size, dtype)
        return cls(
            algorithm, program, size, dtype, op, wish.data == "random", wish.warmups, wish.repeats
        )

    @property
    def elements(self) -> int:
        """Of a block."""
        return data.block_elements(self.program, self.collective_bytes, self.dtype)

    def inputs(self) -> tuple[Array, ...]:
        """What all ranks start with."""
        make = data.random_inputs if self.is_random else data.exact_inputs
        made = make(self.program, self.elements, self.dtype, self.op)
        return data.checked_inputs(self.algorithm.collective, self.program, made, self.background)

    @property
    def background(self) -> np.generic:
        """What undefined memory holds."""
        return data.background(self.dtype, self.op)

    def task(self, rank: int, given: Array) -> RankTask:
        """What one rank does."""
        collective = self.algorithm.collective
        op = ReduceOp.SUM if self.op is ReduceOp.AVG else self.op
        plan = Plans(self.program, self.elements).plan(rank)
        return RankTask(
            plan,
            collective.kind,
            collective.root or 0,
            op,
            given,
            self.background,
            self.warmups,
            self.repeats,
            False,
        )


def run_rank(
    trial: Trial,
    wire: Wire,
    engine_of: Callable[[RankTask], Engine[V]],
    timeout_s: float,
    late: Callable[[Sequence[Diagnostic]], None],
) -> Report | None:
    """Do this rank's part, and at rank 0, which makes all inputs and gets all outputs, report.

    Times are the longest of any rank, each counted from a barrier on, since clocks of machines differ. `late` is called in
    another thread, with the position of this rank, when `timeout_s` is over, and should end the process.
    """
    inputs = trial.inputs() if wire.rank == 0 else ()
    given = _dealt(trial, wire, inputs)
    task = trial.task(wire.rank, given)
    log = RankLog.blank(task)
    watch = threading.Timer(timeout_s, lambda: late(_position(trial, wire.rank, log, timeout_s)))
    watch.daemon = True
    watch.start()
    output = run_task(task, engine_of(task), log)
    watch.cancel()
    spans, native = (
        _durations(wire, times) for times in (log.times[:, trial.warmups :], log.native_times)
    )
    outputs = list(_collected(trial, wire, output))
    return _report(trial, inputs, outputs, spans, native) if wire.rank == 0 else None


def _dealt(trial: Trial, wire: Wire, inputs: Sequence[Array]) -> Array:
    """The input of this rank, from rank 0."""
    if wire.rank == 0:
        for peer in range(1, wire.num_ranks):
            wire.send(_bytes(inputs[peer]), peer)
        return inputs[0]
    given = np.empty(
        int(trial.program.layout.size[wire.rank, Buffer.INPUT]) * trial.elements, trial.dtype
    )
    wire.receive(_bytes(given), 0)
    return given


def _collected(trial: Trial, wire: Wire, output: Array) -> Iterator[Array]:
    """At rank 0 the outputs of all ranks."""
    if wire.rank:
        wire.send(_bytes(output), 0)
        return
    yield output
    for peer in range(1, wire.num_ranks):
        theirs = np.empty(
            int(trial.program.layout.size[peer, Buffer.OUTPUT]) * trial.elements, trial.dtype
        )
        wire.receive(_bytes(theirs), peer)
        yield theirs


def _durations(wire: Wire, times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """At rank 0 the longest of all ranks, run by run."""
    mine = np.ascontiguousarray(times[1] - times[0])
    if wire.rank:
        wire.send(_bytes(mine), 0)
        return mine
    longest, theirs = mine.copy(), np.empty_like(mine)
    for peer in range(1, wire.num_ranks):
        wire.receive(_bytes(theirs), peer)
        np.maximum(longest, theirs, out=longest)
    return longest


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8)


def _position(trial: Trial, rank: int, log: RankLog, timeout_s: float) -> list[Diagnostic]:
    at = int(log.at[0])
    place = [at if at >= 0 and each == rank else None for each in range(trial.program.num_ranks)]
    found = positions(trial.algorithm, trial.program, place)
    return found or [Diagnostic("timeout", f"rank {rank} has not ended after {timeout_s:g} s")]


def _report(
    trial: Trial,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    spans: npt.NDArray[np.float64],
    native: npt.NDArray[np.float64],
) -> Report:
    collective, size = trial.algorithm.collective, trial.collective_bytes
    found = data.averaged(collective, outputs) if trial.op is ReduceOp.AVG else outputs
    is_exact = not trial.is_random and data.is_exact(trial.program.num_ranks, trial.dtype, trial.op)
    judgement = judge(collective, inputs, found, trial.op, is_exact)
    time_s = median(spans.tolist())
    fields: dict[str, JsonValue] = {
        "ok": judgement.is_right,
        "collective": str(collective.kind),
        "num_ranks": trial.program.num_ranks,
        "collective_bytes": size,
        "dtype": trial.dtype.name,
        "reduce_op": str(trial.op),
        "in_place": trial.program.in_place,
        "comparison": str(judgement.comparison),
        "max_abs_error": judgement.max_abs_error,
        "ranks_agree_bitwise": judgement.ranks_agree,
        "time_s": time_s,
        "algorithm_bandwidth_bytes_per_s": algorithm_bandwidth(size, time_s),
        "bus_bandwidth_bytes_per_s": bus_bandwidth(collective, size, time_s),
        "native_time_s": median(native.tolist()) if native.all() else None,
    }
    return Report(fields, judgement.diagnostics)
