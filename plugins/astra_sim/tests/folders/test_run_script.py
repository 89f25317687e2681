from __future__ import annotations

import subprocess

import pytest
from astra_calls import write_folder

from hub_core.testing import ring_all_reduce

RING = {"topology": "ring:4?bandwidth=50GiB/s&latency=500ns", "size": 1 << 20}


@pytest.fixture
def folder(store):
    return store(write_folder(ring_all_reduce(4), **RING))


def finished(*ranks):
    return "".join(
        f"print('sys[{rank}] finished, 5 cycles, exposed communication 5 cycles.')\n"
        for rank in ranks
    )


def test_script_is_plain_posix_shell(folder):
    assert subprocess.run(["sh", "-n", folder / "run.sh"], check=False).returncode == 0


def test_script_runs_from_any_folder_with_a_relative_binary(folder, run_script, aware, tmp_path):
    assert run_script(folder, "bin/AstraSim_Analytical_Congestion_Aware", tmp_path).returncode == 0


def test_script_can_be_run_again(folder, run_script, aware):
    assert [run_script(folder, aware).returncode for _ in range(2)] == [0, 0]


def test_folder_can_be_moved(folder, run_script, aware, tmp_path):
    moved = folder.rename(tmp_path / "a folder; with 'odd' name")
    assert run_script(moved, aware).returncode == 0


def test_further_options_reach_the_simulator(folder, run_script, program):
    binary = program(f"import sys\nprint(sys.argv[-1])\n{finished(0, 1, 2, 3)}")
    assert (
        "--rendezvous-protocol=true"
        in run_script(folder, binary, None, "--rendezvous-protocol=true").stdout
    )


def test_missing_variable_is_named(folder, run_script):
    done = run_script(folder)
    assert done.returncode != 0
    assert "ASTRA_SIM_BIN is not set" in done.stderr


def test_binary_that_does_not_exist_is_named(folder, run_script):
    done = run_script(folder, "no/such/program")
    assert (done.returncode, "no/such/program is not a program" in done.stderr) == (1, True)


def test_rank_that_never_finishes_fails_the_script(store, run_script, aware, message):
    done = run_script(store(write_folder(message(is_received=False))), aware)
    assert done.returncode == 1
    assert done.stderr == "run.sh: these ranks never finished: 1\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (finished(0, 1, 3), "these ranks never finished: 2"),
        (finished(0, 1, 2, 2), "these ranks never finished: 3"),
        ("", "these ranks never finished: 0 1 2 3"),
        (
            finished(0, 1, 2, 3) + "print('!!!Hardware Resource sys.id=3 has unreleased nodes!!!')",
            "unreleased nodes",
        ),
        (finished(0, 1, 2, 3) + "print('a callable is removed before call')", "lost an event"),
        (finished(0, 1, 2, 3) + "import os; os._exit(134)", "exit status 134"),
    ],
)
def test_run_that_went_wrong_fails_the_script(text, says, folder, run_script, program):
    done = run_script(folder, program(text))
    assert (done.returncode, says in done.stderr) == (1, True)


def test_output_is_shown_and_kept(folder, run_script, aware):
    done = run_script(folder, aware)
    assert done.stdout == (folder / "output.log").read_text()


def test_trace_that_is_missing_is_named_and_not_created(folder, run_script, aware):
    (folder / "traces" / "all-reduce.2.et").unlink()
    done = run_script(folder, aware)
    assert (done.returncode, "traces/all-reduce.2.et is missing" in done.stderr) == (1, True)
    assert not (folder / "traces" / "all-reduce.2.et").exists()
