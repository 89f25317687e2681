"""Which format a file is taken for, by its first bytes where several have its suffix."""

from __future__ import annotations

import json

import pytest
from documents import document, edge

from hub_core import discover, read_topology
from hub_core.cli.main import main

REGISTRY = discover()
YAML = """\
devices:
- {name: npu, components: [{name: xpu, count: 1, choice: xpu}]}
links:
- {name: l, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 50}}}
instances: [{name: npu, device: npu, count: 2}]
edges:
- {ep1: {instance: "npu[0]", component: xpu}, ep2: {instance: "npu[1]", component: xpu}, scheme: one2one, link: l}
"""


@pytest.mark.parametrize("name", ["net.yaml", "net.yml", "net.txt", "net"])
def test_yaml_is_known_by_its_keys(tmp_path, name) -> None:
    path = tmp_path / name
    path.write_text(YAML)
    assert read_topology(path, registry=REGISTRY).num_npus == 2


def test_json_of_infragraph_and_of_the_hub_are_told_apart(tmp_path) -> None:
    path = tmp_path / "net.json"
    path.write_text(json.dumps(document([edge("xpu", "sw")])))
    assert read_topology(path, registry=REGISTRY).num_npus == 4


@pytest.mark.parametrize("text", ["fat-tree:4", "torus:8x8", "dgx-h100:16"])
def test_long_documents_of_the_hub_are_known_though_their_schema_comes_last(tmp_path, text) -> None:
    path = tmp_path / "net.json"
    assert main(["topology", "convert", text, "-o", str(path)]) == 0
    found = read_topology(path, registry=REGISTRY)
    assert found.differences(read_topology(text, registry=REGISTRY)) == []


def test_bandwidths_stand_behind_the_file(tmp_path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(YAML.replace(", gigabytes_per_second: 50", ""))
    found = read_topology(f"{path}?bandwidth.l=25GB/s&latency=1us", registry=REGISTRY)
    assert set(found.bandwidth_bytes_per_s.tolist()) == {25e9}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x [1, 2]\ndevices: *x\n", r"net.yaml:1: aliases \(& and \*\) are not read"),
        ("a: &x [1, 2]\nb: &y [*x, *x]\ndevices: [*y, *y]\n", "aliases"),
        ("devices: []\ndevices: []\n", "net.yaml:2: the key 'devices' occurs twice"),
        ("devices: [" + "[" * 70 + "]" * 71 + "\n", "nested deeper than 64 levels"),
        ("devices: [\n", "net.yaml:2: this is not YAML"),
        ("- devices: 1\n", "an object of keys and values was expected"),
        ("devices: !!python/object:os.system []\n", "this is not YAML"),
    ],
)
def test_yaml_that_is_unsafe_or_broken_is_refused(tmp_path, text, said) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(text)
    with pytest.raises(Exception, match=said) as caught:
        read_topology(path, format="infragraph", registry=REGISTRY)
    assert type(caught.value).__name__ == "InputError"
