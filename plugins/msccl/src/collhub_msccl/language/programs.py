"""Programs and building blocks of programs that come with the language.

Each function adds its operations to the program of the caller's `with` block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from collhub_msccl.language import chunk
from collhub_msccl.language.chunks import Buffer, Ref

__all__ = [
    "allgather_ring_inplace",
    "allreduce_allpairs",
    "allreduce_ring",
    "allreduce_ring_inplace",
    "alltoall_hierarchical",
    "alltoall_three_step",
]


def allreduce_ring(size: int, channels: int = 1) -> None:
    """Add an in-place all-reduce of `size` chunks on a ring of `size` ranks.

    Chunk k starts at rank k and uses channel and thread block k mod `channels`.
    """
    for index in range(size):
        lane = index % channels
        reference = _require_chunk(index, Buffer.input, index)
        for step in range(1, size):
            target = _require_chunk((index + step) % size, Buffer.input, index)
            reference = target.reduce(reference, ch=lane, sendtb=lane, recvtb=lane)
        for step in range(size, 2 * size - 1):
            reference = _copy_chunk(reference, (index + step) % size, Buffer.input, index, lane)


def allreduce_allpairs(size: int) -> None:
    """Add the in-place all-pairs all-reduce of `size` ranks to the current program.

    The input has `size`^2 chunks. Rank r owns part r of it: chunks r * `size` to r * `size` +
    `size` - 1. The operations are added in three rounds:

    1. Each rank receives its part from every other rank into a separate scratch buffer, named
       ("from", peer).
    2. Each rank adds these chunks to its own ones, for each chunk in ascending order of the
       peers.
    3. Each rank sends its sums to all other ranks, as one message of `size` chunks.

    One rank adds nothing. Raises `ValueError` if the first slot of a required part is empty,
    and `IndexError` if the program has fewer ranks or chunks.
    """
    for owner in range(size):
        for peer in _list_peers(owner, size):
            part = _require_chunk(peer, Buffer.input, owner * size, size)
            # A separate scratch per peer, so that all messages may arrive at once.
            _copy_chunk(part, owner, ("from", peer), 0)
    for owner in range(size):
        for index in range(size):
            reference = _require_chunk(owner, Buffer.input, owner * size + index)
            for peer in _list_peers(owner, size):
                reference = reference.reduce(_require_chunk(owner, ("from", peer), index))
    for owner in range(size):
        for peer in _list_peers(owner, size):
            part = _require_chunk(owner, Buffer.input, owner * size, size)
            _copy_chunk(part, peer, Buffer.input, owner * size)


def alltoall_hierarchical(num_nodes: int, gpus_per_node: int) -> None:
    """All-to-all in two steps.

    The data from a host to a GPU of a different host is collected on the GPU with the same local
    number, and crosses the network in one message.
    """
    _exchange_all(num_nodes, gpus_per_node, is_spread=False)


def alltoall_three_step(num_nodes: int, gpus_per_node: int) -> None:
    """All-to-all in three steps.

    For each pair of hosts, data is collected on one GPU, crosses the network in one message, and is
    distributed at the destination.
    """
    _exchange_all(num_nodes, gpus_per_node, is_spread=True)


def _exchange_all(num_nodes: int, gpus_per_node: int, is_spread: bool) -> None:
    """Add an all-to-all over hosts: move the data of every ordered pair of hosts, and within hosts.

    Ranks are numbered host by host. GPUs of one host copy directly, also to themselves: chunk q of
    the input of r becomes chunk r of the output of q. `is_spread`: other pairs through one GPU per
    pair of hosts, else through the GPUs with equal local numbers.
    """
    for source in range(num_nodes):
        for destination in range(num_nodes):
            if source == destination:
                # GPUs of one host exchange their chunks directly.
                ranks = range(source * gpus_per_node, (source + 1) * gpus_per_node)
                for sender in ranks:
                    for receiver in ranks:
                        part = _require_chunk(sender, Buffer.input, receiver)
                        _copy_chunk(part, receiver, Buffer.output, sender)
            elif is_spread:
                _send_through_one_gpu(source, destination, gpus_per_node)
            else:
                _send_through_equal_gpus(source, destination, gpus_per_node)


def _send_through_equal_gpus(source: int, destination: int, gpus: int) -> None:
    """Send the data of a host to another host, collected on the GPU with the receiver's local
    number.

    `gpus`: GPUs per host; each message has one chunk per sending GPU.
    """
    for gpu in range(gpus):
        collector, receiver = source * gpus + gpu, destination * gpus + gpu
        for number in range(gpus):
            reference = _require_chunk(source * gpus + number, Buffer.input, receiver)
            _copy_chunk(reference, collector, ("to node", destination), number)
        gathered = _require_chunk(collector, ("to node", destination), 0, gpus)
        _copy_chunk(gathered, receiver, Buffer.output, source * gpus)


def _send_through_one_gpu(source: int, destination: int, gpus: int) -> None:
    """Add the transfer of all data of host `source` for host `destination`, as one message.

    `gpus`: GPUs per host. GPU `destination` modulo `gpus` of the source host first collects the
    data of its host in its scratch buffer ("to node", destination). Chunk g * `gpus` + n of it
    is that of sender n for receiver g (numbers within the hosts). All `gpus`^2 chunks are sent
    as one message to GPU `source` modulo `gpus` of the destination host, into its scratch
    buffer ("from node", source). This GPU copies `gpus` chunks to each receiver's output, at
    chunk `source` * `gpus`.

    So pairs of hosts are spread over the GPUs. Raises `ValueError` if the first slot of a
    required part is empty, and `IndexError` for a rank or slot out of range.
    """
    # The pairs of hosts are distributed over the GPUs.
    out = source * gpus + destination % gpus
    into = destination * gpus + source % gpus
    for number in range(gpus):
        for gpu in range(gpus):
            reference = _require_chunk(
                source * gpus + number, Buffer.input, destination * gpus + gpu
            )
            # Sorted by receiver, so that each one gets its part in one message.
            _copy_chunk(reference, out, ("to node", destination), gpu * gpus + number)
    gathered = _require_chunk(out, ("to node", destination), 0, gpus * gpus)
    _copy_chunk(gathered, into, ("from node", source), 0)
    for gpu in range(gpus):
        part = _require_chunk(into, ("from node", source), gpu * gpus, gpus)
        _copy_chunk(part, destination * gpus + gpu, Buffer.output, source * gpus)


def _list_peers(rank: int, size: int) -> Iterable[int]:
    """All ranks except one."""
    return (peer for peer in range(size) if peer != rank)


def _require_chunk(rank: int, buffer: object, index: int, size: int = 1) -> Ref:
    """Return a reference to `size` slots of the current program whose first slot must be filled.

    Raises `ValueError` if the first slot is empty, and the exceptions of `chunk` for a slot out of
    range.
    """
    reference = chunk(rank, buffer, index, size)
    if reference is None:
        raise ValueError(f"rank {rank}: {buffer}[{index}] was never written")
    return reference


def _copy_chunk(reference: Ref, rank: int, buffer: object, index: int, lane: int = -1) -> Ref:
    """Copy a reference and return the copy, or the reference itself if it is already at the
    destination.

    `lane`: thread block on both sides and channel; -1: not given.
    """
    return reference.copy(rank, buffer, index, sendtb=lane, recvtb=lane, ch=lane) or reference


def allgather_ring_inplace(
    gpus: Sequence[int] | int, gpu_offset: int = 0, index_offset: int = 0, ch: int = 0
) -> None:
    """Add an all-gather along a ring of ranks to the current program.

    The chunk of the k-th rank of the ring is in slot `index_offset` + k of `Buffer.input`,
    and is passed around the ring into the same slot of all other ranks. A ring of one rank
    adds no copy.

    `gpus`: the number of ranks, which are consecutive from `gpu_offset` on, or a list of
    different ranks, to each of which `gpu_offset` is added. `ch`: channel of the messages;
    -1 for none given. Raise `ValueError` if a chunk is missing, and `AssertionError` if the
    topology lacks a link.
    """
    ranks = _list_ranks(gpus, gpu_offset)
    for start in range(len(ranks)):
        reference = _require_chunk(ranks[start], Buffer.input, index_offset + start)
        _forward_around(reference, ranks, start, ch)


def allreduce_ring_inplace(
    gpus: Sequence[int] | int, gpu_offset: int = 0, index_offset: int = 0, ch: int = 0
) -> None:
    """Add an in-place all-reduce along a ring of ranks to the current program.

    There is one chunk per rank. Chunk k (from 0) is in slot `index_offset` + k of
    `Buffer.input` of every rank. It is summed along the ring, from the k-th rank to the rank
    before it. This rank then passes the sum around to all other ranks. A ring of one rank
    adds no operation.

    `gpus`: the number of ranks, which are then consecutive from `gpu_offset` on; or a list
    of different ranks, to each of which `gpu_offset` is added. `ch`: channel; -1 for none
    given.

    Raises `ValueError` if a chunk is missing, `IndexError` for a rank or slot out of range,
    and `AssertionError` if the topology lacks a link.
    """
    ranks = _list_ranks(gpus, gpu_offset)
    size = len(ranks)
    for start in range(size):
        reference = _require_chunk(ranks[start], Buffer.input, index_offset + start)
        for step in range(1, size):
            target = _require_chunk(
                ranks[(start + step) % size], Buffer.input, index_offset + start
            )
            reference = target.reduce(reference, ch=ch)
        # The last rank has the complete sum.
        _forward_around(reference, ranks, start + size - 1, ch)


def _forward_around(reference: Ref, ranks: Sequence[int], start: int, ch: int) -> None:
    """Copy a chunk around the ring to all other ranks, in the slot that it has at position
    `start`.
    """
    for step in range(1, len(ranks)):
        peer = ranks[(start + step) % len(ranks)]
        copy = reference.copy(peer, reference.buffer, reference.index, ch=ch)
        assert copy is not None
        reference = copy


def _list_ranks(gpus: Sequence[int] | int, gpu_offset: int) -> list[int]:
    """Ranks of a ring in ring order."""
    return [gpu_offset + gpu for gpu in (range(gpus) if isinstance(gpus, int) else gpus)]
