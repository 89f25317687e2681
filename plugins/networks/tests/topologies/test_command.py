"""`collhub topology`: show, check, draw, convert, of texts, files and standard input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PAIRS = {
    "schema": "collhub/topology-1",
    "name": "two pairs",
    "npus": ["a", "b", "c", "d"],
    "groups": {"first": ["a", "b"]},
    "links": [
        {"from": "a", "to": "b", "bandwidth": "50GB/s", "latency": "1us", "duplex": True},
        {"from": "c", "to": "d", "bandwidth": "25GB/s", "latency": "1us", "duplex": True},
    ],
}


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """A file of two pairs of NPUs that do not reach one another."""
    file = tmp_path / "pairs.json"
    file.write_text(json.dumps(PAIRS))
    return file


def test_show_states_nodes_links_and_dimensions(collhub) -> None:
    run = collhub("topology", "show", "torus:4x2?bandwidth=50GB/s,25GB/s")
    assert (run.code, run.err) == (0, "")
    assert run.out.splitlines() == [
        "topology     torus:4x2?bandwidth=50GB/s,25GB/s",
        "nodes        8 NPUs, 0 switches",
        "links        24 directed",
        "diameter     3 links",
        "each NPU     3 links, 125 GB/s, out and in",
        "dimension 0  ring of 4, 50 GB/s, 500 ns; between its halves 4 links, 200 GB/s each way",
        "dimension 1  ring of 2, 25 GB/s, 500 ns; between its halves 4 links, 100 GB/s each way",
        "links       count  bandwidth  latency",
        "NPU -> NPU     16    50 GB/s   500 ns",
        "NPU -> NPU      8    25 GB/s   500 ns",
    ]


def test_show_lists_links_by_name_and_groups(collhub, pairs: Path) -> None:
    lines = collhub("topology", "show", pairs, "--links").out.splitlines()
    assert "diameter  not known" in lines
    assert "first  0,1" in lines
    assert lines[-4:] == [
        "a -> b    50 GB/s  1.00 us",
        "b -> a    50 GB/s  1.00 us",
        "c -> d    25 GB/s  1.00 us",
        "d -> c    25 GB/s  1.00 us",
    ]


@pytest.mark.parametrize(
    "text", ["mesh:3x3", "dgx1v", "rail:2x4", "line:1", "ring:4*switch:2", "fat-tree:4"]
)
def test_report_of_show_fits_its_schema(collhub, text: str) -> None:
    report = collhub("topology", "show", text, "--json", "--links").report()
    assert (
        len(report["links"])
        == report["num_links"]
        == sum(one["count"] for one in report["link_classes"])
    )


def test_report_has_no_links_unless_asked_for(collhub) -> None:
    assert "links" not in collhub("topology", "show", "ring:4", "--json").report()


def test_check_passes_where_every_npu_reaches_every_other(collhub) -> None:
    run = collhub("topology", "check", "mesh:4x4")
    assert (run.code, run.err) == (0, "")
    assert run.out == "mesh:4x4: 16 NPUs, 48 links: every NPU reaches every other\n"


def test_check_names_two_npus_and_the_cut_between_them(collhub, pairs: Path) -> None:
    run = collhub("topology", "check", pairs, "--size", "1MiB")
    assert (run.code, run.out) == (
        1,
        "two pairs: 4 NPUs, 4 links: not all NPUs reach one another\n",
    )
    (error,) = run.error_lines
    assert error.startswith("error: NPU a cannot reach NPU c: no link leaves NPUs a, b;")


def test_report_of_check_has_findings_and_bounds(collhub, pairs: Path) -> None:
    broken = collhub("topology", "check", pairs, "--json", "--size", "1MiB")
    assert broken.code == 1
    assert (broken.report()["ok"], broken.report()["bounds_ns"]) == (False, {})
    assert [found["code"] for found in broken.report()["diagnostics"]] == ["unreachable"]
    sound = collhub("topology", "check", "ring:4", "--json", "--size", "1MiB").report()
    assert (sound["ok"], sound["collective_bytes"]) == (True, 2**20)
    assert set(sound["bounds_ns"]) == {
        "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce", "gather",
        "scatter",
    }  # fmt: skip
    assert min(sound["bounds_ns"].values()) > 0


def test_bounds_are_listed_for_a_size(collhub) -> None:
    lines = collhub("topology", "check", "switch:4", "--size", "1MiB").out.splitlines()
    assert len(lines) == 2 + 8
    assert lines[1].split() == ["collective", "takes", "at", "least", "exactly", "by"]


@pytest.mark.parametrize("text", ["line:1", "switch:1"])
def test_lone_npu_is_no_defect(collhub, text: str) -> None:
    run = collhub("topology", "check", text, "--size", "1MiB")
    assert (run.code, run.error_lines) == (0, [])


def test_convert_writes_the_document_that_is_read_again(collhub, tmp_path: Path) -> None:
    out = tmp_path / "net.json"
    report = collhub("topology", "convert", "dragonfly:2,1,1", "-o", out, "--json").report()
    assert (report["topology"], report["artifacts"]) == ("dragonfly:2,1,1", [str(out)])
    shown = [collhub("topology", "show", source).out for source in ("dragonfly:2,1,1", out)]
    assert shown[0] == shown[1]
    assert collhub("topology", "convert", out, "-o", "-").out.encode() == out.read_bytes()


def test_topology_is_read_from_stdin(collhub, pairs: Path) -> None:
    run = collhub("topology", "convert", "-", "-o", "-", stdin=pairs.read_bytes())
    assert run.code == 0
    assert json.loads(run.out)["groups"] == {"first": [0, 1]}


@pytest.mark.parametrize("command", ["draw", "convert"])
def test_report_and_output_cannot_share_stdout(collhub, command: str) -> None:
    run = collhub("topology", command, "ring:4", "-o", "-", "--json")
    assert (run.code, run.out) == (2, "")
    assert run.error_lines == [
        "error: --json and the output both use standard output; give -o a path"
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["shwo", "ring:4"], "there is no command 'topology shwo'; did you mean 'show'?"),
        (["show", "rign:4"], "unknown topology 'rign'; did you mean 'ring'?"),
        (
            ["show", "ring:4?bandwidth=0GB/s"],
            "bandwidth '0GB/s' is not positive and finite; write for example 50GB/s",
        ),
        (
            ["show", "ring:4?bandwidth=-1GB/s"],
            "bandwidth '-1GB/s' is not a number with a unit; write for example 50GB/s",
        ),
        (["show", "ring:4?bandwidth=50"], "bandwidth '50' has no unit; use one of "),
        (
            ["show", "mesh:4xa"],
            "topology 'mesh:4xa': 'a' in '4xa' is not a size; write for example mesh:8",
        ),
        (["show", "ring:4*cube:2"], "topology 'ring:4*cube:2': 'cube' is no dimension; join "),
        (
            ["check", "ring:4", "--size", "0MiB"],
            "size '0MiB' is not a positive whole number of bytes",
        ),
        (["draw", "ring:4"], "Missing option '-o' / '--output'"),
        (["show"], "Missing argument 'T'"),
    ],
)
def test_wrong_request_is_one_line_and_exit_2(collhub, arguments: list[str], says: str) -> None:
    run = collhub("topology", *arguments)
    assert (run.code, run.out) == (2, "")
    (line,) = run.error_lines
    assert line.startswith(f"error: {says}")


def test_wrong_file_is_one_line_and_exit_1(collhub, tmp_path: Path) -> None:
    file = tmp_path / "net.json"
    link = {"from": 0, "to": 5, "bandwidth": "0GB/s"}
    file.write_text(json.dumps({"schema": "collhub/topology-1", "npus": 2, "links": [link]}))
    run = collhub("topology", "check", file)
    assert (run.code, run.out, len(run.error_lines)) == (1, "", 1)
    assert "$.links[0]: node 5 is not in 0..1" in run.error_lines[0]


@pytest.fixture
def result(collhub, ring: Path, tmp_path: Path) -> Path:
    """What the simulation of a ring of four printed."""
    pytest.importorskip("collhub_astra_sim")
    run = collhub("simulate", ring, "--topology", "ring:4", "--size", "1MiB", "--json")
    file = tmp_path / "result.json"
    file.write_text(run.out)
    assert run.report()["link_loads"][0].keys() == {"source", "destination", "bytes", "busy_ns"}
    return file


def test_loads_of_a_simulation_colour_the_picture(collhub, result: Path, tmp_path: Path) -> None:
    pytest.importorskip("collhub_pictures")
    out = tmp_path / "ring.svg"
    assert collhub("topology", "draw", "ring:4", "-o", out, "--loads", result).code == 0
    assert "busy 75 to 100 % of " in out.read_text()
    assert collhub("topology", "draw", "ring:4", "-o", out).code == 0
    assert "busy" not in out.read_text()


def test_loads_of_another_network_are_refused(collhub, result: Path, tmp_path: Path) -> None:
    pytest.importorskip("collhub_pictures")
    out = tmp_path / "line.svg"
    run = collhub("topology", "draw", "line:3", "-o", out, "--loads", result)
    assert (run.code, len(run.error_lines), out.exists()) == (2, 1, False)
    assert "has no link" in run.err
    assert "name the topology that was simulated" in run.err


_ROW = {"source": 0, "destination": 1, "bytes": 1, "busy_ns": 1}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "x"}, "this is not the output of 'collhub simulate --json'"),
        ({"results": []}, "several sizes were simulated; simulate one"),
        ({"link_loads": []}, "the simulation does not report loads of links"),
        ({"link_loads": None}, "the simulation does not report loads of links"),
        ({"link_loads": [_ROW, 7]}, "link_loads[1] lacks a number"),
        ({"link_loads": [{**_ROW, "bytes": True}]}, "link_loads[0] lacks a number"),
        ({"link_loads": [{**_ROW, "source": -1}]}, "link_loads[0] lacks a number"),
        ({"link_loads": [{**_ROW, "busy_ns": 2**80}]}, "link_loads[0] lacks a number"),
        ({"time_ns": "long"}, "time_ns is not a number of nanoseconds"),
    ],
)
def test_what_is_no_result_is_one_line_and_exit_1(
    collhub, tmp_path: Path, change: dict[str, object], says: str
) -> None:
    good = {"schema": "collhub/report-simulate-1", "time_ns": 9, "link_loads": [_ROW]}
    file = tmp_path / "result.json"
    file.write_text(json.dumps({**good, **change}))
    run = collhub("topology", "draw", "ring:4", "-o", tmp_path / "x.svg", "--loads", file)
    (line,) = run.error_lines
    assert (run.code, run.out) == (1, "")
    assert line.startswith(f"error: {file}: {says}")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_one_line_and_exit_1(collhub, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(content)
    run = collhub("topology", "draw", "ring:4", "-o", tmp_path / "x.svg", "--loads", file)
    assert (run.code, run.out, len(run.error_lines)) == (1, "", 1)


def test_group_without_a_command_shows_its_help(collhub) -> None:
    assert "Show, check, draw and convert networks." in collhub("topology", "--help").out


def test_the_program_without_this_plugin_says_where_the_command_is(collhub) -> None:
    run = collhub("--disable-plugin", "topologies", "topology", "show", "ring:4")
    (line,) = run.error_lines
    assert (run.code, run.out) == (3, "")
    assert line.startswith("error: there is no command 'topology'; plugin topologies (")
    assert "is disabled: by --disable-plugin topologies" in line


@pytest.mark.parametrize(("collapse", "nodes"), [("auto", 19), ("always", 3), ("never", 19)])
def test_groups_are_collapsed_as_asked_for(
    collhub, tmp_path: Path, collapse: str, nodes: int
) -> None:
    out = tmp_path / "machines.svg"
    run = collhub("topology", "draw", "dgx-h100:2", "--collapse", collapse, "-o", out)
    assert run.code == 0, run.err
    assert out.read_text().count('<g class="') == nodes
