"""XML: what is not MSCCL-IR XML is refused by name of the problem, and nothing is expanded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from collhub_msccl.reading import scan

from hub_core.model import InputError


def _one_rank(xml: SimpleNamespace) -> str:
    return xml.local([xml.step("cpy")])


@pytest.mark.parametrize("content", [b"", b" \n\t\n", b"\xef\xbb\xbf"])
def test_empty_file_is_refused(reader, content: bytes) -> None:
    assert reader.refusal(content) == ["None: empty: the file is empty"]


def test_truncated_file_says_where_it_ends(reader, xml) -> None:
    text = _one_rank(xml)
    assert reader.refusal(text[: text.index("</tb>")]) == [
        "5: truncated: the file ends inside <tb>"
    ]


def test_file_cut_within_a_tag_is_truncated(reader, xml) -> None:
    text = _one_rank(xml)
    assert reader.refusal(text[: text.index("srcbuf")]) == [
        "4: truncated: the file ends inside <tb>"
    ]


@pytest.mark.parametrize(
    "content",
    [b"\x00" * 1000, b"\x89PNG\r\n\x1a\n", bytes(range(256)), b"{}", b"<algo", b"<algo <"],
)
def test_what_is_not_xml_is_refused(reader, content: bytes) -> None:
    (found,) = reader.refusal(content)
    assert found.split(": ")[1] in ("not-xml", "truncated")


def test_doctype_is_refused_before_any_entity_is_declared(reader, xml) -> None:
    bomb = '<!DOCTYPE algo [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>\n' + _one_rank(xml).replace(
        "test", "&b;"
    )
    assert reader.refusal(bomb)[0].startswith("1: doctype: ")


def test_external_entity_is_refused(reader, xml) -> None:
    text = '<?xml version="1.0"?>\n<!DOCTYPE algo SYSTEM "file:///etc/hostname">\n' + _one_rank(xml)
    assert reader.refusal(text)[0].startswith("2: doctype: ")


def test_undeclared_entity_is_refused(reader, xml) -> None:
    (found,) = reader.refusal(_one_rank(xml).replace("test", "&nbsp;"))
    assert found == "1: not-xml: this is not well-formed XML: undefined entity"


@pytest.mark.parametrize(
    "encoding", ["nonsense", "rot13", "idna", "utf-7", "base64", "undefined", "\u00fc"]
)
def test_unknown_encoding_is_refused(reader, xml, encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n' + _one_rank(xml)
    assert reader.refusal(text)[0].split(": ")[1] == "not-xml"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1", "ascii"])
def test_known_encodings_are_read(reader, xml, encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n' + _one_rank(xml)
    assert len(reader(text.encode(encoding)).steps) == 1


def test_other_root_is_refused_by_its_name(reader) -> None:
    (found,) = reader.refusal('<system version="1"><cpu numaid="0"/></system>')
    assert found == "1: wrong-root: the root element is <system>; MSCCL-IR XML starts with <algo>"
    with pytest.raises(InputError, match="topology of NCCL: use 'collhub topology show'"):
        reader('<system version="1"><cpu numaid="0"/></system>')


def test_declaration_comments_tabs_single_quotes_and_line_breaks_are_read(reader, xml) -> None:
    text = (
        _one_rank(xml)
        .replace("<step", "<!-- c -->\t<step")
        .replace(' type="cpy"', "\n\ttype='cpy'")
    )
    algorithm = reader("<?xml version='1.0'?>\n<!-- first -->\n" + text)
    # The line of a step is the one where its tag starts.
    assert algorithm.steps.source_line.tolist() == [6]


def test_unknown_elements_are_ignored_with_their_content_and_said(reader, xml) -> None:
    text = _one_rank(xml).replace("<step", "<copy><step bad='1'/><algo/></copy><step")
    assert len(reader(text).steps) == 1
    assert reader.warnings == ["4: ignored-elements"]


def test_unknown_attributes_of_steps_are_ignored_and_said(reader, xml) -> None:
    algorithm = reader(xml.local([xml.step("cpy", colour="red"), xml.step("cpy", "i1", "o1")]))
    assert algorithm.steps.src_offset.tolist() == [0, 1]
    assert "1 colour" in reader.reported[0].message


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("<gpu", "<step> is inside <gpu>; it belongs in tb"),
        ("<tb", "<tb> is inside <tb>; it belongs in gpu"),
        ("<step", "<algo> is inside <tb>; it belongs in the file itself"),
    ],
)
def test_known_element_in_the_wrong_place_is_refused(reader, xml, part: str, message: str) -> None:
    wrong = {"<gpu": "<step/>", "<tb": "<tb/>", "<step": "<algo/>"}[part]
    text = _one_rank(xml)
    end = text.index(">", text.index(part)) + 1 if part != "<step" else text.index(part)
    assert reader.refusal(text[:end] + wrong + text[end:])[0].endswith(
        f"misplaced-element: {message}"
    )


def test_an_unknown_element_beside_the_ranks_is_ignored(reader, xml) -> None:
    text = _one_rank(xml).replace("<gpu", "<link a='1'/><gpu")
    assert len(reader(text).steps) == 1
    assert reader.warnings == ["2: ignored-elements"]


@pytest.mark.parametrize(("count", "is_warned"), [(71, False), (72, True)])
def test_counts_of_72_are_said_to_be_refused_by_runtimes(
    reader, xml, count: int, is_warned: bool
) -> None:
    text = xml.algo(xml.gpu(xml.block(xml.step("cpy", cnt=count)), i=80, o=80), nchunksperloop=80)
    reader(text)
    assert ("4: count-limit" in reader.warnings) == is_warned


def test_ignored_elements_are_counted_by_name(reader, xml) -> None:
    text = _one_rank(xml).replace("<step", "<copy/><link/><copy/><step")
    reader(text)
    (found,) = reader.reported
    assert found.message == "ignored, as the runtimes do: 2 <copy>, 1 <link>"


def test_a_file_may_have_as_many_bytes_as_the_limit(
    reader, xml, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = _one_rank(xml)
    monkeypatch.setattr(scan, "MAX_BYTES", len(text))
    assert len(reader(text).steps) == 1
    monkeypatch.setattr(scan, "MAX_BYTES", len(text) - 1)
    (found,) = reader.refusal(text)
    assert found.endswith(f"too-large: the file has {len(text)} bytes, more than {len(text) - 1}")


def test_attributes_may_stand_in_any_order(reader, xml) -> None:
    text = _one_rank(xml).replace('type="cpy" srcbuf="i"', 'srcbuf="i" type="cpy"')
    assert len(reader(text).steps) == 1


@pytest.mark.parametrize(
    "name", ["s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"]
)
def test_missing_step_attribute_is_named_with_its_step(reader, xml, name: str) -> None:
    text = _one_rank(xml)
    start = text.index(f' {name}="', text.index("<step"))
    cut = text[:start] + text[text.index('"', start + len(name) + 3) + 1 :]
    assert reader.refusal(cut) == [
        f"4: missing-attribute: thread block 0, step 0 has no attribute {name!r}"
    ]


@pytest.mark.parametrize(
    ("tag", "name"), [("tb", "send"), ("tb", "id"), ("gpu", "s_chunks"), ("gpu", "id")]
)
def test_missing_attribute_of_a_container_is_named(reader, xml, tag: str, name: str) -> None:
    text = _one_rank(xml)
    start = text.index(f' {name}="', text.index(f"<{tag}"))
    cut = text[:start] + text[text.index('"', start + len(name) + 3) + 1 :]
    assert any(
        f"missing-attribute: <{tag}>" in found and repr(name) in found
        for found in reader.refusal(cut)
    )


def test_deep_nesting_of_unknown_elements_is_harmless(reader, xml) -> None:
    text = _one_rank(xml).replace("<step", "<x>" * 50_000 + "</x>" * 50_000 + "<step")
    assert len(reader(text).steps) == 1


def test_long_header_text_is_refused(reader, xml) -> None:
    assert "too-long" in reader.refusal(xml.local([xml.step("cpy")], name="n" * 5000))[0]
