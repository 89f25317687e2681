"""Detection of JSON: the schema of the hub decides, and unknown JSON is compared with known formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hub_core
from hub_core.pipeline.detection import scan_json_head
from hub_core.testing import ring_all_reduce


def document_of(tmp_path: Path, **extensions: object) -> Path:
    """A canonical document whose extensions hold data of other formats."""
    path = tmp_path / "ring.json"
    hub_core.write(ring_all_reduce(3), path)
    document = json.loads(path.read_text())
    document["extensions"] = extensions
    # As the hub writes it: the schema comes first.
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    "extensions",
    [
        {"teccl": {"gpus": [1, 2], "protocol": "Simple"}},
        {"a": {"traceEvents": [], "schema": "1.1.1-chakra.0.0.4"}},
        {"schema": "collhub/workload-1", "x": "collhub/topology-1"},
        {"instance": {}, "1-Epoch_Duration": 1},
    ],
)
def test_extensions_never_make_a_document_of_the_hub_ambiguous(
    tmp_path: Path, extensions: dict[str, object]
) -> None:
    path = document_of(tmp_path, **extensions)
    assert hub_core.read(path).collective.num_ranks == 3


def test_extensions_before_the_schema_do_not_decide(tmp_path: Path) -> None:
    document = json.loads(document_of(tmp_path, other={"gpus": []}).read_text())
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"extensions": document.pop("extensions"), **document}))
    assert hub_core.read(path).collective.num_ranks == 3


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ('{"colective": {}, "scratch_unit": []}', ("'colective'", "nearest format is json")),
        ('{"schema": "collhub/algoritm-1"}', ("reads the schema 'collhub/algoritm-1'",)),
        ('{"npus": 4, "links": []}', ("nearest format is topology-json", "describes a topology")),
        (
            '{"scheduling-policy": "LIFO", "endpoint-delay": 10}',
            ("nearest format is astra-sim-job", "name the folder, not this file of it"),
        ),
        (
            '{"topology": ["Ring"], "npus_count": [4]}',
            ("astra-sim-network", "describes a topology"),
        ),
        ('{"nodes": 1, "zzz": 1}', ("'nodes', 'zzz'; name the format with --from",)),
        ('{"zzz": 1}', ("recognises this JSON object with the members 'zzz'",)),
        ("[1, 2]", ("recognises this JSON list",)),
        ("{}", ("recognises this JSON object without members; name the format with --from",)),
        ("hello there", ("is not JSON: it begins with 'hello there'",)),
    ],
)
@pytest.mark.needs_plugins
def test_json_of_no_format_is_reported_with_the_nearest_format(
    tmp_path: Path, content: str, parts: tuple[str, ...]
) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(hub_core.InputError) as caught:
        hub_core.read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert all(part in message for part in parts), message
    assert "may be" not in message


@pytest.mark.needs_plugins
def test_a_folder_without_a_format_is_called_a_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(hub_core.InputError) as caught:
        hub_core.read(tmp_path)
    assert "is a folder, and no reader recognises its files; name the format" in str(caught.value)


def test_utf_16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}", encoding="utf-16")
    with pytest.raises(hub_core.InputError) as caught:
        hub_core.read(path)
    message = f"{path}: is text in UTF-16, and JSON is in UTF-8; save it as UTF-8"
    assert str(caught.value) == message


@pytest.mark.needs_plugins
def test_a_byte_order_mark_hides_no_format(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"name": "x", "gpus": []}', encoding="utf-8-sig")
    with pytest.raises(hub_core.InputError, match="byte order mark; save it as UTF-8 without one"):
        hub_core.read(path)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=5), st.booleans())
def test_a_whole_object_is_scanned_to_its_members(document: dict[str, object], plain: bool) -> None:
    head = scan_json_head(json.dumps(document, ensure_ascii=plain).encode())
    assert head is not None
    # Escapes are kept as they are written.
    names = [json.dumps(name, ensure_ascii=plain)[1:-1] for name in document]
    assert list(head.members) == names


@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes_are_scanned_without_an_error(tail: bytes, cut: int) -> None:
    head = scan_json_head((b'{"schema": "collhub/x", "extensions": [1, ' + tail)[:cut])
    assert head is None or head.is_object
