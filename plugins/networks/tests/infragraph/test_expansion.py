from __future__ import annotations

import numpy as np
import pytest
from collhub_infragraph.devices import DeviceList
from collhub_networks.values import DocumentValue
from documents import document, edge, ends, graph, network

from hub_core.model import InputError


def test_many2many_joins_all_pairs() -> None:
    found = graph(document([edge("xpu", "sw")]))
    assert ends(found) == [(f"h.0.xpu.{npu}", "h.0.sw.0") for npu in range(4)]


def test_many2many_joins_no_vertex_to_itself() -> None:
    found = graph(document([edge("xpu[0:2]", "xpu[0:2]")]))
    assert ends(found) == [("h.0.xpu.0", "h.0.xpu.1")]


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("xpu", [0, 1, 2, 3]),
        ("xpu[]", [0, 1, 2, 3]),
        ("xpu[:]", [0, 1, 2, 3]),
        ("xpu[2]", [2]),
        ("xpu[-1]", [3]),
        ("xpu[1:3]", [1, 2]),
        ("xpu[:-1]", [0, 1, 2]),
        ("xpu[::2]", [0, 2]),
        ("xpu[::-1]", [3, 2, 1, 0]),
    ],
)
def test_slices_are_those_of_python(text, chosen) -> None:
    found = graph(document([edge(text, "sw")]))
    assert [one for one, _ in ends(found)] == [f"h.0.xpu.{npu}" for npu in chosen]


def test_one2one_takes_pairs() -> None:
    found = graph(document([edge("xpu[0:2]", "xpu[2:4]", "one2one")]))
    assert ends(found) == [("h.0.xpu.0", "h.0.xpu.2"), ("h.0.xpu.1", "h.0.xpu.3")]


def test_one2one_of_unequal_lists_is_cut_with_a_warning() -> None:
    value = document([edge("xpu", "sw"), edge("xpu[0:3]", "xpu[3]", "one2one")])
    topology, findings = network(value)
    assert topology.num_links == 2 * 5
    codes = {finding.code: finding for finding in findings}
    assert codes["cut-edges"].message.startswith("$.devices[0].edges[1]: one2one of 3 with 1")


def test_last_statement_of_a_pair_counts() -> None:
    links = [{"name": "l"}, {"name": "m"}]
    found = graph(document([edge("xpu[0]", "sw"), edge("sw", "xpu[0]", link="m")], links))
    assert ends(found) == [("h.0.xpu.0", "h.0.sw.0")]
    assert found.links[found.link[0]].name == "m"


def test_devices_within_devices_are_expanded_with_their_edges() -> None:
    card = {
        "name": "card",
        "components": [
            {"name": "slot", "count": 1, "choice": "custom", "custom": {"type": "pcie"}},
            {"name": "port", "count": 2, "choice": "port"},
        ],
        "links": [{"name": "inner"}],
        "edges": [edge("slot", "port", link="inner")],
    }
    host = {
        "name": "host",
        "components": [
            {"name": "xpu", "count": 2, "choice": "xpu"},
            {"name": "card", "count": 2, "choice": "device"},
        ],
        "links": [{"name": "l"}],
        "edges": [edge("xpu", "card.slot", "one2one")],
    }
    instances = [{"name": "h", "device": "host", "count": 2}]
    found = graph({"devices": [host, card], "instances": instances})
    assert len(found.names) == 2 * (2 + 2 * 3)
    assert found.names[8:12] == ("h.1.xpu.0", "h.1.xpu.1", "h.1.card.0.slot.0", "h.1.card.0.port.0")
    assert ("h.1.card.1.slot.0", "h.1.card.1.port.1") in ends(found)
    assert ("h.0.xpu.1", "h.0.card.1.slot.0") in ends(found)


def test_left_part_of_an_endpoint_varies_slowest() -> None:
    instances = [{"name": "h", "device": "host", "count": 2}]
    between = {
        "ep1": {"instance": "h[0:2]", "component": "xpu[0:2]"},
        "ep2": {"instance": "h[0]", "component": "xpu"},
        "scheme": "one2one",
        "link": "l",
    }
    value = document([], instances=instances, links=None)
    found = graph(value | {"links": [{"name": "l"}], "edges": [between]})
    # h.0.xpu.0 and h.0.xpu.1 would be joined to themselves.
    assert ends(found) == [("h.1.xpu.0", "h.0.xpu.2"), ("h.1.xpu.1", "h.0.xpu.3")]


def test_device_of_an_endpoint_may_be_named_apart() -> None:
    card = {"name": "card", "components": [{"name": "port", "count": 2, "choice": "port"}]}
    parts = [
        {"name": "xpu", "count": 2, "choice": "xpu"},
        {"name": "card", "count": 1, "choice": "device"},
    ]
    join = edge("xpu", "port", "one2one")
    join["ep2"]["device"] = "card[0]"
    value = document([join], components=parts)
    value["devices"].append(card)
    assert ends(graph(value)) == [
        ("h.0.xpu.0", "h.0.card.0.port.0"),
        ("h.0.xpu.1", "h.0.card.0.port.1"),
    ]


def refused(value) -> str:
    with pytest.raises(InputError) as caught:
        network(value)
    found = caught.value.diagnostics[0]
    assert found.location.file == "net.yaml"
    return f"{found.message}; {found.cure}"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            document([edge("xpu[4]", "sw")]),
            "$.devices[0].edges[0].ep1.component: xpu[4] does not exist, there are 4",
        ),
        (document([edge("xpu[7:]", "sw")]), "xpu[7:] is empty: there are 4"),
        (document([edge("xpu[a]", "sw")]), "[a] is not a slice; write for example [0]"),
        (document([edge("xpu[::0]", "sw")]), "[::0] is not a slice"),
        (
            document([edge("gpu", "sw")]),
            "device host has no component 'gpu'; components of host are: xpu, sw",
        ),
        (document([edge("xpu.port", "sw")]), "xpu is not a device, and has no 'port'"),
        (document([edge("", "sw")]), "expected text, got text ''"),
        (
            document([edge("xpu", "sw", "ring")]),
            "the scheme ring is in InfraGraph's schema, but its edges are not defined",
        ),
        (document([edge("xpu", "sw", "mesh")]), "'mesh' is not a scheme; use one2one or many2many"),
        (document([edge("xpu", "sw", link="x")]), "device host has no link 'x'; its links are: l"),
        (
            document([edge("xpu", "sw")], instances=[{"name": "h", "device": "no", "count": 1}]),
            "no device is named 'no'; devices are: host",
        ),
        (
            document([edge("xpu", "sw")], instances=[{"name": "h", "device": "host", "count": 0}]),
            "$.instances[0].count: 0 is not in 1..",
        ),
        (
            document(
                [edge("xpu", "sw")], instances=[{"name": "h", "device": "host", "count": 10**9}]
            ),
            "1000000000 is not in 1..",
        ),
        (
            document(
                [edge("xpu", "sw")], instances=[{"name": "h", "device": "host", "count": 900_000}]
            ),
            "more than 1048576 vertices",
        ),
        (
            document([edge("xpu", "sw")], components=[{"name": "x", "count": 1, "choice": "gpu"}]),
            "'gpu' is not a known kind; use one of custom, device",
        ),
        (
            document(
                [edge("sw", "sw")], components=[{"name": "sw", "count": 2, "choice": "switch"}]
            ),
            "no component is of a kind that is an NPU (xpu,npu); name the kinds that are NPUs",
        ),
        (
            document([edge("xpu[0:2]", "sw")]),
            "the NPUs form 3 parts without a link between them: h.0.xpu.0 and 1 more; h.0.xpu.2 and 0 more",
        ),
        ({"devices": [], "instances": []}, "there are no instances"),
        (
            {"infrastructure": {"devices": 3}},
            "$.infrastructure.devices: expected a list, got a whole number",
        ),
    ],
)
def test_bad_documents_are_refused_with_path_and_cure(value, said) -> None:
    assert said in refused(value)


def test_components_of_the_kind_npu_are_npus() -> None:
    """Releases 0.3 to 0.9 of InfraGraph wrote `npu` for the later `xpu`."""
    parts = [
        {"name": "a100", "count": 2, "choice": "npu"},
        {"name": "sw", "count": 1, "choice": "switch"},
    ]
    topology, _ = network(document([edge("a100", "sw")], components=parts))
    assert topology.num_npus == 2
    assert topology.node_names == ("h.0.a100.0", "h.0.a100.1")


def test_custom_component_may_lack_its_type() -> None:
    """Releases 0.3 to 0.9 of InfraGraph wrote switches as `custom` without `custom.type`."""
    parts = [
        {"name": "npu", "count": 3, "choice": "npu"},
        {"name": "nvlsw", "count": 1, "choice": "custom"},
    ]
    found = graph(document([edge("npu", "nvlsw")], components=parts))
    assert found.kinds == ("npu", "npu", "npu", "custom")


def test_device_that_holds_itself_is_refused() -> None:
    value = document([], components=[{"name": "host", "count": 2, "choice": "device"}])
    assert "devices contain one another: host contains host" in refused(value)


def test_a_deep_chain_of_devices_is_refused_as_such() -> None:
    devices = [{"name": "d0", "components": [{"name": "xpu", "count": 1, "choice": "xpu"}]}]
    for level in range(1, 18):
        inner = {"name": f"d{level - 1}", "count": 1, "choice": "device"}
        devices.append({"name": f"d{level}", "components": [inner]})
    instances = [{"name": "i", "device": "d17", "count": 1}]
    value = {"devices": devices[::-1], "instances": instances}
    assert "devices are nested in more than 17 levels: d17 contains d16" in refused(value)


def test_a_device_with_an_error_is_refused_with_the_same_error_again() -> None:
    device = {"name": "host", "components": [{"name": "xpu", "count": 0, "choice": "xpu"}]}
    entry = DocumentValue("net.yaml", device)
    none = np.zeros(0, np.int64)
    devices = DeviceList({"host": entry}, lambda edge, device: (none, none, none))
    messages = []
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            devices.get_device("host", entry)
        messages.append(caught.value.diagnostics[0].message)
    assert messages[0] == messages[1]
    assert "contain" not in messages[0]


def test_counts_that_multiply_are_refused_before_they_are_expanded() -> None:
    devices = [{"name": "d0", "components": [{"name": "xpu", "count": 1000, "choice": "xpu"}]}]
    for level in range(1, 5):
        inner = {"name": f"d{level - 1}", "count": 1000, "choice": "device"}
        devices.append({"name": f"d{level}", "components": [inner]})
    value = {"devices": devices, "instances": [{"name": "i", "device": "d4", "count": 1}]}
    assert "more than 1048576 vertices" in refused(value)
