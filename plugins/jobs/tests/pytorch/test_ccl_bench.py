"""Folders of CCL-Bench: the card, its traces, and the network that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from collhub_pytorch.ccl_bench import lines, network, read, read_card, samples
from collhub_pytorch.formats import ProfileOptions
from collhub_pytorch.samples import file_part

from hub_core.model import Diagnostic, InputError
from hub_core.plugin_api import NoOptions, Source

CARD = """\
version: 1
workload:
  model: {{model_family: llama, phase: training}}
  hardware:
    network_topo: {{bandwidth_gbps: {rates}}}
    xpu_spec: {{type: GPU, model: A100, total_count: {total}, count_per_node: {node}}}
Model-executor:
  framework: {{name: torchtitan}}
  model_plan_parallelization: {{dp_replicate: 1, dp_shard: {shard}, tp: {tensor}, pp: , cp: 1}}
"""


def card(
    total: int = 4, node: int = 4, shard: int = 2, tensor: int = 2, rates: str = "[200, 2400]"
) -> str:
    text = CARD.format(total=total, node=node, shard=shard, tensor=tensor, rates=rates)
    return text.replace("pp: ,", "pp: null,")


def source_of(files: Mapping[str, bytes]) -> tuple[Source, list[Diagnostic]]:
    notes: list[Diagnostic] = []
    parts = tuple(file_part(name, content) for name, content in files.items())
    return Source("folder", parts, notes.append), notes


def traces() -> dict[str, bytes]:
    return {part.name: part.load() for part in samples()[0].parts if "card.yaml" not in part.name}


def test_a_card_of_the_published_form_is_read() -> None:
    source, _ = source_of({"workload-card.yaml": card().encode()})
    read_back = read_card(source)
    assert (read_back.total_count, read_back.model, read_back.framework) == (
        4,
        "llama",
        "torchtitan",
    )
    assert read_back.parallelism == {
        "dp_replicate": 1, "dp_shard": 2, "tp": 2, "pp": 1, "cp": 1, "ep": 1,
    }  # fmt: skip


def test_parallelism_that_does_not_fit_the_devices_is_refused() -> None:
    source, _ = source_of({"workload-card.yaml": card(total=8).encode()})
    with pytest.raises(
        InputError, match=r"workload-card.yaml: .*= 4, but total_count is 8; correct"
    ):
        read_card(source)


def test_experts_may_have_devices_of_their_own() -> None:
    text = card(total=8).replace("cp: 1}", "cp: 1, ep: 2}")
    source, _ = source_of({"c.yaml": text.encode()})
    assert read_card(source).parallelism["ep"] == 2


def test_hardware_beside_the_workload_and_bandwidths_left_open_are_read() -> None:
    text = card(rates="[N/A, 800]").replace("  hardware:", "hardware:")
    source, _ = source_of({"c.yaml": text.replace("llama", "''").encode()})
    read_back = read_card(source)
    assert (read_back.total_count, read_back.device, read_back.model) == (4, "A100", "")
    assert network(source, NoOptions()).name == "switch:4?bandwidth=100GB/s"
    unknown, _ = source_of({"c.yaml": card(rates="[TBD, TBD]").encode()})
    with pytest.raises(InputError, match="does not describe a network"):
        network(unknown, NoOptions())


def test_the_network_has_the_bandwidths_of_the_card_in_bytes() -> None:
    source, _ = source_of({"c.yaml": card(total=4, node=2).encode()})
    topology = network(source, NoOptions())
    assert topology.name == "switch:2*switch:2?bandwidth=300GB/s,25GB/s"
    single, _ = source_of({"c.yaml": card().encode()})
    assert network(single, NoOptions()).name == "switch:4?bandwidth=300GB/s"
    missing, _ = source_of({"c.yaml": card(rates="[]").encode()})
    with pytest.raises(InputError, match=r"does not describe a network.*; give --topology"):
        network(missing, NoOptions())


def test_the_traces_are_the_job_and_the_card_describes_it() -> None:
    workload = read(samples()[0], ProfileOptions())
    assert workload.num_ranks == 2
    assert lines(workload)[0].endswith("example with torchtitan on 2 x A100; dp_shard 2")


def test_other_numbers_of_devices_and_other_files_are_reported() -> None:
    files = {"a/workload-card.yaml": card().encode(), "a/notes.md": b"x", **traces()}
    source, notes = source_of(files)
    read(source, ProfileOptions())
    messages = [note.message for note in notes]
    assert "the card has 4 devices, the traces 2" in messages
    assert "1 other files of the folder are not read" in messages


def test_a_card_without_traces_and_two_cards_are_refused() -> None:
    source, _ = source_of({"c.yaml": card().encode()})
    with pytest.raises(InputError, match="there are no traces next to the card; put the files"):
        read(source, ProfileOptions())
    two, _ = source_of({"a.yaml": card().encode(), "b.yaml": card().encode()})
    with pytest.raises(InputError, match=r"2 cards in the folder: a.yaml, b.yaml; name a folder"):
        read_card(two)


@pytest.mark.needs_plugins
def test_the_program_times_the_job_on_the_network_of_the_card(collhub, tmp_path: Path) -> None:
    for part in samples()[0].parts:
        path = tmp_path / part.name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(part.load())
    text = "switch:2?bandwidth=300GB/s"
    run = collhub("simulate", tmp_path / "card", "--topology", text)
    assert run.code == 0
    assert f"the network of the card is --topology '{text}'" in run.err
