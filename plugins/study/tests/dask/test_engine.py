"""The engine `dask`: what is lost costs itself alone, and what cannot be used is named."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor
from pathlib import Path

import distributed
import psutil
import pytest
from collhub_dask import engine as engine_module
from collhub_dask.cluster_workers import collect_versions, find_difference
from collhub_dask.plugin import DaskOptions
from distributed import LocalCluster
from lost_tasks import dies, hangs, takes_all_memory, tells_its_process

import hub_core
from hub_core.model import HubError, PluginError, UsageError
from hub_core.plugin_api import EngineRequest

# `oldest` installs the same version of Dask as the other environments.
pytestmark = pytest.mark.once

ASKED = ("compare", "--collective", "all-reduce", "--topology", "ring:4", "--size", "1KiB..64KiB")
NAMES = ("--with", "ring", "--with", "direct", "--with", "pairwise", "--no-cache", "--json")
LONG_S = 60.0


@pytest.fixture(scope="module")
def engine() -> Iterator[Executor]:
    """Two workers of this machine; afterwards nothing of them is left."""
    before = dict(os.environ)
    with started(EngineRequest(2, task_timeout_s=8.0), memory="512MiB") as executor:
        yield executor
    assert dict(os.environ) == before
    assert workers_of(os.getpid()) == []


def started(request: EngineRequest, **options: str) -> Executor:
    return hub_core.start_engine("dask", request, options=options, registry=hub_core.discover())


def workers_of(pid: int) -> list[psutil.Process]:
    found = psutil.Process(pid).children(recursive=True)
    return [one for one in found if "spawn_main" in " ".join(one.cmdline())]


def test_without_the_extra_the_engine_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "find_spec", lambda name: None)
    with pytest.raises(PluginError, match="needs distributed and cryptography") as raised:
        engine_module.start(EngineRequest(1), DaskOptions())
    assert raised.value.diagnostics[0].cure == "python -m pip install 'collhub-study[dask]'"


def test_tasks_return_and_raise_what_they_do(engine: Executor) -> None:
    powers = [engine.submit(pow, 2, number) for number in range(8)]
    wrong = engine.submit(divmod, 1, 0)
    assert [task.result(LONG_S) for task in powers] == [2**number for number in range(8)]
    assert isinstance(wrong.exception(LONG_S), ZeroDivisionError)


@pytest.mark.parametrize(
    ("task", "error"),
    [(dies, BrokenExecutor), (hangs, TimeoutError), (takes_all_memory, MemoryError)],
)
def test_a_task_that_is_lost_costs_itself_alone(engine: Executor, task, error) -> None:
    tasks = [engine.submit(pow, 2, number) for number in range(4)]
    lost = engine.submit(task)
    tasks += [engine.submit(pow, 2, number) for number in range(4, 8)]
    assert isinstance(lost.exception(LONG_S), error)
    assert [one.result(LONG_S) for one in tasks] == [2**number for number in range(8)]


def test_a_task_whose_worker_is_killed_is_done_by_another(engine: Executor, tmp_path: Path) -> None:
    file = tmp_path / "process"
    task = engine.submit(tells_its_process, file)
    while not (file.exists() and file.read_text()):
        # What ended before it began would never write it.
        assert not task.done(), task.exception()
        time.sleep(0.05)
    os.kill(int(file.read_text()), signal.SIGKILL)
    assert task.result(LONG_S) == "done again"


def test_results_are_those_of_processes_and_the_working_folder_is_not_imported(
    collhub, comparing: None, ring: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "traps"
    folder.mkdir()
    for name in ("random", "numpy", "multiprocessing", "signal", "distributed", "collhub_tuning"):
        trap = "import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()"
        (folder / f"{name}.py").write_text(trap)
    program = Path(sys.executable).with_name("collhub")
    asked = (*ASKED, *NAMES, "--with", ring, "--timeout", "60s")
    done = subprocess.run(
        [program, *asked, "--engine", "dask", "-O", "workers=2"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, list(folder.glob("*.ran"))) == (0, [])
    by_processes = collhub(*asked)
    assert (done.stdout, done.stderr) == (by_processes.out, by_processes.err)


def test_ctrl_c_ends_all_processes(comparing: None) -> None:
    program = Path(sys.executable).with_name("collhub")
    asked = ("compare", "--collective", "all-reduce", "--topology", "dragonfly:4,2,2")
    asked += ("--size", "1KiB..1GiB", "--no-cache", "--engine", "dask", "-O", "workers=2")
    running = subprocess.Popen(
        [program, *asked], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    # As soon as there are workers: while they start as well.
    while not (workers := workers_of(running.pid)):
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    _, error = running.communicate(timeout=LONG_S)
    assert (running.returncode, error) == (130, "error: interrupted\n")
    assert psutil.wait_procs(workers, timeout=5)[1] == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scheduler": "nowhere"}, "missing port number"),
        ({"scheduler": "xyz://host:1"}, "unknown address scheme"),
        ({"scheduler": "host:1", "workers": "2"}, "of a cluster on this machine"),
        ({"workers": "0"}, "workers"),
    ],
)
def test_wrong_options_are_one_line(options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        started(EngineRequest(2), **options)


def test_a_scheduler_that_cannot_be_reached_is_one_line(collhub, comparing: None) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        start = time.perf_counter()
        # Bound and not listened to: nobody answers there.
        run = collhub(*ASKED, *NAMES, "--engine", "dask", "--scheduler", f"127.0.0.1:{port}")
    assert (run.code, run.out) == (2, "")
    assert [f"127.0.0.1:{port} cannot be reached" in line for line in run.error_lines] == [True]
    assert time.perf_counter() - start < LONG_S / 2


def test_another_server_is_no_scheduler() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"{address} cannot be reached: no scheduler answered"):
            started(EngineRequest(2), scheduler=address)


def cluster(**options: object) -> LocalCluster:
    """A cluster that somebody else has started."""
    web = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    return LocalCluster(threads_per_worker=1, scheduler_kwargs=web, silence_logs=50, **options)


@pytest.mark.parametrize(
    "address",
    ["tcp://192.0.2.1:8786", "192.0.2.1:8786", "tcp://cluster.example:8786", "ucx://192.0.2.1:1"],
)
def test_a_scheduler_elsewhere_without_tls_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"on another machine and does not use TLS.*insecure=yes"):
        started(EngineRequest(1), scheduler=address)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "tcp://[::1]:9", "localhost:9"])
def test_a_scheduler_on_this_machine_is_trusted(address: str) -> None:
    with pytest.raises(UsageError, match="cannot be reached"):
        started(EngineRequest(1), scheduler=address)


def test_what_answers_a_probe_is_not_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "unpickled"

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str, str]]:
            return (open, (str(mark), "w"))

    class Server(distributed.core.Server):
        def identity(self) -> dict[str, object]:
            return {"type": distributed.protocol.to_serialize(Trap()), "id": "x"}

    async def probe() -> str:
        server = Server({})
        server.handlers["identity"] = lambda: server.identity()
        await server.listen("tcp://127.0.0.1:0")
        try:
            return await engine_module._get_server_type(server.address)
        finally:
            await server.close()

    asyncio.run(probe())
    assert not mark.exists()


def test_a_cluster_without_workers_is_one_line() -> None:
    with cluster(n_workers=0) as running, pytest.raises(UsageError, match="has no workers"):
        started(EngineRequest(2), scheduler=running.scheduler_address)


def test_a_worker_that_nobody_restarts_gets_no_task_with_a_time() -> None:
    with cluster(n_workers=1, processes=False, protocol="tcp") as running:
        address = running.scheduler_address
        with pytest.raises(UsageError, match="has no nanny"):
            started(EngineRequest(2, task_timeout_s=5.0), scheduler=address)
        with started(EngineRequest(2), scheduler=address) as executor:
            assert executor.submit(pow, 2, 3).result(LONG_S) == 8


def test_a_worker_with_another_version_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "collhub_study-0.0.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: collhub-study\nVersion: 0.0.1\n")
    with cluster(n_workers=0) as running:
        address = running.scheduler_address
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "distributed.cli.dask_worker", address, "--no-dashboard"],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not running.scheduler.workers:
                time.sleep(0.05)
            with pytest.raises(UsageError, match=r"worker tcp.* has collhub-study 0\.0\.1, not 0"):
                started(EngineRequest(2), scheduler=address)
        finally:
            worker.terminate()
            worker.wait()


def test_what_a_worker_lacks_is_named() -> None:
    own = collect_versions()
    assert {"collhub", "collhub-study", "distributed"} <= set(own)
    assert find_difference(own, own) is None
    assert find_difference(own, {**own, "collhub": None}) == f"lacks collhub {own['collhub']}"


@pytest.mark.slow
def test_the_cluster_of_somebody_else_goes_on() -> None:
    with cluster(n_workers=1) as running:
        address = running.scheduler_address
        with started(EngineRequest(4, task_timeout_s=1.0), scheduler=address) as executor:
            hanging = executor.submit(hangs)
            assert isinstance(hanging.exception(LONG_S), TimeoutError)
            assert executor.submit(pow, 2, 3).result(LONG_S) == 8
        with started(EngineRequest(4), scheduler=address) as executor:
            assert executor.submit(pow, 2, 4).result(LONG_S) == 16


def test_tasks_of_a_scheduler_that_is_gone_are_lost() -> None:
    running = cluster(n_workers=1, processes=False, protocol="tcp")
    with started(EngineRequest(1), scheduler=running.scheduler_address) as executor:
        hanging = [executor.submit(time.sleep, 3) for _ in range(2)]
        running.close()
        assert [type(one.exception(LONG_S)).__mro__[1] for one in hanging] == [RuntimeError] * 2
        with pytest.raises(BrokenExecutor):
            hanging[0].result()


def test_an_engine_that_does_not_start_is_an_error_of_the_hub() -> None:
    with pytest.raises(HubError):
        started(EngineRequest(1), memory="1KiB")
