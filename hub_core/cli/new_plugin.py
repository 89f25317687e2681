"""Write a new plugin distribution: the one of the tutorial, under another name."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path

from hub_core.model import UsageError
from hub_core.pipeline.artifacts import Content, destination
from hub_core.plugin_api import Format, Layout
from hub_core.registry.plugins import CORE_NAME

TEMPLATE = "collhub-example"
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*\Z")
_TEMPLATE_FILES = (".md", ".py", ".toml", ".typed")


def write_plugin(name: str, directory: str | None) -> tuple[Path, tuple[Path, ...]]:
    """Write the distribution `collhub-NAME` into a new or empty folder.

    Return the folder and its files.
    """
    plain = name.removeprefix("collhub-").removeprefix("collhub_")
    if not _NAME.match(plain) or plain in (CORE_NAME, "hub"):
        cure = "use lower-case letters and digits, words joined by '-'"
        raise UsageError(f"{name!r} cannot be the name of a plugin", cure=cure, code="plugin-name")
    folder = Path(directory if directory is not None else f"collhub-{plain.replace('_', '-')}")
    place = destination(folder, Format("plugin", "", (), layout=Layout.FOLDER), force=False)
    return folder, place.put(_contents(plain))


def _contents(name: str) -> Iterator[Content]:
    root = importlib.resources.files("hub_core.examples").joinpath(TEMPLATE)
    for path, file in _files(root, ""):
        yield Content(_renamed(path, name), _renamed(file.read_text("utf-8"), name).encode("utf-8"))


def _files(folder: Traversable, lead: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda found: found.name):
        if entry.is_dir() and entry.name != "__pycache__" and not entry.name.endswith(".egg-info"):
            yield from _files(entry, f"{lead}{entry.name}/")
        elif entry.is_file() and entry.name.endswith(_TEMPLATE_FILES):
            yield f"{lead}{entry.name}", entry


def _renamed(text: str, name: str) -> str:
    """The template's text with its own name, as a Python name and as a distribution's, replaced."""
    text = text.replace("collhub_example", f"collhub_{name.replace('-', '_')}")
    return re.sub(r"\bexample\b", name.replace("_", "-"), text)
