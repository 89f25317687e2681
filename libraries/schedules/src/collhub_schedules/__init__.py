"""Schedules on links become algorithms, and carry certificates of how good they are."""

from collhub_schedules.algorithms import algorithm_of
from collhub_schedules.certificates.documents import (
    CERTIFICATE_SCHEMA,
    find_certificate,
    network_digest,
    network_object,
)
from collhub_schedules.certificates.rates import LinkCapacities, partition_rate, spreading_rate
from collhub_schedules.certificates.records import (
    Certificate,
    CertifiedBound,
    CertifiedNetwork,
    CertifiedPlane,
    CertifiedTree,
    CertifiedWay,
    TreeCount,
)
from collhub_schedules.chunks import Chunks
from collhub_schedules.fastest import Searched, fastest_of
from collhub_schedules.local_work import work_times_ns
from collhub_schedules.membership import collective_among
from collhub_schedules.transfers import Transfers, link_channels

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
