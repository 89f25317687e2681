"""The table of the kit: readers times writers, and what it finds wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hub_core import discover
from hub_core.model import Loss
from hub_core.testing import Outcome, all_samples, conversions, validate_all
from hub_core.testing.checked_plugin import Rendering, find_loss_problem
from hub_core.testing.workloads import sample_topologies

CORE = discover(use_plugins=False)
RING = all_samples()["ring-all-reduce"]
DOCUMENT = b"""{
  "links": [
    {"bandwidth_bytes_per_s": 50000000000, "from": 0, "latency_s": 5e-07, "to": 1},
    {"bandwidth_bytes_per_s": 50000000000, "from": 1, "latency_s": 5e-07, "to": 0}
  ],
  "name": "pair",
  "npus": 2,
  "schema": "collhub/topology-1"
}
"""


def pair():
    topology = sample_topologies()["two cables"]
    links = slice(0, 2)
    return replace(
        topology,
        name="pair",
        source=topology.source[links],
        destination=topology.destination[links],
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s[links] * 2,
        latency_s=topology.latency_s[links] / 2,
        plane=None,
    )


def written(*features: str, restated: tuple[str, ...] = ()) -> Rendering:
    return Rendering({}, tuple(Loss(feature, "", "") for feature in features), restated)


def test_formats_of_the_core_convert_into_one_another() -> None:
    table = list(conversions(CORE))
    assert {(one.read, one.written) for one in table} == {
        ("chakra", "chakra"),
        ("chakra", "json"),
        ("chakra-json", "chakra"),
        ("chakra-json", "json"),
        ("json", "chakra"),
        ("json", "json"),
        ("topology-json", "topology-json"),
    }
    assert {one.outcome for one in table} == {Outcome.EQUAL}


def test_table_can_be_of_some_formats_alone() -> None:
    found = {(one.read, one.written) for one in conversions(CORE, ["chakra"])}
    others = {("json", "chakra"), ("chakra-json", "chakra")}
    assert found == {("chakra", "chakra"), ("chakra", "json"), *others}


def test_difference_that_no_loss_names_is_a_problem() -> None:
    other = replace(RING, collective_bytes=9)
    problem = find_loss_problem(RING, other, written())
    assert (
        problem == "read back with another collective_bytes, and no loss names that as its feature"
    )


@pytest.mark.parametrize("feature", ["collective bytes", "size"])
def test_difference_that_a_loss_names_is_none(feature) -> None:
    assert find_loss_problem(RING, replace(RING, collective_bytes=9), written(feature)) is None


def test_restatement_names_a_difference_too() -> None:
    other = replace(RING, collective_bytes=9)
    assert find_loss_problem(RING, other, written(restated=("collective bytes",))) is None


def test_loss_that_reading_back_does_not_show_is_a_problem() -> None:
    problem = find_loss_problem(RING, RING, written("lane"))
    assert problem == "a loss names 'lane', but that is read back unchanged"


def test_loss_of_what_is_no_part_of_the_model_is_not_judged() -> None:
    assert find_loss_problem(RING, RING, written("hazard of the target")) is None


def test_loss_of_the_links_of_a_network_is_held_to_them() -> None:
    network = sample_topologies()["ring:4"]
    faster = replace(network, bandwidth_bytes_per_s=network.bandwidth_bytes_per_s * 2)
    bare = replace(faster, dimensions=())
    assert find_loss_problem(network, bare, written("bandwidth", "dimensions")) is None
    assert "another dimensions, links" in str(find_loss_problem(network, bare, written("groups")))
    assert "a loss names 'groups'" in str(find_loss_problem(network, network, written("groups")))


def test_texts_are_read_and_written_as_one_model() -> None:
    texts = {"topology-json": DOCUMENT}
    validate_all(pair(), read=texts, write=texts, registry=CORE)


def test_text_of_another_model_is_named() -> None:
    other = DOCUMENT.replace(b"5e-07", b"6e-07")
    with pytest.raises(AssertionError, match="read as topology-json: another links"):
        validate_all(pair(), read={"topology-json": other}, write={}, registry=CORE)


def test_first_line_that_is_written_otherwise_is_named() -> None:
    other = DOCUMENT.replace(b'"npus": 2', b'"npus": 3')
    with pytest.raises(AssertionError, match="written as topology-json from the model: the file:7"):
        validate_all(pair(), read={}, write={"topology-json": other}, registry=CORE)
