"""Topologies named with options of their reader: FILE?key=value."""

from __future__ import annotations

from pathlib import Path

import pytest
from collhub_nccl.samples import xml_samples

from hub_core.model import UsageError
from hub_core.pipeline.inputs import read_topology


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    file = tmp_path / "machine.xml"
    file.write_bytes(xml_samples()[0].content())
    return file


def test_options_of_the_reader_stand_behind_the_file(machine: Path) -> None:
    topology = read_topology(f"{machine}?nodes=2&fabric=rail")
    assert (topology.num_npus, topology.name) == (8, f"{machine}?nodes=2&fabric=rail")
    assert read_topology(f"{machine}?nodes=2&npus=0,4-5").num_npus == 3


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("nodes", "KEY=VALUE"),
        ("node=2", "no option 'node'"),
        ("nodes=2&nodes=2", "twice"),
        ("npus=9", "NPU 9"),
    ],
)
def test_what_is_no_option_of_the_reader_is_refused(machine: Path, query: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_topology(f"{machine}?{query}")


def test_a_file_with_a_question_mark_in_its_name_is_read(machine: Path) -> None:
    odd = machine.rename(machine.with_name("a?b=c.xml"))
    assert read_topology(str(odd)).num_npus == 4
