"""Provenance of algorithms that this distribution reads."""

from __future__ import annotations

from collections.abc import Mapping

from hub_core import Provenance, installed_version

_DISTRIBUTION = "collhub-msccl"


def build_provenance(
    file: str,
    content: bytes | None = None,
    options: Mapping[str, str] | None = None,
) -> Provenance:
    """Provenance with this distribution as producer, the file's name, its SHA-256 and the options.

    `content`: bytes of the file; None (empty digest) if there is no file. `given`: options and
    their values.
    """
    # Imported lazily: a program that prints its XML itself needs no digests.
    from hashlib import sha256

    digest = "" if content is None else sha256(content).hexdigest()
    version = installed_version(_DISTRIBUTION) or ""
    return Provenance(_DISTRIBUTION, version, file, digest, options or {})
