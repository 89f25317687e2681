from __future__ import annotations

import pytest
from collhub_networks import document_of

from hub_core.model import InputError
from hub_core.plugin_api import Source


def document(text: str):
    return document_of(Source.of_bytes("f.yaml", text.encode()), "invalid-x")


@pytest.mark.parametrize(
    "text", ["a: [1, x]\n", '{"a": [1, "x"]}', "{a: [1, x]}", "# c\na:\n- 1\n- x\n"]
)
def test_yaml_and_json_give_the_same_values(text) -> None:
    assert document(text).raw == {"a": [1, "x"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f.yaml: the file is empty"),
        ("- 1\n", "f.yaml: an object of keys and values was expected"),
        ("a: 1\na: 2\n", "f.yaml:2: the key 'a' occurs twice"),
        ('{"a": 1, "a": 2}', "occurs twice"),
        ("a: &x 1\nb: *x\n", r"f.yaml:1: aliases \(& and \*\) are not read; write the value out"),
        ("a: &x [*x]\n", "aliases"),
        ("a: &x b\n*x : 2\n", r"f.yaml:1: aliases \(& and \*\) are not read"),
        ("b: 1\n" + "9" * 1001 + ": 1\n", "f.yaml:2: an integer has more than 1000 digits"),
        ("a: [\n", "this is not YAML"),
        ("? [1, 2]\n: 3\n", "f.yaml:1: a key is not a text"),
        ("a: !!python/name:os.system\n", "this is not YAML"),
        (
            "b: 1\na: !!bool foo\n",
            "f.yaml:2: a value does not fit its tag; write the value without",
        ),
        ("a: !!timestamp foo\n", "f.yaml:1: a value does not fit its tag"),
        ("b: 1\na: !!int foo\n", "f.yaml:2: a value is not of its type: .*; quote it"),
        ("b: 1\na: 2026-99-99\n", "f.yaml:2: a value is not of its type: month must be"),
        ("a: [1, !!int '']\n", "f.yaml:1: a value does not fit its tag"),
        ("b: 1\na: 0x" + "F" * 4000, "f.yaml:2: an integer has more than 1000 digits"),
        ("a: " + "[" * 65 + "]" * 65, "f.yaml:1: values are nested deeper than 64 levels"),
    ],
)
def test_unsafe_and_broken_documents_are_refused(text, said) -> None:
    with pytest.raises(InputError, match=said):
        document(text)


def test_aliases_that_multiply_are_refused_before_they_are_expanded() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 30):
        names = ", ".join([f"*a{level - 1}"] * 10)
        levels.append(f"a{level}: &a{level} [{names}]")
    with pytest.raises(InputError, match="aliases"):
        document("\n".join(levels))


def test_errors_carry_the_code_of_the_format() -> None:
    with pytest.raises(InputError) as caught:
        document("a: [1]\n")["b"]
    assert caught.value.diagnostics[0].code == "invalid-x"
