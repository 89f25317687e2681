"""Algorithms of others become plans that run rightly: imported ones, and synthesized ones."""

from __future__ import annotations

import csv
import importlib.util
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.options import PlanWriteOptions
from collhub_mscclpp.plans.read_plan import parse_plan
from collhub_mscclpp.reading.read import read
from collhub_mscclpp.writing.plan_text import plan_text
from collhub_mscclpp.writing.write import draft_of, thread_blocks

import hub_core
from hub_core.model import Algorithm, Collective, CollectiveKind
from hub_core.plugin_api import NoOptions, Source

FOLDER = Path(__file__).resolve().parents[5] / "shared" / "corpus" / "msccl"
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
        draft = draft_of(algorithm, way)
        content = plan_text(draft, thread_blocks(draft))
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
    units = 1 if kind is CollectiveKind.ALL_REDUCE else ranks
    collective = Collective(kind, ranks, units)
    return hub_core.synthesize(collective, topology, 1 << 20, name=name).algorithm


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
