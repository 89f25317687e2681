"""The engine of a rank in MPI: messages by MPI, copies and reductions by numpy."""

from __future__ import annotations

import os
import weakref
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
    """Messages as persistent requests (MPI 4.1, section 3.9); they travel as bytes, as every dtype.

    Made once, a message costs a start and a test in every run. What `Isend` and `Irecv` do anew for
    each, checks of arguments and objects of Python, took nearly half the time of a small message.
    """

    def __init__(self, communicator: MPI.Intracomm) -> None:
        self._communicator = communicator

    def prepare(self, sends: Sequence[Post[Array]], receives: Sequence[Post[Array]]) -> PostLevel:
        """Posting starts all; receives first, so that messages find their place."""
        world = self._communicator
        requests = [world.Recv_init(*_arguments(post)) for post in receives]
        requests += [world.Send_init(*_arguments(post)) for post in sends]
        starts = [request.Start for request in requests]
        waiting = [_PolledMessage(request.Test) for request in requests]

        def post_level() -> Sequence[Waiting]:
            for start in starts:
                start()
            return waiting

        # MPI complains of requests that are left when it ends.
        weakref.finalize(post_level, _free_all, requests)
        return post_level

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._communicator.Barrier()


@dataclass(frozen=True, slots=True)
class _PolledMessage:
    """A message that is asked for until it is there.

    MPI's own wait keeps its core busy: where there are more ranks than cores, the rank that it
    waits for gets none, and a message takes milliseconds (MPICH 5.0).
    """

    test: Callable[[], bool]

    def wait(self) -> None:
        """Let others run until the message has been sent or received."""
        while not self.test():
            os.sched_yield()


def _free_all(requests: Sequence[MPI.Prequest]) -> None:
    """Give persistent requests back."""
    for request in requests:
        request.Free()


def _arguments(post: Post[Array]) -> tuple[tuple[Array, MPI.Datatype], int, int]:
    """(memory as bytes, peer, tag), as `Recv_init` and `Send_init` take them."""
    # The MPI standard has neither float16 nor bfloat16.
    memory = post.memory.view(np.uint8), MPI.BYTE
    return memory, post.end.peer, post.end.tag % _TAGS
