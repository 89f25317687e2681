"""The profile reference names every attribute that is written, with its kind, and its example bytes are the real ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hub_core.chakra import message_class, record_bounds
from hub_core.model.algorithm import Algorithm, Provenance
from hub_core.model.collectives import Collective
from hub_core.model.kinds import Buffer, CollectiveKind, StepKind
from hub_core.model.steps import StepTableBuilder
from hub_core.plugin_api import Source, SourcePart
from hub_core.testing.samples import ring_all_reduce
from hub_core.trace_profile.formats import ChakraReadOptions, ChakraWriteOptions
from hub_core.trace_profile.metadata import METADATA_NAMES
from hub_core.trace_profile.read import chakra_algorithm
from hub_core.trace_profile.write import write

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "profile-v1.md"


@pytest.fixture(scope="module")
def document() -> str:
    return DOCUMENT.read_text()


@pytest.fixture(scope="module")
def example() -> Algorithm:
    builder = StepTableBuilder(2)
    builder.add(0, StepKind.SEND, peer=1, src_buffer=Buffer.INPUT, count=1, lane=0)
    copy = builder.add(
        1,
        StepKind.COPY,
        src_buffer=Buffer.INPUT,
        dst_buffer=Buffer.OUTPUT,
        count=1,
        duration_ns=1500,
    )
    output = {"src_buffer": Buffer.OUTPUT, "dst_buffer": Buffer.OUTPUT}
    builder.add(
        1, StepKind.RECV_REDUCE, peer=0, **output, count=1, lane=0, source_line=7, control=[copy]
    )
    collective = Collective(CollectiveKind.REDUCE, 2, 1, root=1)
    return Algorithm(
        collective, builder.build(), np.zeros(2, np.int64), Provenance("example"), 1024
    )


def files_in(document: str) -> list[bytes]:
    return [bytes.fromhex(block) for block in re.findall(r"```hex\n(.*?)```", document, re.DOTALL)]


def kinds_in(document: str) -> dict[str, str]:
    """Kinds by attribute as the tables state them."""
    kinds = {}
    for line in document.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) > 3 and cells[1].endswith(("_val", "_list")):
            kinds |= dict.fromkeys(re.findall(r"`(\w+)`", cells[0]), cells[1])
    return kinds


def test_the_example_is_what_is_written(document: str, example: Algorithm) -> None:
    assert files_in(document) == [
        artifact.content() for artifact in write(example, ChakraWriteOptions()).artifacts
    ]


def test_the_example_reads_as_the_algorithm(document: str, example: Algorithm) -> None:
    parts = tuple(
        SourcePart(f"x.{rank}.et", lambda c=c: c, rank) for rank, c in enumerate(files_in(document))
    )
    assert example.differences(chakra_algorithm(Source("x", parts), ChakraReadOptions())) == []


def test_every_metadata_attribute_is_documented(document: str) -> None:
    assert set(kinds_in(document)) >= METADATA_NAMES


def test_every_attribute_is_written_as_documented(document: str, example: Algorithm) -> None:
    kinds = kinds_in(document)
    for algorithm in (example, ring_all_reduce(3)):
        for artifact in write(algorithm, ChakraWriteOptions()).artifacts:
            content = artifact.content()
            starts, stops = record_bounds(content)
            for number, (start, stop) in enumerate(
                zip(starts.tolist(), stops.tolist(), strict=True)
            ):
                message: Any = message_class("Node" if number else "GlobalMetadata").FromString(
                    content[start:stop]
                )
                for attribute in message.attr:
                    assert kinds[attribute.name] == attribute.WhichOneof("value")
