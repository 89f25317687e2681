"""Names of the emitted library: words of C, whatever the algorithm is called."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from collhub_nccl.options import NcclProgramOptions
from collhub_nccl.programs.emit import choose_names, write

from hub_core.model import CollectiveKind, Provenance, UsageError
from hub_core.testing import samples

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("provenance", "name"),
    [
        (Provenance(source_name="Ring All-Reduce_8.xml"), "ring_all_reduce_8"),
        (Provenance(source_name="8-rings.json", producer="tacos"), "rings"),
        (Provenance(source_name="\u5730\u56fe.xml", producer="tacos"), "tacos"),
        (Provenance(source_name='x"; system("x'), "x_system_x"),
        (Provenance(source_name="a" * 200), "a" * 48),
        (Provenance(), "schedule"),
    ],
)
def test_name_is_a_word_from_the_origin(provenance: Provenance, name: str) -> None:
    algorithm = replace(samples.ring_all_reduce(2), provenance=provenance)
    assert choose_names(algorithm, None).name == name


def test_functions_are_named_by_collective_and_option() -> None:
    names = choose_names(samples.ring_all_reduce(2), "fast")
    assert names.kind is CollectiveKind.ALL_REDUCE
    assert names.functions == {
        "run": "collhub_all_reduce_fast",
        "release": "collhub_release_fast",
        "error": "collhub_error_fast",
        "level": "collhub_level_fast",
    }


@pytest.mark.parametrize("name", ["", "Ring", "8", "a-b", "x;y", "a" * 49])
def test_name_that_is_no_word_of_c_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be part of a function's name"):
        choose_names(samples.ring_all_reduce(2), name)


def test_manifest_says_what_a_loader_needs() -> None:
    options = NcclProgramOptions(None, "fast", 4)
    result = write(samples.binomial_broadcast(3), options)
    files = {artifact.name: artifact.content() for artifact in result.artifacts}
    assert json.loads(files["collhub.json"]) == {
        "format": "collhub-nccl-library",
        "version": 1,
        "name": "fast",
        "collective": "broadcast",
        "num_ranks": 3,
        "root": 0,
        "reduces": False,
        "library": {"cuda": "libcollhub_fast.so", "cpu": "libcollhub_fast_double.so"},
        "functions": {
            "run": "collhub_broadcast_fast",
            "release": "collhub_release_fast",
            "error": "collhub_error_fast",
            "level": "collhub_level_fast",
        },
    }
    assert b"collhub_broadcast_fast(const void* send" in files["collhub_fast.h"]
