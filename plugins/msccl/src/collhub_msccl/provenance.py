"""Name this distribution as the producer of an algorithm, and the file that it was made of."""

from __future__ import annotations

from collections.abc import Mapping

from hub_core import Provenance, installed_version

_DISTRIBUTION = "collhub-msccl"


def provenance_of(
    file: str,
    content: bytes | None = None,
    given: Mapping[str, str] | None = None,
) -> Provenance:
    """Provenance of what was read from a file, with the options that were given.

    `content`: the bytes of the file, where there was one.
    """
    # Imported here: what has no file, a program's own XML(), needs no library of digests.
    from hashlib import sha256

    digest = "" if content is None else sha256(content).hexdigest()
    version = installed_version(_DISTRIBUTION) or ""
    return Provenance(_DISTRIBUTION, version, file, digest, given or {})
