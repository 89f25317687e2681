"""Ring graphs of NCCL read as algorithms: contents, round trips, detection, and refusals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from collhub_nccl.graphs.graph_files import read, write
from collhub_nccl.options import NcclRingOptions, RingReadOptions
from graph_reader import read_rings
from hypothesis import given, settings
from hypothesis import strategies as st

import hub_core
from hub_core.model import Algorithm, Diagnostic, HubError, UsageError
from hub_core.plugin_api import Source
from hub_core.verification import verify

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce")
ATTRIBUTES = {
    "id": "0", "pattern": "4", "crossnic": "0", "nchannels": "1", "speedintra": "20",
    "speedinter": "20", "latencyinter": "0", "typeintra": "NVL", "typeinter": "PIX",
    "samechannels": "0",
}  # fmt: skip


def graph(*channels: str, version: str = "1", **changed: str) -> str:
    """A file with one ring graph; `channels`: the elements of each."""
    attributes = {**ATTRIBUTES, "nchannels": str(len(channels)), **changed}
    tag = " ".join(f'{name}="{value}"' for name, value in attributes.items() if value != "absent")
    body = "".join(f"<channel>{channel}</channel>\n" for channel in channels)
    return f'<graphs version="{version}">\n<graph {tag}>\n{body}</graph>\n</graphs>\n'


def gpus(*devices: str) -> str:
    return "".join(f'<gpu dev="{device}"/>' for device in devices)


def read_text(text: str, **options: object) -> tuple[Algorithm, list[Diagnostic]]:
    found: list[Diagnostic] = []
    source = Source.of_bytes("graph.xml", text.encode())
    source = Source(source.name, source.parts, found.append)
    return read(source, RingReadOptions(**options)), found  # type: ignore[arg-type]


def written(algorithm: Algorithm) -> str:
    (artifact,) = write(algorithm, NcclRingOptions()).artifacts
    return artifact.content().decode("ascii")


def links_by_channel(algorithm: Algorithm) -> dict[int, set[tuple[int, int]]]:
    """(source, destination) of all messages of every channel."""
    steps = algorithm.steps
    found: dict[int, set[tuple[int, int]]] = {}
    for row in np.flatnonzero(steps.sends).tolist():
        pair = int(steps.rank[row]), int(steps.peer[row])
        found.setdefault(int(steps.channel[row]), set()).add(pair)
    return found


def links_of(ring: Sequence[int]) -> set[tuple[int, int]]:
    return set(zip(ring, [*ring[1:], ring[0]], strict=True))


@pytest.mark.needs_plugins
def test_a_dump_of_nccl_is_read_as_its_rings(corpus: Path) -> None:
    # The contents that the description of the sample gives: ring 0-1-3-2 on two channels.
    algorithm = hub_core.read(corpus / "evidence" / "nccl" / "graphs.dump")
    assert verify(algorithm).ok
    ring = links_of([0, 1, 3, 2])
    assert links_by_channel(algorithm) == {0: ring, 1: ring}


@pytest.mark.needs_plugins
def test_a_dump_of_another_version_is_refused(corpus: Path) -> None:
    with pytest.raises(HubError, match=r"graphs_bad\.dump:1: version '2' is not 1"):
        hub_core.read(corpus / "evidence" / "nccl" / "graphs_bad.dump")


@pytest.mark.parametrize("name", ["graph.xml", "nccl_graph", "graph.dump"])
def test_the_root_element_decides_whatever_the_name_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("<!-- rings -->\n" + graph(gpus("0", "1", "2")))
    assert links_by_channel(hub_core.read(path)) == {0: links_of([0, 1, 2])}


@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_runs_over_the_rings(kind: str) -> None:
    algorithm, found = read_text(
        graph(gpus("0", "2", "1", "3"), gpus("0", "3", "1", "2")), collective=kind
    )
    assert (str(algorithm.collective.kind), found) == (kind, [])
    assert verify(algorithm).ok
    links = links_by_channel(algorithm)
    assert links[0] <= links_of([0, 2, 1, 3])
    assert links[1] <= links_of([0, 3, 1, 2])


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
@pytest.mark.parametrize("root", range(3))
def test_the_root_is_an_option(kind: str, root: int) -> None:
    algorithm, _ = read_text(graph(gpus("0", "2", "1")), collective=kind, root=root)
    assert algorithm.collective.root == root
    assert verify(algorithm).ok


def test_a_root_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="3 is not one of 3 ranks"):
        read_text(graph(gpus("0", "2", "1")), collective="reduce", root=3)
    with pytest.raises(UsageError, match="all-gather has no root"):
        read_text(graph(gpus("0", "2", "1")), collective="all-gather", root=0)


def test_ranks_come_before_devices_and_devices_are_hexadecimal() -> None:
    by_rank = '<gpu dev="0" rank="9"/><gpu dev="1" rank="8"/><gpu dev="2" rank="10"/>'
    assert links_by_channel(read_text(graph(by_rank))[0]) == {0: links_of([1, 0, 2])}
    # 0x9 < 0xa < 0x10, with or without the prefix.
    by_device = gpus("10", "0x9", "a")
    assert links_by_channel(read_text(graph(by_device))[0]) == {0: links_of([2, 0, 1])}


def test_devices_of_several_systems_come_back() -> None:
    # The top byte is the number of the system.
    text = graph(gpus("0", "0x100000000000001", "0x7f00000000000001"))
    again = written(read_text(text)[0])
    assert re.findall('dev="(.*?)"', again) == ["0", "100000000000001", "7f00000000000001"]


def test_what_is_not_read_is_noted() -> None:
    ring = graph(f'<net dev="0"/>{gpus("0", "1")}<net dev="1"/>')
    tree = ring.replace('id="0" pattern="4"', 'id="1" pattern="3"')
    both = ring.replace("</graphs>", tree.partition("\n")[2])
    _, found = read_text(both)
    assert [one.code for one in found] == ["graph-not-read", "one-node"]


@settings(max_examples=30, deadline=None)
@given(
    st.integers(2, 5).flatmap(
        lambda n: st.lists(st.permutations(range(n)), min_size=1, max_size=4)
    ),
    st.sampled_from(["NVL", "PIX", "SYS"]),
    st.sampled_from(["12", "20.5", "45"]),
    st.booleans(),
    st.booleans(),
)
def test_what_is_read_is_written_again(
    orders: list[list[int]], path: str, speed: str, has_ranks: bool, has_nets: bool
) -> None:
    channels = []
    for number, order in enumerate(orders):
        row = "".join(
            f'<gpu dev="{gpu + 1:x}"' + (f' rank="{gpu + 7}"' if has_ranks else "") + "/>"
            for gpu in order
        )
        net = f'<net dev="{number:x}"/>'
        channels.append(net + row + net if has_nets else row)
    text = graph(*channels, typeintra=path, speedintra=speed)
    again = written(read_text(text)[0])
    assert re.sub(r"\s*(<|/>|>)\s*", r"\1", again) == re.sub(r"\s*(<|/>|>)\s*", r"\1", text)
    assert read_rings(again) == [[gpu + 1 for gpu in order] for order in orders]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (graph(gpus("0", "1"), version="2"), "1: version '2' is not 1"),
        (graph(gpus("0", "1"), id="1"), "1: 0 graphs have id 0"),
        (graph(gpus("0", "1"), pattern="3"), "2: pattern '3' is not 4"),
        (graph(gpus("0", "1"), nchannels="2"), "2: nchannels='2', but there are 1 channels"),
        (graph(), "2: nchannels='0', but there are 0 channels"),
        (graph(gpus("0", "1"), gpus("0", "0")), "4: the channel does not hold each of the 2 GPUs"),
        (graph(gpus("0", "1"), gpus("0", "2")), "4: the channel does not hold each of the 2 GPUs"),
        (graph(gpus("0", "1"), gpus("0")), "4: the channel does not hold each of the 2 GPUs"),
        (graph(gpus("0")), "3: the channel has 1 GPUs; 2 to 256 form a ring"),
        (graph(gpus("0", "x")), "3: dev='x' is not a hexadecimal device number"),
        (graph('<gpu rank="0"/><gpu dev="1"/>'), "3: dev='' is not a hexadecimal device number"),
        (graph('<gpu dev="0" rank="-1"/><gpu dev="1"/>'), "3: rank='-1' is not a whole number"),
        (graph('<gpu dev="0" rank="1"/><gpu dev="1"/>'), "3: the ranks of the GPUs are not all"),
        (
            graph('<gpu dev="0" rank="1"/><gpu dev="1" rank="1"/>'),
            "3: the ranks of the GPUs are not all stated and different",
        ),
        (graph(gpus("0", "1"), speedintra="fast"), "2: speedintra='fast' is not a number"),
        (graph(gpus("0", "1"), typeintra="absent"), "2: typeintra='' is not a kind of path"),
        (graph(f'<net dev="0"/>{gpus("0", "1")}'), "3: the network devices are not the first"),
        (graph(*[gpus("0", "1")] * 33), "2: 33 channels are more than the 32 of NCCL"),
        (graph(*[gpus(*map(hex, range(256)))] * 32), "need more than 4194304 steps"),
        ('<!DOCTYPE graphs [<!ENTITY a "b">]>' + graph(gpus("0", "1")), "1: a DOCTYPE"),
        ("<graphs version='1'>", "not well-formed"),
        ("<system version='1'/>", "1: the root element is <system>, not <graphs>"),
    ],
)
def test_what_is_no_ring_graph_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(HubError, match=re.escape(reason)):
        read_text(text)


@pytest.mark.parametrize(
    "extension",
    [
        "rings",
        {"devices": [0, 0, 1]},
        {"devices": ["0", "1", "2"]},
        {"channels": [[0, 1]]},
        {"channels": [[0, 2, 1]]},
        {"nets": [[0]]},
        {"ranks": [1, 2]},
        {"attributes": {"typeintra": 'NVL" pattern="9', "speedintra": ["1"]}},
        {"attributes": {"typeintra": "nvl", "speedinter": "fast", "id": "1"}},
    ],
)
def test_an_extension_that_does_not_fit_the_rings_is_left_out(extension: object) -> None:
    plain, _ = read_text(graph(gpus("0", "1", "2")))
    changed = Algorithm(
        plain.collective,
        plain.steps,
        plain.scratch_units,
        extensions={"nccl-graph": extension},  # type: ignore[dict-item]
    )
    assert written(changed) == written(plain)
