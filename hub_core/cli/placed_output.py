"""Where an output that is made from an input goes: into a folder, but not over the input."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hub_core.model import UsageError

if TYPE_CHECKING:
    from hub_core.cli.session import ChosenOutput
    from hub_core.pipeline.inputs import OpenedAlgorithm

_UNNAMED = "algorithm"


def placed(target: ChosenOutput, opened: OpenedAlgorithm, *, force: bool) -> ChosenOutput:
    """The output with its final place.

    `folder/` becomes a file or a prefix in that folder, called after the input, unless the format
    is a folder itself. Raises `UsageError` where the output would replace the input, without
    `force`.
    """
    target = within(target, _stem(opened))
    if not force and _replaces_input(target, opened):
        message = f"{target.out} is the input itself"
        cure = "choose another place, or overwrite with --force"
        raise UsageError(message, cure=cure, code="output-is-input")
    return target


def within(target: ChosenOutput, stem: str) -> ChosenOutput:
    """The output with a file or prefix of this name in it where it is `folder/`, else as it is."""
    from hub_core.plugin_api import Layout

    written = target.writer.offer.format
    if not target.out.endswith("/") or written.layout is Layout.FOLDER:
        return target
    suffix = written.suffixes[0] if written.layout is Layout.FILE and written.suffixes else ""
    return replace(target, out=os.path.join(target.out, stem + suffix))


def _stem(opened: OpenedAlgorithm) -> str:
    """The name of the input without the suffix of its format."""
    from hub_core.pipeline.sources import STANDARD_STREAM

    place = Path(opened.name)
    is_file = opened.source.parts[0].name == opened.name
    if not place.name or opened.source.parts[0].size is None or opened.name == STANDARD_STREAM:
        return _UNNAMED
    return place.stem if is_file else place.name


def _replaces_input(target: ChosenOutput, opened: OpenedAlgorithm) -> bool:
    from hub_core.pipeline.sources import rank_files, set_prefix
    from hub_core.plugin_api import Layout

    written = target.writer.offer.format
    replaced = [Path(target.out)]
    if written.layout is Layout.PREFIX:
        replaced = rank_files(set_prefix(Path(target.out), written.suffixes), written.suffixes)
    return any(_is_same(part.name, file) for part in opened.source.parts for file in replaced)


def _is_same(name: str, file: Path) -> bool:
    # What is not there, or no file of the system such as standard input, is not the same.
    with contextlib.suppress(OSError, ValueError):
        return os.path.samefile(name, file)
    return False
