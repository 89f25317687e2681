"""Inference or training forward step of a mixture of experts: dispatch, experts, combine.

Every layer sends tokens to the ranks of their experts, computes the experts in proportion to the
tokens they receive, and returns the results. Every exchange is an all-to-all-v with the bytes of
every pair of ranks, or its messages, so that a rank waits only for its senders. Two levels as in
DeepSeek-V3 (arXiv 2412.19437, section 3.2.2): a token goes over the network once per node, to the
rank with the sender's local index, and from there to the ranks of its experts; the results are
added up on the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from collhub_templates.programs import check_number, to_columns
from collhub_templates.roofline import work_of

from collhub_models.plugin import MoeOptions
from hub_core import Provenance, UsageError
from hub_core.columns import Int64Array
from hub_core.model import (
    JobCollective,
    NodeColumns,
    NodeKind,
    TokenRouting,
    UnitCounts,
    Workload,
)

_NAMES = ("attention and gate", "dispatch", "forward to expert", "experts", "combine", "add up")
_ATTENTION, _DISPATCH, _FORWARD, _EXPERTS, _COMBINE, _ADD = range(6)


@dataclass(frozen=True, slots=True)
class _Hop:
    """One exchange: tokens of every pair, int64[ranks, ranks] (from, to); and its name."""

    tokens: Int64Array
    name: int


class _JobNodes:
    """Nodes of all ranks, in the order in which each rank starts them.

    `tables`: the bytes of the exchanges that are collectives, equal ones once.
    """

    def __init__(self, ranks: int, *, has_collectives: bool) -> None:
        names = ("rank", "kind", "name", "peer", "tag", "bytes", "operations", "duration_ns")
        self.columns: dict[str, list[int]] = {name: [] for name in (*names, "collective", "counts")}
        self.tables: dict[UnitCounts, int] = {}
        self._has_collectives = has_collectives
        self.data: tuple[list[int], list[int]] = ([], [])
        self.control: tuple[list[int], list[int]] = ([], [])
        self._ranks = ranks
        self._tag = 0

    def add(self, rank: int, kind: NodeKind, name: int, after: Sequence[int], **values: int) -> int:
        """Add a node that depends on the data of the rows `after`, and return its row.

        `name`: position in `_NAMES`; `values`: further columns by name. Columns that are not
        given are -1, except the tag, which is 0. Names of unknown columns are ignored.
        """
        row = len(self.columns["rank"])
        stated = {"rank": rank, "kind": int(kind), "name": name, "tag": 0, **values}
        for column, entries in self.columns.items():
            entries.append(stated.get(column, -1))
        self.data[0].extend(after)
        self.data[1].extend([row] * len(after))
        return row

    def order(self, before: int, row: int) -> None:
        """Add a control dependency: node `row` starts after node `before` of the same rank."""
        self.control[0].append(before)
        self.control[1].append(row)

    def exchange(self, hop: _Hop, token_bytes: int, ready: list[list[int]]) -> list[list[int]]:
        """Add the nodes of one hop of tokens; return the rows in which each rank receives, by rank.

        `hop`: tokens by sender and receiver, not changed; `token_bytes`: bytes of a token; `ready`:
        rows of each rank. Tokens that remain on their rank are not sent. A hop without tokens for
        others adds no node and returns an empty list per rank. It also adds 1 to the job's tag.

        - With collectives: every rank gets one all-to-all, which depends on its `ready` rows, even
          if it sends and receives nothing. Its bytes are those of all pairs together; equal tables
          of counts are stored once. The result is one row per rank, its all-to-all.
        - With messages: each pair with tokens gets a SEND, which depends on the sender's `ready`
          rows, and a RECV without dependencies. They have the tag of the hop. Pairs are added by
          ascending distance (receiver - sender modulo the ranks), then by sender. So the received
          rows of rank 2 of 4 begin with that from rank 1, then those from 0 and 3.

        Raises `UsageError` (`too-large`) if all tokens of the hop have more than 2^62 bytes.
        """
        received: list[list[int]] = [[] for _ in range(self._ranks)]
        self._tag += 1
        check_number("bytes", int(hop.tokens.sum()) * token_bytes)
        sizes = hop.tokens * token_bytes
        np.fill_diagonal(sizes, 0)
        if not sizes.any():
            return received
        if self._has_collectives:
            counts = UnitCounts.from_table(sizes, is_per_pair=True)
            values = {
                "collective": int(JobCollective.ALL_TO_ALL),
                "bytes": counts.total,
                "counts": self.tables.setdefault(counts, len(self.tables)),
            }
            return [
                [self.add(rank, NodeKind.COLLECTIVE, hop.name, ready[rank], **values)]
                for rank in range(self._ranks)
            ]
        for distance in range(1, self._ranks):
            for rank in range(self._ranks):
                peer = (rank + distance) % self._ranks
                size = int(sizes[rank, peer])
                if size:
                    common = {"tag": self._tag, "bytes": size}
                    self.add(rank, NodeKind.SEND, hop.name, ready[rank], peer=peer, **common)
                    row = self.add(peer, NodeKind.RECV, hop.name, (), peer=rank, **common)
                    received[peer].append(row)
        return received


def generate(options: MoeOptions) -> Workload:
    """Generate the forward step of a mixture-of-experts model on all ranks as a workload.

    Its layers follow each other (`_add_layer`). With the option `nodes` = `collectives`,
    exchanges are all-to-alls with counts, otherwise messages. Raise `UsageError`
    (`degrees`) if the experts are no multiple of the ranks, the ranks no multiple of
    `node_ranks`, or `top_k` or `replicas` exceeds the number of experts; and `UsageError`
    (`too-large`) for operations, bytes or times above 2^62.
    """
    _check(options)
    job = _JobNodes(options.ranks, has_collectives=options.nodes == "collectives")
    previous: list[list[int]] = [[] for _ in range(options.ranks)]
    for layer in range(options.layers):
        previous = _add_layer(job, options, layer, previous)
    columns = to_columns(job.columns)
    nodes = NodeColumns.from_columns(options.ranks, columns, job.data, job.control)
    return Workload(nodes, _NAMES, provenance=Provenance("moe"), counts=tuple(job.tables))


def _check(options: MoeOptions) -> None:
    """Raise `UsageError` (`degrees`) for options that do not fit together.

    The first violated condition gives the error:

    1. `experts` is a multiple of `ranks`.
    2. `ranks` is a multiple of `node_ranks`. This is checked for every kind of exchange.
    3. `top_k` is at most `experts`.
    4. `replicas` is at most `experts`.
    """
    for name, value, base in (
        ("experts", options.experts, options.ranks),
        ("ranks", options.ranks, options.node_ranks),
    ):
        if value % base:
            message = f"{name} {value} is no multiple of {base}"
            raise UsageError(message, cure=f"change -O {name}", code="degrees")
    for name, count in (("top_k", options.top_k), ("replicas", options.replicas)):
        if count > options.experts:
            message = f"{name} {count} is more than the {options.experts} experts"
            raise UsageError(message, cure=f"change -O {name}", code="degrees")


def _add_layer(
    job: _JobNodes, options: MoeOptions, layer: int, previous: list[list[int]]
) -> list[list[int]]:
    """Add a layer to the job; return the rows of each rank for which the next layer waits.

    `layer`: number from 0, which determines the seed of the routing; `previous`: such rows of the
    previous layer. Each rank first computes attention, which depends on its rows in `previous`. The
    tokens are divided into `options.parts` nearly equal parts. For each part:

    1. The hops of `_outward_hops` send tokens to the ranks of their experts. Sends of the first hop
       depend on attention, those of the second also on the receives of the first.
    2. Each rank computes its experts, even without tokens. This depends on attention and the
       receives of the last hop. A control dependency orders it after the experts of the previous
       part, or for part 0 after attention.
    3. The hops of `_inward_hops` send the results back. Their sends depend on the experts and the
       receives of the hop before.

    So the exchange of a part may overlap with the experts of another part. The result has, by rank
    and part in order, the row of the experts, then the receives of the last hop.
    """
    ranks = range(options.ranks)
    routing = TokenRouting(
        options.experts,
        options.top_k,
        options.tokens,
        options.skew,
        options.seed * options.layers + layer,
        options.replicas,
    )
    counts = routing.count_layer(options.ranks, options.ranks // options.node_ranks)
    width = options.hidden * options.element_bytes
    # Four projections of attention; scores and gate are small in comparison.
    operations = 8 * options.tokens * options.hidden**2
    touched = 4 * options.hidden**2 * options.element_bytes + 2 * options.tokens * width
    work = work_of(options, operations, touched)
    attention = [
        job.add(rank, NodeKind.COMPUTE, _ATTENTION, previous[rank], **work) for rank in ranks
    ]
    last: list[list[int]] = [[] for _ in ranks]
    computed = attention
    for part in range(options.parts):
        ready = [[row] for row in attention]
        for hop in _outward_hops(options, counts.per_rank, counts.per_node, part):
            received = job.exchange(hop, width, ready)
            # The rank also needs its local tokens.
            ready = [[attention[rank], *received[rank]] for rank in ranks]
        work_done = []
        for rank in ranks:
            tokens = _part_of(counts.computed[rank], options.parts, part)
            # Three matrices of a gated MLP, each read once per expert of the rank.
            operations = 6 * int(tokens) * options.hidden * options.expert_hidden
            local_experts = options.experts // options.ranks + options.replicas
            weights = 3 * local_experts * options.hidden * options.expert_hidden
            touched = weights * options.element_bytes + 2 * int(tokens) * width
            row = job.add(
                rank,
                NodeKind.COMPUTE,
                _EXPERTS,
                ready[rank],
                **work_of(options, operations, touched),
            )
            job.order(computed[rank], row)
            work_done.append(row)
        computed = work_done
        ready = [[row] for row in computed]
        for hop in _inward_hops(options, counts.per_rank, counts.per_node, part):
            received = job.exchange(hop, width, ready)
            ready = [[computed[rank], *received[rank]] for rank in ranks]
        for rank in ranks:
            last[rank] += ready[rank]
    return last


def _outward_hops(
    options: MoeOptions, per_rank: Int64Array, per_node: Int64Array, part: int
) -> list[_Hop]:
    """Return the exchanges that bring the tokens of a part to their experts: one hop or two.

    `per_rank`, `per_node`: tokens of the entire batch, int64[ranks, ranks] and int64[ranks, nodes]
    (from rank, to rank or node); not changed. Part number `part` of an entry n, from 0 of P =
    `options.parts`, is n (part + 1) // P - n part // P.

    With the exchange `direct` the only hop has the parts of `per_rank`, including the tokens that
    stay on their rank. Otherwise the rank with local index i in its node uses the ranks with index
    i in the other nodes as relays:

    - The first hop sends the part of `per_node` to the relay in each other node. Entries within a
      node are 0.
    - The second hop sends within each node, from relay to target rank, the parts of `per_rank` of
      all senders with the relay's index in any node. The sender's own node is included; its relay
      is the sender itself. The diagonal is 0.
    """
    per_rank = _part_of(per_rank, options.parts, part)
    if options.exchange == "direct":
        return [_Hop(per_rank, _DISPATCH)]
    per_node = _part_of(per_node, options.parts, part)
    size, ranks = options.node_ranks, options.ranks
    nodes = ranks // size
    node, local = np.divmod(np.arange(ranks), size)
    network = np.zeros((ranks, ranks), np.int64)
    for target in range(nodes):
        # To the rank of the target node with the sender's local index.
        network[np.arange(ranks), target * size + local] = per_node[:, target]
    network[node[:, None] == node] = 0
    # Relays forward the tokens of the ranks of all nodes with their local index.
    within = np.zeros((ranks, ranks), np.int64)
    relay = node * size + local[:, None]
    np.add.at(within, (relay, np.arange(ranks)[None, :]), per_rank)
    np.fill_diagonal(within, 0)
    return [_Hop(network, _DISPATCH), _Hop(within, _FORWARD)]


def _inward_hops(
    options: MoeOptions, per_rank: Int64Array, per_node: Int64Array, part: int
) -> list[_Hop]:
    """Return the exchanges that bring the results of experts back to their ranks.

    They are the hops of `_outward_hops` for the same arguments, in reverse order and with
    senders and receivers exchanged. With two hops, the first one is within each node, to
    the relay ranks, which add the results and send them to the other nodes in the second.
    """
    hops = _outward_hops(options, per_rank, per_node, part)
    names = [_COMBINE] if len(hops) == 1 else [_ADD, _COMBINE]
    reverse = [np.ascontiguousarray(hop.tokens.T) for hop in reversed(hops)]
    return [_Hop(tokens, name) for tokens, name in zip(reverse, names, strict=True)]


def _part_of(tokens: Int64Array, parts: int, part: int) -> Int64Array:
    """Return the tokens in part `part` (from 0) of `parts` nearly equal parts, for each entry.

    Part k of n tokens ends at floor(n (k + 1) / `parts`): 5 tokens in 2 parts are 2, then 3. All
    parts together have the given tokens.
    """
    share: Int64Array = tokens * (part + 1) // parts - tokens * part // parts
    return share
