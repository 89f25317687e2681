"""Read the profiles of a job by the names of its files, however large they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collhub_pytorch.options import KINETO, ProfileOptions

if TYPE_CHECKING:
    from hub_core.model import Workload

_ALL = ProfileOptions()


def read_profiles(files: Sequence[str], options: ProfileOptions = _ALL) -> Workload:
    """The workload of Kineto profiles, one file a rank, read piece by piece. Raises `HubError`."""
    # Imported here: whoever only records profiles needs no numpy.
    from collhub_pytorch.kineto.read import workload_of
    from collhub_pytorch.trace_files import on_disk
    from hub_core.model import Provenance

    return workload_of(on_disk(files), options, Provenance(KINETO, "", files[0]))
