"""Rules of synthesizers: requests that they refuse, and networks that do not fit their methods.

Synthesizers of other distributions use the same identifiers.
"""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules, declare_similar_rules

_Rows = tuple[tuple[str, str, str], ...]
_REQUESTS: _Rows = (
    ("one-rank", "One rank has no message to send.", "`ring:1`"),
    ("odd-ranks", "The algorithm needs an even number of ranks.", "neighbour-exchange of 5 ranks"),
    ("not-a-power", "The algorithm needs a power of two ranks.", "recursive doubling of 6 ranks"),
    ("size-too-small", "The size cannot be divided among the parts.", "2 bytes for 8 ranks"),
    (
        "option-range",
        "The value of an option does not fit this number of ranks.",
        "`-O sizes=3x3` for 8 ranks",
    ),
    (
        "subset-unsupported",
        "The synthesizer needs every NPU as a rank.",
        "`nested` with `--ranks 0-3` on `ring:8`",
    ),
    (
        "planes-unsupported",
        "The synthesizer takes networks of one plane.",
        "`flows` on a topology of two planes",
    ),
    ("invalid-group", "The text is no process group.", "`collhub groups --group x`"),
    ("group-of-one", "A process group has one NPU.", "`--group 3,all-reduce,1MiB`"),
    ("sizes-unlike", "The sizes of the groups have no common unit.", "1 MiB and 1048577 bytes"),
    ("no-groups", "No process group is named.", "`collhub groups` without `--group`"),
    ("no-time", "The simulator states no time.", "a simulator whose ranks never finish"),
)
_NETWORKS: _Rows = (
    ("unreachable", "An NPU cannot be reached from another one.", "a network of two parts"),
    ("switches", "The method takes networks without switches.", "trees of links on `switch:8`"),
    (
        "unbalanced-switch",
        "The links of a switch differ by direction.",
        "100 GB/s into the switch and 50 GB/s out of it",
    ),
    (
        "not-duplex",
        "Links differ by direction, and the method needs equal ones.",
        "trees of undirected links on a directed ring",
    ),
    (
        "capacities",
        "The bandwidths have no common unit that is large enough.",
        "links of 50 GB/s and 33.333333 GB/s",
    ),
    (
        "link-times",
        "A link is busy for longer than until the arrival of its message.",
        "a model of link times with a negative latency",
    ),
    ("no-room", "The demand does not fit into the network.", "more trees than links"),
    ("scale", "Weights of trees exceed the rate of the network.", "weights rounded up"),
    (
        "too-many-units",
        "The chunks and trees need more units of data than fit.",
        "1000 chunks on trees of weights 9999 and 10007",
    ),
    (
        "trees-unsuitable",
        "The collective does not run on spanning trees.",
        "`blink` for an all-to-all",
    ),
    ("tree-does-not-span", "A tree does not reach every rank.", "a tree without NPU 3"),
    ("tree-root", "The root of a tree is not the root of the collective.", "a tree of NPU 1"),
    ("depth", "There are no trees of this depth at the optimal rate.", "`blink -O depth=1`"),
    (
        "not-one-shot",
        "The all-reduce cannot be made in one phase here.",
        "`tacos -O method=one-shot` on a ring",
    ),
    ("invalid-schedule", "A schedule breaks the rules of its network.", "two sends on one link"),
    ("origin-range", "A chunk starts outside of the network.", "NPU 9 of 8"),
)
_CERTIFICATES = (
    (
        "certificate-partial",
        "The certificate has no trees, so that only the bound was checked.",
        "It was written without its trees, which are large.",
        "Write the algorithm again with its complete certificate to check the trees.",
        "a certificate with only a cut",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_similar_rules(
            "requests: synthesizers",
            _REQUESTS,
            cause="The synthesizer has no algorithm for this request.",
            cure="Change the request according to the message, or choose another synthesizer.",
        ),
        *declare_similar_rules(
            "requests: networks",
            _NETWORKS,
            cause="The method of the synthesizer does not fit the network.",
            cure="Change the network according to the message, or choose another synthesizer.",
        ),
        *declare_rules("certificates, by `collhub verify --certificate`", _CERTIFICATES),
    ]
