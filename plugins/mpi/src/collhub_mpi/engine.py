"""The engine of a rank in MPI: messages by MPI, copies and reductions by numpy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_execution import NumpyMemory, Post, RankEngine, RankTask, Waiting
from mpi4py import MPI

from collhub_mpi.native import native_collective

Array = npt.NDArray[Any]

# MPI promises tags up to 32767 (MPI 4.1, section 9.1.2, MPI_TAG_UB); messages of one pair and tag
# arrive in their order, so that tags may be used again.
_TAGS = 1 << 15


def mpi_engine(task: RankTask, communicator: MPI.Intracomm) -> RankEngine[Array]:
    """Memory and transport of a rank, and MPI's own collectives."""
    native = partial(native_collective, communicator)
    return RankEngine(NumpyMemory(task), MpiTransport(communicator), native)


class MpiTransport:
    """Non-blocking messages; they travel as bytes, so that every dtype does."""

    def __init__(self, communicator: MPI.Intracomm) -> None:
        self._communicator = communicator

    def post(
        self, sends: Sequence[Post[Array]], receives: Sequence[Post[Array]]
    ) -> Sequence[Waiting]:
        """Start all; receives first, so that messages find their place."""
        works: list[Waiting] = []
        for post in receives:
            tag = post.end.tag % _TAGS
            works.append(self._communicator.Irecv(_bytes(post.memory), post.end.peer, tag))
        for post in sends:
            tag = post.end.tag % _TAGS
            works.append(self._communicator.Isend(_bytes(post.memory), post.end.peer, tag))
        return works

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._communicator.Barrier()


def _bytes(memory: Array) -> tuple[Array, MPI.Datatype]:
    return memory.view(np.uint8), MPI.BYTE
