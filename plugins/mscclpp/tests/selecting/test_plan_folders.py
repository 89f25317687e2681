"""Folders of plans: a plan a window and mode, and a program that chooses as the windows say."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.options import PlanSelectionOptions
from collhub_mscclpp.plans.read_plan import parse_plan
from collhub_mscclpp.selecting.read_plans import read
from collhub_mscclpp.selecting.write_plans import write

from hub_core.model import Algorithm, CollectiveKind, Diagnostic
from hub_core.plugin_api import Selection, ServedCalls, Source, SourcePart
from hub_core.testing import (
    binomial_broadcast,
    ring_all_reduce,
    sample_selection,
    selected,
)

ALL_REDUCE = CollectiveKind.ALL_REDUCE


def written(selection: Selection, **given: int) -> tuple[dict[str, bytes], list[str]]:
    result = write(selection, PlanSelectionOptions(**given))
    files = {artifact.name: artifact.content() for artifact in result.artifacts}
    return files, [str(loss) for loss in result.losses]


def served(files: Mapping[str, bytes]) -> tuple[list[ServedCalls], list[str]]:
    found: list[Diagnostic] = []
    parts = [SourcePart(name, lambda content=content: content) for name, content in files.items()]
    calls = read(Source("plans", tuple(parts), found.append))
    return list(calls), list(map(str, found))


def one(algorithm: Algorithm) -> Selection:
    times = {"one": (1,)}
    found = selected(algorithm.collective, (1 << 20,), times, lambda name, size: algorithm)
    return Selection("t", algorithm.num_ranks, 1, (found,))


class Builder:
    """Stands for the runtime's builder: keeps what it is given."""

    def __init__(self) -> None:
        self.algorithms: dict[str, dict[str, Any]] = {"allreduce": {}, "allgather": {}}
        self.select: Any = None

    def add_algorithm_builder(self, algorithm: Any) -> None:
        kind = json.loads(Path(algorithm.execution_plan[0]).read_text())["collective"]
        self.algorithms[kind][algorithm.id] = algorithm

    def set_algorithm_selector(self, select: Any) -> None:
        self.select = select


def test_every_window_is_a_plan_that_runs_rightly() -> None:
    files, losses = written(sample_selection())
    assert losses == []
    assert sorted(files) == [
        "all-gather-0-inf-in-place.json",
        "all-gather-0-inf-out-of-place.json",
        "all-reduce-0-1048575-in-place.json",
        "all-reduce-1048576-inf-in-place.json",
        "register.py",
    ]
    for name, content in files.items():
        if name.endswith(".json"):
            assert check_plan(parse_plan(content, name)).ok


def test_plans_are_read_with_the_windows_they_were_written_for() -> None:
    files, _ = written(sample_selection())
    calls, found = served(files)
    assert found == []
    windows = [(call.min_bytes, call.max_bytes) for call in calls if call.kind == ALL_REDUCE]
    assert windows == [(0, (1 << 20) - 1), (1 << 20, None)]


def test_windows_of_small_sizes_are_packets_within_a_node() -> None:
    for nodes, protocol in ((1, "LL"), (2, "Simple")):
        files, _ = written(sample_selection(4, nodes), packets_below=1 << 20)
        plan = json.loads(files["all-reduce-0-1048575-in-place.json"])
        assert plan["protocol"] == protocol
    files, _ = written(sample_selection(), packets_below=0)
    assert json.loads(files["all-reduce-0-1048575-in-place.json"])["protocol"] == "Simple"


def test_ranks_of_several_nodes_use_port_channels() -> None:
    files, _ = written(sample_selection(4, 2))
    assert b'"port"' in files["all-reduce-1048576-inf-in-place.json"]


def test_collective_without_a_name_is_left_to_the_runtime() -> None:
    files, losses = written(one(binomial_broadcast(4)))
    assert list(files) == ["register.py"]
    assert losses == [
        "collective (broadcast): plans of this collective have no name that the runtime asks for"
    ]


def test_damaged_plan_serves_nothing() -> None:
    files, _ = written(one(ring_all_reduce(4)))
    name = next(iter(files))
    calls, found = served({name: files[name].replace(b'"rlxwait"', b'"rlxwart"')})
    assert calls == []
    assert "rlxwart" in found[0]


@pytest.mark.parametrize(
    ("in_place", "size", "file"),
    [
        (True, 0, "all-reduce-0-1048575-in-place.json"),
        (True, 1 << 20, "all-reduce-1048576-inf-in-place.json"),
        (False, 1024, None),
    ],
)
def test_program_registers_plans_and_chooses_by_window(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, in_place: bool, size: int, file: str | None
) -> None:
    files, _ = written(sample_selection())
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    builder = Builder()
    native = SimpleNamespace(CppExecutionPlan=lambda path, rank: (path, rank))
    algorithm = type("Algorithm", (SimpleNamespace,), {"Constraint": lambda *given: given})
    runtime = ModuleType("mscclpp")
    runtime.__dict__.update(
        _mscclpp=native, Algorithm=algorithm, AlgorithmCollectionBuilder=lambda: builder
    )
    monkeypatch.setitem(sys.modules, "mscclpp", runtime)
    program: dict[str, Any] = {"__file__": str(tmp_path / "register.py")}
    exec(files["register.py"], program)
    program["register"](2)
    mode = SimpleNamespace(name="IN_PLACE" if in_place else "OUT_OF_PLACE")
    request = SimpleNamespace(
        world_size=4,
        n_ranks_per_node=4,
        collective="allreduce",
        message_size=size,
        buffer_mode=lambda: mode,
    )
    chosen = builder.select(builder.algorithms, request)
    expected = None if file is None else (str(tmp_path / file), 2)
    assert (chosen and chosen.execution_plan) == expected
    request.world_size = 8
    assert builder.select(builder.algorithms, request) is None
