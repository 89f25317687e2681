"""Damaged documents are read or refused, and nothing else."""

from __future__ import annotations

import pytest
from collhub_infragraph.plugin import InfragraphReadOptions
from collhub_infragraph.read import build_samples, read
from documents import document, edge, network
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import HubError, InputError
from hub_core.plugin_api import Source

WORDS = st.sampled_from(
    [b"-1", b"999999999999", b"null", b"[]", b"{}", b"[0:99999999]", b"1e400", b"&a", b"*a", b"", b"\xff",
     b"device", b".inf", b"2001-01-01", b"!!set", b"? "]
)  # fmt: skip


@given(st.data())
def test_damaged_documents_are_read_or_refused_with_the_file(data) -> None:
    content = bytearray(data.draw(st.sampled_from([one.content() for one in build_samples()])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(WORDS)
    plain = Source.of_bytes("net.yaml", bytes(content))
    options = InfragraphReadOptions(missing="unlimited")
    place = "net.yaml"
    try:
        read(Source("net.yaml", plain.parts, lambda finding: None), options)
    except HubError as error:
        place = error.diagnostics[0].location.file
    assert place == "net.yaml"


def test_keys_that_are_no_text_are_named_in_messages() -> None:
    value = document([edge("xpu", "sw")])
    value["instances"] = [{"name": "h", "device": "host"}]
    with pytest.raises(InputError, match=r"\$.instances\[0\]: 'count' is missing") as caught:
        network(value)
    assert caught.value.diagnostics[0].cure == "add count; the keys are: name, device"


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("collhub-dimensions", "ring 3 5e10 0.0"),
        ("collhub-dimensions", "ring 0 5e10 0.0"),
        ("collhub-dimensions", "ring"),
        ("collhub-group:a", "0-99"),
        ("collhub-group:a", "x"),
    ],
)
def test_annotations_that_do_not_fit_are_refused_with_the_file(attribute, value) -> None:
    exact = [{"attribute": "collhub-exact", "value": "1"}, {"attribute": attribute, "value": value}]
    envelope = {"infrastructure": document([edge("xpu", "sw")]), "annotations": {"graph": exact}}
    with pytest.raises(InputError) as caught:
        network(envelope)
    assert caught.value.diagnostics[0].location.file == "net.yaml"
