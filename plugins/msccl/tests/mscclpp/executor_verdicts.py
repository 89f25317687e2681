"""Verdicts of the executor model: a plan, a call and adversarial orders give one outcome."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from executor_model import Execution, OutOfBoundsError, Schedule, Words, schedules
from executor_plan import Call, Json, LoaderError, TableOverrunError, load_plan

from hub_core.model import Collective

# Promised words of every rank's output: (positions, values).
Promise = list[tuple[object, Words]]
Promises = Callable[[Sequence[Words]], Promise]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`verdict`: right, wrong, hang, out of bounds, throws; `detail`: the first place."""

    verdict: str
    detail: str = ""
    schedule: str = ""

    def __str__(self) -> str:
        return ", ".join(part for part in (self.verdict, self.detail, self.schedule) if part)


def run_plan(
    plan: Json,
    chunk_bytes: int = 48,
    *,
    in_place: bool | None = None,
    promises: Promises | None = None,
    orders: Iterable[Schedule] | None = None,
    launches: int = 3,
    buffer_offset: int = 0,
) -> Outcome:
    """The plan with chunks of `chunk_bytes`, in place as it says unless `in_place` is given.

    `promises`: default by the name of the collective; `buffer_offset`: bytes between the start of
    the caller's allocations and its buffers.
    """
    gpus = plan["gpus"]
    call = Call(
        tuple(gpu["input_chunks"] * chunk_bytes for gpu in gpus),
        tuple(gpu["output_chunks"] * chunk_bytes for gpu in gpus),
        plan["inplace"] if in_place is None else in_place,
    )
    return run_call(
        plan, call, promises=promises, orders=orders, launches=launches, buffer_offset=buffer_offset
    )


def run_call(
    plan: Json,
    call: Call,
    *,
    promises: Promises | None = None,
    orders: Iterable[Schedule] | None = None,
    launches: int = 3,
    buffer_offset: int = 0,
) -> Outcome:
    """The plan for one call, `launches` times one after the other, in all orders."""
    num_ranks = len(plan["gpus"])
    if promises is None:
        promises = PROMISES.get(plan["collective"], _promise_nothing)
    try:
        loaded = load_plan(plan, call)
    except LoaderError as error:
        return Outcome("throws", str(error))
    except TableOverrunError as error:
        return Outcome("out of bounds", str(error))
    for order in schedules(num_ranks) if orders is None else orders:
        execution = Execution(
            loaded,
            call,
            order,
            launches=launches,
            double_scratch=plan.get("use_double_scratch_buffer", False),
            buffer_offset=buffer_offset,
        )
        try:
            hang = execution.run()
        except OutOfBoundsError as error:
            return Outcome("out of bounds", str(error), order.name)
        if hang:
            return Outcome("hang", hang, order.name)
        if difference := _difference(execution, promises):
            return Outcome("wrong", difference, order.name)
    return Outcome("right")


def run_written(
    content: bytes,
    collective: Collective,
    units_per_chunk: int,
    chunk_bytes: int = 48,
    *,
    orders: Iterable[Schedule] | None = None,
    launches: int = 3,
    has_promise: bool = True,
) -> dict[bool, Outcome]:
    """A plan that was written for a collective, in each mode that this claims (True: in place).

    The plan's window of sizes is left out. Without `has_promise` contents are not compared.
    """
    plan = json.loads(content)
    for key in ("min_message_size", "max_message_size"):
        plan.pop(key, None)
    gpus = plan["gpus"]
    sizes = zip(collective.input_units(), collective.output_units(), strict=True)
    separate = frozenset(rank for rank, units in enumerate(sizes) if not all(units))
    word_of_unit = chunk_bytes // 4 // units_per_chunk
    promises = promises_of(collective, word_of_unit) if has_promise else _promise_nothing
    modes = {True: collective.in_place, False: collective.out_of_place}
    return {
        mode: run_call(
            plan,
            Call(
                tuple(gpu["input_chunks"] * chunk_bytes for gpu in gpus),
                tuple(gpu["output_chunks"] * chunk_bytes for gpu in gpus),
                mode,
                separate,
            ),
            promises=promises,
            orders=orders,
            launches=launches,
        )
        for mode, is_claimed in modes.items()
        if is_claimed
    }


def promises_of(collective: Collective, word_of_unit: int) -> Promises:
    """What a collective of the hub promises, with `word_of_unit` words a unit."""
    wanted = collective.postcondition()
    if wanted is None:
        return _promise_nothing
    rows = wanted.with_ranks_named(collective.num_ranks)

    def promise(inputs: Sequence[Words]) -> Promise:
        sizes = collective.output_units() * word_of_unit
        totals = [np.zeros(int(size), np.uint32) for size in sizes]
        masks = [np.zeros(int(size), np.bool_) for size in sizes]
        every = zip(rows.rank, rows.offset, rows.source_rank, rows.source_unit, strict=True)
        for rank, offset, source_rank, source_unit in every:
            target = slice(offset * word_of_unit, (offset + 1) * word_of_unit)
            source = slice(source_unit * word_of_unit, (source_unit + 1) * word_of_unit)
            totals[rank][target] += inputs[source_rank][source]
            masks[rank][target] = True
        return [(mask, total[mask]) for mask, total in zip(masks, totals, strict=True)]

    return promise


def _difference(execution: Execution, promises: Promises) -> str:
    """The first wrong element, or an empty text."""
    for launch, (inputs, outputs) in enumerate(
        zip(execution.inputs, execution.outputs, strict=True)
    ):
        promised = promises(inputs)
        for rank, (output, (positions, values)) in enumerate(zip(outputs, promised, strict=False)):
            assert output is not None
            got = output[positions]  # type: ignore[call-overload]
            if len(got) != len(values):
                return f"rank {rank}: {len(got)} words, expected {len(values)}"
            if (differs := got != values).any():
                at = int(differs.argmax())
                place = f"launch {launch + 1}, rank {rank}, element {at} of {len(values)}"
                return f"{place}: {got[at]:#x}, expected {values[at]:#x}"
    return ""


def _promise_nothing(inputs: Sequence[Words]) -> Promise:
    return []


def _everywhere(values: Iterable[Words]) -> Promise:
    return [(slice(None), one) for one in values]


def _sum(inputs: Sequence[Words]) -> Words:
    return np.sum(np.stack(inputs), axis=0, dtype=np.uint32)


def _part(vector: Words, rank: int, num_ranks: int) -> Words:
    length = len(vector) // num_ranks
    return vector[rank * length : (rank + 1) * length]


PROMISES: dict[str, Promises] = {
    "allreduce": lambda inputs: _everywhere([_sum(inputs)] * len(inputs)),
    "allgather": lambda inputs: _everywhere([np.concatenate(list(inputs))] * len(inputs)),
    "reducescatter": lambda inputs: _everywhere(
        _part(_sum(inputs), rank, len(inputs)) for rank in range(len(inputs))
    ),
    "alltoall": lambda inputs: _everywhere(
        np.concatenate([_part(one, rank, len(inputs)) for one in inputs])
        for rank in range(len(inputs))
    ),
    "sendrecv": lambda inputs: _everywhere(inputs[rank - 1] for rank in range(len(inputs))),
}
