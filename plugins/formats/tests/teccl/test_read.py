"""Reading of TE-CCL schedules: messages in the order of epochs, fractions, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from collhub_teccl.schedules import EXTENSION, read, samples

import hub_core
from hub_core import Algorithm, CollectiveKind, InputError
from hub_core.model import StepKind
from hub_core.plugin_api import NoOptions, Source


def _key(at: int, chunk: int, origin: int) -> str:
    return f"Demand at {at} for chunk {chunk} from {origin} met by epoch 3"


def _pair(**more: object) -> dict[str, object]:
    """An all-gather of GPUs 4 and 7."""
    return {_key(7, 0, 4): ["4->7 in epoch 0"], _key(4, 0, 7): ["7->4 in epoch 0"]} | more


def _read(paths: object, **more: object) -> Algorithm:
    content = json.dumps({"1-Epoch_Duration": 1e-6, "8-Chunk paths": paths} | more)
    return read(Source.of_bytes("made.json", content.encode()), NoOptions())


def _two_way(volume: object, other: object) -> dict[str, object]:
    """An all-to-all of three, of which GPU 0 sends to 1 over two ways."""
    found: dict[str, object] = {}
    for origin in range(3):
        for at in {0, 1, 2} - {origin}:
            found[_key(at, at, origin)] = [[[0, f"{origin}->{at} with volume 1.0 in epoch 0"]]]
    around = [
        [1, f"0->2 with volume {other} in epoch 1"],
        [2, f"2->1 with volume {other} in epoch 2"],
    ]
    found[_key(1, 1, 0)] = [[[0, f"0->1 with volume {volume} in epoch 0"]], around]
    return found


def test_schedules_of_forks_that_name_the_collective_first_are_recognised(tmp_path: Path):
    members = {"0-Collective": "allgather", "1-Epoch_Duration": 1e-6, "8-Chunk paths": _pair()}
    file = tmp_path / "schedule.json"
    file.write_text(json.dumps(members, indent=2))
    assert hub_core.read(file).collective.kind is CollectiveKind.ALL_GATHER


def test_an_all_to_all_without_volumes_is_one_if_the_file_states_it(tmp_path: Path):
    paths = {
        f"Demand at {at} for chunk {at} from {origin} met by epoch 0": [
            f"{origin}->{at} in epoch 0 at rate 6.25 via switches 5 -> 6 -> 4"
        ]
        for origin in range(3)
        for at in {0, 1, 2} - {origin}
    }
    members = {
        "0-Collective": "alltoall",
        "0-Formulation": "MILP",
        "1-Epoch_Duration": 1e-6,
        "8-Chunk paths": paths,
    }
    path = tmp_path / "milp.json"
    path.write_text(json.dumps(members))
    algorithm = hub_core.read(str(path))
    assert algorithm.collective.kind is CollectiveKind.ALL_TO_ALL
    assert hub_core.verify(algorithm).ok


def test_an_all_gather_with_volumes_is_one_if_the_file_states_it():
    paths = {}
    for origin in range(3):
        for at in {0, 1, 2} - {origin}:
            relay = 3 - origin - at
            paths[f"Demand at {at} for chunk 0 from {origin} met by epoch 1"] = [
                [[0, f"{origin}->{at} with volume 0.75 in epoch 0"]],
                [
                    [0, f"{origin}->{relay} with volume 0.25 in epoch 0"],
                    [1, f"{relay}->{at} with volume 0.25 in epoch 1"],
                ],
            ]
    algorithm = _read(paths, **{"0-Collective": "allgather"})
    assert algorithm.collective.kind is CollectiveKind.ALL_GATHER
    assert algorithm.collective.unit_count == 12
    assert hub_core.verify(algorithm).ok


def test_another_collective_is_refused_with_its_name():
    with pytest.raises(
        InputError, match=r"\['0-Collective'\]: expected allgather or alltoall, got"
    ):
        _read(_pair(), **{"0-Collective": "gather"})


def test_an_input_with_a_name_before_it_is_named(tmp_path: Path):
    path = tmp_path / "input.json"
    path.write_text('{"name": "two \\"nodes\\"", "_note": "", "TopologyParams": {}}')
    with pytest.raises(InputError, match="this is an input of TE-CCL's solver"):
        hub_core.read(str(path))


def test_nodes_become_ranks_in_their_order():
    algorithm = _read(_pair())
    assert algorithm.collective.kind is CollectiveKind.ALL_GATHER
    assert algorithm.extensions[EXTENSION]["gpus"] == [4, 7]
    assert hub_core.verify(algorithm).ok


def test_a_hop_that_two_paths_share_is_one_message():
    line = {
        **_pair(),
        _key(9, 0, 4): ["4->7 in epoch 0", "7->9 in epoch 1"],
        _key(9, 0, 7): ["7->9 in epoch 0"],
        _key(7, 0, 9): ["9->7 in epoch 0"],
        _key(4, 0, 9): ["9->7 in epoch 0", "7->4 in epoch 1"],
    }
    algorithm = _read(line)
    assert algorithm.steps.is_kind(StepKind.SEND).sum() == 6
    assert hub_core.verify(algorithm).ok


def test_fractions_become_units():
    algorithm = _read(_two_way(0.25, 0.75))
    assert algorithm.collective.unit_count == 3 * 4
    assert hub_core.verify(algorithm).ok


def test_volumes_that_six_digits_round_add_up_again():
    algorithm = _read(_two_way(0.333333, 0.666667))
    assert algorithm.collective.unit_count == 3 * 3
    assert hub_core.verify(algorithm).ok


@pytest.mark.parametrize("volumes", [(0.1259, 0.8735), (0.1037, 0.8971)])
def test_volumes_that_add_up_within_the_tolerance_fill_the_chunk(volumes: tuple[float, float]):
    # Sums of 0.9994 and 1.0008: 3 units too few and 4 too many of 5040.
    algorithm = _read(_two_way(*volumes))
    assert algorithm.collective.unit_count == 3 * 5040
    assert hub_core.verify(algorithm).ok


def test_the_latest_demand_that_is_claimed_is_kept():
    met = {"GPU 4": {"GPU 7": {"Chunk 0": 2e-6}}, "GPU 7": {"GPU 4": {"Chunk 0": 3e-6}}}
    algorithm = _read(_pair(), **{"6-Demand_Met": met})
    assert algorithm.extensions[EXTENSION]["demand_met_s"] == 3e-6


def test_the_size_follows_from_the_claimed_bandwidth():
    claims = {"4-Collective_Finish_Time": 4.52e-06, "5-Algo_Bandwidth": 3.5398230088495573}
    assert _read(_pair(), **claims).collective_bytes == 16000
    assert _read(_pair(), **{**claims, "5-Algo_Bandwidth": 1e300}).collective_bytes is None


@pytest.mark.parametrize("source", samples(), ids=lambda source: source.name)
def test_samples_are_right(source):
    assert hub_core.verify(read(source, NoOptions())).ok


ALONE = {_key(7, 0, 4): ["4->7 in epoch 0"]}
TREE = {**_pair(), _key(9, 0, 4): ["4->9 in epoch 0"], _key(9, 0, 7): ["7->9 in epoch 0"]}


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        pytest.param([], "expected an object with the paths of every demand", id="list"),
        pytest.param({}, "expected an object with the paths of every demand", id="empty"),
        pytest.param({"Demand": ["0->1 in epoch 0"]}, "expected a key as", id="key"),
        pytest.param(_pair(**{_key(7, 0, 4): []}), "expected a list of hops", id="no hop"),
        pytest.param(_pair(**{_key(7, 0, 4): ["4 to 7"]}), "expected a hop as", id="hop"),
        pytest.param(_pair(**{_key(7, 0, 4): [3]}), "expected a list of \\[epoch", id="number"),
        pytest.param(_pair(**{_key(7, 0, 4): ["7->4 in epoch 0"]}), "a hop from 4", id="start"),
        pytest.param(_pair(**{_key(7, 0, 4): ["4->9 in epoch 0"]}), "ends at 9", id="end"),
        pytest.param(
            _pair(**{_key(7, 0, 4): ["4->9 in epoch 1", "9->7 in epoch 1"]}),
            "an epoch after 1",
            id="epoch",
        ),
        pytest.param(
            _pair(**{_key(7, 0, 4): ["4->7 in epoch 0 via switches 4"]}),
            "node 4 is a switch",
            id="switch",
        ),
        pytest.param(ALONE, "no path brings chunk 1 to GPU 4", id="one way"),
        pytest.param(TREE, "no path brings chunk 2 to GPU 4, and 1 more", id="no way back"),
        pytest.param(_two_way(0.25, 0.5), "is met to 0.75 of its chunk", id="too little"),
        pytest.param(_two_way(0.5, 1.5), "the volume is 1.5", id="too much"),
        pytest.param(_two_way("1e-999", 1), "the volume is 1e-999", id="nothing"),
    ],
)
def test_what_is_wrong_is_named(paths, message):
    with pytest.raises(InputError, match=message):
        _read(paths)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"1-Epoch_Duration": 1}', b"\xff"])
def test_what_is_no_schedule_is_refused(content):
    with pytest.raises(InputError, match="expected"):
        read(Source.of_bytes("made.json", content), NoOptions())


def test_the_place_of_a_wrong_hop_is_its_json_path():
    paths = _pair(**{_key(7, 0, 4): ["4->9 in epoch 0", "9=>7 in epoch 1"]})
    with pytest.raises(InputError, match=r"\$\['8-Chunk paths'\]\['Demand at 7 .*'\]\[1\]"):
        _read(paths)


def test_lost_flows_are_told():
    paths = _two_way(0.5, 0.5)
    flows = ["Chunk 1 from 0 traveled over 0->1 with volume 0.25 in epoch 0"]
    found = []
    content = json.dumps(
        {"1-Epoch_Duration": 1e-6, "7-Flows": flows, "8-Chunk paths": paths}
    ).encode()
    source = replace(Source.of_bytes("made.json", content), report=found.append)
    read(source, NoOptions())
    assert [one.code for one in found] == ["flows-lost"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        (b'{"a": ' + b"[" * 100_000, "values are nested too deeply; nest at most 64 levels"),
        (b'{"a": ' + b"1" * 5000 + b"}", "too many digits"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_what_strict_json_refuses_is_a_defect_of_the_root(content, message):
    with pytest.raises(InputError, match=rf"\$: expected JSON: .*{message}") as caught:
        read(Source.of_bytes("made.json", content), NoOptions())
    assert [found.code for found in caught.value.diagnostics] == ["teccl-schema"]


def test_an_input_of_the_solver_as_topology_is_refused_with_its_format(
    collhub, tmp_path: Path
) -> None:
    file = tmp_path / "input.json"
    file.write_text('{"TopologyParams": {"name": "Mesh"}, "InstanceParams": {"collective": 1}}')
    run = collhub("topology", "show", file)
    assert run.code == 1
    assert "the nearest format is teccl (schedules of TE-CCL" in run.err
    assert "which describes no topology; give a network, such as mesh:4x4" in run.err
