"""Streams on real topologies: proved, simulated near to their bound, and exact byte by byte."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from collhub_reshard import parse_move, plan_reshard
from collhub_reshard.planning import ReshardChoices
from collhub_reshard.recheck import check_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from reshard_tasks import changing, moves

import hub_core
from hub_core.network import Topology
from hub_core.plugin_api import CheckRequest, NoOptions

pytestmark = [pytest.mark.needs_plugins, pytest.mark.once]
ROWS = ("--tensor", "8192x8192:bfloat16", "--from", "mesh(2,4)@0-7: S0 R")
# Rows become columns, each of 64 MiB on four devices of one host.
COLUMNS = (*ROWS, "--to", "mesh(2,4)@8-15: R S0", "-O", "host_size=8")
# Every device sends a part to every other one.
ALL = ("--tensor", "8192x8192:bfloat16", "--from", "mesh(2,8)@0-15: S0 R", "--to",
       "mesh(2,8)@16-31: S1 S0", "-O", "host_size=8")  # fmt: skip


@pytest.mark.parametrize(
    ("topology", "arguments", "bound_s", "link"),
    [
        # Both columns enter the host once, by eight cards of 50 GB/s.
        ("dgx-h100:2", COLUMNS, 2**27 / 400e9, ("network", "8")),
        # Eight cards of 25 GB/s.
        ("dgx-a100:2", COLUMNS, 2**27 / 200e9, None),
        # Two spines for eight NPUs a leaf, 50 GB/s each.
        ("leaf-spine:4,8,2", ALL, 2**26 / 100e9, None),
    ],
)
def test_simulated_streams_are_near_the_bound_of_the_links(
    collhub, topology: str, arguments, bound_s: float, link
) -> None:
    report = collhub("reshard", *arguments, "--topology", topology, "--json").report()
    assert (report["method"], report["status"], report["proof"]) == ("streams", "optimal", "bound")
    assert report["bound_s"] == report["makespan_s"] == pytest.approx(bound_s, rel=1e-9)
    assert report["simulated_s"] <= 1.05 * report["bound_s"]
    binding = report["binding"]
    assert binding["kind"] == "links"
    if link is not None:
        assert {(one["from"], one["to"]) for one in binding["links"]} >= {link}


def test_replicas_behind_uplinks_are_proved_by_a_simple_cut(collhub) -> None:
    # All 64 MiB into each of eight NPUs, each of which passes them on by one card of 50 GB/s.
    sides = ("--from", "mesh(4,2)@0-7: S01 R", "--to", "mesh(1,8)@8-15: R S0")
    arguments = ("--tensor", "4096x8192:bfloat16", *sides, "-O", "host_size=4", "-O", "chunks=64")
    network = ("--topology", "leaf-spine:4,4,1")
    report = collhub("reshard", *arguments, *network, "--json").report()
    assert report["status"] == "optimal"
    assert report["bound_s"] == pytest.approx(2**26 / 50e9)


def test_eight_cards_are_eight_times_as_fast_as_one(collhub) -> None:
    eight, one = (
        collhub("reshard", *COLUMNS, *network, "--json").report()["makespan_s"]
        for network in (("--topology", "dgx-h100:2"), ("--host-bandwidth", "50GB/s"))
    )
    assert one == pytest.approx(8 * eight)


def test_links_of_other_bandwidths_share_what_they_can() -> None:
    # NPU 0 sends half of the box on a link of 3 GB/s and half over NPU 1, which has 1 GB/s.
    links = [(0, 2, 3.0), (1, 2, 1.0), (2, 0, 3.0), (2, 1, 1.0), (0, 1, 9.0), (1, 0, 9.0)]
    source, destination, rate = zip(*links, strict=True)
    columns = [np.asarray(source), np.asarray(destination), np.asarray(rate) * 1e9]
    made = Topology("uneven", 3, 3, *columns, np.zeros(len(links)))
    move = parse_move("4096x4:int8", "mesh(1,2)@0-1: R R", "mesh(1,1)@2: R R", host_size=2)
    plan = plan_reshard([move], topology=made)
    assert plan.outcome.status == "optimal"
    assert plan.makespan_s == pytest.approx(2**14 / 4e9)
    assert {stream.edges[0][0] for stream in plan.streams.streams} == {0, 1}


@st.composite
def networks(draw: st.DrawFn, num_npus: int) -> Topology:
    """NPUs on two switches, with cards and uplinks of drawn rates."""
    rates = st.sampled_from([1e9, 2e9, 5e9])
    links = []
    for npu in range(num_npus):
        switch = num_npus + npu % 2
        links += [(npu, switch, draw(rates)), (switch, npu, draw(rates))]
    links += [(num_npus, num_npus + 1, draw(rates)), (num_npus + 1, num_npus, draw(rates))]
    source, destination, rate = zip(*links, strict=True)
    columns = [np.asarray(source), np.asarray(destination), np.asarray(rate)]
    return Topology("drawn", num_npus, num_npus + 2, *columns, np.full(len(links), 1e-6))


@given(moves(), st.data())
@settings(max_examples=25, deadline=None)
def test_streams_of_any_specs_verify_with_their_proof(move, data) -> None:
    devices = move.source.mesh.num_devices + move.destination.mesh.num_devices
    topology = data.draw(networks(devices))
    layout = data.draw(st.sampled_from(["packed", "rows"]))
    plan = plan_reshard([move], topology=topology, choices=ReshardChoices(None, 2, layout))
    assert plan.makespan_s >= plan.bound_s
    # Fractions are rounded to a millionth; a single receiver is solved exactly.
    if move.destination.mesh.num_devices == 1:
        assert plan.outcome.gap < 1e-4
    algorithm = plan.lower().algorithm
    assert hub_core.verify(algorithm).ok
    request = CheckRequest(algorithm=algorithm, topology=topology)
    report = check_schedule(request, NoOptions())
    assert report.ok, report.diagnostics


def test_summands_are_added_where_streams_bring_them(collhub, tmp_path: Path) -> None:
    out = tmp_path / "sums.json"
    sides = ("--from", "mesh(2,2)@0-3: S0 R P1", "--to", "mesh(2,2)@4-7: R S0")
    arguments = ("--tensor", "64x64:float32", *sides, "--topology", "switch:8")
    assert collhub("reshard", *arguments, "-o", out).code == 0
    assert collhub("run", out, "--executor", "numpy", "--dtype", "float32").code == 0


def _slower(proof) -> None:
    """Halve the rate of a link that binds."""
    link = proof["bound"]["weights"][0][0]
    proof["links"][2][link] /= 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (changing("bound", "weights", value=[[0, 1]]), "reshard-bound"),
        (changing("bound", "weights", value=[[10**6, 1]]), "reshard-bound"),
        (changing("bound", "weights", 0, 1, value=0), "reshard-bound"),
        (changing("bound", "seconds", value="1/2"), "reshard-bound"),
        (changing("makespan_s", value="1/2"), "reshard-makespan"),
        (changing("streams", 0, 3, value="1/7"), "reshard-coverage"),
        (changing("streams", 0, 1, 0, value=[15, 8]), "reshard-sender"),
        (changing("streams", 0, 1, value=[]), "reshard-receivers"),
        (changing("streams", value=[]), "reshard-coverage"),
        (_slower, "reshard-makespan"),
        (changing("links", value=[]), "reshard-form"),
        (changing("moves", 0, "tensor", value="8x8:int8"), "reshard-makespan"),
    ],
)
def test_a_changed_proof_of_streams_is_found_out(collhub, tmp_path: Path, change, code) -> None:
    out = tmp_path / "r.json"
    collhub("reshard", *COLUMNS, "--topology", "dgx-h100:2", "-O", "chunks=2", "-o", out)
    document = json.loads(out.read_text())
    change(document["extensions"]["reshard"])
    out.write_text(json.dumps(document))
    report = check_schedule(CheckRequest(algorithm=hub_core.read(str(out))), NoOptions())
    assert not report.ok
    assert report.diagnostics[0].code == code


def test_an_algorithm_that_sends_less_than_its_streams_is_found_out(
    collhub, tmp_path: Path
) -> None:
    out, other = tmp_path / "r.json", tmp_path / "other.json"
    network = ("--topology", "dgx-h100:2", "-O", "chunks=2")
    collhub("reshard", *COLUMNS, *network, "-o", out)
    # Half of the columns, by the same devices; with the proof of all.
    small = ("--tensor", "8192x4096:bfloat16", *COLUMNS[2:])
    collhub("reshard", *small, *network, "-o", other)
    documents = [json.loads(file.read_text()) for file in (out, other)]
    documents[1]["extensions"] = documents[0]["extensions"]
    other.write_text(json.dumps(documents[1]))
    report = check_schedule(CheckRequest(algorithm=hub_core.read(str(other))), NoOptions())
    assert [found.code for found in report.diagnostics] == ["reshard-traffic"]


def test_a_proof_for_other_links_is_exit_1(collhub, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    collhub("reshard", *COLUMNS, "--topology", "dgx-h100:2", "-O", "chunks=2", "-o", out)
    assert collhub("verify", out, "--certificate", "--topology", "dgx-h100:2").code == 0
    run = collhub("verify", out, "--certificate", "--topology", "dgx-a100:2")
    assert run.code == 1
    assert "the proof is for links other than those of dgx-a100:2" in run.err
