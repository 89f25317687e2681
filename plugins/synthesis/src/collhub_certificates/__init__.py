"""Re-check certificates of optimality; see `plugin` for what this offers to the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core import names_from

if TYPE_CHECKING:
    from collhub_certificates.recheck import check_certificate
    from collhub_certificates.report import CertificateReport

__all__ = ["CertificateReport", "check_certificate"]

# Imported on first use: the hub lists the plugin without numpy.
__getattr__ = names_from(
    __name__,
    {
        "collhub_certificates.recheck": "check_certificate",
        "collhub_certificates.report": "CertificateReport",
    },
)
