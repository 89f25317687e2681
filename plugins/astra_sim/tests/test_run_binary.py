from __future__ import annotations

import os
import resource
import time

import numpy as np
import pytest
from astra_calls import simulate_analytically, simulate_by_binary, write_folder
from collhub_astra_sim.binary import check, parse_output, run

from hub_core import parse_topology
from hub_core.model import ExitCode, InputError, PluginError, Severity, UsageError
from hub_core.plugin_api import CheckLine, CheckRequest, NoOptions
from hub_core.testing import ring_all_reduce

MIB = 1 << 20
RING = parse_topology("ring:4?bandwidth=50GiB/s&latency=500ns")
PAIR = parse_topology("fully-connected:2?bandwidth=50GiB/s&latency=500ns")
FINISHED = "".join(
    f"print('sys[{rank}] finished, 5 cycles, exposed communication 5 cycles.')\n"
    for rank in range(4)
)


def test_times_are_those_of_the_binary(aware):
    result = simulate_by_binary(ring_all_reduce(4), RING, MIB, binary=str(aware))
    assert result.rank_finish_ns == (32295,) * 4
    assert result.step_end_ns is None


@pytest.mark.parametrize("text", ["ring:6", "switch:6", "fc:6", "ring:6*switch:2"])
def test_binary_and_analytical_model_agree_without_congestion(text, unaware):
    topology = parse_topology(f"{text}?bandwidth=46.5GiB/s&latency=30.5ns")
    mine = simulate_analytically(
        ring_all_reduce(6), topology, 1000003, network="congestion-unaware"
    )
    theirs = simulate_by_binary(ring_all_reduce(6), topology, 1000003, binary=str(unaware))
    assert theirs.rank_finish_ns == mine.rank_finish_ns


def test_backend_is_known_by_the_name_of_the_binary_or_stated(unaware, program):
    torus = parse_topology("torus:2x3")
    assert simulate_by_binary(ring_all_reduce(6), torus, MIB, binary=str(unaware)).time_ns
    renamed = program(
        unaware.read_text().replace("Path(sys.argv[0]).name", "'Unaware'"), "simulator"
    )
    with pytest.raises(UsageError, match="cannot express topology torus:2x3"):
        simulate_by_binary(ring_all_reduce(6), torus, MIB, binary=str(renamed))
    assert simulate_by_binary(
        ring_all_reduce(6), torus, MIB, binary=str(renamed), network="congestion-unaware"
    ).time_ns


def test_ranks_that_never_finish_are_named(aware, message):
    result = simulate_by_binary(message(is_received=False), PAIR, MIB, binary=str(aware))
    assert result.rank_finish_ns == (20031, None)
    assert result.time_ns is None
    (finding,) = [finding for finding in result.diagnostics if finding.severity is Severity.ERROR]
    assert (finding.code, finding.location.rank) == ("never-finishes", 1)
    assert "unreleased nodes" in finding.message


def test_losses_of_the_folder_are_notes(aware, message):
    result = simulate_by_binary(message(), PAIR, MIB, binary=str(aware))
    assert [(finding.code, finding.severity) for finding in result.diagnostics] == [
        ("loss", Severity.NOTE)
    ]


def test_a_lost_event_is_an_error(aware, message, program):
    text = aware.read_text() + "\nprint('a callable is removed before call')\n"
    lost = program(text, aware.name)
    result = simulate_by_binary(message(), PAIR, MIB, binary=str(lost))
    assert "lost-event" in [finding.code for finding in result.diagnostics]


def test_ranks_of_a_larger_topology_are_the_first_npus(aware, message):
    topology = parse_topology("fully-connected:5?bandwidth=50GiB/s&latency=500ns")
    assert simulate_by_binary(message(), topology, MIB, binary=str(aware)).rank_finish_ns == (
        20031,
        20031,
    )


def test_topology_with_fewer_npus_than_ranks_is_refused(aware):
    with pytest.raises(UsageError, match="needs NPU 3, the world has 3 NPUs"):
        simulate_by_binary(ring_all_reduce(4), parse_topology("ring:3"), MIB, binary=str(aware))


@pytest.mark.parametrize("name", [None, "", "no-such-program", "no/such/program", os.curdir])
def test_binary_that_is_not_there_is_a_plugin_error_with_the_cure(name):
    with pytest.raises(PluginError) as caught:
        simulate_by_binary(ring_all_reduce(4), RING, MIB, binary=name)
    assert caught.value.exit_code is ExitCode.PLUGIN
    assert "ASTRA_SIM_BIN" in caught.value.diagnostics[0].cure


def test_relative_binary_is_found_from_the_current_folder(aware, monkeypatch):
    monkeypatch.chdir(aware.parent.parent)
    assert (
        simulate_by_binary(ring_all_reduce(4), RING, MIB, binary=f"bin/{aware.name}").time_ns
        == 32295
    )


def test_file_that_is_no_program_of_this_machine_is_a_plugin_error(program):
    binary = program("")
    binary.write_bytes(b"\x7fELF not really")
    with pytest.raises(PluginError, match="cannot be run"):
        simulate_by_binary(ring_all_reduce(4), RING, MIB, binary=str(binary))


def test_program_that_is_not_astra_sim_is_a_plugin_error(program):
    with pytest.raises(PluginError, match="does not answer like ASTRA-sim: hello"):
        simulate_by_binary(ring_all_reduce(4), RING, MIB, binary=str(program("print('hello')")))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "print('Assertion failed'); import os, sys; sys.stdout.flush(); os._exit(134)",
            r"exit status 134 \(an assertion failed\)",
        ),
        (
            "import os; os.abort()",
            r"signal SIGABRT \(an assertion failed\): \(it printed nothing\)",
        ),
        (
            "import sys; print('Cannot access et file'); sys.exit(1)",
            "exit status 1: Cannot access et file",
        ),
    ],
)
def test_abnormal_end_is_told_with_the_last_lines(text, says, program):
    with pytest.raises(InputError, match=says):
        simulate_by_binary(ring_all_reduce(4), RING, MIB, binary=str(program(text)))


def test_known_message_of_the_simulator_has_a_cure(program):
    binary = program("import sys; print('Cannot access et file'); sys.exit(1)")
    with pytest.raises(InputError) as caught:
        simulate_by_binary(ring_all_reduce(4), RING, MIB, binary=str(binary))
    assert "limit of open files" in caught.value.diagnostics[0].cure


def test_abort_over_a_message_faster_than_1_ns_is_explained(aware, message):
    with pytest.raises(InputError) as caught:
        simulate_by_binary(message(), PAIR, 53, binary=str(aware))
    assert "take less than 1 ns" in caught.value.diagnostics[0].cure


def test_lost_event_is_told(program):
    result = simulate_by_binary(
        ring_all_reduce(4),
        RING,
        MIB,
        binary=str(program(FINISHED + "print('a callable is removed before call')")),
    )
    assert [finding.code for finding in result.diagnostics] == ["lost-event"]


def test_time_limit_ends_the_binary_and_its_children(program, tmp_path):
    mark = tmp_path / "still-running"
    child = f"import time; time.sleep(1.5); open({str(mark)!r}, 'w')"
    binary = program(
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(30)"
    )
    started = time.monotonic()
    with pytest.raises(InputError, match=r"did not finish within 0.5 s"):
        simulate_by_binary(ring_all_reduce(4), RING, MIB, binary=str(binary), time_limit_s=0.5)
    assert time.monotonic() - started < 10
    time.sleep(2)
    assert not mark.exists()


@pytest.fixture
def few_files():
    """A soft limit of open files below the hard one; the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 256
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    yield few
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_limit_of_open_files_is_raised_for_the_binary_and_put_back(few_files, program, tmp_path):
    binary = program("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])")
    output = tmp_path / "output"
    assert run([str(binary)], tmp_path, output, time_limit_s=20, handles=few_files + 1) == 0
    assert int(output.read_text()) == few_files + 1
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few_files


def test_script_raises_the_limit_of_open_files(few_files, store, run_script, program, message):
    text = """
import resource
print("limit", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
for rank in range(257):
    print(f"sys[{rank}] finished, 1 cycles")
"""
    binary = program(text)
    done = run_script(store(write_folder(message(), npus=few_files + 1)), binary)
    assert f"limit {2 * (few_files + 1) + 64}" in done.stdout
    assert done.returncode == 0, done.stderr


def test_more_open_files_than_the_system_allows_are_refused(program, tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    with pytest.raises(InputError, match="2000 files at once, the system allows 1024"):
        run([str(program(""))], tmp_path, tmp_path / "output", time_limit_s=20, handles=2000)


def test_output_is_parsed_whatever_stands_around_the_lines():
    lines = [
        "[time] [workload] [info] sys[3] finished, 12 cycles, exposed communication 12 cycles.\n",
        "noise sys[0] finished, 7 cycles sys\n",
        "!!!Hardware Resource sys.id=2 has unreleased nodes!!!\n",
        "\n",
    ]
    outcome = parse_output(lines)
    assert (dict(outcome.finish_ns), outcome.unreleased, outcome.lost_event) == (
        {3: 12, 0: 7},
        {2},
        False,
    )
    assert outcome.tail[-1] == "!!!Hardware Resource sys.id=2 has unreleased nodes!!!"


def checked(**environment: str) -> tuple[CheckLine, ...]:
    return check(CheckRequest(environment=environment), NoOptions()).lines


def test_doctor_is_content_without_a_binary():
    (line,) = checked()
    assert line.is_ok
    assert "ASTRA_SIM_BIN is not set" in line.details


def test_doctor_lets_the_binary_time_one_message(aware):
    (line,) = checked(ASTRA_SIM_BIN=str(aware))
    assert line.is_ok, line


@pytest.mark.parametrize(
    "text",
    [
        "print('hello')",
        FINISHED.replace("sys[2]", "sys[1]").replace("sys[3]", "sys[0]"),
        "raise SystemExit(3)",
    ],
)
def test_doctor_says_what_is_wrong_with_a_binary(text, program):
    (line,) = checked(ASTRA_SIM_BIN=str(program(text)))
    assert not line.is_ok
    assert line.cure or "exit status 3" in line.details


def test_doctor_names_a_binary_that_is_not_there():
    (line,) = checked(ASTRA_SIM_BIN="no/such/program")
    assert (line.is_ok, "no/such/program" in line.details) == (False, True)


@pytest.mark.skipif(
    "ASTRA_SIM_BIN" not in os.environ, reason="ASTRA_SIM_BIN names no real ASTRA-sim"
)
def test_real_binary_and_analytical_model_agree():
    topology = parse_topology("ring:8?bandwidth=50GiB/s&latency=500ns")
    binary = os.environ["ASTRA_SIM_BIN"]
    theirs = simulate_by_binary(ring_all_reduce(8), topology, MIB, binary=binary)
    assert np.array_equal(theirs.rank_finish_ns, (41181,) * 8)
