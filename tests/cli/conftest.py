"""Skip tests of the program that need a plugin: the core must pass its tests alone."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture
def msccl() -> None:
    """Skip where the plugin is not installed: the core must pass its tests alone."""
    _needs("collhub_msccl")


@pytest.fixture
def simulator() -> None:
    """Skip where the plugin is not installed: the core must pass its tests alone."""
    _needs("collhub_astra_sim")


@pytest.fixture
def machines() -> None:
    """Skip where the plugin is not installed: the core must pass its tests alone."""
    _needs("collhub_topologies")


def _needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"the plugin {module} is not installed")
