"""What `collhub doctor --warm` does here: afterwards no kernel is left to compile."""

from __future__ import annotations

import pytest
from kernel_runs import kernels_without_run


@pytest.mark.once
def test_every_kernel_is_run_where_that_is_asked() -> None:
    assert kernels_without_run("collhub_mscclpp.reading.read", "collhub_mscclpp") == []
