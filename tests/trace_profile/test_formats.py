"""The declared format is light to import, and its signature tells traces from other files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hub_core.plugin_api import resolve
from hub_core.testing.samples import ring_all_reduce
from hub_core.trace_profile.formats import CHAKRA, CHAKRA_READER, CHAKRA_WRITER, ChakraWriteOptions
from hub_core.trace_profile.write import write


def test_declaring_the_format_imports_neither_numpy_nor_protobuf() -> None:
    code = "import sys, hub_core.trace_profile.formats; sys.exit(any(name in sys.modules for name in ('numpy', 'google.protobuf')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("reference", [CHAKRA_READER.read, CHAKRA_WRITER.write])
def test_references_resolve(reference: str) -> None:
    assert callable(resolve(reference))


def test_the_signature_knows_our_own_files() -> None:
    for artifact in write(ring_all_reduce(2), ChakraWriteOptions()).artifacts:
        assert re.search(CHAKRA.signature, artifact.content()[:4096])


def test_the_signature_knows_the_traces_of_others(corpus: Path) -> None:
    for path in sorted((corpus / "chakra").rglob("*.et")):
        assert re.search(CHAKRA.signature, path.read_bytes()[:4096]), path.name


def test_the_signature_leaves_text_alone(corpus: Path) -> None:
    texts = [b"", b"[\n\t1.5,\n\t2.5]", bytes(4096)]
    texts += [
        path.read_bytes()[:4096]
        for suffix in ("xml", "json", "csv")
        for path in sorted(corpus.rglob(f"*.{suffix}"))
    ]
    for text in texts:
        assert not re.search(CHAKRA.signature, text), text[:40]
