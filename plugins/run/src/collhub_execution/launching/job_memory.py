"""Arrays that a launcher and the ranks on its machine share, without a name that could be left."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from collhub_execution.data.element_types import Array

Shapes = Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]

_SHAPES = "shapes"


@dataclass(frozen=True, slots=True)
class JobMemory:
    """Shared arrays by name, which a folder leads to."""

    folder: Path

    @contextmanager
    def created(self, shapes: Shapes) -> Iterator[None]:
        """Make arrays of zeros that others may open as long as the block lasts."""
        (self.folder / _SHAPES).write_bytes(pickle.dumps(dict(shapes)))
        kept: list[int] = []
        try:
            for name, (shape, dtype) in shapes.items():
                size = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
                kept.append(_created(self.folder / name, size))
            yield
        finally:
            for descriptor in kept:
                os.close(descriptor)

    def arrays(self) -> dict[str, Array]:
        """All arrays; they last as long as they are used."""
        # Only this user can write here; nothing of strangers is unpickled.
        shapes: Shapes = pickle.loads((self.folder / _SHAPES).read_bytes())
        return {name: self._array(name, *of_array) for name, of_array in shapes.items()}

    def _array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        if 0 in shape:
            # No memory cannot be mapped.
            return np.zeros(shape, dtype)
        return np.memmap(self.folder / name, dtype, "r+", shape=shape)


def _created(place: Path, size: int) -> int:
    """Make `size` bytes of zeros that whoever opens `place` shares; the descriptor that keeps them.

    On Linux the memory has no name of its own and counts on no disk: `place` is a link that leads
    nowhere when the descriptor is closed. Elsewhere it is a file.
    """
    make: Callable[[str], int] | None = getattr(os, "memfd_create", None)
    if make is None:
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    else:
        descriptor = make("collhub-job")
        # What a descriptor stands for may be opened by other processes of the same user.
        place.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
    os.ftruncate(descriptor, size)
    return descriptor
