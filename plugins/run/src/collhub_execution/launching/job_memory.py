"""Arrays shared by a launcher and the ranks on its host, in memory without a persistent name."""

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
    """Shared arrays by name, reachable through a folder."""

    folder: Path

    @contextmanager
    def created(self, shapes: Shapes) -> Iterator[None]:
        """Create arrays of zeros that other processes may open within the block."""
        (self.folder / _SHAPES).write_bytes(pickle.dumps(dict(shapes)))
        descriptors: list[int] = []
        try:
            for name, (shape, dtype) in shapes.items():
                size = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
                descriptors.append(_create_shared_file(self.folder / name, size))
            yield
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def arrays(self) -> dict[str, Array]:
        """Open all arrays; they remain valid as long as they are used."""
        # Only this user can write to the folder, so unpickling is safe.
        shapes: Shapes = pickle.loads((self.folder / _SHAPES).read_bytes())
        return {
            name: self._open_array(name, *shape_and_dtype)
            for name, shape_and_dtype in shapes.items()
        }

    def _open_array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Open one array."""
        if 0 in shape:
            # Empty memory cannot be mapped.
            return np.zeros(shape, dtype)
        return np.memmap(self.folder / name, dtype, "r+", shape=shape)


def _create_shared_file(path: Path, size: int) -> int:
    """Create `size` bytes of zeros that are shared through `path`; return their descriptor.

    On Linux the memory has no persistent name and uses no disk: `path` is a link that becomes
    invalid when the descriptor is closed. Elsewhere it is a file.
    """
    create_memory: Callable[[str], int] | None = getattr(os, "memfd_create", None)
    if create_memory is None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    else:
        descriptor = create_memory("collhub-job")
        # Processes of the same user may open the descriptor through /proc.
        path.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
    os.ftruncate(descriptor, size)
    return descriptor
