"""Algorithms of others become plans that run rightly: imported ones, and synthesized ones."""

from __future__ import annotations

import csv
import importlib.util
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.plugin import PlanWriteOptions
from collhub_mscclpp.reading.read import read
from collhub_mscclpp.reading.read_plan import parse_plan
from collhub_mscclpp.writing.write import build_draft, plan_text, write_thread_blocks

import hub_core
from hub_core.model import Algorithm, Collective, CollectiveKind
from hub_core.plugin_api import NoOptions, Source

FOLDER = Path(__file__).resolve().parents[6] / "shared" / "corpus" / "msccl"
SIMPLE, PACKETS = PlanWriteOptions(), PlanWriteOptions(protocol="LL")
SLICES = PlanWriteOptions(slices=4096)
# Thread blocks that a GPU of 132 multiprocessors holds at once, two on each.
MOST_RESIDENT = 264
VERDICTS = {"in": "inplace", "out": "outofplace"}
KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)
SYNTHESIZED = [
    *((name, "fully-connected:8", kind) for name in ("direct", "bruck") for kind in KINDS),
    *((name, "fully-connected:8", kind) for name in ("swing", "pat", "rings")
      for kind in KINDS[:3]),
    ("pairwise", "fully-connected:8", CollectiveKind.ALL_TO_ALL),
    ("halving-doubling", "fully-connected:8", CollectiveKind.ALL_REDUCE),
    ("halving-doubling", "fully-connected:8", CollectiveKind.REDUCE_SCATTER),
    *((name, f"ring:{ranks}", kind) for name in ("ring", "bidirectional-ring")
      for ranks in (3, 4, 5, 6, 8) for kind in KINDS[:3]),
    *(("tacos", "mesh:2x3", kind) for kind in KINDS),
]  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """How many plans were written, and where their messages land."""

    written: int = 0
    messages: int = 0
    direct: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, name: str, algorithm: Algorithm, way: PlanWriteOptions) -> None:
        draft = build_draft(algorithm, way)
        content = plan_text(draft, write_thread_blocks(draft))
        plan = parse_plan(content, name)
        report = check_plan(plan)
        blocks = Counter(block.rank for block in plan.blocks)
        back = read(Source.of_bytes("plan.json", content), NoOptions())
        is_right = report.is_loadable and not report.diagnostics and hub_core.verify(back).ok
        is_right = is_right and {report.verdict, report.verdict_relaunch} == {"ok"}
        if not is_right or max(blocks.values()) > MOST_RESIDENT:
            self.wrong.append(f"{name}, {way.protocol}")
        receives = draft.work.messages.receive
        self.written += 1
        self.messages += len(receives)
        self.direct += int(draft.landing.is_direct[receives].sum())


def imported(step: int) -> Iterator[tuple[str, Algorithm]]:
    """Every right (file, claimed mode) with a named collective, or each `step`th file of these."""
    if not FOLDER.exists():
        pytest.skip("the collection of MSCCL programs is not here")
    if importlib.util.find_spec("collhub_msccl") is None:
        pytest.skip("the plugin collhub_msccl is not installed")
    with (FOLDER / "index.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["collective"] != "custom"]
    for row in rows[::step]:
        for mode in ("in", "out"):
            is_right = row[f"verdict_{VERDICTS[mode]}"]
            if row["claims"] not in (mode, "both") or is_right != "ok":
                continue
            algorithm = hub_core.read(FOLDER / row["file"])
            modes = {"in_place": mode == "in", "out_of_place": mode == "out"}
            collective = replace(algorithm.collective, **modes)
            yield f"{row['file']}, {mode}", replace(algorithm, collective=collective)


@pytest.mark.once
def test_a_sample_of_imported_algorithms_runs_rightly() -> None:
    outcome = Outcome()
    for name, algorithm in imported(29):
        outcome.add(name, algorithm, SIMPLE)
        outcome.add(name, algorithm, PACKETS)
    assert outcome.wrong == []
    assert outcome.written >= 8


@pytest.mark.slow
def test_every_imported_algorithm_runs_rightly() -> None:
    simple, packets, slices = Outcome(), Outcome(), Outcome()
    for name, algorithm in imported(1):
        simple.add(name, algorithm, SIMPLE)
        packets.add(name, algorithm, PACKETS)
        slices.add(name, algorithm, SLICES)
    assert simple.wrong == packets.wrong == slices.wrong == []
    # 132 claims in place and 46 out of place in `index.csv` of 2026-11.
    assert simple.written == 178
    # Measured 51 %.
    assert simple.direct >= 0.4 * simple.messages


def synthesized(name: str, topology: str, kind: CollectiveKind) -> Algorithm:
    ranks = hub_core.parse_topology(topology).num_npus
    units = 1 if kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST) else ranks
    root = 0 if kind is CollectiveKind.BROADCAST else None
    collective = Collective(kind, ranks, units, root=root)
    return hub_core.synthesize(collective, topology, 1 << 20, name=name).algorithm


UNEVEN = [
    ("binomial", "fully-connected:6", CollectiveKind.BROADCAST, "collhub_classic"),
    ("double-binary-tree", "fully-connected:6", CollectiveKind.ALL_REDUCE, "collhub_classic"),
    ("blink", "dgx1p", CollectiveKind.BROADCAST, "collhub_blink"),
    ("tacos", "mesh:3x3", CollectiveKind.BROADCAST, "collhub_tacos"),
    ("tacos", "mesh:3x3", CollectiveKind.ALL_REDUCE, "collhub_tacos"),
]


@pytest.mark.parametrize(("name", "topology", "kind", "distribution"), UNEVEN)
def test_ranks_that_need_different_numbers_of_slots_have_equal_scratch(
    name: str, topology: str, kind: CollectiveKind, distribution: str
) -> None:
    """In every second launch a sender adds half of its own scratch to the remote address."""
    pytest.importorskip(distribution)
    algorithm = synthesized(name, topology, kind)
    received = np.bincount(
        algorithm.steps.rank[algorithm.steps.receives],
        weights=algorithm.steps.count[algorithm.steps.receives],
        minlength=algorithm.num_ranks,
    )
    # Every message has a slot of its own, so the ranks need different numbers of them.
    assert len(set(received.tolist())) > 1
    draft = build_draft(algorithm, PACKETS)
    plan = parse_plan(plan_text(draft, write_thread_blocks(draft)), "uneven.json")
    assert len({gpu.scratch_chunks for gpu in plan.gpus}) == 1
    report = check_plan(plan)
    assert (report.diagnostics, report.verdict_relaunch) == ((), "ok" if is_named(kind) else "n/a")


def is_named(kind: CollectiveKind) -> bool:
    """Whether plans have a name for a collective, so that they promise contents."""
    return kind in KINDS


@pytest.mark.parametrize(
    ("name", "topology", "kind"), [pytest.param(*case, marks=pytest.mark.slow) if at % 9 else case
                                   for at, case in enumerate(SYNTHESIZED)],
)  # fmt: skip
def test_synthesized_algorithms_run_rightly(name: str, topology: str, kind: CollectiveKind) -> None:
    distribution = "collhub_tacos" if name == "tacos" else "collhub_classic"
    pytest.importorskip(distribution)
    algorithm = synthesized(name, topology, kind)
    outcome = Outcome()
    outcome.add(name, algorithm, SIMPLE)
    outcome.add(name, algorithm, PACKETS)
    assert outcome.wrong == []
