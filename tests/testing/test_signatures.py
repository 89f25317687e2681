"""Signatures of formats are disjoint: no content is recognised by two formats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hub_core
from hub_core.pipeline.bounded_reads import HEAD_BYTES
from hub_core.pipeline.detection import scan_json_head
from hub_core.pipeline.sources import has_signature
from hub_core.plugin_api import Format, FormatReader, Layout, TopologyReader, WorkloadReader
from hub_core.registry.plugins import Registry
from hub_core.testing.checked_plugin import load_declared_samples

pytestmark = pytest.mark.needs_plugins

# Formats without a signature, whose files have that of another format; and logs of NCCL, of which
# a reader claims those with calls of all ranks.
CLAIMED = {
    "chakra-json-workload": {"chakra-json"},
    "chakra-workload": {"chakra"},
    "hlo-program": {"hlo"},
    "nccl-calls": {"nccl-calls", "nccl-log"},
    "nccl-log": {"nccl-calls", "nccl-log"},
}
KINDS: tuple[tuple[Any, ...], ...] = ((FormatReader, WorkloadReader), (TopologyReader,))


def formats(registry: Registry, kinds: tuple[Any, ...]) -> dict[str, Format]:
    """Formats by name of the readers of these kinds."""
    offers: list[Any] = [one.offer for kind in kinds for one in registry.all(kind)]
    return {offer.name: offer.format for offer in offers}


def samples(registry: Registry, kinds: tuple[Any, ...]) -> Iterator[tuple[str, str, bytes]]:
    """Name of the format, name of the sample, and searched bytes of every sample."""
    for kind in kinds:
        for provided in registry.all(kind):
            offer: Any = provided.offer
            if offer.format.layout is Layout.FOLDER:
                # One of its files tells what a folder is.
                continue
            for name, source in load_declared_samples(offer).items():
                content = source.parts[0].load()[:HEAD_BYTES]
                head = scan_json_head(content)
                yield offer.name, name, content if head is None else head.searched


@pytest.mark.parametrize("kinds", KINDS, ids=["algorithms and jobs", "topologies"])
def test_a_sample_has_the_signature_of_its_format_only(kinds: tuple[Any, ...]) -> None:
    registry = hub_core.discover()
    known = formats(registry, kinds)
    wrong = {}
    count = 0
    for own, sample, searched in samples(registry, kinds):
        matching = {name for name, format in known.items() if has_signature(searched, format)}
        expected = CLAIMED.get(own, {own} if known[own].signature else set())
        count += 1
        if matching != expected:
            wrong[own, sample] = matching
    assert wrong == {}
    assert count >= (50 if WorkloadReader in kinds else 15)


# Format by file of the corpus; files without one are of no reader of algorithms and jobs.
EVIDENCE = {
    "nccl/inspector_ok.log": {"nccl-inspector"},
    "nccl/inspector_cut.log": {"nccl-inspector"},
    "nccl/init_4ranks.log": {"nccl-log", "nccl-calls"},
    "nccl/graphs.dump": {"nccl-graph"},
    "nccl/ras_missing.json": set(),
    "nsys/rank0.sqlite": {"nsys"},
    "workload/aicb_ok.txt": {"simai"},
    "workload/simccl_flows.csv": {"simccl"},
    "hlo/coll_jax0.10_cpu8.hlo.txt": {"hlo"},
    "hlo/async_gpu_style.hlo.txt": {"hlo"},
    "hlo/coll_jax0.10.stablehlo.mlir": {"stablehlo"},
    "hlo/step_jax0.10.stablehlo.mlir": {"stablehlo"},
    "fr/fr_rank_0.json": set(),
}


@pytest.mark.parametrize("name", EVIDENCE)
def test_outputs_of_jobs_have_the_signature_of_one_format(corpus: Path, name: str) -> None:
    path = corpus / "evidence" / name
    if not path.is_file():
        pytest.skip("the corpus has no outputs of jobs")
    with path.open("rb") as file:
        content = file.read(HEAD_BYTES)
    head = scan_json_head(content)
    searched = content if head is None else head.searched
    known = formats(hub_core.discover(), KINDS[0])
    matching = {name for name, format in known.items() if has_signature(searched, format)}
    assert matching == EVIDENCE[name]
