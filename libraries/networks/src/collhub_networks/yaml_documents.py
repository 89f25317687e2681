"""YAML and JSON files of strangers: no aliases, no key twice, bounded nesting and size."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from collhub_networks.values import Value
from hub_core import parse_json_object
from hub_core.model import InputError, Location
from hub_core.plugin_api import Source

if TYPE_CHECKING:
    from yaml import SafeLoader
    from yaml.nodes import Node

_LONGEST_FILE = 1 << 26
_DEEPEST = 64


def document_of(source: Source, code: str) -> Value:
    """The object at the root of a YAML or JSON file; `code` is that of its errors.

    JSON is read by the hub's own strict parser. In YAML an alias may stand for the rest of the
    file, and a few hundred bytes for gigabytes, so that aliases are refused. Raises `InputError`
    with file and line.
    """
    content = source.content()
    if len(content) > _LONGEST_FILE:
        _fail(source.name, None, f"the file is larger than {_LONGEST_FILE >> 20} MiB", code)
    if content.lstrip()[:1] == b"{":
        return Value(source.name, _json(source, content, code), code=code)
    return Value(source.name, _yaml(source.name, content, code), code=code)


def _json(source: Source, content: bytes, code: str) -> object:
    try:
        return parse_json_object(content, source.name)
    except InputError:
        # Flow style of YAML begins with a brace as well.
        if _is_json(content):
            raise
        return _yaml(source.name, content, code)


def _is_json(content: bytes) -> bool:
    """Whether a text in braces looks like JSON: its first key is quoted, or there is none."""
    return content.lstrip()[1:].lstrip()[:1] in (b'"', b"}", b"")


def _yaml(name: str, content: bytes, code: str) -> object:
    # Imported here, as conversions that meet no YAML need not wait for it.
    import yaml

    try:
        text = content.decode("utf-8")
        root = _composed(text)
        if root is None:
            _fail(name, None, "the file is empty, a document was expected", code)
        _check(name, root, code)
        raw = yaml.SafeLoader("").construct_document(root)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        _fail(name, line, f"this is not YAML: {error.problem}", code)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        first_line = str(error).splitlines()[0]
        _fail(name, None, f"this is not YAML: {first_line}", code)
    if not isinstance(raw, dict):
        _fail(name, None, "an object of keys and values was expected at the root", code)
    return raw


def _composed(text: str) -> Node | None:
    """The tree of nodes, by the fast parser where PyYAML was built with it."""
    import yaml

    # The faster one where PyYAML was built with libyaml; both give the same nodes.
    loader: type[SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.compose(text, Loader=loader)


def _check(name: str, root: Node, code: str) -> None:
    """Refuse aliases, keys that stand twice, and deep nesting.

    An alias is the same node once more: composing a tree takes memory for every node of the file
    once, and nothing is expanded before this check.
    """
    seen: set[int] = set()
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        line = node.start_mark.line + 1
        if id(node) in seen:
            _fail(name, line, "aliases (& and *) are not read", code, "write the value out")
        if depth > _DEEPEST:
            _fail(name, line, f"values are nested deeper than {_DEEPEST} levels", code)
        seen.add(id(node))
        stack += [(child, depth + 1) for child in _children(name, node, code)]


def _children(
    name: str,
    node: Node,
    code: str,
) -> list[Node]:
    """The nodes within a node; of a mapping the values, whose keys are checked."""
    if isinstance(node.value, str):
        return []
    found: list[Node] = []
    keys: set[str] = set()
    for entry in node.value:
        if not isinstance(entry, tuple):
            found.append(entry)
            continue
        key, value = entry
        line = key.start_mark.line + 1
        if not isinstance(key.value, str):
            _fail(
                name,
                line,
                "a key is no text",
                code,
            )
        if key.value in keys:
            _fail(
                name,
                line,
                f"the key {key.value[:80]!r} stands twice",
                code,
            )
        keys.add(key.value)
        found.append(value)
    return found


def _fail(
    name: str,
    line: int | None,
    message: str,
    code: str,
    cure: str = "",
) -> NoReturn:
    raise InputError(
        message,
        location=Location(name, line),
        cure=cure,
        code=code,
    )
