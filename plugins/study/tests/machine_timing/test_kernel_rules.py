"""Rules of the machine timing on small algorithms whose times can be computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collhub_compose.replication import pipeline, replicate
from collhub_machine_profiles import shipped_profile
from collhub_machine_profiles.machine_profile import MachineProfile
from collhub_machine_timing.constants import kernel_timing
from collhub_machine_timing.copies import find_copies

import hub_core
from hub_core.model import COLUMN_DTYPES, Algorithm, Collective, CollectiveKind, StepTable
from hub_core.network import Topology
from hub_core.plugin_api import SimulationResult

NODE = "dgx-h100"
MIB = 1 << 20


@pytest.fixture(scope="module")
def h100() -> MachineProfile:
    return shipped_profile("h100")


def ring(kind: str = "all-reduce", channels: int = 1) -> Algorithm:
    collective = Collective(CollectiveKind(kind), 8, 8)
    algorithm = hub_core.synthesize(collective, NODE, MIB, name="ring").algorithm
    return replicate(algorithm, channels) if channels > 1 else algorithm


def simulated(
    algorithm: Algorithm, size: int, topology: str = NODE, **options: str
) -> SimulationResult:
    return hub_core.simulate(
        algorithm, topology, size, backend="machine", options={"machine": "h100", **options}
    )


def time_us(result: SimulationResult) -> float:
    assert result.time_ns is not None
    return result.time_ns / 1e3


def constants(profile: MachineProfile) -> dict[str, float]:
    return {name: constant.value for name, constant in profile.constants.items()}


def smooth_maximum(first: float, second: float, power: int) -> float:
    return float((first**power + second**power) ** (1 / power))


def test_a_ring_of_ll_takes_the_closed_form(h100: MachineProfile) -> None:
    value = constants(h100)
    size = 4096
    transfer_us = size / 8 / (value["rLL"] * 1e3)
    step_us = smooth_maximum(value["hLL"], transfer_us, 3)
    # The last message is entirely visible a step after it has been sent.
    expected_us = value["b"] + 14 * step_us + transfer_us
    assert time_us(simulated(ring(), size, protocol="ll")) == pytest.approx(expected_us, rel=1e-3)


@pytest.mark.parametrize("size", [8 * MIB, 512 * MIB])
def test_a_ring_of_simple_takes_the_closed_form(h100: MachineProfile, size: int) -> None:
    value = constants(h100)
    share_us = size / 8 / 24 / (value["rS"] * 1e3)
    half_us = share_us / 2
    step_us = half_us + smooth_maximum(half_us, value["LS"], 4)
    expected_us = value["bS"] + 14 * step_us + value["yS"] * share_us
    result = simulated(ring(channels=24), size, protocol="simple")
    assert time_us(result) == pytest.approx(expected_us, rel=0.01)


def test_a_time_does_not_depend_on_sizes_and_protocols_that_were_timed_before() -> None:
    # Connected instructions are shared by all sizes and protocols of an algorithm.
    shared = ring()
    for size, protocol in ((4096, "ll"), (64 * MIB, "simple"), (64 * MIB, "ll"), (4096, "ll")):
        fresh = replace(shared, steps=replace(shared.steps))
        result = simulated(shared, size, protocol=protocol)
        expected = simulated(fresh, size, protocol=protocol)
        assert np.array_equal(result.step_start_ns, expected.step_start_ns)
        assert np.array_equal(result.step_end_ns, expected.step_end_ns)


def test_rounds_of_large_messages_repeat(h100: MachineProfile) -> None:
    start_us = constants(h100)["bS"]
    times_us = [
        time_us(simulated(ring(), size, protocol="simple")) - start_us
        for size in (64 * MIB, 128 * MIB, 256 * MIB)
    ]
    assert times_us[1] / times_us[0] == pytest.approx(2, rel=1e-3)
    assert times_us[2] / times_us[0] == pytest.approx(4, rel=1e-3)


def test_blocks_together_are_limited_by_their_links(h100: MachineProfile) -> None:
    size = 512 * MIB
    times = [
        time_us(simulated(ring(channels=count), size, protocol="simple")) for count in (12, 24, 96)
    ]
    assert times[1] == pytest.approx(times[0] / 2, rel=0.05)
    # 14 messages of an eighth on links of 450 GB/s with an efficiency of 0.8.
    bound_us = 14 * size / 8 / 360e3
    # 96 copies share the 32 channels of the runtime.
    assert bound_us < times[2] < 1.05 * bound_us


def test_a_simulation_does_not_depend_on_earlier_ones() -> None:
    # The connections of rounds and their records are kept for the next size and protocol.
    algorithm = replicate(ring(), 2)
    variants = [(size, name) for size in (4096, 64 * MIB) for name in ("ll", "simple")]
    first, again = (
        [simulated(algorithm, size, protocol=name) for size, name in order]
        for order in (variants, variants[::-1])
    )
    for one, other in zip(first, again[::-1], strict=True):
        assert one.rank_finish_ns == other.rank_finish_ns
        assert np.array_equal(one.step_end_ns, other.step_end_ns)
    alone = simulated(replicate(ring(), 2), 4096, protocol="ll")
    assert alone.rank_finish_ns == first[0].rank_finish_ns


def test_messages_cut_through_switches() -> None:
    # A second switch on the path adds no transfer time within a node: nominal latencies of
    # links are part of the constants.
    times = [
        simulated(ring(), 64 * MIB, f"{NODE}?latency={latency}", protocol="simple").time_ns
        for latency in ("0ns", "500ns")
    ]
    assert times[0] == times[1]


@pytest.mark.once
def test_the_fastest_protocol_is_chosen() -> None:
    for size, protocol in ((512, "ll"), (MIB, "ll128"), (64 * MIB, "simple")):
        result = simulated(ring(channels=4), size)
        assert result.details["protocol"] == protocol
        others = [
            simulated(ring(channels=4), size, protocol=one) for one in ("ll", "ll128", "simple")
        ]
        assert result.time_ns == min(other.time_ns or 0 for other in others)


def test_fewer_threads_cost_less(h100: MachineProfile) -> None:
    small, large = (kernel_timing(h100, "fifo", "ll", 8, size, 1) for size in (512, 8192))
    growth = constants(h100)["gLL"]
    assert large.start_us / small.start_us == pytest.approx(1 + growth)
    assert large.visible_us == small.visible_us


def test_more_channels_start_later(h100: MachineProfile) -> None:
    one, many = (kernel_timing(h100, "fifo", "ll", 8, 512, 1, channels) for channels in (1, 16))
    # Four doublings of the channels grow the start as much as one doubling of the threads.
    assert many.start_us / one.start_us == pytest.approx(1 + constants(h100)["gLL"] / 2)


def test_two_chunk_times_fill_the_pipeline_of_nvls(h100: MachineProfile) -> None:
    collective = Collective(CollectiveKind.ALL_REDUCE, 8, 8)
    network = "switch:8?bandwidth=450GB/s&multicast=true&reduce=true"
    pairs = hub_core.synthesize(collective, network, MIB, name="direct").algorithm
    value = constants(h100)
    # Four chunks of 32 KiB for each of 16 channels and 8 GPUs.
    chunk_us = 32 * 1024 / (value["rN"] * 1e3)
    expected_us = value["bN"] + 2 * chunk_us + 4 * (value["oN"] + chunk_us)
    assert time_us(simulated(replicate(pairs, 16), 16 * MIB, network)) == pytest.approx(
        expected_us, rel=0.02
    )


def test_switches_add_up_and_multicast(h100: MachineProfile) -> None:
    collective = Collective(CollectiveKind.ALL_REDUCE, 8, 8)
    network = "switch:8?bandwidth=450GB/s&multicast=true&reduce=true"
    pairs = hub_core.synthesize(collective, network, MIB, name="direct").algorithm
    nvls = replicate(pairs, 16)
    size = 512 * MIB
    result = simulated(nvls, size, network)
    assert result.details["kernel"] == "nvls"
    value = constants(h100)
    chunk = 64 * 1024
    chunk_us = value["oN"] + chunk / (value["rN"] * 1e3)
    fill_us = 2 * chunk / (value["rN"] * 1e3)
    expected_us = value["bN"] + fill_us + size / (16 * 8 * chunk) * chunk_us
    assert time_us(result) == pytest.approx(expected_us, rel=0.05)
    # Each GPU sends its vector once and receives the result once.
    loads = {load.bytes for load in result.link_loads}
    assert max(loads) < 1.9 * size


def test_an_exchange_ends_with_a_copy_of_its_last_slices(h100: MachineProfile) -> None:
    value = constants(h100)
    start_us = value["bP"] * (1 + 7 * value["nP"]) * value["bPS"]
    for part, copied in ((64 * 1024, 64 * 1024), (128 * 1024, 128 * 1024), (MIB, 128 * 1024)):
        timing = kernel_timing(h100, "exchange", "simple", 8, part, 7 * 32)
        # Seven messages on each of 32 channels.
        assert timing.start_us - start_us == pytest.approx(7 * copied / (value["cP"] * 1e3))
    assert kernel_timing(h100, "exchange", "ll", 8, MIB, 7).start_us < start_us


def test_an_exchange_has_constants_of_its_own(h100: MachineProfile) -> None:
    collective = Collective(CollectiveKind.ALL_TO_ALL, 8, 64)
    pairs = hub_core.synthesize(collective, NODE, MIB, name="direct").algorithm
    result = simulated(pairs, 4096)
    assert (result.details["kernel"], result.details["protocol"]) == ("exchange", "ll")
    value = constants(h100)
    start_us = value["bP"] * (1 + 7 * value["nP"])
    assert time_us(result) == pytest.approx(start_us + 512 / (value["pLL"] * 1e3), rel=0.01)


def test_steps_start_and_end_within_the_run() -> None:
    result = simulated(ring(), MIB, protocol="simple")
    assert result.step_start_ns is not None
    assert result.step_end_ns is not None
    assert (result.step_start_ns >= 0).all()
    assert (result.step_end_ns >= result.step_start_ns).all()
    assert int(np.max(result.step_end_ns)) == result.time_ns


def test_a_message_between_nodes_takes_the_hop_of_the_network() -> None:
    collective = Collective(CollectiveKind.BROADCAST, 16, 1, root=0)
    algorithm = hub_core.synthesize(collective, "dgx-h100:2", 4096, name="ring").algorithm
    times = [
        simulated(algorithm, 4096, topology, protocol="ll").step_end_ns
        for topology in ("dgx-h100:2",)
    ]
    assert times[0] is not None
    ends = np.sort(times[0])
    hops = np.diff(ends)
    # One of the hops crosses the network: 5 us instead of 0.8.
    assert (hops > 4_500).sum() == 1


@pytest.mark.parametrize("size", [65536, MIB, 64 * MIB])
@pytest.mark.parametrize("instances", [2, 24])
def test_instances_take_the_time_of_copies(size: int, instances: int) -> None:
    one, copies = ring(), ring(channels=instances)
    protocol = "simple" if size > MIB else "ll"
    expected = time_us(simulated(copies, size, protocol=protocol))
    result = simulated(one, size, protocol=protocol, instances=str(instances))
    assert time_us(result) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("size", [512, MIB, 512 * MIB])
def test_the_number_of_instances_is_near_the_best(size: int) -> None:
    algorithm = ring()
    chosen = simulated(algorithm, size, instances="0")
    best_us = min(
        time_us(simulated(algorithm, size, instances=str(number)))
        for number in (1, 2, 4, 8, 16, 32)
    )
    assert time_us(chosen) <= 1.01 * best_us
    assert chosen.details["instances"] in (1, 2, 4, 8, 16, 32)


def test_rates_that_a_format_derates_count_as_nominal() -> None:
    # 18 links of 20.6 GB/s, as files of nvidia-smi are read for H100.
    times = [
        time_us(simulated(ring(), 256 * MIB, f"switch:8?bandwidth={rate}GB/s", instances="32"))
        for rate in (450, 370.8)
    ]
    assert times[1] == pytest.approx(times[0], rel=1e-3)


def _with_cards(topology: Topology) -> Topology:
    """Return the topology with a network card at PCIe 5 (64 GB/s) between each NPU and the network."""
    rate = topology.bandwidth_bytes_per_s
    to_network = np.flatnonzero((rate < rate.max()) & (topology.source < topology.num_npus))
    from_network = np.flatnonzero((rate < rate.max()) & (topology.destination < topology.num_npus))
    cards = topology.num_nodes + np.arange(topology.num_npus)
    source, destination = topology.source.copy(), topology.destination.copy()
    outer = source[to_network], destination[from_network]
    source[to_network], destination[from_network] = cards[outer[0]], cards[outer[1]]
    return replace(
        topology,
        num_nodes=topology.num_nodes + topology.num_npus,
        source=np.concatenate([source, outer[0], cards[outer[1]]]),
        destination=np.concatenate([destination, cards[outer[0]], outer[1]]),
        bandwidth_bytes_per_s=np.concatenate([rate, np.full(2 * len(cards), 64e9)]),
        latency_s=np.concatenate([topology.latency_s, np.full(2 * len(cards), 5e-7)]),
        plane=np.zeros(topology.num_links + 2 * len(cards), np.int64),
        node_names=(),
        dimensions=(),
    )


@pytest.mark.parametrize("protocol", ["ll", "simple"])
def test_pci_links_to_network_cards_do_not_have_the_efficiency_of_nvlinks(protocol: str) -> None:
    cluster = hub_core.read_topology(f"{NODE}:2")
    collective = Collective(CollectiveKind.ALL_REDUCE, 16, 16)
    algorithm = hub_core.synthesize(collective, cluster, MIB, name="ring").algorithm
    options = {"machine": "h100", "kernel": "fifo", "protocol": protocol, "instances": "32"}
    times = [
        time_us(hub_core.simulate(algorithm, one, 64 * MIB, backend="machine", options=options))
        for one in (cluster, _with_cards(cluster))
    ]
    assert times[1] == pytest.approx(times[0], rel=0.01)


def test_equal_copies_take_the_time_of_as_many_instances() -> None:
    topology, size = f"{NODE}:2", 64 * MIB
    collective = Collective(CollectiveKind.ALL_REDUCE, 16, 16)
    algorithm = hub_core.synthesize(collective, topology, MIB, name="hierarchical").algorithm
    explicit = simulated(replicate(algorithm, 8), size, topology, protocol="simple")
    instances = simulated(algorithm, size, topology, protocol="simple", instances="8")
    assert explicit.time_ns == instances.time_ns
    assert explicit.link_loads == instances.link_loads
    # Every step of the given algorithm has a time.
    assert len(explicit.step_end_ns) == 8 * len(algorithm.steps)


def test_algorithms_of_different_parts_have_no_copies() -> None:
    algorithm = ring()
    copies = [find_copies(each)[2] for each in (algorithm, replicate(algorithm, 6))]
    assert copies == [1, 6]
    smaller = pipeline(algorithm, 2)
    collective = smaller.collective
    both = StepTable.from_columns(
        8,
        {
            name: np.concatenate([getattr(one.steps, name) for one in (algorithm, smaller)])
            + (name == "channel") * np.repeat([20, 0], [len(algorithm.steps), len(smaller.steps)])
            for name in COLUMN_DTYPES
        },
    )
    assert find_copies(replace(algorithm, steps=both, collective=collective))[2] == 1


def test_more_thread_blocks_than_processors_are_no_faster() -> None:
    # 14 thread blocks a GPU: 8 copies fill the 132 processors of an H100.
    collective = Collective(CollectiveKind.ALL_REDUCE, 8, 8)
    pairs = hub_core.synthesize(collective, NODE, MIB, name="direct").algorithm
    options = {"kernel": "fifo", "protocol": "ll"}
    times = [
        time_us(simulated(pairs, 4 * MIB, instances=str(count), **options)) for count in (1, 8, 64)
    ]
    assert times[1] < times[0] / 2
    assert times[2] > 0.95 * times[1]


def test_more_channels_than_nccl_has_do_not_exceed_the_rate_of_ll(h100: MachineProfile) -> None:
    size = 32 * MIB
    times = [
        time_us(simulated(ring(), size, protocol="ll", instances=count)) for count in ["24", "32"]
    ]
    assert times[1] > 0.97 * times[0]
    rate = 14 / 8 * size / times[1] / 1e3
    assert rate < 24 * constants(h100)["rLL"]


def test_pieces_of_a_pipeline_overlap(h100: MachineProfile) -> None:
    topology, size = f"{NODE}:2", 64 * MIB
    collective = Collective(CollectiveKind.ALL_REDUCE, 16, 16)
    algorithm = hub_core.synthesize(collective, topology, MIB, name="hierarchical").algorithm
    options = {"instances": "2", "protocol": "simple"}
    whole, pieces = (
        time_us(simulated(algorithm, size, topology, pieces=count, **options))
        for count in ("1", "16")
    )
    assert pieces < 0.5 * whole
    best = simulated(algorithm, size, topology, instances="0")
    assert best.details["pieces"] == 16
    assert "untried" not in best.details
    assert time_us(best) <= pieces


@pytest.mark.parametrize(
    ("topology", "size", "kernel"),
    [("dgx-h100", 16384, "fifo"), ("dgx-h100", 512 * MIB, "nvls"), ("dgx-b200", 512 * MIB, "nvls")],
)
def test_known_machines_use_their_switches_where_they_are_faster(
    topology: str, size: int, kernel: str
) -> None:
    collective = Collective(CollectiveKind.ALL_REDUCE, 8, 8)
    pairs = hub_core.synthesize(collective, topology, MIB, name="direct").algorithm
    options = {"instances": "0", "machine": topology.removeprefix("dgx-")}
    best = simulated(pairs, size, topology, **options)
    assert best.details["kernel"] == kernel
    others = [simulated(pairs, size, topology, kernel=one, **options) for one in ("fifo", "nvls")]
    assert best.time_ns == min(other.time_ns or 0 for other in others)


def test_the_measured_rate_of_switches_limits_them() -> None:
    collective = Collective(CollectiveKind.ALL_REDUCE, 8, 8)
    pairs = hub_core.synthesize(collective, NODE, MIB, name="direct").algorithm
    size = 8192 * MIB
    time = time_us(simulated(pairs, size, kernel="nvls", instances="0"))
    # 270.3 GB/s on 8 H200 (NVLink of H100), 262 measured on H100.
    assert size / time / 1e3 == pytest.approx(262, rel=0.01)


def test_switches_between_nodes_only_forward() -> None:
    # NVSwitches copy to the other 7 GPUs of a node; the switch between the nodes does not.
    collective = Collective(CollectiveKind.ALL_GATHER, 16, 16)
    topology, size = f"{NODE}:2", 64 * MIB
    pairs = hub_core.synthesize(collective, topology, MIB, name="direct").algorithm
    result = simulated(pairs, size, topology, kernel="nvls")
    share = size // 16
    sent = {load.destination: load.bytes for load in result.link_loads if load.source == 0}
    assert sent == {16: share, 18: 8 * share}
