"""The option `--machine` of `collhub simulate`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from collhub_machine_profiles import shipped_profile
from collhub_machine_profiles.machine_profile import profile_bytes
from collhub_machine_timing.simulate import check

import hub_core
from hub_core.plugin_api import CheckRequest, WarmOptions
from hub_core.testing import ring_all_reduce

NODE = ("--topology", "dgx-h100", "--size", "1MiB")


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "ring.json"
    hub_core.write(ring_all_reduce(8), path)
    return path


def test_a_report_names_profile_library_and_error(collhub, ring: Path) -> None:
    run = collhub("simulate", ring, *NODE, "--machine", "h100")
    assert run.code == 0
    assert run.err == "machine h100, NCCL 2.29.2, held-out error 5.4 %\n"
    report = collhub("simulate", ring, *NODE, "--machine", "h100", "--json").report()
    assert report["machine"] == {
        "name": "h100",
        "library": "NCCL 2.29.2",
        "held_out_error": pytest.approx(0.054, abs=0.001),
    }
    assert (report["backend"], report["details"]["kernel"]) == ("machine", "fifo")
    assert report["time_ns"] > 5 * 22_155


def test_without_a_machine_a_report_says_so_and_keeps_its_times(collhub, ring: Path) -> None:
    for machine in ((), ("--machine", "none")):
        report = collhub("simulate", ring, *NODE, *machine, "--json").report()
        assert report["timing"] == "nominal links, not a machine"
        assert (report["machine"], report["time_ns"]) == (None, 22_155)


def test_a_file_is_a_profile(collhub, ring: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(profile_bytes(shipped_profile("h100")))
    reports = [
        collhub("simulate", ring, *NODE, "--machine", machine, "--json").report()
        for machine in ("h100", path)
    ]
    assert reports[0] == reports[1]


def test_bounds_on_a_machine_allow_its_switches_to_multicast_and_reduce(
    collhub, ring: Path
) -> None:
    # A GPU sends its 1 GiB once over links of 450 GB/s if the switches multicast and add up, and
    # 14/8 GiB otherwise: no bound between both holds on the machine.
    once_ns = 2**30 / 450
    size = ("--topology", "dgx-h100", "--size", "1GiB", "--json")
    request = ("synthesize", "ring", "--collective", "all-reduce", *size)
    for command in (("simulate", ring, *size), request):
        on_machine = collhub(*command, "--machine", "h100").report()
        nominal = collhub(*command, "--machine", "none").report()
        assert once_ns < on_machine["bound_ns"] < 1.01 * once_ns
        assert nominal["bound_ns"] > 1.74 * once_ns


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--machine", "h10"), "there is no profile 'h10', and no such file; did you mean 'h100'?"),
        (("--machine", "a100"), "450 GB/s a GPU instead of 300"),
        (("--machine", "gb200"), "8 GPUs a node instead of 4"),
        (("--machine", "l40s"), "has measured tables alone"),
        (("--machine", "h100", "--backend", "astra-sim"), "exclude each other"),
        (("--machine", "h100", "-O", "kernel=nvls"), "no switch of dgx-h100 adds up"),
        (("--machine", "h100", "-O", "kernel=direct", "-O", "protocol=ll128"), "use ll, simple"),
    ],
)
def test_bad_input_is_one_line_with_a_cure(
    collhub, ring: Path, arguments: tuple[str, ...], reason: str
) -> None:
    run = collhub("simulate", ring, *NODE, *arguments)
    assert (run.code, run.out) == (2, "")
    assert reason in run.err
    assert run.err.count("\n") == 1
    assert ";" in run.err


def test_a_damaged_profile_is_refused_with_its_defect(collhub, ring: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('{"schema": "collhub-machine/1"}')
    run = collhub("simulate", ring, *NODE, "--machine", path)
    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("error: option machine: $: 'name' is a required property")


def test_a_workload_is_refused(collhub, tmp_path: Path) -> None:
    job = collhub("generate", "pipeline", "-o", tmp_path / "job")
    assert job.code == 0
    run = collhub("simulate", tmp_path / "job", "--topology", "switch:4", "--machine", "h100")
    assert run.code == 2
    assert "--machine and --topology exclude each other for a workload" in run.err
    shutil.rmtree(tmp_path / "job", ignore_errors=True)


@pytest.mark.parametrize("warm", [False, True])
def test_the_kernel_is_compiled_on_request(warm: bool) -> None:
    report = check(CheckRequest(), WarmOptions(warm=warm))
    assert report.ok
    assert [line.subject for line in report.lines] == (["machine kernel"] if warm else [])


@pytest.mark.parametrize(("machine", "nodes"), [("p4de", 2), ("p6-b200", 4)])
def test_hops_of_a_fitted_network_delay_messages_between_nodes(
    collhub, tmp_path: Path, machine: str, nodes: int
) -> None:
    ring = tmp_path / "ring.json"
    hub_core.write(ring_all_reduce(8 * nodes), ring)
    run = collhub("simulate", ring, "--topology", f"{machine}:{nodes}", "--size", "64KiB",
                  "--machine", machine, "-O", "protocol=ll", "--json")  # fmt: skip
    (network,) = shipped_profile(machine).networks
    # A chunk passes the ring almost twice, and leaves every node once in each round.
    assert run.report()["time_ns"] > (2 * nodes - 1) * network.values[0] * 1e3
