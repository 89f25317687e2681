"""Write the JSON Schemas of all reports: `python -m hub_core.testing.report_schemas FOLDER`.

Each schema is derived from the class of the report (`hub_core.reports`). The reports of the core
and of all installed packages `collhub_*` are written, one file `NAME.json` per schema
`collhub/NAME`; other files of the folder remain.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hub_core.reports import build_schema, get_schema_name

_PREFIX = "collhub/"
# The source text of a class that defines a report; modules without it are not imported.
_MARK = f'tag="{_PREFIX}'


def write_schemas(folder: Path) -> list[str]:
    """Write the schemas of all reports into an existing folder; return the files' sorted names.

    A schema `collhub/NAME` is written to `NAME.json`, which is replaced if it exists. Other files
    in the folder remain.
    """
    texts = {f"{name.removeprefix(_PREFIX)}.json": text for name, text in format_schemas().items()}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return sorted(texts)


def format_schemas() -> dict[str, str]:
    """Return the JSON text of every schema by its name, `collhub/NAME`.

    The order is that of packages and modules. Texts are indented by 2 and end with a line break.
    Raises `ValueError` if two classes define one schema.
    """
    texts: dict[str, str] = {}
    for report in find_reports():
        name = get_schema_name(report)
        if name in texts:
            raise ValueError(f"two classes define the report {name}")
        texts[name] = json.dumps(build_schema(report), indent=2) + "\n"
    return texts


def find_reports() -> Iterator[type[msgspec.Struct]]:
    """Yield the classes of reports, by package and module.

    The packages are `hub_core`, then all installed top-level packages `collhub_...` in alphabetical
    order; modules are ordered by path. Only modules whose text contains the tag of a report are
    imported.
    """
    packages = [name for _, name, _ in pkgutil.iter_modules() if name.startswith("collhub_")]
    for package in ("hub_core", *sorted(packages)):
        specification = importlib.util.find_spec(package)
        folders = specification.submodule_search_locations if specification else None
        for folder in folders or ():
            for path in sorted(Path(folder).rglob("*.py")):
                if _MARK in path.read_text("utf-8"):
                    parts = path.relative_to(folder).with_suffix("").parts
                    yield from _list_reports(".".join((package, *parts)))


def _list_reports(module_name: str) -> Iterator[type[msgspec.Struct]]:
    module = importlib.import_module(module_name)
    for value in vars(module).values():
        if not isinstance(value, type) or not issubclass(value, msgspec.Struct):
            continue
        is_report = str(value.__struct_config__.tag).startswith(_PREFIX)
        if is_report and value.__module__ == module_name:
            yield value


if __name__ == "__main__":
    for written in write_schemas(Path(sys.argv[1])):
        print(written)
