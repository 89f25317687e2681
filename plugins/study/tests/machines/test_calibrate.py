"""`collhub calibrate`: profiles, their check, reports, and bad input."""

from __future__ import annotations

import importlib.resources
import json
import random
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from collhub_machine_profiles.calls import MedianTimes, PlannedCall, make_tables
from collhub_machine_profiles.gpus import GPUS
from collhub_machine_profiles.machine_profile import (
    MachineProfile,
    parse_profile,
    profile_bytes,
    read_profile,
)
from collhub_machine_profiles.nccl_baseline import expected_time
from collhub_machine_profiles.time_models import NETWORK_NAMES, extrapolate_nodes
from collhub_machines.calibration import read_points
from collhub_machines.fitting import choose_prior, fit_networks, machine_prior
from collhub_machines.profile_check import CheckedPoint, ProfileCheck, picture_request

from hub_core.model import InputError
from hub_core.plugin_api import Library, Measurement

ROW = "{size:>12} 256 float sum -1 {time} 1.0 1.0 0 {time} 1.0 1.0 0\n"
TEXT = """\
# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=22902
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 1 maxBytes 2 step: 2(factor) agg iters: 1 graph: 0
{ranks}#                                out-of-place                       in-place
#   size count type redop root time algbw busbw #wrong time algbw busbw #wrong
{rows}# Avg bus bandwidth    : 0.3
"""


def _output(device: str, times: dict[int, float]) -> str:
    ranks = "".join(
        f"#  Rank {rank:>2} Group  0 Pid   1201 on  secrethost device {rank} [0x1b] {device}\n"
        for rank in range(8)
    )
    rows = "".join(ROW.format(size=size, time=time) for size, time in times.items())
    return TEXT.format(ranks=ranks, rows=rows)


TIMES = {2**power: 15.0 + 2**power / 250e3 for power in range(10, 24, 2)}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    file = tmp_path / "run.txt"
    file.write_text(_output("NVIDIA H100 80GB HBM3", TIMES))
    return file


def _check_schema(document: dict[str, object], name: str) -> None:
    schema = json.loads(importlib.resources.files("hub_core.schemas").joinpath(name).read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)


def test_errors_name_the_version_before_the_settings(collhub, results, tmp_path) -> None:
    results.write_text(results.read_text().replace("agg iters: 1", "agg iters: 4"))
    run = collhub("calibrate", results, "-o", tmp_path / "machine.json")
    assert run.code == 0, run.err
    assert "NCCL 2.29.2, agg iters 4" in run.out


def test_a_profile_in_place_of_results_is_refused_as_such(collhub, results, tmp_path) -> None:
    out = tmp_path / "machine.json"
    assert collhub("calibrate", results, "-o", out).code == 0
    run = collhub("calibrate", out, "-o", tmp_path / "other.json")
    assert run.code == 1
    assert "the file is a profile of a machine, not results of a run; give it to --check" in run.err


def test_calibrate_writes_a_profile_with_tables_model_and_errors(collhub, h100, tmp_path) -> None:
    out = tmp_path / "machine.json"
    run = collhub("calibrate", h100, "-o", out, "--json")
    assert run.code == 0, run.err
    report = run.report()
    _check_schema(report, "report-calibrate-1.json")
    document = json.loads(out.read_text())
    _check_schema(document, "machine-1.json")
    assert document["gpu"] == "H100"
    assert document["library"] == {"name": "NCCL", "version": "2.29.2"}
    assert len(document["tables"]) == 3
    assert document["constants"]["hLL"]["source"] == "fit"
    assert report["machines"][0]["priors"] == []
    predictors = {(one["predictor"], one["collective"]) for one in document["errors"]}
    assert ("model", "all-to-all") in predictors
    assert ("table", "all-gather") in predictors
    assert document["sources"][0]["licence"] == "Apache-2.0"


def test_a_profile_survives_a_round_trip(collhub, h100, tmp_path) -> None:
    out = tmp_path / "machine.json"
    collhub("calibrate", h100, "-o", out)
    assert profile_bytes(read_profile(str(out))) == out.read_bytes()


def test_check_compares_every_point(collhub, h100, tmp_path) -> None:
    out = tmp_path / "machine.json"
    collhub("calibrate", h100, "-o", out)
    run = collhub("calibrate", "--check", out, h100, "--json")
    assert run.code == 0, run.err
    report = run.report()
    _check_schema(report, "report-calibrate-check-1.json")
    assert len(report["points"]) == 33
    assert report["table"]["median_error"] == 0
    assert report["model"]["median_error"] < 0.06
    by_size = {
        one["size_bytes"]: one["chosen"]
        for one in report["points"]
        if one["collective"] == "all-reduce"
    }
    assert by_size[2**21] == {"algorithm": "nvls", "protocol": "simple", "channels": 16}
    assert by_size[2**19]["algorithm"] == "ring"


def test_check_in_text_ends_with_the_errors(collhub, h100, tmp_path) -> None:
    out = tmp_path / "machine.json"
    collhub("calibrate", h100, "-o", out)
    run = collhub("calibrate", "--check", out, h100)
    assert run.out.splitlines()[-1].startswith("model: median error")


def test_host_names_and_paths_are_not_in_a_profile(collhub, results, tmp_path) -> None:
    out = tmp_path / "machine.json"
    assert collhub("calibrate", results, "-o", out).code in (0, 1)
    text = out.read_text()
    assert "secrethost" not in text
    assert str(tmp_path) not in text


def test_missing_measurements_are_named(collhub, results, tmp_path) -> None:
    run = collhub("calibrate", results, "-o", tmp_path / "machine.json")
    assert "measure all-reduce from 64 MiB; all-gather up to 64 KiB" in run.err


def test_constants_that_no_point_determines_are_priors(collhub, results, tmp_path) -> None:
    out = tmp_path / "machine.json"
    run = collhub("calibrate", results, "-o", out, "--accept", "--json")
    constants = json.loads(out.read_text())["constants"]
    assert (constants["bP"]["source"], constants["bP"]["points"]) == ("prior", 0)
    assert "bP" in run.report()["machines"][0]["priors"]
    assert "no point determines" in run.err


def test_too_few_points_give_tables_only_and_name_what_is_missing(collhub, tmp_path) -> None:
    file = tmp_path / "few.txt"
    file.write_text(_output("NVIDIA H100 80GB HBM3", {1024: 15.0}))
    out = tmp_path / "machine.json"
    run = collhub("calibrate", file, "-o", out)
    assert run.code == 0
    assert "1 point of one node, too few for a model" in run.err
    assert "some sizes have fewer than 3 measurements; repeat the run" in run.err
    assert json.loads(out.read_text())["constants"] == {}


def test_a_file_without_a_known_gpu_needs_like(collhub, tmp_path) -> None:
    file = tmp_path / "osu.txt"
    file.write_text(
        "# OSU MPI-CUDA Allreduce Latency Test v7.4\n# Size       Avg Latency(us)\n8 1\n"
    )
    out = tmp_path / "machine.json"
    run = collhub("calibrate", file, "--ranks", "8", "-o", out)
    assert run.code == 1
    assert "does not name its GPU; give --like" in run.err
    assert collhub("calibrate", file, "--ranks", "8", "--like", "H100", "-o", out).code == 0
    assert json.loads(out.read_text())["gpu"] == "H100"


def test_unknown_gpu_of_like_lists_the_known_ones(collhub, results, tmp_path) -> None:
    run = collhub("calibrate", results, "--like", "X1", "-o", tmp_path / "m.json")
    assert run.code == 2
    assert "known: A100, H100" in run.err


@pytest.mark.once
def test_several_machines_give_one_file_each(collhub, results, tmp_path) -> None:
    other = tmp_path / "a100.txt"
    other.write_text(_output("NVIDIA A100-SXM4-80GB", TIMES))
    run = collhub("calibrate", results, other, "-o", tmp_path / "m.json", "--accept")
    assert run.code == 0
    names = sorted(path.name for path in tmp_path.glob("m*.json"))
    assert names == ["m-nvidia-a100-sxm4-80gb.json", "m-nvidia-h100-80gb-hbm3.json"]
    chosen = collhub("calibrate", results, other, "--select", "a100", "-o", tmp_path / "x.json")
    assert chosen.code in (0, 1)
    assert json.loads((tmp_path / "x.json").read_text())["gpu"] == "A100"


def test_a_selection_without_points_is_refused(collhub, results, tmp_path) -> None:
    run = collhub("calibrate", results, "--select", "b200", "-o", tmp_path / "m.json")
    assert run.code == 1
    assert "no point remains for calibration; machines in the input: NVIDIA H100" in run.err


def test_results_without_a_table_are_named(collhub, results, tmp_path) -> None:
    out = tmp_path / "machine.json"
    collhub("calibrate", results, "-o", out)
    other = tmp_path / "broadcast.txt"
    other.write_text(_output("NVIDIA H100 80GB HBM3", TIMES).replace("all_reduce", "broadcast"))
    run = collhub("calibrate", "--check", out, other)
    assert "no table for broadcast of 8 ranks" in run.err


def test_several_versions_are_reported_and_split(collhub, results, tmp_path) -> None:
    other = tmp_path / "old.txt"
    text = _output("NVIDIA H100 80GB HBM3", {1024: 15.0}).replace("library=22902", "library=22304")
    other.write_text(text)
    out = tmp_path / "machine.json"
    run = collhub("calibrate", results, other, "-o", out, "--accept")
    assert "NCCL 2.23.4 (2 points), NCCL 2.29.2 (14 points); only NCCL 2.29.2 is fitted" in run.err
    versions = [one["library"]["version"] for one in json.loads(out.read_text())["tables"]]
    assert versions == ["2.23.4", "2.29.2"]


def test_a_profile_of_another_machine_is_refused(collhub, h100, tmp_path) -> None:
    out = tmp_path / "machine.json"
    collhub("calibrate", h100, "-o", out)
    other = tmp_path / "a100.txt"
    other.write_text(_output("NVIDIA A100-SXM4-80GB", TIMES))
    run = collhub("calibrate", "--check", out, other)
    assert run.code == 1
    assert "the profile is of 8x H100" in run.err
    run = collhub("calibrate", "--check", out, h100, "--like", "A100")
    assert run.code == 2
    assert "the profile is of H100, not of A100" in run.err


def test_sizes_beyond_the_table_are_extrapolated_and_reported(collhub, results, tmp_path) -> None:
    out = tmp_path / "machine.json"
    collhub("calibrate", results, "-o", out)
    large = tmp_path / "large.txt"
    large.write_text(_output("NVIDIA H100 80GB HBM3", {2**26: 300.0}))
    run = collhub("calibrate", "--check", out, large, "--json")
    assert "2 points larger than the table: extrapolated; measure larger sizes" in run.err
    slope = 2**26 / 250e3 + 15
    assert run.report()["points"][0]["table_us"] == pytest.approx(slope, rel=1e-3)


def test_a_poor_model_exits_1_unless_accepted(collhub, tmp_path) -> None:
    file = tmp_path / "odd.txt"
    times = {2**power: 30.0 * (1 + 5 * (power % 4 == 0)) for power in range(10, 28, 2)}
    file.write_text(_output("NVIDIA H100 80GB HBM3", times))
    out = tmp_path / "machine.json"
    run = collhub("calibrate", file, "-o", out)
    assert run.code == 1
    assert "exceeds 15 %" in run.err
    assert collhub("calibrate", file, "-o", out, "--accept").code == 0


def test_either_an_output_or_a_check_is_needed(collhub, results) -> None:
    run = collhub("calibrate", results)
    assert run.code == 2
    assert "either -o or --check" in run.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b'{"schema": "measured-collectives/1"}', "not a machine profile.*; write one with"),
        (b'{"schema": "collhub-machine/1"}', "'name' is a required property"),
    ],
)
def test_a_broken_profile_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_profile(content, "machine.json")


def test_constants_of_another_version_are_refused_with_the_cure(collhub, h100, tmp_path) -> None:
    out = tmp_path / "machine.json"
    collhub("calibrate", h100, "-o", out)
    document = json.loads(out.read_text())
    for version, cure in ((None, "calibrate the machine again with"), (3, "upgrade collhub")):
        document.pop("constants_version", None)
        if version is not None:
            document["constants_version"] = version
        out.write_text(json.dumps(document))
        run = collhub("machines", "show", out)
        assert run.code == 1
        assert len(run.err.splitlines()) == 1
        assert f"$.constants_version: the constants belong to version {version or 1}" in run.err
        assert cure in run.err


def test_tables_of_a_profile_without_constants_need_no_version(collhub) -> None:
    document = json.loads(collhub("machines", "show", "l40s", "--json").out)
    assert not document["constants"]
    del document["constants_version"]
    assert parse_profile(json.dumps(document).encode(), "machine.json").tables


def test_sizes_of_a_profile_must_increase(collhub, results, tmp_path) -> None:
    out = tmp_path / "machine.json"
    collhub("calibrate", results, "-o", out)
    document = json.loads(out.read_text())
    document["tables"][0]["points"].reverse()
    with pytest.raises(InputError, match=r"tables\[0\]\.points: sizes do not increase"):
        parse_profile(json.dumps(document).encode(), "machine.json")


# Sizes that the documentation recommends: 8 and 256 KiB, 4 and 64 MiB, 1 GiB.
GIVEN_SIZES = (2**13, 2**18, 2**22, 2**26, 2**30)


@pytest.mark.parametrize(
    ("machine", "nodes", "median"),
    [("p4de", 2, 0.03), ("p6-b200", 4, 0.1), ("Alps", 2, 0.05), ("Alps", 4, 0.05)],
)
def test_five_points_of_several_nodes_predict_the_other_sizes(
    measured_corpus: Path, machine: str, nodes: int, median: float
) -> None:
    """EFA networks of p4de and p6-b200, Slingshot of Alps."""
    points = [
        point
        for point in read_points([str(measured_corpus / "measured.json")]).points
        if point.nodes == nodes and machine in point.machine
    ]
    given: list[int] = []
    for target in GIVEN_SIZES:
        sizes = [point.size_bytes for point in points if point.size_bytes not in given]
        given.append(min(sizes, key=lambda size: abs(np.log(size / target))))
    (model,) = fit_networks([point for point in points if point.size_bytes in given])
    tested = [point for point in points if point.size_bytes not in given]
    errors = np.abs(model.times_us(tested) / [point.time_us for point in tested] - 1)
    assert np.median(errors) <= median


def test_the_model_of_several_nodes_is_written_and_checked(
    collhub, measured_corpus, tmp_path
) -> None:
    out = tmp_path / "machine.json"
    results = measured_corpus / "measured.json"
    run = collhub("calibrate", results, "--select", "p4de", "-o", out, "--accept")
    assert run.code == 0, run.err
    (network,) = json.loads(out.read_text())["network"]
    assert (network["nodes"], network["points"]) == ([2], 7)
    assert profile_bytes(read_profile(str(out))) == out.read_bytes()
    report = collhub("calibrate", "--check", out, results, "--json").report()
    assert len(report["points"]) == 7
    assert report["model"]["median_error"] < 0.1


def test_a_sibling_is_compared_with_the_model_alone(collhub, measured_corpus, tmp_path) -> None:
    out = tmp_path / "machine.json"
    results = measured_corpus / "measured.json"
    collhub("calibrate", results, "--select", "8x B200-SXM", "-o", out)
    other = tmp_path / "b300.txt"
    other.write_text(_output("NVIDIA B300", TIMES))
    run = collhub("calibrate", "--check", out, other, "--json")
    assert run.code == 0
    assert "sibling of B200: the model alone is compared" in run.err
    assert all(
        one["table_us"] is None and one["model_us"] is not None for one in run.report()["points"]
    )


def test_a_mutated_profile_is_read_or_refused(collhub, h100, tmp_path) -> None:
    out = tmp_path / "machine.json"
    collhub("calibrate", h100, "-o", out)
    text = out.read_text()
    random_numbers = random.Random(35)
    refused = 0
    for _ in range(60):
        place = random_numbers.randrange(len(text))
        inserted = random_numbers.choice(("", "-1", "1e999", "null", "{", '"', "0"))
        changed = text[:place] + inserted + text[place + random_numbers.randint(0, 3) :]
        try:
            profile = parse_profile(changed.encode(), "machine.json")
        except InputError:
            refused += 1
        else:
            assert all(np.isfinite(table.times_us).all() for table in profile.tables)
    assert refused > 20


def test_profile_and_report_do_not_share_standard_output(collhub, h100) -> None:
    assert collhub("calibrate", h100, "-o", "-", "--json").code == 2
    assert json.loads(collhub("calibrate", h100, "-o", "-").out)["gpu"] == "H100"


def test_a_host_with_a_slow_start_gets_the_loose_prior(measured_corpus: Path) -> None:
    """Launches of this benchmark take longer than those of nccl-tests."""
    points = [
        point
        for point in read_points([str(measured_corpus / "measured.json")]).points
        if point.machine == "8x B200, NVSwitch (AWS p6-b200)" and point.nodes == 1
    ]
    prior, errors = choose_prior(GPUS["B200"], points, "")
    assert prior.widths[0] > machine_prior(GPUS["B200"]).widths[0]
    assert np.median([abs(error) for _, error in errors]) < 0.1


def test_a_picture_shows_measurements_and_predictions(collhub, h100, tmp_path) -> None:
    pytest.importorskip("collhub_pictures", reason="it draws comparisons")
    out, picture = tmp_path / "machine.json", tmp_path / "h100.svg"
    collhub("calibrate", h100, "-o", out)
    run = collhub("calibrate", "--check", out, h100, "--picture", picture)
    assert run.code == 0, run.err
    text = picture.read_text()
    for name in ("measured", "table", "model", "model, lower edge (p90)"):
        assert f"all-reduce of 8, NCCL 2.29.2: {name}" in text
    assert collhub("calibrate", h100, "-o", out, "--picture", picture).code == 2


def test_tables_of_several_node_counts_predict_twice_as_many(measured_corpus: Path) -> None:
    """Alps: 64 nodes from 2 to 32 nodes."""
    points = [
        point
        for point in read_points([str(measured_corpus / "measured.json")]).points
        if point.source == "alps"
    ]
    tables = make_tables(point for point in points if point.nodes <= 32)
    tested = [point for point in points if point.nodes == 64]
    errors = [
        abs(time_us / point.time_us - 1)
        for point in tested
        if (time_us := extrapolate_nodes(tables, point)) is not None
    ]
    assert len(errors) == len(tested) == 12
    assert np.median(errors) <= 0.06
    assert extrapolate_nodes(tables[:3], tested[0]) is None


def test_machines_with_equal_names_get_their_own_files(collhub, tmp_path) -> None:
    files = []
    for number, end in enumerate("ab"):
        files.append(tmp_path / f"{end}.txt")
        label = f"NVIDIA H100 {'x' * 60}{end}"
        files[-1].write_text(_output(label, {1024 * (number + 1): 15.0}))
    run = collhub("calibrate", *files, "-o", tmp_path / "m.json")
    assert run.code == 0, run.err
    assert len(list(tmp_path.glob("m-*.json"))) == 2


@pytest.mark.parametrize("label", ["8x X, 4x 100 Gb/s a node", "8x X"])
def test_nics_of_the_label_limit_the_rate_of_large_calls(label: str) -> None:
    """Points of small calls leave the rate of large ones open without the NICs."""
    sizes = (2**13, 2**16, 2**18, 2**20, 2**24)
    times = (176.0, 190.0, 238.0, 350.0, 1190.0)
    points = [
        Measurement("all-reduce", 16, 2, size, time, Library("NCCL", "2.27.3"), label, file="x")
        for size, time in zip(sizes, times, strict=True)
    ]
    (model,) = fit_networks(points)
    rate = model.values[NETWORK_NAMES.index("rate_large_GBps")]
    # 86 to 95 % of 50 GB/s.
    assert (43.0 <= rate <= 47.5) == ("Gb/s" in label)


def test_points_of_different_numbers_of_nodes_have_series_of_their_own() -> None:
    library = Library("NCCL", "2.29.2")
    points = tuple(
        CheckedPoint(Measurement("all-reduce", 16, nodes, 1 << 20, time_us, library), None, None)
        for nodes, time_us in ((1, 10.0), (2, 40.0))
    )
    request = picture_request(ProfileCheck(points, ()), "h100")
    assert [series.name for series in request.series] == [
        "all-reduce of 16 on 2 nodes, NCCL 2.29.2: measured",
        "all-reduce of 16, NCCL 2.29.2: measured",
    ]


def test_tables_of_several_versions_count_once_per_number_of_nodes() -> None:
    def create_table(nodes: int, version: str, time_us: float) -> MedianTimes:
        sizes = np.array([1024.0, 2048.0])
        library = Library("NCCL", version)
        return MedianTimes("all-reduce", 4 * nodes, nodes, library, "", sizes, np.full(2, time_us))

    tables = [create_table(nodes, "2.20.5", 10.0 * nodes) for nodes in (2, 4, 8)]
    newer = create_table(8, "2.21.0", 80.0)
    call = PlannedCall("all-reduce", 64, 16, 1024, Library("NCCL"))
    expected = extrapolate_nodes(tables, call)
    assert expected is not None
    # Slopes of all pairs: 20, 30 and 40 us per doubling; 0.35 of 80 us is the limit.
    assert expected == pytest.approx(80 + 28)
    assert extrapolate_nodes([*tables, newer], call) == expected
    # Two numbers of nodes are too few, even with three tables.
    assert extrapolate_nodes([*tables[1:], newer], call) is None
    slower = create_table(8, "2.21.0", 100.0)
    exact = PlannedCall("all-reduce", 64, 16, 1024, Library("NCCL", "2.20.5"))
    assert extrapolate_nodes([slower, *tables], exact) == expected


def test_times_of_nccl_are_not_those_of_another_library_with_a_network_plugin() -> None:
    def create_profile(name: str) -> MachineProfile:
        sizes, times_us = np.array([1024.0, 2048.0]), np.array([10.0, 20.0])
        table = MedianTimes("all-reduce", 8, 2, Library(name, "", "+ aws-ofi"), "", sizes, times_us)
        return MachineProfile("x", "x", "", Library(name), {}, (table,), (), ())

    predicted = expected_time(create_profile("NCCL"), "all-reduce", 8, 2, 1024)
    assert predicted is not None
    assert predicted.time_us == 10
    assert expected_time(create_profile("RCCL"), "all-reduce", 8, 2, 1024) is None
