"""What a writer said of its losses, against what reading back shows."""

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

# How losses name what the model has under another name: by these words of people's language.
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
_OF_STEPS = frozenset(field.name for field in fields(StepTable))
_OF_COLLECTIVE = frozenset(field.name for field in fields(Collective))
_OF_TOPOLOGY = frozenset(
    ("num_npus", "num_nodes", "dimensions", "node_names", "groups", "links", "link_order")
)


def loss_problem(model: Model, back: object, written: Rendering) -> str | None:
    """What losses say otherwise than what was read back shows, or None.

    Something differs that no loss or restatement names, or a loss names what is as it was.
    """
    differences = differences_of(model, back)
    features = [*(loss.feature for loss in written.losses), *written.restated]
    silent = [name for name in differences if not is_declared(name, features)]
    if silent:
        names = ", ".join(silent)
        return f"read back with another {names}, and no loss names that as its feature"
    groundless = [
        loss.feature for loss in written.losses if _is_groundless(loss.feature, model, differences)
    ]
    if groundless:
        return f"a loss names {groundless[0]!r}, and that is read back as it was"
    return None


def differences_of(
    model: Model,
    back: object,
) -> list[str]:
    """Parts in which two models differ. Raises `AssertionError` for what is no such model."""
    message = f"read back it is {type(back).__name__}, expected {type(model).__name__}"
    assert type(back) is type(model), message
    if isinstance(model, Topology) and isinstance(back, Topology):
        return model.differences(back)
    # Who read a file and from where is not part of what the file says.
    if isinstance(model, Algorithm) and isinstance(back, Algorithm):
        return model.differences(replace(back, provenance=model.provenance))
    assert isinstance(model, Workload), message
    assert isinstance(back, Workload), message
    return model.differences(replace(back, provenance=model.provenance))


def is_declared(
    difference: str,
    features: Sequence[str],
) -> bool:
    """Whether a loss or a restatement names what differs, or `steps` for the whole table."""
    words = _words_of(difference)
    return any(word in _spoken(feature) for feature in features for word in words)


def _is_groundless(
    feature: str,
    model: Model,
    differences: Sequence[str],
) -> bool:
    """Whether a feature names parts of a model of which none differs.

    A feature that names no part, such as what the target does at run time, is not seen by reading.
    """
    spoken = _spoken(feature)
    # A loss in people's words may name several parts: one of them that differs will do.
    named = [part for part in _parts_of(model) if any(word in spoken for word in _words_of(part))]
    return bool(named) and not set(named) & set(differences)


def _parts_of(model: Model) -> Iterator[str]:
    """The names that differences of a model have."""
    if isinstance(model, Topology):
        yield from sorted(_OF_TOPOLOGY)
    if isinstance(model, Algorithm):
        yield from sorted(_OF_STEPS | _OF_COLLECTIVE)
        yield from ("collective_bytes", "extensions", "scratch_units")


def _words_of(difference: str) -> tuple[str, ...]:
    """How people name a part of a model."""
    words = _FEATURE_WORDS.get(difference, (difference.replace("_", " "),))
    return (*words, "steps") if difference in _OF_STEPS else words


def _spoken(feature: str) -> str:
    return feature.lower().replace("_", " ")
