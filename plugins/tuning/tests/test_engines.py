"""`compare --engine`: the engine of a plugin gives the same results as the processes here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from collhub_tuning import sweep
from collhub_tuning.questions import ComparedAlgorithm, ComparisonQuestion
from collhub_tuning.result_cache import ResultCache

import hub_core
from hub_core.plugin_api import EngineRequest, Simulator, Synthesizer

ASKED = ("compare", "--collective", "all-reduce", "--topology", "ring:4", "--size", "1KiB")


@pytest.fixture(autouse=True)
def installed() -> None:
    registry = hub_core.discover()
    if "analytical" not in {found.name for found in registry.all(Simulator)}:
        pytest.skip("the simulator analytical (collhub-astra-sim) is not installed")
    if "ring" not in {found.name for found in registry.all(Synthesizer)}:
        pytest.skip("the synthesizers of collhub-classic are not installed")


def test_the_engine_of_this_distribution_is_started_by_name() -> None:
    registry = hub_core.discover()
    request = EngineRequest(2, task_timeout_s=60.0)
    with hub_core.start_engine("processes", request, registry=registry) as executor:
        assert [executor.submit(pow, 2, n).result() for n in range(4)] == [1, 2, 4, 8]


def test_another_engine_gives_the_same() -> None:
    question = ComparisonQuestion("all-reduce", None, "ring:4", 4, (1024, 2048), "analytical")
    algorithms = [ComparedAlgorithm(name, False) for name in ("ring", "pairwise", "direct")]
    found = [
        sweep.compared(
            algorithms,
            question,
            ResultCache(None, b"", {}),
            jobs=1,
            progress=lambda fraction, what: None,
            start=start,
        )
        for start in (None, lambda workers, timeout_s: ThreadPoolExecutor(workers))
    ]
    assert found[0] == found[1]


def test_an_unknown_engine_is_one_line(collhub) -> None:
    run = collhub(*ASKED, "--engine", "proceses")
    assert (run.code, run.out) == (2, "")
    assert ["did you mean 'processes'" in line for line in run.error_lines] == [True]


def test_an_option_that_the_engine_lacks_is_one_line(collhub) -> None:
    run = collhub(*ASKED, "-O", "speed=1")
    assert run.code == 2
    assert ["speed" in line for line in run.error_lines] == [True]


def test_files_are_compared_by_the_default_engine(collhub, ring: Path) -> None:
    assert collhub(*ASKED, "--with", ring, "--jobs", "1", "--no-cache").code == 0
