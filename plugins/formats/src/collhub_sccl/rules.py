"""Rules of SCCL algorithms and of TACCL profiles."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules

_ALGORITHMS = (
    (
        "sccl-schema",
        "The JSON document does not have the structure of an algorithm.",
        "The file belongs to another tool, was changed by hand, or is cut off.",
        "Write the file again with the solver; the message names the member and the expected "
        "value.",
        '`"steps": 3`',
    ),
    (
        "sccl-algorithm",
        "The steps contradict the collective.",
        "A send moves an address that the collective does not have, or a rank sends an address "
        "and reduces into it in one step.",
        "Correct the named step, or the input and output maps.",
        "a send of address 9 of 4 addresses",
    ),
    (
        "sccl-inexpressible",
        "The algorithm cannot be written as steps of sends.",
        "SCCL has no such collective, or a rank sends other data than its value of the address.",
        "Write the algorithm as MSCCL XML.",
        "an all-to-all with unequal parts",
    ),
)
_PROFILES = (
    (
        "invalid-taccl-topology",
        "The profile is no description of a node for TACCL.",
        "A member is missing, a matrix is not square, or a time is out of range.",
        "Correct the named member; times are per chunk, in the unit of the options.",
        '`"links": [[0, 1]]` for 2 GPUs',
    ),
    (
        "inexpressible-topology",
        "The network has a property that a profile of TACCL does not represent.",
        "Nodes differ, or links of a node have several speeds.",
        "Write the topology in another format, such as the JSON document of the hub.",
        "a network of two unequal nodes",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules(
            "algorithms of SCCL, msccl-tools and TACCL, when they are read or written", _ALGORITHMS
        ),
        *declare_rules("profiles of nodes for TACCL's solver, when they are read", _PROFILES),
    ]
