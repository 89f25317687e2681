"""Re-check certificates of optimality; `plugin` registers the checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core import names_from

if TYPE_CHECKING:
    from collhub_certificates.recheck import CertificateReport, check_certificate

__all__ = ["CertificateReport", "check_certificate"]

# Imported on first use: the hub lists the plugin without numpy.
__getattr__ = names_from(
    __name__,
    {
        "collhub_certificates.recheck": "CertificateReport check_certificate",
    },
)
