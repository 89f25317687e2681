"""Pages and JSON Schemas derived from the declarations of the core and of all installed plugins.

`python -m hub_core.testing.generated_pages commands > docs/scripts.md`: the page for scripts and
agents, with usage, exit codes and JSON schemas of all commands.
`python -m hub_core.testing.generated_pages rules > docs/rules.md`: the rules of all findings.
`python -m hub_core.testing.generated_pages schemas FOLDER`: the JSON Schemas of all reports of the
core and of all installed packages `collhub_*`, one file `NAME.json` per schema `collhub/NAME`. Each
schema is derived from the class of the report (`hub_core.reports`). Other files of the folder
remain.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import msgspec

from hub_core.model import ExitCode
from hub_core.plugin_api import Command, Rule, resolve
from hub_core.registry.plugins import Registry
from hub_core.reports import build_schema, get_schema_name

_MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.INVALID: "the input is invalid, or a check failed",
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.PLUGIN: "a plugin is missing, broken or incompatible",
    ExitCode.LOSSY: "refused under `--strict`: the conversion would lose data",
    ExitCode.BUG: "a bug of collhub",
}
_COMMANDS_HEAD = """# Scripts and agents

Scripts use the commands with `--json`, or [the Python API](reference/hub_core.md). With `--json`,
standard output is one JSON object whose member `schema` names its schema: `collhub/NAME-1` is the
file `NAME-1.json` in `hub_core/schemas` of the installed package (`schemas/` of the repository).
A schema gets further members under the same number; a member that is removed or changes its meaning
gets a schema with the next number. All other messages are on standard error. This page is
generated: `python -m hub_core.testing.generated_pages commands > docs/scripts.md`.

## Messages

An error, a warning or a note is one line on standard error; an unknown part is omitted:

```text
SEVERITY: FILE:LINE: rank RANK, step STEP: MESSAGE; CURE [RULE]
error: bad.xml:1: the file ends before its first element; get the complete file [truncated]
```

SEVERITY is `error`, `warning` or `note`. RULE is the identifier of the rule, the member `code` of a
finding in JSON and `ruleId` in SARIF: `collhub explain RULE` prints its page, with `--json` as an
object. The severity at the start, the identifier in brackets at the end, and the identifier of a
rule are stable; the text in between may change. Lines have no identifier if they report a request
without a rule of its own (`usage` in JSON), options that the command does not have, an error of the
operating system, an interrupt or a bug, and if they are no findings, such as `wrote ring.json`. On
a terminal with colours the identifier is dim.

## Exit codes

| code | meaning |
|---|---|
"""
_RULES_HEAD = """# Rules

Every finding has a rule, whose identifier does not change. `collhub explain RULE` prints its page,
`collhub explain` lists all rules of the installed plugins. Different checks may use the same
identifier. This page is generated from the declarations:
`python -m hub_core.testing.generated_pages rules > docs/rules.md`.
"""
_CALL = re.compile(r"`collhub ([^`]*--json)`")
# A document, other than a report, that a command prints with --json, as its help names it.
_DOCUMENT = re.compile(r"--json prints [^.]*, schema ([\w/-]+)")
_EXIT = re.compile(r"\b[Ee]xit\b")
_END_OF_SENTENCE = re.compile(r"(?<=\.)\s+(?=[A-Z-])")
_PREFIX = "collhub/"
# The source text of a class that defines a report; modules without it are not imported.
_MARK = f'tag="{_PREFIX}'


def format_command_page(registry: Registry) -> str:
    """Return the page of exit codes and of all loaded commands in Markdown.

    Each command has one section, a group of commands one per command in it. Commands of the
    core come first, then those of plugins, each sorted by name. Offers that are no click
    commands are omitted. All command modules are imported.
    """
    schemas = _list_schemas()
    parts = [_COMMANDS_HEAD, *(f"| {int(code)} | {text} |\n" for code, text in _MEANINGS.items())]
    parts.append(
        "\nAlso 130 after Ctrl-C and 141 if the reader of standard output has closed the pipe.\n"
        "\n## Commands\n"
    )
    for provided in sorted(registry.all(Command), key=lambda one: not one.plugin.is_core):
        command = resolve(provided.offer.function)
        if isinstance(command, click.Command):
            for name, leaf in _list_leaves(provided.name, command):
                parts.append(_describe_command(name, leaf, schemas.get(name, [])))
    return "".join(parts)


def format_rules_page(rules: Mapping[str, Sequence[Rule]]) -> str:
    """Return the page of all rules in Markdown, with one section per identifier.

    `rules`: declarations by identifier, in the order of the page. A section has the pages
    of all declarations of its identifier. Outside of code, `<` and `*` are escaped.
    """
    parts = [_RULES_HEAD]
    for name, declarations in rules.items():
        parts.append(f"\n## {name}\n")
        parts += [f"\n{_escape_outside_code(declared.page)}" for declared in declarations]
    return "".join(parts)


def _list_schemas() -> dict[str, list[tuple[str, str]]]:
    """Return by command name, such as `plugins list`, the (call, schema name) of its reports.

    A call is a text such as `collhub plugins list --json`, without `collhub`, in the first
    paragraph of the docstring of a report class. It belongs to all commands of
    `_list_names`. The pairs are in the order of `find_reports`. A report without a call is
    omitted.
    """
    schemas: dict[str, list[tuple[str, str]]] = {}
    for report in find_reports():
        summary = (report.__doc__ or "").split("\n\n")[0]
        for call in _CALL.findall(summary):
            for name in _list_names(call.split()):
                schemas.setdefault(name, []).append((call, get_schema_name(report)))
    return schemas


def _list_names(words: list[str]) -> Iterator[str]:
    """Yield the names of the commands in a call: the first word, then it with each subcommand.

    `words`: the words of the call, at least one. The second word has the subcommands,
    separated by `|`; only those that consist of letters count. `plugins list|show --json`
    gives `plugins`, `plugins list` and `plugins show`.
    """
    yield words[0]
    if len(words) > 1:
        yield from (f"{words[0]} {part}" for part in words[1].split("|") if part.isalpha())


def _list_leaves(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield (full name, command) for all commands below a command that are no groups.

    A command that is no group is yielded itself. The subcommands of a group are visited in
    the order of its `list_commands`, and a nested group is replaced by its subcommands. A
    full name is `name` with the names of the subcommands, such as `plugins list`.
    """
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command, info_name=name)
    for part in command.list_commands(context):
        child = command.get_command(context, part)
        if child is not None:
            yield from _list_leaves(f"{name} {part}", child)


def _describe_command(name: str, command: click.Command, schemas: list[tuple[str, str]]) -> str:
    context = click.Context(command, info_name=name)
    usage = " ".join((f"collhub {name}", *command.collect_usage_pieces(context)))
    lines = [f"\n### {name}\n", f"\n{command.get_short_help_str(200)}\n", f"\n`{usage}`\n"]
    # The sentences on exit codes: in each paragraph, those from the first one with `exit` on.
    stated_codes: list[str] = []
    for paragraph in (command.help or "").split("\n\n"):
        sentences = _END_OF_SENTENCE.split(" ".join(paragraph.split()))
        first = next((k for k, part in enumerate(sentences) if _EXIT.search(part)), len(sentences))
        stated_codes += sentences[first:]
    codes = " ".join(stated_codes) or "0 done, otherwise as above."
    escaped = codes.replace("<", "&lt;").replace("*", r"\*")
    lines.append(f"\n- Exit codes: {escaped}\n")
    for call, schema in schemas:
        lines.append(f"- `collhub {call}`: [`{schema}`](../schemas/{schema.split('/')[1]}.json)\n")
    stated = _DOCUMENT.search(command.help or "")
    if stated is not None:
        file = f"{stated[1].removeprefix('collhub').strip('-/').replace('/', '-')}.json"
        lines.append(f"- `collhub {name} --json`: [`{stated[1]}`](../schemas/{file})\n")
    elif not schemas:
        has_json = any("--json" in parameter.opts for parameter in command.params)
        text = "`--json` prints a document that names its schema" if has_json else "no `--json`"
        lines.append(f"- {text}\n")
    return "".join(lines)


def _escape_outside_code(text: str) -> str:
    """Escape `<` (as `&lt;`), which begins HTML, and `*` (by a backslash) outside of code.

    Code is the text between two backquotes of a Markdown text; the text after an unpaired backquote
    counts as code.
    """
    parts = text.split("`")
    return "`".join(
        part if number % 2 else part.replace("<", "&lt;").replace("*", r"\*")
        for number, part in enumerate(parts)
    )


def write_schemas(folder: Path) -> list[str]:
    """Write the schemas of all reports into an existing folder; return the sorted file names.

    The schema `collhub/NAME` is written to `NAME.json`, and the returned name is
    `NAME.json`. Existing files of these names are replaced; other files in the folder
    remain. Raise `FileNotFoundError` if the folder does not exist, and `ValueError` if two
    classes define one schema (no file is written then).
    """
    texts = {f"{name.removeprefix(_PREFIX)}.json": text for name, text in format_schemas().items()}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return sorted(texts)


def format_schemas() -> dict[str, str]:
    """Return the JSON Schema of every report as text by its name, such as `collhub/NAME`.

    The order is that of `find_reports`. Texts are indented by 2 and end with a line break.
    All modules with reports are imported. Raise `ValueError` if two classes have the same
    schema name.
    """
    texts: dict[str, str] = {}
    for report in find_reports():
        name = get_schema_name(report)
        if name in texts:
            raise ValueError(f"two classes define the report {name}")
        texts[name] = json.dumps(build_schema(report), indent=2) + "\n"
    return texts


def find_reports() -> Iterator[type[msgspec.Struct]]:
    """Yield the report classes of the core and of all installed packages `collhub_...`.

    A report is a msgspec record whose tag begins with `collhub/`. The core comes first,
    then the packages by name; in a package the order is that of the module paths, in a module
    that of the definitions. Only modules whose text contains such a tag are imported;
    exceptions of an import are not caught.
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
    # Imported here: the functions above need no plugins.
    from hub_core.pipeline.core_rules import collect_rules
    from hub_core.registry.discovery import discover

    match sys.argv[1:]:
        case ["commands"]:
            sys.stdout.write(format_command_page(discover()))
        case ["rules"]:
            sys.stdout.write(format_rules_page(collect_rules(discover())))
        case ["schemas", folder_name]:
            for written in write_schemas(Path(folder_name)):
                print(written)
        case _:
            sys.exit("give commands, rules, or schemas FOLDER")
