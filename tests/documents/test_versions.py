"""Versions of JSON documents: unknown ones are refused with one line; every schema has an identifier."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Any

import pytest

from hub_core import schema_violations
from hub_core.cli.main import main
from hub_core.documents.strict_json import find_other_version

SCHEMAS: dict[str, Any] = {
    file.name.removesuffix(".json"): json.loads(file.read_bytes())
    for file in sorted(
        importlib.resources.files("hub_core.schemas").iterdir(), key=lambda one: one.name
    )
    if file.name.endswith(".json")
}


@pytest.mark.once
def test_every_schema_has_its_identifier() -> None:
    for name, schema in SCHEMAS.items():
        assert schema["$id"] == f"urn:collhub:schema:{name}"
        assert schema["title"] in (f"collhub/{name}", "collhub-machine/1")


@pytest.mark.once
def test_an_unknown_version_of_every_document_is_one_violation() -> None:
    documents = [name for name in SCHEMAS if "schema" in SCHEMAS[name].get("properties", {})]
    assert len(documents) > 30
    for name in documents:
        known = SCHEMAS[name]["title"]
        other = f"{known[:-1]}{int(known[-1]) + 1}"
        (violation,) = schema_violations({"schema": other}, f"{name}.json")
        assert violation.path == "$.schema"
        assert violation.message == f"the schema is {other!r}, this version reads {known!r}"
        assert violation.cure == "upgrade collhub"


def test_another_version_of_a_schema_is_recognized() -> None:
    assert find_other_version("collhub/workload-12") == "collhub/workload-1"
    assert find_other_version("collhub-machine/2") == "collhub-machine/1"


@pytest.mark.parametrize("name", ["collhub/algorithm-1", "collhub/other-2", "topology-2"])
def test_other_names_are_no_other_version(name: str) -> None:
    assert find_other_version(name) is None


@pytest.mark.parametrize("name", ["algorithm", "topology"])
def test_a_future_document_is_refused_with_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("future.json").write_text(f'{{"schema": "collhub/{name}-9", "added": true}}')
    code = main(["convert", "future.json", "-o", "old.json"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: future.json:")
    assert f"the schema is 'collhub/{name}-9', this version reads 'collhub/{name}-1'" in line
    assert "; upgrade collhub [" in line
    assert code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["future.json"]
