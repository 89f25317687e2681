"""Model of how MSCCL++ answers a call of the NCCL interface with registered plans.

Rules from `src/ext/nccl` of microsoft/mscclpp (release 1f5f065d): the registered selector is asked
first, on every rank; where it returns nothing, the first registered plan of the same collective,
constraint, mode and window is taken, divisible or not; else the runtime's own algorithm.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from executor_model import Schedule
from executor_plan import Call
from executor_verdicts import Outcome, run_call

Json = dict[str, Any]
OWN_ALGORITHM = "runtime"


@dataclass(frozen=True, slots=True)
class Query:
    """A call on all ranks: `num_bytes` of the count that the application passes to NCCL."""

    collective: str
    num_bytes: int
    in_place: bool

    def call(self, num_ranks: int) -> Call:
        """Bytes of the buffers."""
        whole = (self.num_bytes * num_ranks,) * num_ranks
        part = (self.num_bytes,) * num_ranks
        given = whole if self.collective == "reducescatter" else part
        made = whole if self.collective == "allgather" else part
        return Call(given, made, self.in_place)


class RuntimeModel:
    """A process that has called `register` of a folder, and then made its communicator.

    `names_input`: a reduce-scatter names the bytes of its input instead of those of its result, as
    some releases do.
    """

    def __init__(
        self, folder: Path, num_ranks: int, per_node: int, *, names_input: bool = False
    ) -> None:
        self.num_ranks, self.per_node, self.names_input = num_ranks, per_node, names_input
        self.registered: dict[str, dict[str, Any]] = {
            name: {} for name in ("allreduce", "allgather", "reducescatter", "alltoall")
        }
        self.plans: dict[str, Json] = {}
        self.selector: Any = None
        self._register(folder)

    def add_algorithm_builder(self, algorithm: Any) -> None:
        """As of the runtime's builder."""
        plan = json.loads(Path(algorithm.execution_plan[0]).read_bytes())
        self.plans[algorithm.id] = plan
        assert algorithm.id == plan["name"]
        self.registered[plan["collective"]][algorithm.id] = algorithm

    def set_algorithm_selector(self, selector: Any) -> None:
        """As of the runtime's builder."""
        self.selector = selector

    def answer(self, query: Query) -> str:
        """Name of the plan that all ranks take, or `OWN_ALGORITHM`; differing answers hang."""
        answers = {self._select(query, rank) for rank in range(self.num_ranks)}
        assert len(answers) == 1, f"{query}: ranks take {sorted(answers)}"
        return answers.pop()

    def run(self, query: Query, orders: Iterable[Schedule]) -> Outcome | None:
        """What becomes of a call, or None where the runtime's own algorithm serves it."""
        name = self.answer(query)
        if name == OWN_ALGORITHM:
            return None
        call = query.call(self.num_ranks)
        return run_call(self.plans[name], call, orders=orders, launches=2)

    def _register(self, folder: Path) -> None:
        algorithm = type("Algorithm", (SimpleNamespace,), {"Constraint": lambda *given: given})
        runtime = ModuleType("mscclpp")
        runtime.__dict__.update(
            _mscclpp=SimpleNamespace(CppExecutionPlan=lambda path, rank: (path, rank)),
            Algorithm=algorithm,
            AlgorithmCollectionBuilder=lambda: self,
        )
        program: Json = {"__file__": str(folder / "register.py")}
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "mscclpp", runtime)
            exec((folder / "register.py").read_text(), program)
            program["register"](0)

    def _select(self, query: Query, rank: int) -> str:
        size = query.num_bytes
        if query.collective == "reducescatter" and self.names_input:
            size *= self.num_ranks
        given, made = 1 << 40, 1 << 41
        if query.in_place:
            shift = rank * query.num_bytes
            given, made = {
                "allgather": (given + shift, given),
                "reducescatter": (given, given + shift),
            }.get(query.collective, (given, given))
        # The runtime knows the offset of a part for all-gathers only.
        is_seen_in_place = given == made or (query.collective == "allgather" and query.in_place)
        mode = SimpleNamespace(name="IN_PLACE" if is_seen_in_place else "OUT_OF_PLACE")
        request = SimpleNamespace(
            world_size=self.num_ranks,
            n_ranks_per_node=self.per_node,
            rank=rank,
            input_buffer=given,
            output_buffer=made,
            message_size=size,
            collective=query.collective,
            buffer_mode=lambda: mode,
        )
        chosen = self.selector(self.registered, request) or self._fall_back(request)
        return OWN_ALGORITHM if chosen is None else str(chosen.id)

    def _fall_back(self, request: Any) -> Any:
        """The runtime's own selector among registered plans."""
        for name, algorithm in self.registered[request.collective].items():
            plan = self.plans[name]
            scale = request.world_size if request.collective == "allgather" else 1
            size = request.message_size * scale
            mode = "IN_PLACE" if plan["inplace"] else "OUT_OF_PLACE"
            if (
                algorithm.constraint == (request.world_size, request.n_ranks_per_node)
                and mode == request.buffer_mode().name
                and plan["min_message_size"] <= size <= plan["max_message_size"]
            ):
                return algorithm
        return None


def write_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Put the files of a selection into a folder."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
