"""The engine of a rank in MPI: messages by MPI, copies and reductions by numpy."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_execution import NumpyMemory, Post, PostLevel, RankEngine, RankTask, Waiting
from mpi4py import MPI

from collhub_mpi.native import native_collective

Array = npt.NDArray[Any]

# MPI promises tags up to 32767 (MPI 4.1, section 9.1.2, MPI_TAG_UB); messages of one pair and tag
# arrive in their order, so that tags may be used again.
_TAGS = 1 << 15


def mpi_engine(
    task: RankTask, communicator: MPI.Intracomm, memory: Array | None = None
) -> RankEngine[Array]:
    """Memory and transport of a rank, and MPI's own collectives; `memory` as in `NumpyMemory`."""
    native = partial(native_collective, communicator)
    return RankEngine(NumpyMemory(task, memory), MpiTransport(communicator), native)


class MpiTransport:
    """Non-blocking messages; they travel as bytes, so that every dtype does."""

    def __init__(self, communicator: MPI.Intracomm) -> None:
        self._communicator = communicator

    def prepare(self, sends: Sequence[Post[Array]], receives: Sequence[Post[Array]]) -> PostLevel:
        """Posting starts all; receives first, so that messages find their place."""
        # Bound once: the views of memory are the same in every run.
        world = self._communicator
        starts: list[Callable[[], MPI.Request]] = []
        for post in receives:
            start = partial(world.Irecv, *_arguments(post))
            starts.append(start)
        for post in sends:
            start = partial(world.Isend, *_arguments(post))
            starts.append(start)
        return partial(_start_all, starts)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._communicator.Barrier()


@dataclass(frozen=True, slots=True)
class _PolledMessage:
    """A message that is asked for until it is there.

    MPI's own wait keeps its core busy: where there are more ranks than cores, the rank that it
    waits for gets none, and a message takes milliseconds (MPICH 5.0).
    """

    request: MPI.Request

    def wait(self) -> None:
        """Let others run until the message has been sent or received."""
        while not self.request.Test():
            os.sched_yield()


def _start_all(starts: Sequence[Callable[[], MPI.Request]]) -> Sequence[Waiting]:
    """Start the messages of a level, in the given order."""
    return [_PolledMessage(start()) for start in starts]


def _arguments(post: Post[Array]) -> tuple[tuple[Array, MPI.Datatype], int, int]:
    """(memory as bytes, peer, tag), as `Irecv` and `Isend` take them."""
    # The MPI standard has neither float16 nor bfloat16.
    memory = post.memory.view(np.uint8), MPI.BYTE
    return memory, post.end.peer, post.end.tag % _TAGS
