"""PyTorch for Collective Hub: run algorithms on torch.distributed, and load them into jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collhub_torch.loaded import LoadedAlgorithm

__all__ = ["load"]


def load(folder: str | Path, device: str = "cuda") -> LoadedAlgorithm:
    """Load the library that was built in a folder of the format `nccl`.

    `device`: `cuda`, or `cpu` for the test double, whose ranks are on one host. A repeated
    call with the same folder and device returns the same object; a failed call is not
    remembered. Registers the operator of the library with torch. Raises `UsageError` for an
    unknown device, and if the name of the library is already used by another folder or
    device; `InputError` for a folder of another kind; `PluginError` if the library is not
    built or cannot be loaded, or if torch does not support its collective.
    """
    # Imports torch, which takes seconds; the hub imports this package to list its offers.
    from collhub_torch.loaded import load_once

    return load_once(Path(folder).resolve(), device)
