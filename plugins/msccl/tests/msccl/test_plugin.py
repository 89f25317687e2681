"""What the plugin offers to the hub, and what it costs to ask."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from collhub_msccl import plugin
from collhub_msccl.plugin import ReadOptions
from collhub_msccl.reading.read_xml import read, samples
from collhub_msccl.thread_block_program import STEP_TYPE_NAMES

from hub_core.plugin_api import resolve
from hub_core.verification import verify

OFFER = next(offer for offer in plugin.collhub_producers() if offer.format.name == "msccl-xml")


def test_offer_resolves_to_the_reader() -> None:
    assert resolve(OFFER.read).__name__ == "read"


def test_listing_the_offer_imports_nothing_heavy() -> None:
    code = (
        "import sys, collhub_msccl.plugin as p; p.collhub_producers();"
        " print(sorted({'numpy', 'xml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_samples_have_every_step_type_and_verify() -> None:
    found: set[str] = set()
    for source in samples():
        found |= set(re.findall(r'type="(\w+)"', source.content().decode()))
        assert verify(read(source, ReadOptions())).ok
    assert found == set(STEP_TYPE_NAMES)


@pytest.mark.parametrize(
    "head",
    [
        b'<algo name="x"',
        b"  \n<algo\n",
        b'<?xml version="1.0"?>\n<!-- <system> -->\n<algo ',
        b"\xef\xbb\xbf<algo>",
        b"<!--a--><!--b--><algo/>",
    ],
)
def test_signature_matches_programs(head: bytes) -> None:
    assert re.search(OFFER.format.signature, head)


@pytest.mark.parametrize(
    "head",
    [
        b'<system version="1">',
        b"<graphs>",
        b"<algorithm/>",
        b'<?xml version="1.0"?><system><algo/></system>',
        b"<!-- <algo > --><system>",
        b"",
    ],
)
def test_signature_does_not_match_other_xml(head: bytes) -> None:
    assert not re.search(OFFER.format.signature, head)


def test_signature_tells_programs_from_topologies_in_the_corpus(corpus: Path) -> None:
    for file in sorted(corpus.rglob("*.xml")):
        is_program = "nccl-topology" not in file.parts
        assert bool(re.search(OFFER.format.signature, file.read_bytes()[:4096])) == is_program, (
            file.name
        )


def test_many_comments_before_another_root_are_searched_once() -> None:
    assert re.search(OFFER.format.signature, b"<!-- a -->" * 400 + b"<system>") is None
    assert (
        re.search(OFFER.format.signature, b"<!-- a --> <!-- <algo> -->\n<algo name='x'>")
        is not None
    )
