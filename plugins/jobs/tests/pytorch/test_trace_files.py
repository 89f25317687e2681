"""JSON of profiles, read in chunks: cut files and invalid text are told apart."""

from __future__ import annotations

import io

import pytest
from collhub_pytorch.trace_files import JsonStream

from hub_core.model import InputError

DOCUMENT = (
    b'{"a": [true, -1.5e3, null], "traceEvents": [{"name": "\\u00e9 \\"x\\"", "d": {}}, {"n": 1}], '
    b'"end": "z"}'
)


def read(content: bytes) -> list[dict[str, object]]:
    return list(JsonStream(io.BytesIO(content), "rank0.json").records("traceEvents"))


def test_a_file_that_is_cut_anywhere_is_truncated() -> None:
    assert len(read(DOCUMENT)) == 2
    for length in range(1, len(DOCUMENT)):
        with pytest.raises(InputError) as caught:
            read(DOCUMENT[:length])
        assert caught.value.diagnostics[0].code == "truncated", DOCUMENT[:length]


@pytest.mark.parametrize("wrong", [b"true", b"-1.5e3", b"null", b"{}", b"1}", b'"z"'])
def test_invalid_text_is_reported_at_its_byte(wrong: bytes) -> None:
    content = DOCUMENT.replace(wrong, b"?" + wrong[1:])
    with pytest.raises(InputError) as caught:
        read(content)
    (finding,) = caught.value.diagnostics
    assert (finding.code, finding.location.byte) == ("not-json", content.index(b"?"))
