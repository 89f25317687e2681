"""Programs that come with the language; each moves data inside the `with` block of the caller."""

from __future__ import annotations

from collections.abc import Iterable

from collhub_msccl.language import chunk
from collhub_msccl.language.chunks import Buffer
from collhub_msccl.language.references import Ref

# What `from msccl.programs import *` gives a program.
__all__ = ["allreduce_allpairs", "allreduce_ring", "alltoall_hierarchical", "alltoall_three_step"]


def allreduce_ring(size: int, channels: int = 1) -> None:
    """In-place all-reduce of `size` chunks around a ring of `size` ranks.

    Chunk k goes by channel k mod `channels`.
    """
    for index in range(size):
        lane = index % channels
        held = _chunk(index, Buffer.input, index)
        for step in range(1, size):
            own = _chunk((index + step) % size, Buffer.input, index)
            held = own.reduce(held, ch=lane, sendtb=lane, recvtb=lane)
        for step in range(size, 2 * size - 1):
            held = _copied(held, (index + step) % size, Buffer.input, index, lane)


def allreduce_allpairs(size: int) -> None:
    """In-place all-reduce of `size` * `size` chunks.

    Every rank gathers and sums its part, then sends it to all.
    """
    for owner in range(size):
        for peer in _others(owner, size):
            part = _chunk(peer, Buffer.input, owner * size, size)
            # A scratch of its own for each peer, so that all may arrive at once.
            _copied(part, owner, ("from", peer), 0)
    for owner in range(size):
        for index in range(size):
            held = _chunk(owner, Buffer.input, owner * size + index)
            for peer in _others(owner, size):
                held = held.reduce(_chunk(owner, ("from", peer), index))
    for owner in range(size):
        for peer in _others(owner, size):
            part = _chunk(owner, Buffer.input, owner * size, size)
            _copied(part, peer, Buffer.input, owner * size)


def alltoall_hierarchical(num_nodes: int, gpus_per_node: int) -> None:
    """All-to-all in two steps.

    All that goes from a node to a GPU of another one is collected on the GPU of the same number,
    and crosses the network in one message.
    """
    _alltoall(num_nodes, gpus_per_node, is_spread=False)


def alltoall_three_step(num_nodes: int, gpus_per_node: int) -> None:
    """All-to-all in three steps.

    For each pair of nodes, data is collected on one GPU, crosses the network in one message, and is
    spread at the destination.
    """
    _alltoall(num_nodes, gpus_per_node, is_spread=True)


def _alltoall(num_nodes: int, gpus_per_node: int, is_spread: bool) -> None:
    """Move the data of every ordered pair of nodes."""
    for source in range(num_nodes):
        for destination in range(num_nodes):
            if source == destination:
                _within(source, gpus_per_node)
            elif is_spread:
                _through_one_gpu(source, destination, gpus_per_node)
            else:
                _through_equal_gpus(source, destination, gpus_per_node)


def _within(node: int, gpus: int) -> None:
    """Exchange the chunks of the GPUs of one node."""
    ranks = range(node * gpus, (node + 1) * gpus)
    for sender in ranks:
        for receiver in ranks:
            _copied(_chunk(sender, Buffer.input, receiver), receiver, Buffer.output, sender)


def _through_equal_gpus(source: int, destination: int, gpus: int) -> None:
    """Send from node to node, each GPU to the one of its number."""
    for gpu in range(gpus):
        collector, receiver = source * gpus + gpu, destination * gpus + gpu
        for number in range(gpus):
            held = _chunk(source * gpus + number, Buffer.input, receiver)
            _copied(held, collector, ("to node", destination), number)
        gathered = _chunk(collector, ("to node", destination), 0, gpus)
        _copied(gathered, receiver, Buffer.output, source * gpus)


def _through_one_gpu(source: int, destination: int, gpus: int) -> None:
    """Send from node to node, all by one GPU at each end."""
    # Pairs of nodes are shared among the GPUs.
    out = source * gpus + destination % gpus
    into = destination * gpus + source % gpus
    for number in range(gpus):
        for gpu in range(gpus):
            held = _chunk(source * gpus + number, Buffer.input, destination * gpus + gpu)
            # Sorted by receiver, so that each gets its part in one message.
            _copied(held, out, ("to node", destination), gpu * gpus + number)
    gathered = _chunk(out, ("to node", destination), 0, gpus * gpus)
    _copied(gathered, into, ("from node", source), 0)
    for gpu in range(gpus):
        part = _chunk(into, ("from node", source), gpu * gpus, gpus)
        _copied(part, destination * gpus + gpu, Buffer.output, source * gpus)


def _others(rank: int, size: int) -> Iterable[int]:
    """All ranks but one."""
    return (other for other in range(size) if other != rank)


def _chunk(rank: int, buffer: object, index: int, size: int = 1) -> Ref:
    """A reference to chunks that must be there."""
    reference = chunk(rank, buffer, index, size)
    if reference is None:
        raise ValueError(f"rank {rank}: {buffer}[{index}] was never written")
    return reference


def _copied(held: Ref, rank: int, buffer: object, index: int, lane: int = -1) -> Ref:
    """The copy of a reference, or the reference itself where it lies there already."""
    return held.copy(rank, buffer, index, sendtb=lane, recvtb=lane, ch=lane) or held
