"""Algorithm -> trace -> algorithm is the identity, and trace -> algorithm -> trace gives the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from hub_core.model import CollectiveKind
from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import UsageError
from hub_core.plugin_api import Source, SourcePart
from hub_core.testing.samples import ring_all_reduce
from hub_core.testing.strategies import algorithms
from hub_core.trace_profile.formats import ChakraReadOptions, ChakraWriteOptions
from hub_core.trace_profile.read import chakra_algorithm
from hub_core.trace_profile.write import write


def trace(algorithm: Algorithm, options: ChakraWriteOptions | None = None) -> list[bytes]:
    return [
        artifact.content()
        for artifact in write(algorithm, options or ChakraWriteOptions()).artifacts
    ]


def parsed(files: list[bytes], options: ChakraReadOptions | None = None) -> Algorithm:
    parts = tuple(
        SourcePart(f"x.{rank}.et", lambda content=content: content, rank)
        for rank, content in enumerate(files)
    )
    return chakra_algorithm(Source("x", parts), options or ChakraReadOptions())


@given(algorithms(kinds=tuple(CollectiveKind)))
@settings(max_examples=150)
def test_every_column_survives(algorithm: Algorithm) -> None:
    files = trace(algorithm)
    again = parsed(files)
    assert algorithm.differences(again) == []
    assert trace(again) == files


@given(algorithms())
@settings(max_examples=50)
def test_every_column_survives_without_chunk_counts(algorithm: Algorithm) -> None:
    assert (
        algorithm.differences(parsed(trace(algorithm, ChakraWriteOptions(dialect="absolute"))))
        == []
    )


@given(algorithms())
@settings(max_examples=50)
def test_every_column_survives_without_sizes_in_bytes(algorithm: Algorithm) -> None:
    try:
        files = trace(algorithm, ChakraWriteOptions(dialect="symbolic"))
    except UsageError:
        return
    assert algorithm.differences(parsed(files)) == []


@given(algorithms())
@settings(max_examples=50)
def test_flattening_keeps_every_dependency_as_data(algorithm: Algorithm) -> None:
    again = parsed(trace(algorithm, ChakraWriteOptions(flatten=True)))
    assert len(again.steps.control_indices) == 0
    for found, expected in zip(again.steps.edges(), algorithm.steps.edges(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_stated_size_is_kept() -> None:
    algorithm = ring_all_reduce(4)
    again = parsed(trace(algorithm, ChakraWriteOptions(size=1 << 20)))
    assert algorithm.differences(again) == ["collective_bytes"]
    assert again.collective_bytes == 1 << 20


def test_a_default_size_is_not_mistaken_for_a_stated_one() -> None:
    assert parsed(trace(ring_all_reduce(4))).collective_bytes is None


@pytest.mark.parametrize("ranks", [2, 3, 17])
def test_rings_survive(ranks: int) -> None:
    algorithm = ring_all_reduce(ranks)
    assert algorithm.differences(parsed(trace(algorithm))) == []
