"""Build algorithms from schedules on links; certificates of their optimality."""

from hub_core.schedules.algorithms import Searched, algorithm_of, collective_among, fastest_of
from hub_core.schedules.certificates import (
    CERTIFICATE_SCHEMA,
    Certificate,
    CertifiedBound,
    CertifiedNetwork,
    CertifiedPlane,
    CertifiedTree,
    CertifiedWay,
    LinkCapacities,
    TreeCount,
    directed_partition_rate,
    find_certificate,
    network_digest,
    network_object,
    partition_rate,
    spreading_rate,
)
from hub_core.schedules.double_trees import (
    NO_RANK,
    find_second_tree_parents,
    find_tree_parents,
)
from hub_core.schedules.message_ends import MessageEnds, order_links, separate_phases
from hub_core.schedules.repair import MessageRoutes, Repair, repair_messages
from hub_core.schedules.switch_groups import SwitchGroups, find_switch_groups
from hub_core.schedules.transfers import Chunks, Transfers, link_channels, work_times_ns

__all__ = [
    "CERTIFICATE_SCHEMA",
    "NO_RANK",
    "Certificate",
    "CertifiedBound",
    "CertifiedNetwork",
    "CertifiedPlane",
    "CertifiedTree",
    "CertifiedWay",
    "Chunks",
    "LinkCapacities",
    "MessageEnds",
    "MessageRoutes",
    "Repair",
    "Searched",
    "SwitchGroups",
    "Transfers",
    "TreeCount",
    "algorithm_of",
    "collective_among",
    "directed_partition_rate",
    "fastest_of",
    "find_certificate",
    "find_second_tree_parents",
    "find_switch_groups",
    "find_tree_parents",
    "link_channels",
    "network_digest",
    "network_object",
    "order_links",
    "partition_rate",
    "repair_messages",
    "separate_phases",
    "spreading_rate",
    "work_times_ns",
]
