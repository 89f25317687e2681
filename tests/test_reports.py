"""Reports as records: JSON and JSON Schema are derived from the class of the report."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from typing import Annotated

import jsonschema
import numpy as np
import pytest
from msgspec.structs import replace

from hub_core.model import Diagnostic, Location, Severity
from hub_core.reports import (
    UNSET,
    AnyJson,
    Count,
    Meta,
    Record,
    Report,
    UnsetType,
    build_schema,
    get_schema_name,
    list_findings,
    to_json,
)
from hub_core.testing.generated_pages import format_schemas


class _Part(Record, frozen=True):
    """Part of the report."""

    bytes: Count


class _ExampleReport(Report, tag="collhub/report-example-1", frozen=True, kw_only=True):
    """Report of an example."""

    source: Annotated[str, Meta(description="Name of the input.")]
    parts: Sequence[_Part]
    time_ns: int | None
    facts: Mapping[str, AnyJson]
    note: str | UnsetType = UNSET


def _decode(report: Record | Report) -> dict[str, object]:
    """Return the JSON object as a program reads it."""
    document: dict[str, object] = json.loads(json.dumps(to_json(report)))
    return document


EXAMPLE = _ExampleReport(source="x", parts=(_Part(3),), time_ns=None, facts={"a": [1, {"b": 2}]})


def test_members_are_in_order_and_unset_ones_are_absent() -> None:
    assert list(_decode(EXAMPLE).items()) == [
        ("schema", "collhub/report-example-1"),
        ("source", "x"),
        ("parts", [{"bytes": 3}]),
        ("time_ns", None),
        ("facts", {"a": [1, {"b": 2}]}),
    ]


def test_json_follows_the_derived_schema() -> None:
    schema = build_schema(_ExampleReport)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(_decode(EXAMPLE), schema)
    assert schema["title"] == get_schema_name(_ExampleReport) == "collhub/report-example-1"
    assert schema["required"] == ["schema", "source", "parts", "time_ns", "facts"]


@pytest.mark.parametrize(
    "change",
    [{"source": 3}, {"parts": [{"bytes": -1}]}, {"schema": "collhub/report-other-1"}, {"note": 1}],
)
def test_the_schema_refuses_other_values(change: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**_decode(EXAMPLE), **change}, build_schema(_ExampleReport))


def test_a_value_without_json_form_is_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        to_json(_Part(np.int64(1)))  # type: ignore[arg-type]


def test_a_numpy_float_becomes_a_float() -> None:
    document = to_json(replace(EXAMPLE, facts={"ratio": np.float64(1.5)}))
    assert document["facts"] == {"ratio": 1.5}
    assert type(document["facts"]["ratio"]) is float  # type: ignore[index,call-overload]


def test_a_finding_keeps_its_location() -> None:
    finding = Diagnostic("race", "two writes", Severity.WARNING, Location("a.xml", line=4, rank=1))
    assert to_json(list_findings([finding])[0]) == {
        **{"code": "race", "severity": "warning", "message": "two writes", "cure": ""},
        **{"file": "a.xml", "line": 4, "byte": None, "rank": 1, "step": None},
    }


def test_published_schemas_are_those_of_the_classes() -> None:
    """`python -m hub_core.testing.generated_pages schemas schemas` writes them again."""
    folder = importlib.resources.files("hub_core.schemas")
    for name, text in format_schemas().items():
        path = folder.joinpath(f"{name.removeprefix('collhub/')}.json")
        assert path.read_text() == text, f"{name} was not written again"
