"""Pages of the site that stand elsewhere in the repository: the README and a page a plugin.

The documents link to files of the repository, so that they can be read there; on the site these
links lead to the pages made here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def _plugin_pages() -> dict[str, Path]:
    """The pages of all distributions and of their plugins, by their address on the site."""
    pages: dict[str, Path] = {}
    for readme in sorted((ROOT / "plugins").glob("*/README.md")):
        name = readme.parent.name
        pages[f"plugins/{name}.md"] = readme
        for page in sorted((readme.parent / "docs").glob("*.md")):
            pages[f"plugins/{name}/{page.name}"] = page
    return pages


def _pages() -> dict[str, Path]:
    """Every page that is not in this folder: address on the site to file of the repository."""
    schemas = {f"schemas/{path.name}": path for path in sorted((ROOT / "schemas").glob("*.json"))}
    changelogs = {"changelog.md": ROOT / "CHANGELOG.md"}
    return {"index.md": ROOT / "README.md", **_plugin_pages(), **schemas, **changelogs}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of plugins in the navigation."""
    nav: list[Any] = config.nav or []
    for entry in nav:
        for title in entry:
            if title == "Plugins":
                entry[title] = list(_plugin_pages())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for address, path in _pages().items():
        files.append(File.generated(config, address, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the repository lead to their pages."""
    addresses = {path.resolve(): address for address, path in _pages().items()}
    own = addresses_of_documents(config)
    addresses |= own
    source = Path(page.file.abs_src_path or "")
    depth = page.file.src_uri.count("/")

    def replaced(match: re.Match[str]) -> str:
        target = (source.parent / match[1]).resolve()
        address = addresses.get(target)
        if address is None:
            return match[0] if (ROOT / "docs") in target.parents else _named(match)
        return f"]({'../' * depth}{address}{match[2] or ''})"

    return LINK.sub(replaced, markdown)


def addresses_of_documents(config: MkDocsConfig) -> dict[Path, str]:
    """The documents of this folder by their files."""
    folder = Path(config.docs_dir)
    return {
        path.resolve(): path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file()
    }


def _named(match: re.Match[str]) -> str:
    """A file of the repository that has no page is named, not linked."""
    return f"] (`{match[1]}`)"
