"""Compare the losses that a writer declares with the differences after reading back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.model.steps import StepTable
from hub_core.model.workload import Workload
from hub_core.network.topology import Topology
from hub_core.testing.checked_plugin import Rendering

Model = Algorithm | Topology | Workload

# Per part of a model: words by which the feature of a loss may name it, if not its field name.
_FEATURE_WORDS = {
    "collective_bytes": ("collective bytes", "size"),
    "control_indices": ("dependenc",),
    "control_indptr": ("dependenc",),
    "data_indices": ("dependenc",),
    "data_indptr": ("dependenc",),
    "duration_ns": ("duration",),
    "extensions": ("extension",),
    "links": ("links", "bandwidth", "latency", "planes"),
    "num_nodes": ("nodes", "switches"),
    "num_npus": ("nodes", "number of npus"),
}
_STEP_COLUMNS = frozenset(field.name for field in fields(StepTable))
_COLLECTIVE_FIELDS = frozenset(field.name for field in fields(Collective))
_TOPOLOGY_PARTS = frozenset(
    ("num_npus", "num_nodes", "dimensions", "node_names", "groups", "links", "link_order")
)


def find_loss_problem(model: Model, read_model: object, written: Rendering) -> str | None:
    """Describe the first contradiction between declared losses and the model read back, or None.

    Contradictions: a part differs that no loss or restatement names, or a loss names only parts
    that do not differ. Raises `AssertionError` if `read_model` is another kind of model.
    """
    differences = find_differences(model, read_model)
    features = [*(loss.feature for loss in written.losses), *written.restated]
    undeclared = [name for name in differences if not is_declared(name, features)]
    if undeclared:
        names = ", ".join(undeclared)
        return f"read back with another {names}, and no loss names that as its feature"
    groundless = [
        loss.feature for loss in written.losses if _is_groundless(loss.feature, model, differences)
    ]
    if groundless:
        return f"a loss names {groundless[0]!r}, but that is read back unchanged"
    return None


def find_differences(model: Model, read_model: object) -> list[str]:
    """Names of the parts in which a model and the model read back differ.

    The provenance of algorithms and workloads is ignored. Raises `AssertionError` if `read_model`
    is another kind of model.
    """
    message = f"read back it is {type(read_model).__name__}, expected {type(model).__name__}"
    assert type(read_model) is type(model), message
    if isinstance(model, Topology) and isinstance(read_model, Topology):
        return model.differences(read_model)
    if isinstance(model, Algorithm) and isinstance(read_model, Algorithm):
        return model.differences(replace(read_model, provenance=model.provenance))
    assert isinstance(model, Workload), message
    assert isinstance(read_model, Workload), message
    return model.differences(replace(read_model, provenance=model.provenance))


def is_declared(difference: str, features: Sequence[str]) -> bool:
    """Whether one of the features names the part `difference`.

    A feature names a part if it contains the part's name or a synonym, ignoring case and
    underscores. `steps` names every column of the step table.
    """
    synonyms = _get_synonyms(difference)
    return any(synonym in _normalize(feature) for feature in features for synonym in synonyms)


def _is_groundless(feature: str, model: Model, differences: Sequence[str]) -> bool:
    """Whether a feature names parts of a model, none of which differs.

    False for a feature that names no part (such as a run-time property of the target), because
    reading back cannot contradict it.
    """
    text = _normalize(feature)
    parts = [
        part
        for part in _iterate_part_names(model)
        if any(synonym in text for synonym in _get_synonyms(part))
    ]
    return bool(parts) and not set(parts) & set(differences)


def _iterate_part_names(model: Model) -> Iterator[str]:
    """Yield the part names that may occur in the differences of a topology or an algorithm."""
    if isinstance(model, Topology):
        yield from sorted(_TOPOLOGY_PARTS)
    if isinstance(model, Algorithm):
        yield from sorted(_STEP_COLUMNS | _COLLECTIVE_FIELDS)
        yield from ("collective_bytes", "extensions", "scratch_units")


def _get_synonyms(part: str) -> tuple[str, ...]:
    """Words by which a feature may name a part of a model, in lower case and with spaces."""
    words = _FEATURE_WORDS.get(part, (part.replace("_", " "),))
    return (*words, "steps") if part in _STEP_COLUMNS else words


def _normalize(feature: str) -> str:
    return feature.lower().replace("_", " ")
