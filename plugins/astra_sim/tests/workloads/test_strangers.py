"""Jobs of strangers: times and aborts of ASTRA-sim 518bd51 (`corpus/strangers`, workload.md 16)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from golden_folders import Json, golden_folder

Collhub = Callable[..., Any]
UNAWARE = ("-O", "network=congestion-unaware")
AWARE = ("-O", "network=congestion-aware")
SYSTEM = {
    "scheduling-policy": "FIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 1, "collective-optimization": "baseline",
    "all-reduce-implementation": ["ring"], "all-gather-implementation": ["ring"],
    "reduce-scatter-implementation": ["ring"], "all-to-all-implementation": ["ring"],
}  # fmt: skip
COMP = {"id": 9, "t": "COMP", "us": 1}
ROOFLINE = {"roofline-enabled": 1, "local-mem-bw": 1000, "peak-perf": 1}


def network(kind: str = "FullyConnected", npus: int = 2, **others: float) -> dict[str, list[Any]]:
    stated = {"bandwidth": 50.0, "latency": 500.0, **others}
    return {"topology": [kind], "npus_count": [npus]} | {key: [one] for key, one in stated.items()}


def simulated(
    collhub: Collhub, folder: Path, ranks: Sequence[Sequence[Json]], *arguments: str, **others: Any
) -> Any:
    """The run of the program on the folder of a job; `others`: entries of the case."""
    case = {"sys": SYSTEM, "net": network(npus=len(ranks)), **others, "ranks": ranks}
    case["sys"] = SYSTEM | case["sys"]
    return collhub("simulate", golden_folder(case, folder), *arguments, "--json")


def aborted(run: Any) -> str:
    """The finding of a run that no rank finishes, since ASTRA-sim aborts."""
    report = run.report()
    assert run.code == 1
    assert report["time_ns"] is None
    assert set(report["rank_finish_ns"]) == {None}
    messages = [found["message"] for found in report["diagnostics"] if "abort" in found["message"]]
    assert messages
    return str(messages[0])


@pytest.mark.parametrize(
    ("name", "options", "cycles"),
    [
        ("host_memory_and_collective", UNAWARE, [26150, 26150]),
        ("host_memory_and_collective", (), [26150, 26150]),
        ("compute_only_custom_key", UNAWARE, [7000, 9000]),
        (
            "queue_turn_after_custom",
            (*UNAWARE, "-O", "queues=2"),
            [40347, 44583, 49965, 55347],
        ),
    ],
)
def test_a_job_takes_the_time_of_the_binary(
    collhub: Collhub, corpus: Path, name: str, options: tuple[str, ...], cycles: list[int]
) -> None:
    run = collhub("simulate", corpus / "strangers" / "workload" / name, *options, "--json")
    assert run.report()["rank_finish_ns"] == cycles


@pytest.mark.parametrize("name", ["host_send", "time0_tiny_send", "aware_ring_of_2"])
def test_an_input_on_which_the_binary_aborts_has_no_time(
    collhub: Collhub, corpus: Path, name: str
) -> None:
    folder = corpus / "strangers" / "workload" / name
    assert "abort" in aborted(collhub("simulate", folder, *AWARE, "--json"))


def test_without_a_stated_backend_a_network_chooses_the_one_that_runs_it(
    collhub: Collhub, corpus: Path
) -> None:
    run = collhub("simulate", corpus / "strangers" / "workload" / "aware_ring_of_2", "--json")
    report = run.report()
    assert report["details"]["network"] == "congestion-unaware"
    assert "congestion-aware ASTRA-sim aborts on a Ring of 2" in report["diagnostics"][0]["message"]


@pytest.mark.parametrize(("is_host", "end_ns"), [(1, 5000), (0, 8000)])
def test_a_store_of_the_host_leaves_the_slot_of_communication(
    collhub: Collhub, tmp_path: Path, is_host: int, end_ns: int
) -> None:
    # Latency 5000 ns: beside a broadcast of 3 us, or behind it in one slot.
    memory = {"memory-type": "PER_NPU_MEMORY_EXPANSION", "remote-mem-latency": 5000}
    rank = [
        {"id": 0, "t": "COLL", "ct": "BC", "size": 8, "us": 3},
        {"id": 1, "t": "STORE", "ts": 0, "cpu": is_host},
        {**COMP, "deps": [0, 1], "us": 0},
    ]
    memory |= {"remote-mem-bw": 1}
    run = simulated(collhub, tmp_path, [rank, rank], mem=memory)
    assert run.report()["rank_finish_ns"] == [end_ns + 1] * 2


@pytest.mark.parametrize(
    ("first", "says"),
    [
        ({"t": "RECV", "size": 8, "src": 1, "cpu": 1}, "of the host"),
        ({"t": "SEND", "size": 8, "dst": 1, "cpu": 1}, "of the host"),
        ({"t": "METADATA"}, "METADATA"),
        ({"t": "SEND", "size": 1 << 20, "dst": 1, "src": 1, "tag": 0}, "another rank"),
        ({"t": "SEND", "size": 1 << 20, "dst": 1}, "no comm_tag"),
        ({"t": "COLL", "ct": "AR"}, "no comm_size"),
        ({"t": "LOAD"}, "no tensor_size"),
    ],
)
def test_a_node_that_ends_in_an_assertion_gives_no_time(
    collhub: Collhub, tmp_path: Path, first: dict[str, Any], says: str
) -> None:
    ranks = [[{"id": 0, **first}, COMP], [COMP]]
    run = simulated(collhub, tmp_path, ranks)
    assert says in aborted(run)
    # The check and the simulation report it: one line is enough.
    assert run.err.count(says) == 1
    run = collhub("verify", tmp_path)
    assert run.code == 1
    assert says in run.err


@pytest.mark.parametrize(
    ("ranks", "others"),
    [
        # 53 bytes take less than 1 ns at 50 GiB/s, also as the first message of an algorithm.
        ([[{"id": 0, "t": "SEND", "size": 53, "dst": 1, "tag": 1}], [COMP]], {}),
        (
            [[{"id": 0, "t": "COLL", "ct": "AR", "size": 8}, {**COMP, "deps": [0]}], [COMP]],
            {
                "sys": {"all-reduce-implementation-custom": ["alg"]},
                "alg": {
                    "alg": [
                        [{"id": 0, "t": "SEND", "size": 53, "dst": 1, "tag": 0}],
                        [{"id": 0, "t": "RECV", "size": 53, "src": 0, "tag": 0}],
                    ]
                },
            },
        ),
        # A roofline, a transfer of memory and the delay of a native message of 0 ns.
        ([[{"id": 0, "t": "COMP", "ops": 1, "ts": 1}]] * 2, {"sys": ROOFLINE}),
        (
            [[{"id": 0, "t": "LOAD", "ts": 0}, {**COMP, "deps": [0]}], [COMP]],
            {
                "mem": {
                    "memory-type": "PER_NPU_MEMORY_EXPANSION",
                    "remote-mem-latency": 0,
                    "remote-mem-bw": 1,
                }
            },
        ),
        (
            [[{"id": 0, "t": "COLL", "ct": "AG", "size": 1 << 20}]] * 2,
            {"sys": {"endpoint-delay": 0}},
        ),
    ],
    ids=["message", "algorithm", "roofline", "memory", "endpoint"],
)
def test_an_event_at_time_zero_gives_no_time(
    collhub: Collhub, tmp_path: Path, ranks: list[list[Json]], others: dict[str, Any]
) -> None:
    message = aborted(simulated(collhub, tmp_path, ranks, *AWARE, **others))
    assert message.startswith("node 0 (")


def test_a_message_of_54_bytes_or_after_a_computation_has_a_time(
    collhub: Collhub, tmp_path: Path
) -> None:
    # From astra-sim.md, 6.1: 501 cycles each.
    for number, first in enumerate(
        [
            [{"id": 0, "t": "SEND", "size": 54, "dst": 1, "tag": 0}],
            [
                {"id": 0, "t": "COMP", "us": 0},
                {"id": 1, "t": "SEND", "size": 1, "dst": 1, "tag": 0, "deps": [0]},
            ],
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        receive = {"id": 0, "t": "RECV", "size": first[-1]["size"], "src": 0, "tag": 0}
        run = simulated(collhub, folder, [first, [receive]], *AWARE)
        assert run.report()["rank_finish_ns"] == [501, 501]


@pytest.mark.parametrize(
    ("net", "says"),
    [
        (network("Ring"), "Ring of 2"),
        (
            {
                "topology": ["Ring", "Switch"],
                "npus_count": [2, 1],
                "bandwidth": [50.0, 50.0],
                "latency": [500.0, 500.0],
            },
            "one dimension",
        ),
    ],
)
def test_the_congestion_aware_backend_aborts_on_a_network(
    collhub: Collhub, tmp_path: Path, net: Json, says: str
) -> None:
    assert says in aborted(simulated(collhub, tmp_path, [[COMP], [COMP]], *AWARE, net=net))
    run = collhub("simulate", tmp_path, *UNAWARE, "--json")
    assert run.report()["rank_finish_ns"] == [1000, 1000]


@pytest.mark.parametrize(
    ("last", "aborts"),
    [
        ([{"id": 1, "t": "SEND", "size": 1 << 20, "dst": 1, "tag": 0}], True),
        (
            [
                {"id": 1, "t": "SEND", "size": 1 << 20, "dst": 1, "tag": 0},
                {**COMP, "deps": [1]},
            ],
            False,
        ),
    ],
)
def test_a_message_must_not_end_a_rank_of_the_host(
    collhub: Collhub, tmp_path: Path, last: list[Json], aborts: bool
) -> None:
    host = {"id": 0, "t": "COMP", "us": 1, "cpu": 1}
    receive = {"id": 1, "t": "RECV", "size": 1 << 20, "src": 0, "tag": 0}
    run = simulated(collhub, tmp_path, [[host, *last], [receive]])
    if aborts:
        assert "statistics" in aborted(run)
    else:
        assert run.report()["rank_finish_ns"] == [21031, 20031]
        # A computation comes last: there is nothing to advise.
        assert "COMPUTE" not in run.err


def test_ids_of_more_than_31_bits_in_the_map_of_nodes_are_refused(
    collhub: Collhub, tmp_path: Path
) -> None:
    node = {"id": 1 << 31, "t": "COLL", "ct": "AR", "size": 8}
    algorithm = [
        [{"id": 0, "t": "SEND", "size": 1 << 20, "dst": 1, "tag": 0}],
        [{"id": 0, "t": "RECV", "size": 1 << 20, "src": 0, "tag": 0}],
    ]
    others = {"alg": {"alg": algorithm}, "per_node": {1 << 31: "alg"}}
    run = simulated(collhub, tmp_path, [[node, COMP], [node, COMP]], **others)
    assert run.code == 1
    assert "aborts on node 2147483648" in run.err


def test_host_times_of_a_folder_are_whole_microseconds(collhub: Collhub, tmp_path: Path) -> None:
    # The attribute in ns is one of the hub's traces, which ASTRA-sim does not read.
    rank = [{"id": 0, "t": "COMP", "us": 2, "ns": 2900, "cpu": 1}, {**COMP, "deps": [0]}]
    run = simulated(collhub, tmp_path, [rank, rank])
    assert run.report()["rank_finish_ns"] == [3000, 3000]


@pytest.mark.parametrize(("second_us", "is_job"), [(5, True), (0, False)])
def test_a_rank_that_computes_beside_a_custom_algorithm_makes_a_job(
    collhub: Collhub, tmp_path: Path, second_us: int, is_job: bool
) -> None:
    node = {"id": 0, "t": "COLL", "ct": "AR", "size": 1 << 20, "pg": "1"}
    algorithm = [
        [{"id": 0, "t": "SEND", "size": 1 << 20, "dst": 1, "tag": 0}],
        [{"id": 0, "t": "RECV", "size": 1 << 20, "src": 0, "tag": 0}],
    ]
    ranks = [[node], [node], [{"id": 0, "t": "COMP", "us": second_us}]]
    others = {"alg": {"alg": algorithm}, "groups": {"1": [0, 1]}}
    system = {"all-reduce-implementation-custom": ["alg"]}
    report = simulated(collhub, tmp_path, ranks, sys=system, **others).report()
    assert report["rank_finish_ns"] == [20031, 20031] + [5000] * is_job


@pytest.mark.parametrize(("delay", "finish"), [(False, [None, None]), (True, [None, 1000])])
@pytest.mark.parametrize("node", [{"ct": "AR", "cpu": 1}, {"ct": "RD"}])
def test_an_unknown_collective_aborts_at_the_start_and_later_stops_its_rank(
    collhub: Collhub, tmp_path: Path, delay: bool, finish: list[int | None], node: dict[str, Any]
) -> None:
    first = {"id": 1, "t": "COLL", "size": 1 << 20, **node}
    rank = [COMP, {**first, "deps": [9]}] if delay else [first, COMP]
    run = simulated(collhub, tmp_path, [rank, [COMP]])
    assert run.report()["rank_finish_ns"] == finish
    if not delay:
        assert "is issued at the start" in aborted(run)


def test_a_profiled_job_has_the_time_that_the_binary_reads(
    collhub: Collhub, corpus: Path, tmp_path: Path
) -> None:
    pytest.importorskip("collhub_pytorch")
    mini = corpus / "strangers" / "profile" / "host_microseconds" / "mini"
    options = ("-O", "clocks=stated", "-O", "topology=ring:2", *UNAWARE)
    run = collhub("convert", mini, "--to", "astra-sim", "-o", tmp_path / "f", *options)
    assert run.code == 0
    # 15.3, 50.9 and 9.3 us of the host lose 0.3, 0.9 and 0.3 us.
    assert "changes rank 0 by 1500 of 75500 ns" in run.err
    report = collhub("simulate", tmp_path / "f", "--json").report()
    assert report["time_ns"] == 94903
    assert report["details"]["network"] == "congestion-unaware"
    strict = collhub(
        "convert", mini, "--to", "astra-sim", "-o", tmp_path / "g", *options, "--strict"
    )
    assert strict.code == 4
