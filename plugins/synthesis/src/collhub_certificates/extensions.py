"""Documents of bounds among the extensions of an algorithm, and whether they are for it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
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
    """Raise `FlawError` for a document of another size, collective, root or other ranks."""
    made = algorithm.collective
    is_same = algorithm.collective_bytes in (None, document["collective_bytes"])
    # An algorithm among some NPUs is custom: its name and its ranks cannot be compared.
    if made.kind is not CollectiveKind.CUSTOM:
        is_same &= made.kind == CollectiveKind(document["collective"])
        is_same &= list(document["ranks"]) == list(range(made.num_ranks))
        is_same &= made.root is None or made.root == document.get("root")
    if not is_same:
        raise FlawError("collective", f"the {what} is for another collective, size or other ranks")


def check_stated_time(document: Mapping[str, Any], proved_ns: Fraction, proof: str) -> int:
    """The stated bound in ns. Raises `FlawError` unless it is a time that the proof covers."""
    stated = document["lower_bound_ns"]
    if not isinstance(stated, int) or isinstance(stated, bool) or stated < 0:
        raise FlawError("bound", f"the bound {stated!r:.40} is no time in whole nanoseconds")
    if stated <= proved_ns:
        return stated
    message = f"{proof} prove {float(proved_ns):.6g} ns, not {stated} ns as claimed"
    raise FlawError("bound", message)


def network_name(document: Mapping[str, Any]) -> str:
    """The name of the network in words, for the list of claims that are not proved."""
    return f"the network's name {str(document['network'].get('name', ''))!r:.60}"
