"""NCCL's cost model: latencies, bandwidths, choices and refusals by version."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from collhub_machine_profiles.gpus import GPUS
from collhub_machine_profiles.nccl_choice import (
    cheapest_alternative,
    choose_exchange,
    launch_of,
)
from collhub_machine_profiles.nccl_constants import (
    ALGORITHMS,
    constants_of,
    parse_version,
    tree_factor,
)
from collhub_machine_profiles.nccl_costs import (
    Alternative,
    Communicator,
    NodeNetwork,
    cost_us,
    list_alternatives,
)

from hub_core import read_measurements
from hub_core.model import UsageError

ROOT = Path(__file__).resolve().parents[4]
KIB, MIB = 2**10, 2**20
H100 = Communicator(GPUS["H100"], 8, 1, "2.23.4")


def _alternative(
    communicator: Communicator, collective: str, algorithm: str, protocol: str, dtype: str = ""
) -> Alternative:
    rows = list_alternatives(communicator, collective, dtype)
    (row,) = (one for one in rows if (one.algorithm, one.protocol) == (algorithm, protocol))
    return row


# The table that NCCL 2.23.4 logs on eight H100: us and GB/s, rounded to one decimal.
@pytest.mark.parametrize(
    ("algorithm", "protocol", "latency_us", "bandwidth"),
    [
        ("tree", "ll", 15.2, 43.6),
        ("tree", "ll128", 31.5, 128.8),
        ("tree", "simple", 64.4, 165.6),
        ("ring", "ll", 15.0, 80.6),
        ("ring", "ll128", 40.6, 189.3),
        ("ring", "simple", 56.0, 205.7),
    ],
)
def test_latencies_and_bandwidths_are_those_that_nccl_logs(
    algorithm: str, protocol: str, latency_us: float, bandwidth: float
) -> None:
    row = _alternative(H100, "all-reduce", algorithm, protocol)
    assert row.latency_us == pytest.approx(latency_us, abs=0.051)
    assert row.bandwidth == pytest.approx(bandwidth, abs=0.051)


# Sizes at which the choice changes on CSCS Alps (4 GH200 and 4 cards of 200 Gb/s a node): the
# cliffs of its measured all-reduce end there.
@pytest.mark.parametrize(
    ("nodes", "size", "expected"),
    [
        (4, 1 * MIB, "tree ll128"),
        (4, 2 * MIB, "ring ll128"),
        (16, 128 * KIB, "tree ll"),
        (16, 256 * KIB, "tree ll128"),
    ],
)
def test_choices_on_several_nodes_change_at_the_measured_sizes(
    nodes: int, size: int, expected: str
) -> None:
    network = NodeNetwork(4, 25.0, "arm")
    communicator = Communicator(GPUS["GH200"], 4 * nodes, nodes, "2.23.4", network)
    best = cheapest_alternative(communicator, "all-reduce", size)
    assert f"{best.algorithm} {best.protocol}" == expected


@pytest.mark.parametrize(
    ("collective", "algorithm", "protocol", "reason"),
    [
        ("all-gather", "tree", "ll", "tree has no all-gather"),
        ("all-reduce", "nvls", "ll", "Simple only"),
        ("all-reduce", "nvls_tree", "simple", "several nodes"),
        ("all-reduce", "collnet_direct", "simple", "in-network reduction"),
        ("all-gather", "pat", "simple", "one GPU per node"),
        ("broadcast", "nvls", "simple", "nvls has no broadcast"),
    ],
)
def test_alternatives_that_nccl_does_not_allow_have_a_reason(
    collective: str, algorithm: str, protocol: str, reason: str
) -> None:
    assert reason in _alternative(H100, collective, algorithm, protocol).refusal


def test_every_alternative_has_either_a_cost_or_a_reason() -> None:
    network = NodeNetwork(8, 50.0)
    for gpu in (one for one in GPUS.values() if one.search_channels):
        for nodes, ranks in ((1, 2), (1, gpu.gpus_per_node), (2, 16), (5, 5)):
            for version in ("2.18.5", "2.22.3", "2.27.7", "2.30.7"):
                communicator = Communicator(gpu, ranks, nodes, version, network)
                for collective in ("all-reduce", "all-gather", "reduce-scatter", "broadcast"):
                    rows = list_alternatives(communicator, collective)
                    assert len(rows) == 3 * len(ALGORITHMS)
                    for row in rows:
                        has_cost = row.latency_us > 0 and row.bandwidth > 0
                        assert has_cost != bool(row.refusal), (gpu.name, nodes, version, row)


def test_8_bit_sums_have_no_nvls_and_use_rings_last() -> None:
    assert "8-bit integers" in _alternative(
        H100, "all-reduce", "nvls", "simple", "int8"
    ).refusal  # fmt: skip
    several = Communicator(GPUS["H100"], 16, 2, "2.29.2", NodeNetwork(8, 50.0))
    for size in (KIB, MIB, 1024 * MIB):
        assert cheapest_alternative(several, "all-reduce", size, "float8e4m3").algorithm != "ring"


@pytest.mark.parametrize(
    ("version", "name", "algorithm", "protocol", "nodes", "latency_us", "bandwidth"),
    [
        ("2.20.3", "H100", "ring", "ll", 1, 15.0, 87.7 * 8 / 14),
        ("2.22.3", "H100", "ring", "ll", 1, 15.0, 141 * 8 / 14),
        ("2.18.5", "H100", "nvls", "simple", 1, 23.0, 8 * 40 * 5 / 6),
        ("2.27.7", "H100", "nvls", "simple", 1, 25.0, 8 * 40 * 5 / 6),
        ("2.28.3", "H100", "nvls", "simple", 1, 25.0, 8 * 40 * 0.85 * 7 / 8 * 2 * 8 / 14),
        ("2.22.3", "H100", "tree", "simple", 1, 14 * 28.0, 331.2 / 2),
        ("2.28.3", "B200", "ring", "ll128", 2, 0.0, 8 * 48 * 0.92 * 16 / 30),
        ("2.28.9", "B200", "ring", "ll128", 2, 0.0, 8 * 34.6 * 16 / 30),
        ("2.29.2", "B200", "ring", "ll128", 1, 40.6, 16 * 34.5 * 8 / 14),
        ("2.29.7", "B200", "ring", "ll128", 1, 40.6, 16 * 40.0 * 8 / 14),
        ("2.28.9", "B200", "tree", "ll128", 1, 31.5, 0.92 * 16 * 45 * 7 / 9 / 2),
    ],
)
def test_constants_depend_on_the_version(
    version: str,
    name: str,
    algorithm: str,
    protocol: str,
    nodes: int,
    latency_us: float,
    bandwidth: float,
) -> None:
    communicator = Communicator(GPUS[name], 8 * nodes, nodes, version, NodeNetwork(8, 50.0))
    row = _alternative(communicator, "all-reduce", algorithm, protocol)
    assert row.bandwidth == pytest.approx(bandwidth)
    if latency_us:
        assert row.latency_us == pytest.approx(latency_us)


def test_the_ring_of_22_and_before_crosses_the_network_twice_more() -> None:
    network = NodeNetwork(8, 50.0)
    old, new = (
        _alternative(
            Communicator(GPUS["H100"], 16, 2, version, network), "all-reduce", "ring", "ll"
        )
        for version in ("2.22.3", "2.23.4")
    )
    # Two hops of 2.7 us replace two hops of 1 us, the overhead of posting a send.
    assert old.latency_us - new.latency_us == pytest.approx(2 * (2.7 - 1.0))


@pytest.mark.parametrize("version", ["2.17.1", "2.31.0", "3.1", "latest", "2", ""])
def test_versions_without_a_known_model_are_refused(version: str) -> None:
    with pytest.raises(UsageError, match="no known cost model") as refused:
        parse_version(version)
    assert "2.18 to 2.30" in refused.value.diagnostics[0].cure


def test_constants_of_a_version_are_those_of_the_latest_change_before_it() -> None:
    assert constants_of("2.25.1") == constants_of("2.23.4")
    assert constants_of("2.24.3") != constants_of("2.26.2")
    assert constants_of("") == constants_of("2.29.2")


def test_trees_are_corrected_by_size_up_to_256_mib() -> None:
    assert tree_factor("tree", "simple", 2 * MIB) == 0.6
    assert tree_factor("tree", "ll", 63) == 1.0
    assert tree_factor("tree", "simple", 64 << 22) == 0.9
    assert tree_factor("tree", "simple", 64 << 23) == 1.0
    assert tree_factor("nvls_tree", "simple", 64 << 23) == 0.9


def test_a_plateau_raises_the_latency_of_rings_between_nodes() -> None:
    network = NodeNetwork(8, 50.0)
    communicator = Communicator(GPUS["H100"], 16, 2, "2.29.2", network)
    row = _alternative(communicator, "all-reduce", "ring", "simple")
    border = 64 * communicator.collective_channels() * 16
    times = [cost_us(communicator, "all-reduce", row, size) for size in (border - 1, border)]
    assert times[1] - times[0] == pytest.approx(0.4 * row.latency_us, rel=1e-3)


def test_channels_and_chunks_follow_size_and_algorithm() -> None:
    launches = {
        (algorithm, protocol, size): launch_of(
            H100, "all-reduce", _alternative(H100, "all-reduce", algorithm, protocol), size
        )
        for algorithm, protocol, size in (
            ("ring", "ll", 32 * KIB),
            ("ring", "ll", 768 * KIB),
            ("ring", "simple", 64 * MIB),
            ("ring", "ll128", 64 * MIB),
            ("tree", "simple", 64 * MIB),
            ("nvls", "simple", 2 * MIB),
            ("nvls", "simple", 1024 * MIB),
        )
    }
    short = {key: (one.channels, one.threads, one.chunk_bytes) for key, one in launches.items()}
    assert short == {
        ("ring", "ll", 32 * KIB): (1, 512, 32 * KIB),
        ("ring", "ll", 768 * KIB): (24, 512, 32 * KIB),
        ("ring", "simple", 64 * MIB): (24, 512, 2 * MIB),
        ("ring", "ll128", 64 * MIB): (24, 640, 576_000),
        ("tree", "simple", 64 * MIB): (24, 640, 512 * KIB),
        ("nvls", "simple", 2 * MIB): (16, 640, 16 * KIB),
        ("nvls", "simple", 1024 * MIB): (16, 640, 128 * KIB),
    }


def test_exchanges_use_more_channels_for_larger_parts() -> None:
    assert choose_exchange(H100, 8 * KIB).channels == 1
    assert choose_exchange(H100, 8 * MIB).channels == 16
    assert choose_exchange(H100, 64 * MIB).channels == 32
    assert choose_exchange(H100, 8 * KIB).protocol == "ll"
    assert choose_exchange(H100, 64 * MIB).protocol == "simple"


def test_choices_are_confirmed_by_the_curves_of_the_calibrated_runs(measured_corpus: Path) -> None:
    pytest.importorskip("collhub_machines")
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "machines" / "nccl_choice.py"))
    points = [
        point
        for point in read_measurements([str(measured_corpus / "measured.json")]).points
        if point.source == "aiconfigurator"
    ]
    judged = list(benchmark["judge_choices"](points))
    assert len(judged) >= 100
    assert sum(one.is_confirmed for one in judged) >= 0.95 * len(judged)
