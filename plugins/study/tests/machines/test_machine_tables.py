"""Tables of measured times, the model of one node, and the fit of its constants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from collhub_machine_profiles.calls import envelope, make_tables
from collhub_machine_profiles.gpus import GPUS, has_switched_links, known_gpu, machine_label
from collhub_machine_profiles.nccl_choice import choose
from collhub_machine_profiles.time_models import NAMES, call_columns, is_modelled, predict
from collhub_machines.calibration import read_points
from collhub_machines.fitting import (
    every_second_size,
    fit_node,
    held_out_errors,
    machine_prior,
    start_prior,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core.plugin_api import Library, Measurement

NCCL = Library("NCCL", "2.29.2")
KIB, MIB = 2**10, 2**20


def _point(size: int, time_us: float, place: str = "out") -> Measurement:
    return Measurement("all-reduce", 8, 1, size, time_us, NCCL, "H100", place)


sizes_and_times = st.dictionaries(
    st.integers(1, 2**40), st.floats(0.1, 1e6), min_size=1, max_size=12
)


@given(sizes_and_times, st.lists(st.integers(1, 2**42), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_a_table_is_monotone_and_never_slower_than_its_knots(
    measured: dict[int, float], asked: list[int]
) -> None:
    (table,) = make_tables(_point(size, time) for size, time in measured.items())
    times = table.time_us(np.array(sorted(asked), dtype=float))
    assert (np.diff(times) >= -1e-6 * times[1:]).all()
    knots = table.time_us(table.sizes)
    assert (knots <= table.times_us * (1 + 1e-12)).all()
    assert knots == pytest.approx(envelope(table.times_us))


def test_a_table_is_linear_in_the_size_and_extends_its_last_slope() -> None:
    (table,) = make_tables([_point(1000, 10.0), _point(2000, 20.0), _point(3000, 40.0)])
    asked = np.array([1.0, 1500.0, 4000.0])
    assert table.time_us(asked).tolist() == [10.0, 15.0, 60.0]


def test_a_size_that_was_measured_in_place_only_stays_in_the_table() -> None:
    points = [_point(1000, 10.0), _point(1000, 8.0, "in"), _point(2000, 15.0, "in")]
    (table,) = make_tables(points)
    assert dict(zip(table.sizes, table.times_us, strict=True)) == {1000: 10.0, 2000: 15.0}


def test_a_table_takes_the_median_and_removes_slow_outliers() -> None:
    points = [_point(1000, time) for time in (10.0, 11.0, 90.0)] + [_point(500, 30.0)]
    (table,) = make_tables(points)
    assert table.times_us.tolist() == [30.0, 11.0]
    assert table.repeats == 1
    assert table.time_us(np.array([500.0])).tolist() == [11.0]


def test_in_place_times_are_used_only_without_out_of_place_times() -> None:
    (table,) = make_tables([_point(1000, 10.0), _point(1000, 5.0, "in")])
    assert table.times_us.tolist() == [10.0]
    (table,) = make_tables([_point(1000, 5.0, "in")])
    assert table.times_us.tolist() == [5.0]


def test_versions_and_variants_have_their_own_tables() -> None:
    other = replace(_point(1000, 12.0), library=Library("NCCL", "2.23.4"))
    off = replace(_point(1000, 14.0), library=Library("NCCL", "2.29.2", "NVLS off"))
    assert len(make_tables([_point(1000, 10.0), other, off])) == 3


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("8x A100-SXM4-80GB, NVSwitch", "A100"),
        ("dgx-h100:2", "H100"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA RTX PRO 6000 Blackwell", "RTX PRO 6000"),
        ("p5en.48xlarge", "H200"),
        ("Example GPU 80GB", None),
        ("AH1000", None),
    ],
)
def test_known_gpus_are_named_in_labels(text: str, name: str | None) -> None:
    gpu = known_gpu(text)
    assert (gpu.name if gpu else None) == name


def test_labels_have_no_number_of_nodes_and_show_links_without_a_switch() -> None:
    assert machine_label("4 nodes of 8x B200") == "8x B200"
    assert not has_switched_links("4x A100 in two NVLink pairs, PCIe between")
    assert has_switched_links("8x H100-SXM5-80GB, NVSwitch (NVLink4, 450 GB/s)")


# The sizes at which measured curves jump (NCCL 2.29.2 and 2.27.3).
@pytest.mark.parametrize(
    ("gpu", "collective", "ranks", "size", "expected"),
    [
        ("B200", "all-gather", 8, 8 * MIB, "ring ll"),
        ("B200", "all-gather", 8, 16 * MIB, "ring simple"),
        ("GB200", "all-reduce", 4, 4 * MIB, "ring ll"),
        ("GB200", "all-reduce", 4, 8 * MIB, "ring simple"),
        ("H100", "all-reduce", 8, 1 * MIB, "ring ll"),
        ("H100", "all-reduce", 8, 2 * MIB, "nvls simple"),
        ("A100", "all-reduce", 8, 1 * MIB, "ring ll"),
        ("A100", "all-reduce", 8, 4 * MIB, "ring ll128"),
        ("A100", "all-reduce", 8, 32 * MIB, "ring simple"),
    ],
)
def test_choices_of_nccl_change_at_the_measured_sizes(
    gpu: str, collective: str, ranks: int, size: int, expected: str
) -> None:
    choice = choose(GPUS[gpu], "2.29.2", collective, ranks, size)
    assert f"{choice.algorithm} {choice.protocol}" == expected


@pytest.mark.parametrize(("size", "channels"), [(32 * KIB, 1), (768 * KIB, 24), (64 * KIB, 2)])
def test_channels_grow_with_the_size(size: int, channels: int) -> None:
    assert choose(GPUS["H100"], "2.29.2", "all-reduce", 8, size).channels == channels


def test_sums_of_8_bit_integers_never_use_nvls() -> None:
    assert choose(GPUS["H100"], "2.29.2", "all-reduce", 8, 2**30, "int8").algorithm == "ring"


@given(
    st.sampled_from([gpu for gpu in GPUS.values() if gpu.has_model]),
    st.sampled_from(["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]),
    st.integers(1, 2**40),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_the_model_gives_positive_finite_times(gpu, collective, size, data) -> None:
    ranks = data.draw(st.integers(2, gpu.gpus_per_node))
    point = Measurement(collective, ranks, 1, size, 1.0, NCCL)
    time_us = predict(machine_prior(gpu).values, call_columns(gpu, [point], ""))[0]
    assert np.isfinite(time_us)
    assert time_us > 1


def _synthetic(values: np.ndarray, gpu_name: str) -> list[Measurement]:
    gpu = GPUS[gpu_name]
    points = [
        Measurement(collective, ranks, 1, 2**power, 1.0, NCCL)
        for collective in ("all-reduce", "all-gather", "all-to-all")
        for ranks in (2, 4, 8)
        for power in range(10, 32)
    ]
    times = predict(values, call_columns(gpu, points, ""))
    return [replace(one, time_us=float(t)) for one, t in zip(points, times, strict=True)]


def test_the_fit_recovers_times_of_its_own_form() -> None:
    gpu = GPUS["H100"]
    truth = machine_prior(gpu).values * np.exp(np.linspace(-0.1, 0.1, len(NAMES)))
    points = _synthetic(truth, "H100")
    fitted = fit_node(gpu, points, "2.29.2", start_prior(gpu))
    times = predict(fitted.values, call_columns(gpu, points, ""))
    errors = np.abs(times / [one.time_us for one in points] - 1)
    assert np.median(errors) < 0.01
    assert np.percentile(errors, 90) < 0.05


def test_constants_without_points_keep_their_prior() -> None:
    gpu = GPUS["H100"]
    prior = machine_prior(gpu)
    points = [one for one in _synthetic(prior.values, "H100") if one.collective == "all-gather"]
    fitted = fit_node(gpu, points, "2.29.2", prior)
    place = NAMES.index("rN")
    assert fitted.points[place] == 0
    assert fitted.values[place] == pytest.approx(prior.values[place])


def test_hold_out_leaves_out_every_second_size_of_a_series() -> None:
    points = [_point(size, 1.0) for size in (4, 1, 2, 3)]
    assert every_second_size(points) == [True, False, True, False]


def test_b300_takes_its_prior_from_b200() -> None:
    assert machine_prior(GPUS["B300"]).source == "sibling"


def _corpus_points(measured_corpus: Path) -> dict[str, list[Measurement]]:
    """Points of aiconfigurator on machines that have a model, by GPU."""
    groups: dict[str, list[Measurement]] = {}
    for point in read_points([str(measured_corpus / "measured.json")]).points:
        gpu = known_gpu(point.machine)
        if point.source == "aiconfigurator" and gpu and is_modelled(gpu, point):
            groups.setdefault(gpu.name, []).append(point)
    return groups


def test_an_exchange_of_two_is_limited_by_its_channels() -> None:
    """S / (32 rP): half of a large vector moves no faster than 32 channels allow."""
    point = Measurement("all-to-all", 2, 1, 2**34, 1.0, NCCL)
    values = dict(zip(NAMES, machine_prior(GPUS["H100"]).values, strict=True))
    constants = np.array([values[name] for name in NAMES])
    time_us = predict(constants, call_columns(GPUS["H100"], [point], ""))[0]
    assert time_us == pytest.approx(2**34 / (32 * values["rP"] * 1e3), rel=0.1)


def test_constants_of_public_points_are_those_that_were_published(measured_corpus: Path) -> None:
    """Predictions of the fit and of the published constants, also for 2 and 4 ranks."""
    for name, points in _corpus_points(measured_corpus).items():
        gpu = GPUS[name]
        prior = machine_prior(gpu)
        grid = [
            Measurement(collective, ranks, 1, 2**power, 1.0, points[0].library)
            for collective in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
            for ranks in (2, 4, 8)
            for power in range(9, 31)
            if ranks <= gpu.gpus_per_node
        ]
        calls = call_columns(gpu, grid, "")
        fitted = predict(fit_node(gpu, points, "", prior).values, calls)
        assert fitted == pytest.approx(predict(prior.values, calls), rel=0.05)


def test_held_out_sizes_of_public_machines_are_within_the_bars(measured_corpus: Path) -> None:
    """Fitted without every second size, from priors that no measurement has influenced."""
    errors = [
        abs(error)
        for name, points in _corpus_points(measured_corpus).items()
        for _, error in held_out_errors(GPUS[name], points, "", start_prior(GPUS[name]))
    ]
    assert len(errors) == 75
    assert np.median(errors) <= 0.06
    assert np.percentile(errors, 90) <= 0.185


def test_all_gather_and_exchanges_predict_all_reduce(measured_corpus: Path) -> None:
    """The ring constants transfer between collectives; NVLS is measured by all-reduce alone."""
    errors = []
    for name in ("A100", "GB200"):
        points = _corpus_points(measured_corpus)[name]
        kept = [one for one in points if one.collective != "all-reduce"]
        tested = [one for one in points if one.collective == "all-reduce"]
        fitted = fit_node(GPUS[name], kept, "", machine_prior(GPUS[name]))
        times = predict(fitted.values, call_columns(GPUS[name], tested, ""))
        errors += list(np.abs(times / [one.time_us for one in tested] - 1))
    assert np.median(errors) <= 0.06
