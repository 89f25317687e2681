"""Schedules on links become algorithms, and carry certificates of how good they are."""

from hub_core.schedules.algorithms import algorithm_of
from hub_core.schedules.certificates.documents import (
    CERTIFICATE_SCHEMA,
    find_certificate,
    network_digest,
    network_object,
)
from hub_core.schedules.certificates.rates import LinkCapacities, partition_rate, spreading_rate
from hub_core.schedules.certificates.records import (
    Certificate,
    CertifiedBound,
    CertifiedNetwork,
    CertifiedPlane,
    CertifiedTree,
    CertifiedWay,
    TreeCount,
)
from hub_core.schedules.chunks import Chunks
from hub_core.schedules.fastest import Searched, fastest_of
from hub_core.schedules.local_work import work_times_ns
from hub_core.schedules.membership import collective_among
from hub_core.schedules.transfers import Transfers, link_channels

__all__ = [
    "CERTIFICATE_SCHEMA",
    "Certificate",
    "CertifiedBound",
    "CertifiedNetwork",
    "CertifiedPlane",
    "CertifiedTree",
    "CertifiedWay",
    "Chunks",
    "LinkCapacities",
    "Searched",
    "Transfers",
    "TreeCount",
    "algorithm_of",
    "collective_among",
    "fastest_of",
    "find_certificate",
    "link_channels",
    "network_digest",
    "network_object",
    "partition_rate",
    "spreading_rate",
    "work_times_ns",
]
