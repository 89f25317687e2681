"""JSON documents in which one value is replaced: they are read, or refused with a clear error."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fuzz_readers
import pytest

import hub_core
from hub_core.model import InputError, UsageError

pytestmark = [pytest.mark.needs_plugins, pytest.mark.once]

VALUES = (None, True, -1, 1.5, "x", [], {}, 10**30)
"""Values of all JSON types; the last one is above the integers of a column."""

MAX_DOCUMENTS = 40
"""Changed documents per reader, chosen at equal distances from all."""

READERS = {
    "captured-graph": hub_core.read_workload,
    "json": hub_core.read,
    "mscclpp": hub_core.read,
    "sccl": hub_core.read,
    "teccl": hub_core.read,
    "tensor-program": hub_core.read_workload,
    "topology-taccl-topology": hub_core.read_topology,
    "topology-topology-json": hub_core.read_topology,
    "workload-json": hub_core.read_workload,
}
TARGETS = {target.folder: target for target in fuzz_readers.targets()}


def changed_documents(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield (path, document) with each value replaced; only the first two entries of a list count,
    the remaining ones are of the same form.
    """
    for path in _paths(document, ()):
        for value in VALUES:
            result = copy.deepcopy(document)
            parent = result
            for key in path[:-1]:
                parent = parent[key]
            parent[path[-1]] = value
            yield f"{path}: {value!r}", result


def _paths(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    entries: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        entries += value.items()
    elif isinstance(value, list):
        entries += enumerate(value[:2])
    for key, entry in entries:
        yield (*path, key)
        yield from _paths(entry, (*path, key))


@pytest.mark.parametrize("name", READERS)
def test_documents_with_a_replaced_value_are_read_or_refused(name: str, tmp_path: Path) -> None:
    """Documents may come from anyone: no other error than that of an input or its use comes out."""
    target, registry = TARGETS[name], hub_core.discover()
    documents: dict[str, Any] = {}
    for parts in fuzz_readers.seeds_of(target):
        for file, content in parts.items():
            try:
                document = json.loads(content)
            except ValueError:
                continue
            documents |= {f"{path} {file}": one for path, one in changed_documents(document)}
    assert documents
    names = list(documents)[:: max(1, len(documents) // MAX_DOCUMENTS)]
    refused = 0
    for number, change in enumerate(names):
        path = tmp_path / f"{number}{target.suffix}"
        path.write_text(json.dumps(documents[change]))
        try:
            READERS[name](str(path), format=target.name, registry=registry)
        except (InputError, UsageError):
            refused += 1
        except Exception as error:
            raise AssertionError(f"{change}: {error}") from error
        path.unlink()
    assert refused > 0
