"""The offer `Executor`: an algorithm runs on real data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hub_core.model.diagnostics import Diagnostic
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hub_core.columns import Int64Array
    from hub_core.model.algorithm import Algorithm, JsonValue
    from hub_core.model.kinds import ReduceOp


@dataclass(frozen=True, slots=True)
class ExecutionRequest:
    """A verified algorithm to run on real data, once or several times.

    `inputs`: one read-only array a rank, all of one dtype and of one size, which fills the rank's
    INPUT. `in_place`: whether INPUT and OUTPUT share memory as the collective defines. `warmups`:
    runs before the `repeats` timed ones. `timeout_s`: when to give up and say where every rank
    stands. `wants_step_times`: whether the last run is to be timed step by step.
    """

    algorithm: Algorithm
    inputs: tuple[npt.NDArray[np.generic], ...]
    in_place: bool
    reduce_op: ReduceOp
    repeats: int = 1
    warmups: int = 0
    timeout_s: float = 60.0
    wants_step_times: bool = False


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """Outcome of an execution on real data.

    `outputs`: OUTPUT of every rank after the last run. `repeat_times_s`: of each timed run, from
    the first rank's start to the last rank's end; moving inputs into place does not count.
    `native_times_s`: the same for the library's own collective on the same data in the same
    session, empty where it has none. `step_start_ns`, `step_end_ns`: int64 per row of the step
    table, from the start of the last run, -1 for rows that do nothing, or None where the executor
    does not tell. `statistics`: what else the user should know, by name: messages, levels.
    """

    outputs: tuple[npt.NDArray[np.generic], ...]
    repeat_times_s: tuple[float, ...] = ()
    native_times_s: tuple[float, ...] = ()
    step_start_ns: Int64Array | None = None
    step_end_ns: Int64Array | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    statistics: Mapping[str, JsonValue] = field(default_factory=dict)

    def __repr__(self) -> str:
        fastest = f", {min(self.repeat_times_s):g} s" if self.repeat_times_s else ""
        return f"<ExecutionResult: {len(self.outputs)} ranks{fastest}>"


@dataclass(frozen=True, slots=True)
class Executor:
    """Consumer: `execute(request: ExecutionRequest, options) -> ExecutionResult`.

    It starts and ends its own processes. What is missing (a library, a launcher, a device) is a
    `PluginError` that says how to get it; a deadlock, or a rank that ends early, is an `InputError`
    with one diagnostic a rank, and leaves no process and no shared memory behind.
    """

    name: str
    description: str
    execute: Reference
    options: type = NoOptions
