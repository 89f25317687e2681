"""Packings are made once for all sizes of a network, and anew for whatever they depend on."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import pytest
from blink_requests import MIB, synthesized
from collhub_blink import synthesize as synthesis
from collhub_blink.packing import packings
from collhub_blink.packing.packings import PlacedPacking, get_cached_packings
from collhub_blink.packing.task import PackingTask
from collhub_blink.plugin import BlinkOptions

from hub_core import parse_topology
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Occupancy
from hub_core.plugin_api import SynthesisRequest

BROADCAST = Collective(CollectiveKind.BROADCAST, 4, 1, root=0, in_place=True)


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packings, "_cache", OrderedDict())


class _Packer:
    """Counts what it is asked for; `is_interrupted`: as if Ctrl-C came in the middle."""

    def __init__(self, *, is_interrupted: bool = False) -> None:
        self.calls = 0
        self._is_interrupted = is_interrupted

    def __call__(self, task: PackingTask) -> list[PlacedPacking]:
        self.calls += 1
        task.budget.is_interrupted = self._is_interrupted
        return []


def _task(text: str, *, size: int = MIB, root: int = 0, **options: object) -> PackingTask:
    topology = parse_topology(text)
    collective = replace(BROADCAST, root=root)
    request = SynthesisRequest(collective, topology, size, tuple(range(4)), Occupancy.SERIALIZATION)
    return PackingTask.of(request, BlinkOptions(**options))


def test_another_size_takes_what_is_kept() -> None:
    pack = _Packer()
    for size in (1024, MIB):
        get_cached_packings(_task("ring:4?bandwidth=11GB/s", size=size), pack)
    assert pack.calls == 1


@pytest.mark.parametrize(
    "other",
    [
        {"text": "ring:4?bandwidth=12GB/s&latency=1us"},
        {"root": 1},
        {"seed": 3},
        {"seeds": 2},
        {"depth": 2},
        {"time_limit": 3.0},
    ],
    ids=str,
)
def test_what_a_packing_depends_on_makes_another_one(other: dict[str, object]) -> None:
    pack = _Packer()
    asked = {"text": "ring:4?bandwidth=12GB/s"}
    get_cached_packings(_task(**asked), pack)
    get_cached_packings(_task(**{**asked, **other}), pack)
    assert pack.calls == 2


@pytest.mark.parametrize("ability", ["multicast", "reduction"])
def test_switches_that_multiply_messages_make_another_packing(ability: str) -> None:
    # Names and links are equal, the bounds are not.
    pack = _Packer()
    task = _task("switch:4?bandwidth=14GB/s")
    topology = replace(task.topology, **{ability: (4,)})
    other = replace(task, network=replace(task.network, topology=topology))
    get_cached_packings(task, pack)
    get_cached_packings(other, pack)
    assert pack.calls == 2


def test_what_was_interrupted_is_not_kept() -> None:
    for _ in range(2):
        pack = _Packer(is_interrupted=True)
        get_cached_packings(_task("ring:4?bandwidth=13GB/s"), pack)
        assert pack.calls == 1


@pytest.mark.once
def test_a_result_is_the_same_whether_its_packing_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [synthesized("all-reduce", "dgx1v", size) for size in (64 << 10, MIB)][1]
    monkeypatch.setattr(synthesis, "get_cached_packings", lambda task, pack: pack(task))
    fresh = synthesized("all-reduce", "dgx1v", MIB)
    assert fresh.statistics == first.statistics
    assert not fresh.algorithm.steps.differences(first.algorithm.steps)
