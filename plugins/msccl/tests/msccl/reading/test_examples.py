"""The examples that the hub ships: reproducible, correct in every mode, safe at every size."""

from __future__ import annotations

from pathlib import Path

import pytest
from collhub_msccl.plugin import ReadOptions
from collhub_msccl.reading.read_xml import read
from collhub_msccl.runtimes.load_check import compute_fifo_safety

from hub_core.examples import make_examples
from hub_core.model import Algorithm, CollectiveKind
from hub_core.plugin_api import Source
from hub_core.verification import verify

FOLDER = Path(make_examples.__file__).parent
NAMES = sorted(make_examples.EXAMPLES)


def _read(name: str) -> Algorithm:
    def refuse_report(diagnostic: object) -> None:
        raise AssertionError(f"an example should need no warning: {diagnostic}")

    parts = Source.of_bytes(name, (FOLDER / name).read_bytes()).parts
    return read(Source(name, parts, refuse_report), ReadOptions())


@pytest.mark.parametrize("name", NAMES)
def test_script_reproduces_the_file(name: str) -> None:
    assert make_examples.EXAMPLES[name]() == (FOLDER / name).read_text(encoding="ascii")


def test_script_makes_all_files_of_the_folder() -> None:
    assert sorted(file.name for file in FOLDER.glob("*.xml")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_example_is_correct_in_every_mode_it_claims(name: str) -> None:
    report = verify(_read(name))
    assert report.ok, [str(found) for found in report.diagnostics]


@pytest.mark.parametrize("name", NAMES)
def test_example_cannot_deadlock_at_any_size(name: str) -> None:
    assert compute_fifo_safety(_read(name), capacity=2).min_units == 1


@pytest.mark.parametrize(
    ("name", "kind", "modes"),
    [
        ("ring_all_reduce_8.xml", CollectiveKind.ALL_REDUCE, (True, False)),
        ("all_pairs_all_reduce_8.xml", CollectiveKind.ALL_REDUCE, (True, True)),
        ("hierarchical_all_gather_8.xml", CollectiveKind.ALL_GATHER, (False, True)),
    ],
)
def test_example_is_what_its_name_says(
    name: str, kind: CollectiveKind, modes: tuple[bool, bool]
) -> None:
    collective = _read(name).collective
    assert (
        collective.kind,
        collective.num_ranks,
        collective.in_place,
        collective.out_of_place,
    ) == (kind, 8, *modes)


@pytest.mark.parametrize("name", NAMES)
def test_example_has_every_attribute_that_some_runtime_requires(name: str) -> None:
    written = _read(name).extensions["msccl"]["algo"]
    required = {
        "name",
        "proto",
        "nchannels",
        "nchunksperloop",
        "ngpus",
        "coll",
        "inplace",
        "outofplace",
        "minBytes",
        "maxBytes",
    }
    assert set(written) == required
    # microsoft/msccl never selects a file whose maxBytes is 0.
    assert int(written["maxBytes"]) > int(written["minBytes"]) >= 0
