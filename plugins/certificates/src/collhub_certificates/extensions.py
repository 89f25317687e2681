"""Documents of bounds among the extensions of an algorithm, and whether they are for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collhub_certificates.flaws import FlawError
from hub_core.model import Algorithm, CollectiveKind


def extension_document(algorithm: Algorithm, key: str) -> Mapping[str, Any] | None:
    """The first document under a key among the extensions, by name of who made it."""
    for name in sorted(algorithm.extensions):
        extension = algorithm.extensions[name]
        # Extensions of others may be of any form.
        if not isinstance(extension, dict):
            continue
        found = extension.get(key)
        if isinstance(found, dict):
            return found
    return None


def check_same_collective(
    document: Mapping[str, Any],
    algorithm: Algorithm,
    what: str,
) -> None:
    """Raise `FlawError` for a document of another size or collective."""
    made = algorithm.collective
    stated_bytes = document["collective_bytes"]
    is_same_size = algorithm.collective_bytes in (None, stated_bytes)
    # An algorithm among some NPUs is custom: its name cannot be compared.
    is_custom = made.kind is CollectiveKind.CUSTOM
    stated_kind = CollectiveKind(document["collective"])
    is_same_kind = is_custom or made.kind == stated_kind
    if is_same_size and is_same_kind:
        return
    raise FlawError("collective", f"the {what} is for another collective or size")
