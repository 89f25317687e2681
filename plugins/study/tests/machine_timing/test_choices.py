"""Commands that choose algorithms by the times of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.once

NODE = ("--collective", "all-reduce", "--topology", "dgx-h100", "--no-cache")
RINGS = ("--with", "ring", "--with", "double-binary-tree")
NOMINAL = "nominal links, not a machine"


def test_comparisons_use_the_known_machine_and_its_best_variants(collhub) -> None:
    run = collhub("compare", *NODE, *RINGS, "--size", "256MiB", "--json")
    assert run.code == 0
    assert "machine h100, NCCL 2.29.2, held-out error 5.4 %" in run.err
    report = run.report()
    assert (report["machine"]["name"], report["backend"]) == ("h100", "machine")
    assert report["winners"] == ["ring"]
    ring = next(row for row in report["results"] if row["algorithm"] == "ring")
    assert (ring["instances"], ring["protocol"]) == (32, "simple")
    # Measured: 335 GB/s for 512 MiB.
    assert ring["bus_bandwidth_bytes_per_s"] == pytest.approx(335e9, rel=0.1)


def test_nominal_links_on_request_and_for_unknown_machines(collhub) -> None:
    asked = ("compare", *NODE, *RINGS, "--size", "1MiB", "--json")
    run = collhub(*asked, "--machine", "none")
    assert NOMINAL in run.err
    assert (run.report()["machine"], run.report()["results"][0]["instances"]) == (None, 1)
    other = ("compare", "--collective", "all-reduce", "--topology", "ring:4", "--no-cache")
    assert NOMINAL in collhub(*other, "--with", "ring", "--size", "1MiB").err


def test_variations_of_links_are_nominal(collhub) -> None:
    asked = ("compare", *NODE, "--with", "ring", "--size", "1MiB", "--vary", "latency=1us..2us")
    assert NOMINAL in collhub(*asked).err
    run = collhub(*asked, "--machine", "h100")
    assert run.code == 2
    assert "use --machine none" in run.err


def test_a_job_has_no_machine(collhub, tmp_path: Path) -> None:
    assert collhub("generate", "pipeline", "-o", tmp_path / "job").code == 0
    job = ("compare", tmp_path / "job", "--topology", "switch:4")
    run = collhub(*job, "--machine", "h100")
    assert (run.code, "--machine has no meaning for a job" in run.err) == (2, True)


@pytest.mark.parametrize(("size", "instances", "pieces"), [("64KiB", 8, 1), ("256KiB", 4, 4)])
def test_tuned_programs_are_the_variants_of_their_times(
    collhub, tmp_path: Path, size: str, instances: int, pieces: int
) -> None:
    folder = tmp_path / "tuned"
    asked = (*NODE, "--with", "direct", "--size", f"{size}..{size}")
    (measured,) = collhub("compare", *asked, "--json").report()["results"]
    assert (measured["instances"], measured["pieces"]) == (instances, pieces)
    run = collhub("tune", *asked, "--to", "msccl", "-o", folder)
    assert run.code == 0, run.err
    (program,) = folder.rglob("*.xml")
    # 8 units of the algorithm in each piece of each copy; phases of pieces have 2 channels.
    assert f'nchunksperloop="{8 * instances * pieces}"' in program.read_text()
    assert 'nchannels="8"' in program.read_text()
    assert 'proto="LL"' in program.read_text()
    assert "machine h100" in (folder / "report.md").read_text()


def test_the_portfolio_writes_the_variant_of_its_time(collhub, tmp_path: Path) -> None:
    asked = ("--collective", "all-reduce", "--topology", "dgx-h100", "--size", "64MiB")
    options = ("-O", "candidates=ring", "-o", tmp_path / "best", "--json")
    run = collhub("synthesize", "auto", *asked, *options)
    report = run.report()
    assert report["statistics"]["variant"] == "replicate instances=32"
    run = collhub("simulate", tmp_path / "best", *asked[2:], "--machine", "h100", "--json")
    assert run.report()["time_ns"] == report["time_ns"]


def test_plans_of_the_portfolio_use_switch_channels(collhub, tmp_path: Path) -> None:
    asked = ("--collective", "all-reduce", "--topology", "dgx-h100", "--size", "1GiB")
    options = ("-O", "candidates=ring,direct", "-o", tmp_path / "best.plan.json")
    run = collhub("synthesize", "auto", *asked, *options, "-O", "topology=dgx-h100", "--json")
    assert run.code == 0, run.err
    assert run.report()["statistics"]["winner"] == "direct"
    assert '"glres"' in (tmp_path / "best.plan.json").read_text()


def test_the_portfolio_chooses_by_the_known_machine(collhub) -> None:
    asked = ("synthesize", "auto", "--collective", "all-reduce", "--topology", "dgx-h100")
    asked = (*asked, "--size", "1MiB", "-O", "candidates=ring,direct")
    run = collhub(*asked, "--json")
    report = run.report()
    assert (report["machine"]["name"], report["statistics"]["winner"]) == ("h100", "direct")
    assert collhub(*asked, "--machine", "none", "--json").report()["machine"] is None
