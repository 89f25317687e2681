"""`compare --engine`: the engine of a plugin gives the same results as the processes here."""

from __future__ import annotations

import pickle
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest
from collhub_tuning import sweep
from collhub_tuning.questions import AlgorithmAtSize, ComparedAlgorithm, ComparisonQuestion
from collhub_tuning.result_cache import ResultCache

import hub_core
from hub_core.plugin_api import EngineRequest

pytestmark = pytest.mark.once

ASKED = ("compare", "--collective", "all-reduce", "--topology", "ring:4", "--size", "1KiB")


@pytest.fixture(autouse=True)
def installed(comparing: None) -> None:
    """All tests here compare algorithms."""


def test_the_engine_of_this_distribution_is_started_by_name() -> None:
    registry = hub_core.discover()
    request = EngineRequest(2, task_timeout_s=60.0)
    with hub_core.start_engine("processes", request, registry=registry) as executor:
        assert [executor.submit(pow, 2, n).result() for n in range(4)] == [1, 2, 4, 8]


QUESTION = ComparisonQuestion("all-reduce", None, "ring:4", 4, (1024, 2048), "analytical")


def swept(measuring: sweep.Measuring, *names: str) -> list[AlgorithmAtSize]:
    algorithms = [ComparedAlgorithm(name, "/" in name) for name in names]
    return sweep.compare_algorithms(
        algorithms,
        QUESTION,
        ResultCache(None, b"", {}),
        measuring=measuring,
        progress=lambda fraction, what: None,
    )


def threads(workers: int, timeout_s: float | None) -> Executor:
    return ThreadPoolExecutor(workers)


def test_another_engine_gives_the_same() -> None:
    names = ("ring", "pairwise", "direct")
    with sweep.Measuring(1) as here, sweep.Measuring(1, start=threads) as there:
        assert swept(here, *names) == swept(there, *names)


class Elsewhere(ThreadPoolExecutor):
    """Runs what was pickled where the file is not."""

    def __init__(self, file: Path) -> None:
        super().__init__(1)
        self._file = file

    def submit(self, fn, /, *args):
        sent = pickle.dumps((fn, args))
        self._file.unlink()
        return super().submit(run_pickled, sent)


def run_pickled(sent: bytes) -> object:
    function, args = pickle.loads(sent)
    return function(*args)


def test_an_engine_that_sees_no_files_gets_what_they_hold(ring: Path) -> None:
    with sweep.Measuring(1) as here:
        expected = swept(here, str(ring))
    with sweep.Measuring(1, None, lambda *asked: Elsewhere(ring), shares_files=False) as there:
        assert swept(there, str(ring)) == expected
    assert [one.failure for one in expected] == ["", ""]


@pytest.mark.parametrize("content", [b"", b"no algorithm"])
def test_a_file_that_cannot_be_read_fails_alike_on_all_engines(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "one.json"
    file.write_bytes(content)
    with sweep.Measuring(1) as here, sweep.Measuring(1, None, threads, False) as there:
        assert swept(here, str(file)) == swept(there, str(file))


def test_workers_serve_one_comparison_after_another() -> None:
    started = []

    def start(workers: int, timeout_s: float | None) -> Executor:
        started.append(workers)
        return ThreadPoolExecutor(workers)

    with sweep.Measuring(2, start=start) as measuring:
        assert swept(measuring, "ring") == swept(measuring, "ring")
    assert started == [2]


def test_an_unknown_engine_is_one_line(collhub) -> None:
    run = collhub(*ASKED, "--engine", "proceses")
    assert (run.code, run.out) == (2, "")
    assert ["did you mean 'processes'" in line for line in run.error_lines] == [True]


def test_an_engine_without_a_cluster_takes_no_scheduler(collhub) -> None:
    run = collhub(*ASKED, "--scheduler", "host:8786")
    assert run.code == 2
    assert ["the engine processes has no --scheduler" in one for one in run.error_lines] == [True]


def test_tune_runs_on_an_engine_as_compare_does(collhub) -> None:
    asked = ("tune", *ASKED[1:], "--with", "ring", "--no-cache", "--json")
    on_processes = collhub(*asked, "--timeout", "60s").report()
    assert on_processes == collhub(*asked, "--jobs", "1").report()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--engine", "proceses"), "did you mean 'processes'"),
        (("--timeout", "0s"), "is not a time above 0"),
        (("-O", "speed=1"), "there is no option 'speed' here"),
    ],
)
def test_tune_refuses_what_compare_refuses(collhub, arguments: tuple[str, ...], says: str) -> None:
    run = collhub("tune", *ASKED[1:], *arguments)
    assert run.code == 2
    assert [says in line for line in run.error_lines] == [True]


def test_an_option_that_the_engine_lacks_is_one_line(collhub) -> None:
    run = collhub(*ASKED, "-O", "speed=1")
    assert run.code == 2
    assert ["speed" in line for line in run.error_lines] == [True]


def test_files_are_compared_by_the_default_engine(collhub, ring: Path) -> None:
    assert collhub(*ASKED, "--with", ring, "--jobs", "1", "--no-cache").code == 0
