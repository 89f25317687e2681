"""`collhub simulate`: times, bounds, links, ranges of sizes, ranks that never finish."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hub_core
from hub_core import parse_sizes
from hub_core.model.algorithm import placed
from hub_core.model.diagnostics import UsageError

pytestmark = pytest.mark.usefixtures("simulator")
RING = "ring:4?bandwidth=50GB/s&latency=500ns"
# 2 (n - 1) messages of 256 KiB one after the other, each 500 ns + 262144 B / 50 B/ns, and n - 1 reductions of 1 ns.
RING_NS = 6 * 5742 + 3


def test_the_report_has_the_fixed_fields(collhub, ring: Path) -> None:
    report = collhub("simulate", ring, "--topology", RING, "--size", "1MiB", "--json").report()
    assert report["time_ns"] == RING_NS
    assert report["rank_finish_ns"] == [RING_NS] * 4
    assert report["unfinished_ranks"] == []
    assert report["algorithm_bandwidth_bytes_per_s"] == 2**20 / RING_NS * 1e9
    assert report["ratio_to_bound"] >= 1
    busiest = report["busiest_links"][0]
    assert (busiest["bytes"], busiest["busy_ns"]) == (6 * 2**18, 6 * 5242)


def test_the_text_states_time_bandwidth_and_bound(collhub, ring: Path) -> None:
    run = collhub("simulate", ring, "--topology", RING, "--size", "1MiB")
    assert (run.code, run.err) == (0, "nominal links, not a machine\n")
    assert f"34.45 us ({RING_NS} ns)" in run.out


def test_a_range_of_sizes_is_a_table_with_one_row_each(collhub, ring: Path) -> None:
    run = collhub("simulate", ring, "--topology", RING, "--size", "1MiB..4MiB")
    assert run.code == 0
    assert [line.split()[:2] for line in run.out.splitlines()] == [
        ["size", "time"],
        ["1", "MiB"],
        ["2", "MiB"],
        ["4", "MiB"],
    ]


def test_the_report_of_a_range_has_results(collhub, ring: Path) -> None:
    report = collhub(
        "simulate", ring, "--topology", RING, "--size", "1MiB..4MiB", "--json"
    ).report()
    assert [result["collective_bytes"] for result in report["results"]] == [2**20, 2**21, 2**22]


def test_a_size_is_needed_where_the_source_states_none(collhub, ring: Path) -> None:
    run = collhub("simulate", ring, "--topology", RING)
    assert (run.code, run.error_lines) == (
        2,
        [f"error: {ring} states no size; give one, for example --size 1MiB [no-size]"],
    )


@pytest.mark.parametrize("size", ["0MiB", "1024", "1MiB..", "2MiB..1MiB", "-1MiB", "1.5B", "many"])
def test_a_bad_size_is_one_line_and_exit_2(collhub, ring: Path, size: str) -> None:
    run = collhub("simulate", ring, "--topology", RING, "--size", size)
    assert (run.code, run.out, len(run.error_lines)) == (2, "", 1)


@pytest.mark.parametrize(
    "topology",
    ["rnig:4", "ring:x", "ring:0", "mesh:2x", "ring:4?bandwidth=50", "ring:2", "missing.json", ""],
)
def test_a_bad_topology_is_one_line_and_documented(collhub, ring: Path, topology: str) -> None:
    run = collhub("simulate", ring, "--topology", topology, "--size", "1MiB")
    assert run.code in (1, 2)
    assert (run.out, len(run.err.splitlines()), len(run.error_lines)) == ("", 1, 1)


def test_a_disconnected_topology_names_the_pair(collhub, ring: Path, tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    path.write_text(
        '{"schema": "collhub/topology-1", "name": "two", "npus": 4,'
        ' "links": [{"from": 0, "to": 1, "bandwidth": "50GB/s", "latency": "500ns"}]}'
    )
    run = collhub("simulate", ring, "--topology", path, "--size", "1MiB")
    assert run.code == 1
    assert "no path from" in run.err


def test_a_misspelt_backend_names_the_closest(collhub, ring: Path) -> None:
    run = collhub("simulate", ring, "--topology", RING, "--size", "1MiB", "--backend", "analytic")
    assert run.code == 2
    assert "did you mean 'analytical'?" in run.err


def test_an_option_reaches_the_simulator(collhub, ring: Path) -> None:
    both = [
        collhub(
            "simulate",
            ring,
            "--topology",
            "ring:4",
            "--size",
            "1MiB",
            "--json",
            "-O",
            f"{key}=alpha-beta",
        ).report()
        for key in ("occupancy", "simulator.occupancy")
    ]
    assert both[0] == both[1]


def test_ranks_that_never_finish_are_named_and_exit_1(collhub, ring: Path, tmp_path: Path) -> None:
    path = tmp_path / "unmatched.json"
    path.write_text(ring.read_text().replace('"peer": [1,3', '"peer": [2,3', 1))
    request = ("simulate", path, "--topology", RING, "--size", "1MiB", "--json")
    run = collhub(*request, "--verify", "off")
    report = run.report()
    assert (run.code, report["time_ns"]) == (1, None)
    assert 1 in report["unfinished_ranks"]
    assert any(found["rank"] == 1 for found in report["diagnostics"])


def test_wrong_algorithms_are_refused_before_they_are_simulated(
    collhub, ring: Path, tmp_path: Path
) -> None:
    path = tmp_path / "unmatched.json"
    path.write_text(ring.read_text().replace('"peer": [1,3', '"peer": [2,3', 1))
    run = collhub("simulate", path, "--topology", RING, "--size", "1MiB")
    assert (run.code, run.out) == (1, "")
    assert "--verify warn" in run.error_lines[-1]


def test_times_of_steps_are_written_as_csv(collhub, ring: Path, tmp_path: Path) -> None:
    times = tmp_path / "steps.csv"
    assert (
        collhub("simulate", ring, "--topology", RING, "--size", "1MiB", "--steps", times).code == 0
    )
    header, *lines = times.read_text().splitlines()
    assert (header, len(lines)) == ("rank,step,kind,peer,start_ns,end_ns", 48)
    assert lines[0] == "0,0,send,1,0,5742"
    assert max(int(line.rpartition(",")[2]) for line in lines) == RING_NS


def test_times_of_steps_want_one_size(collhub, ring: Path, tmp_path: Path) -> None:
    run = collhub(
        "simulate",
        ring,
        "--topology",
        RING,
        "--size",
        "1MiB..2MiB",
        "--steps",
        tmp_path / "steps.csv",
    )
    assert (run.code, len(run.error_lines)) == (2, 1)


def test_sizes_of_a_range_double() -> None:
    assert parse_sizes("1KiB..5KiB") == (1024, 2048, 4096)


def test_a_range_that_ends_below_its_start_is_refused() -> None:
    with pytest.raises(UsageError, match="ends below its start"):
        parse_sizes("2KiB..1KiB")


@pytest.mark.parametrize(("text", "missing"), [("1KiB..", "last"), ("..1KiB", "first")])
def test_a_range_of_sizes_has_both_ends(text: str, missing: str) -> None:
    message = f"the range of sizes '{text}' has no {missing} size; write for example 1MiB..1GiB"
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_sizes(text)


def test_messages_in_bytes_of_an_unknown_collective_have_no_bandwidth(
    collhub, corpus: Path
) -> None:
    trace = corpus / "chakra" / "astra-sim-custom-ring-8" / "custom_allreduce"
    report = collhub(
        "simulate", trace, "--topology", "ring:8?bandwidth=50GiB/s&latency=500ns", "--json"
    ).report()
    # The finishing time that ASTRA-sim 518bd51 printed for its shipped sample.
    assert (report["time_ns"], report["algorithm_bandwidth_bytes_per_s"]) == (90174, None)


def test_a_timeline_wants_one_size(collhub, ring: Path, tmp_path: Path) -> None:
    run = collhub(
        "simulate",
        ring,
        "--topology",
        RING,
        "--size",
        "1MiB..2MiB",
        "--timeline",
        tmp_path / "trace.json",
    )
    assert (run.code, "--timeline needs a single size" in run.error_lines[0]) == (2, True)


def test_a_topology_is_needed_where_the_source_states_none(collhub, ring: Path) -> None:
    run = collhub("simulate", ring, "--size", "1MiB")
    assert (run.code, run.error_lines) == (
        2,
        [
            f"error: {ring} contains no network; give one, for example --topology ring:8 [no-topology]"
        ],
    )


def test_placed_ranks_are_told_and_have_a_bound_of_their_own(
    collhub, ring: Path, tmp_path: Path
) -> None:
    out = tmp_path / "placed.json"
    hub_core.write(placed(hub_core.read(ring), (0, 2, 4, 6)), out)
    arguments = ("simulate", out, "--topology", "ring:8", "--size", "1MiB")
    assert "ranks on NPUs  0,2,4,6" in collhub(*arguments).out
    report = collhub(*arguments, "--json").report()
    assert report["npus"] == [0, 2, 4, 6]
    # Two links between neighbours: latencies alone take 4 * 500 ns to the opposite rank.
    assert 2000 <= report["bound_ns"] <= report["time_ns"]


def test_failures_are_a_table_of_links_with_times_or_reasons(collhub, ring: Path) -> None:
    # The messages of a ring of 4 use links 0-1, 1-2, 2-3 and 0-3 of these five.
    network = ("--topology", "fc:4", "--without-link", "0-2", "--size", "1MiB", "--failures")
    report = collhub("simulate", ring, *network, "--json").report()
    assert report["failures"] == [
        {
            "link": link,
            "time_ns": None if is_used else report["time_ns"],
            "reason": "not possible: uses the link" if is_used else "",
            "is_used": is_used,
        }
        for link, is_used in [("0-1", 1), ("0-3", 1), ("1-2", 1), ("1-3", 0), ("2-3", 1)]
    ]
    text = collhub("simulate", ring, *network).out.splitlines()
    assert text[-6:] == [
        "link  time",
        *(f"{link}   not possible: uses the link" for link in ("0-1", "0-3", "1-2", "2-3")),
        "no message uses the other 1: the time is the same",
    ]


def test_switches_route_around_a_failed_link(collhub, ring: Path) -> None:
    # Two spines: each leaf has another way for the messages between the leaves.
    network = ("--topology", "leaf-spine:2,2,2", "--size", "1MiB", "--failures", "--json")
    report = collhub("simulate", ring, *network).report()
    reasons = {row["link"]: row["reason"] for row in report["failures"] if row["is_used"]}
    assert reasons["0-leaf 0"].startswith("not possible: 0 does not reach 1 (separated NPU 0)")
    spines = [row for row in report["failures"] if "spine" in row["link"] and row["is_used"]]
    assert spines
    assert all(row["time_ns"] >= report["time_ns"] for row in spines)


def test_links_cannot_change_without_a_network(collhub, ring: Path) -> None:
    run = collhub("simulate", ring, "--without-link", "0-1", "--size", "1MiB")
    assert (run.code, run.error_lines) == (
        2,
        ["error: --without-link changes the network of --topology; add --topology T"],
    )


def test_failures_need_a_single_size(collhub, ring: Path) -> None:
    run = collhub("simulate", ring, "--topology", RING, "--size", "1KiB..2KiB", "--failures")
    assert (run.code, "--failures needs a single size" in run.err) == (2, True)
