"""Rules of resharding: remarks on results, and requests that do not fit."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules, declare_similar_rules

_RESULTS = (
    (
        "no-solver",
        "The schedule is heuristic, because OR-tools is not installed.",
        "The extra `exact` was not installed.",
        "Run `python -m pip install 'collhub-reshard[exact]'`; the bound shows the loss.",
        "an environment without ortools",
    ),
    (
        "reshard-form",
        "The proof of a schedule is malformed.",
        "The certificate was changed by hand.",
        "Reshard again.",
        "a certificate without its bound",
    ),
)
_REQUESTS: tuple[tuple[str, str, str], ...] = (
    ("mesh-too-large", "The meshes name more devices than the network has.", "8 devices, `ring:4`"),
    ("shard-mismatch", "A shard has another shape or element type.", "a shard of 3 of 8 rows"),
    ("too-many-runs", "The boxes have too many contiguous parts.", "slices of single columns"),
    ("invalid-state-dict", "The file lists no tensors with their shapes.", "a JSON list"),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules("results of `collhub reshard`", _RESULTS),
        *declare_similar_rules(
            "requests: jobs, tensor programs and shardings",
            _REQUESTS,
            cause="Tensor, mesh, sharding and network do not fit each other.",
            cure="Change the one that the message names.",
        ),
    ]
