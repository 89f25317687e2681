"""Build the site: add pages from other folders, adapt links, and link terms to the glossary.

The README, the changelog, the schemas and the pages of the plugins are not in the folder of the
documents. The documents link to files of the repository, so that they can be read there; on the
site these links lead to the pages that are added here.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")
GLOSSARY = ROOT / "docs" / "glossary.md"
# Parts of a paragraph in which terms are not linked: code, links, pictures, HTML.
UNLINKED = re.compile(r"(`+[^`]*`+|!?\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])|<[^>]*>|https?://\S+)")


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


# Sections of the navigation with the folders in `plugins` whose pages they list.
PLUGIN_SECTIONS = {
    "Networks": ("networks",),
    "Synthesis": ("synthesis", "tacos", "blink"),
    "Runtimes and formats": ("msccl", "nccl", "formats"),
    "Simulation and execution": ("astra_sim", "run"),
    "Jobs": ("jobs", "coconet", "reshard"),
    "Compare, tune, calibrate, view": ("study",),
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of plugins in the navigation, grouped by purpose."""
    pages = list(_plugin_pages())
    sections: list[Any] = []
    for title, folders in PLUGIN_SECTIONS.items():
        prefixes = tuple(f"plugins/{folder}{end}" for folder in folders for end in (".md", "/"))
        sections.append({title: [page for page in pages if page.startswith(prefixes)]})
    listed = {page for section in sections for pages_ in section.values() for page in pages_}
    missing = sorted(set(pages) - listed)
    if missing:
        raise ValueError(f"pages of plugins without a section in PLUGIN_SECTIONS: {missing}")
    for entry in config.nav or []:
        if "Plugins" in entry:
            entry["Plugins"] = ["plugins.md", *sections]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    from mkdocs.structure.files import File

    for address, path in _pages().items():
        files.append(File.generated(config, address, abs_src_path=str(path)))
    for notebook in sorted((ROOT / "docs").glob("*.ipynb")):
        displays, pages = run_notebook(notebook)
        content = convert_notebook(notebook, displays)
        files.append(File.generated(config, f"{notebook.stem}.md", content=content))
        for name, page in pages.items():
            files.append(File.generated(config, f"pages/{name}.html", content=page))
    for name, content in write_interactive_pages().items():
        files.append(File.generated(config, f"pages/{name}.html", content=content))
    for path, content in build_zoo().items():
        files.append(File.generated(config, f"{ZOO}/{path}", content=content))
    return files


ZOO = "zoo"
"""Folder of the site with the results of the zoo."""
ZOO_ENTRIES = (
    *("ring", "direct", "halving-doubling", "double-binary-tree", "bruck", "forestcoll"),
    *("mscclang-all-pairs", "mscclang-rings"),
)
"""Entries of the small zoo on the site; `tox -e zoo` builds all entries on all machines."""


def build_zoo() -> dict[str, bytes]:
    """Return the files of a small zoo by path; raise `CalledProcessError` if an entry fails."""
    names = [word for name in ZOO_ENTRIES for word in ("--entry", name)]
    with tempfile.TemporaryDirectory() as folder:
        run_program(["zoo", "build", "--small", *names, "-o", "out"], folder)
        out = Path(folder) / "out"
        return {
            path.relative_to(out).as_posix(): path.read_bytes()
            for path in sorted(out.rglob("*"))
            if path.is_file()
        }


INTERACTIVE_PAGES = {
    "two-all-reduces": (
        "Two all-reduces on a DGX-1V, on one time axis",
        "view examples/ring_all_reduce_8.xml examples/all_pairs_all_reduce_8.xml"
        " --topology dgx1v --size 1MiB -o OUT",
    ),
    "all-gather-on-a-ring": (
        "A hierarchical all-gather on a ring: links that are full, and ranks that wait",
        "simulate examples/hierarchical_all_gather_8.xml --topology ring:8 --size 16MiB --view OUT",
    ),
    "training-step": (
        "A training step of a transformer on 4 ranks: exposed communication, critical path",
        "simulate step --topology switch:4?bandwidth=100GB/s&latency=500ns --view OUT",
    ),
}
"""Pages of the viewer: title, arguments of `collhub` (OUT: the page; `step`: a generated job)."""
_GENERATE = "generate transformer -O layers=2 -O data=4 -o step"


def write_interactive_pages() -> dict[str, bytes]:
    """Return the interactive pages of the gallery by name; the plugins must be installed."""
    pages = {}
    with tempfile.TemporaryDirectory() as folder:
        # The pages show the names of their inputs.
        shutil.copytree(ROOT / "examples", Path(folder) / "examples")
        run_program(_GENERATE.split(), folder)
        for name, (_, arguments) in INTERACTIVE_PAGES.items():
            page = f"{name}.html"
            run_program([page if word == "OUT" else word for word in arguments.split()], folder)
            pages[name] = (Path(folder) / page).read_bytes()
    return pages


def run_program(arguments: list[str], folder: str) -> None:
    """Run `collhub` in a folder; raise `CalledProcessError` if it fails."""
    start = "import sys; from hub_core.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", start, *arguments]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def list_interactive_pages() -> str:
    """Return the section of the gallery that shows the interactive pages."""
    parts = ["", "## Interactive pages", ""]
    for name, (title, arguments) in INTERACTIVE_PAGES.items():
        parts += [
            f"[{title}](pages/{name}.html):",
            "",
            f"```text\ncollhub {arguments.replace('OUT', name + '.html')}\n```",
            "",
            f'<iframe src="pages/{name}.html" title="{title}" width="100%" height="600"></iframe>',
            "",
        ]
    return "\n".join(parts)


def run_notebook(path: Path) -> tuple[dict[int, str], dict[str, str]]:
    """Execute the cells of a notebook; return the displays of cells by number, and pages by name.

    The last line of a cell is displayed, if it is an expression of an object with a display. An
    interactive page becomes a page of the site, which the display shows in a frame.
    """
    names: dict[str, Any] = {}
    displays: dict[int, str] = {}
    pages: dict[str, str] = {}
    for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(tree, path.name, "exec"), names)
            if not isinstance(last, ast.Expr):
                continue
            value = eval(compile(ast.Expression(last.value), path.name, "eval"), names)
        if hasattr(value, "page"):
            name = f"{path.stem}-{number}"
            pages[name] = value.page
            displays[number] = (
                f'<iframe src="pages/{name}.html" title="interactive page" width="100%"'
                f' height="{value.height}"></iframe>'
            )
        elif hasattr(value, "_repr_html_"):
            displays[number] = " ".join(value._repr_html_().split("\n"))
    return displays, pages


def convert_notebook(path: Path, displays: Mapping[int, str] = MappingProxyType({})) -> str:
    """Return the cells of a notebook, the texts that they print, and their displays in Markdown."""
    parts = []
    for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        source = "".join(cell["source"]).rstrip("\n")
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join(line for output in cell["outputs"] for line in output["text"])
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
        if number in displays:
            parts.append(displays[number])
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the repository lead to their pages."""
    if page.file.src_uri.startswith(f"{ZOO}/"):
        # Pages of a build, whose links lead to each other.
        return markdown
    addresses = {path.resolve(): address for address, path in _pages().items()}
    addresses |= addresses_of_documents(config)
    source = Path(page.file.abs_src_path or "")
    depth = page.file.src_uri.count("/")

    def replaced(match: re.Match[str]) -> str:
        target = (source.parent / match[1]).resolve()
        address = addresses.get(target)
        if address is None:
            return match[0] if (ROOT / "docs") in target.parents else _named(match)
        return f"]({'../' * depth}{address}{match[2] or ''})"

    markdown = LINK.sub(replaced, markdown)
    if page.file.src_uri == "gallery.md":
        markdown += list_interactive_pages()
    if page.file.src_uri == "zoo.md":
        markdown += f"\n## Results\n\n[Results of a small build]({ZOO}/index.md)\n"
    if source == GLOSSARY or page.file.src_uri.startswith(("reference/", "schemas/", "changelog")):
        return markdown
    return link_terms(markdown, f"{'../' * depth}glossary.md")


def read_terms() -> dict[str, str]:
    """Return the terms of the glossary (its headings of level 3) with their anchors."""
    terms = re.findall(r"^### (.+)$", GLOSSARY.read_text(), re.MULTILINE)
    return {term: term.lower().replace(" ", "-") for term in terms}


def link_terms(markdown: str, glossary: str) -> str:
    """Link the first use of each term of the glossary in the paragraphs of a page.

    Headings, tables, indented lines, blocks of code and inline code stay as they are. The plural
    with `s` counts as a use; the longest term wins where several match.
    """
    unused = read_terms()

    def link(text: str) -> str:
        terms = "|".join(re.escape(term) for term in sorted(unused, key=len, reverse=True))
        if not terms:
            return text
        pattern = re.compile(rf"(?<![\w-])({terms})(s|es)?(?![\w-])", re.IGNORECASE)

        def replace(match: re.Match[str]) -> str:
            term = next((term for term in unused if term.lower() == match[1].lower()), None)
            if term is None:
                return match[0]
            return f"[{match[0]}]({glossary}#{unused.pop(term)})"

        return pattern.sub(replace, text)

    lines, is_code = [], False
    for line in markdown.splitlines():
        if line.startswith("```"):
            is_code = not is_code
        if is_code or line.startswith(("```", "#", "|", "    ", "!!!", "---", "<")):
            lines.append(line)
            continue
        parts = UNLINKED.split(line)
        lines.append(
            "".join(link(part) if index % 2 == 0 else part for index, part in enumerate(parts))
        )
    return "\n".join(lines) + "\n"


def addresses_of_documents(config: MkDocsConfig) -> dict[Path, str]:
    """The documents of this folder by their files."""
    folder = Path(config.docs_dir)
    addresses = {
        path.resolve(): path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file()
    }
    # The site shows a notebook as a page.
    return {
        path: address.removesuffix(".ipynb") + ".md" if path.suffix == ".ipynb" else address
        for path, address in addresses.items()
    }


def _named(match: re.Match[str]) -> str:
    """A file of the repository that has no page is named, not linked."""
    return f"] (`{match[1]}`)"


def on_page_content(html: str, **_: Any) -> str:
    """Let the keyboard scroll wide tables and blocks of code."""
    html = html.replace("<table>", '<table tabindex="0">')
    return re.sub(r"<pre\b(?=[^>]*>(?:<span></span>)?<code)", '<pre tabindex="0"', html)


# The names of collectives in the field: search finds both spellings.
_SPELLINGS = re.compile(r"\b(all-reduce|all-to-all|all-gather|reduce-scatter)\b", re.IGNORECASE)


def on_post_build(config: MkDocsConfig) -> None:
    """Let the search for `allreduce` find pages that write `all-reduce`."""
    path = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(path.read_text("utf-8"))
    for entry in index["docs"]:
        spelled = _SPELLINGS.findall(f"{entry['title']} {entry['text']}")
        words = sorted({word.lower().replace("-", "") for word in spelled})
        if words:
            entry["text"] += f" ({', '.join(words)})"
    path.write_text(json.dumps(index, ensure_ascii=False), "utf-8")


def on_post_page(output: str, **_: Any) -> str:
    """Name the search dialog for screen readers."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
