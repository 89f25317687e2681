"""The documentation site links terms to the glossary."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

HOOKS = Path(__file__).resolve().parents[1] / "docs" / ".site" / "pages.py"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """Return the hooks of the site as a module."""
    spec = importlib.util.spec_from_file_location("site_pages", HOOKS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_first_use_of_a_term_is_linked(hooks: ModuleType) -> None:
    linked = hooks.link_terms("Chunks move.\nA chunk is data.\n", "glossary.md")
    assert linked == "[Chunks](glossary.md#chunk) move.\nA chunk is data.\n"


def test_longest_term_wins(hooks: ModuleType) -> None:
    linked = hooks.link_terms("the bus bandwidth\n", "glossary.md")
    assert linked == "the [bus bandwidth](glossary.md#bus-bandwidth)\n"


@pytest.mark.parametrize(
    "text",
    [
        "# A chunk\n",
        "| chunk | unit |\n",
        "```\nchunk\n```\n",
        "    chunk\n",
        "use `chunk` and [a chunk](page.md) or <b title=chunk>\n",
        "chunking and sub-chunk\n",
    ],
    ids=["heading", "table", "block", "indented", "inline", "other word"],
)
def test_code_headings_tables_and_links_stay(hooks: ModuleType, text: str) -> None:
    assert hooks.link_terms(text, "glossary.md") == text


def test_notebook_becomes_a_page_with_its_code_and_output(hooks: ModuleType) -> None:
    page = hooks.convert_notebook(HOOKS.parents[1] / "notebook.ipynb")
    assert page.startswith("# An algorithm in a notebook\n")
    assert "```text\nring True\ndirect True\n```" in page
