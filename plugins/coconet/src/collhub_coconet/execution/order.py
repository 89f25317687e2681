"""Random orders of the nodes of a flat job that its dependencies and messages allow."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hub_core.columns import Int64Array, csr
from hub_core.model import InputError, NodeKind, Workload, connection_keys, pair_in_order


def random_order(workload: Workload, seed: int) -> Iterator[int]:
    """Rows of a workload, each behind all that it waits for; a seed means one order.

    Any of the nodes that wait for nothing comes next, with equal chances. Raises `InputError` where
    nodes wait for one another.
    """
    parents, children = waiting_edges(workload)
    count = len(workload.nodes)
    indptr, followers = csr(parents, children, count)
    starts, targets = indptr.tolist(), followers.tolist()
    missing = np.bincount(children, minlength=count).tolist()
    ready = [row for row in range(count) if not missing[row]]
    generator = np.random.default_rng(seed)
    done = 0
    while ready:
        place = int(generator.integers(len(ready)))
        ready[place], ready[-1] = ready[-1], ready[place]
        row = ready.pop()
        done += 1
        yield row
        for follower in targets[starts[row] : starts[row + 1]]:
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    if done < count:
        message = f"{count - done} nodes wait for one another"
        raise InputError(message, code="deadlock")


def waiting_edges(workload: Workload) -> tuple[Int64Array, Int64Array]:
    """Dependencies, and every send before its receive."""
    nodes = workload.nodes
    sends = np.flatnonzero(nodes.is_kind(NodeKind.SEND))
    receives = np.flatnonzero(nodes.is_kind(NodeKind.RECV))
    rows = np.concatenate([sends, receives])
    is_send = np.arange(len(rows)) < len(sends)
    rank, peer = nodes.rank[rows], nodes.peer[rows]
    ends = np.where(is_send, rank, peer), np.where(is_send, peer, rank)
    keys = connection_keys(*ends, nodes.tag[rows])
    pairs = pair_in_order(sends, receives, keys[: len(sends)], keys[len(sends) :])
    before, behind = nodes.edges()
    parents = np.concatenate([before, pairs.send])
    return parents, np.concatenate([behind, pairs.receive])
