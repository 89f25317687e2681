"""Parse untrusted YAML and JSON files: no aliases, no repeated keys, bounded nesting and size."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from collhub_networks.values import Value
from hub_core import parse_json_object
from hub_core.model import InputError, Location
from hub_core.plugin_api import Source

if TYPE_CHECKING:
    from yaml import SafeLoader
    from yaml.nodes import Node

_MAX_FILE_BYTES = 1 << 26
_MAX_DEPTH = 64


def document_of(source: Source, code: str) -> Value:
    """Parse the object at the root of a YAML or JSON file; `code`: code of its errors.

    JSON is read by the hub's strict parser. In YAML, a few hundred bytes with aliases may represent
    gigabytes, so that aliases are refused. Raises `InputError` with file and line.
    """
    content = source.content()
    if len(content) > _MAX_FILE_BYTES:
        _fail(source.name, None, f"the file is larger than {_MAX_FILE_BYTES >> 20} MiB", code)
    if content.lstrip()[:1] == b"{":
        return Value(source.name, _parse_json(source, content, code), code=code)
    return Value(source.name, _parse_yaml(source.name, content, code), code=code)


def _parse_json(source: Source, content: bytes, code: str) -> object:
    """Parse JSON, or YAML in flow style, which begins with a brace as well.

    Content that the strict JSON parser refuses is parsed as YAML if its first key is not quoted;
    otherwise the error of the JSON parser is raised (`InputError`).
    """
    try:
        return parse_json_object(content, source.name)
    except InputError:
        if _is_json(content):
            raise
        return _parse_yaml(source.name, content, code)


def _is_json(content: bytes) -> bool:
    """Whether a text in braces looks like JSON: its first key is quoted, or there is no key."""
    return content.lstrip()[1:].lstrip()[:1] in (b'"', b"}", b"")


def _parse_yaml(name: str, content: bytes, code: str) -> object:
    """Parse a YAML document in UTF-8 whose root must be an object; return the object.

    Raises `InputError` for an empty file, another root, invalid YAML or UTF-8, and what
    `_check_nodes` refuses; with the line if the parser states one.
    """
    # Imported here, since conversions without YAML do not need it.
    import yaml

    try:
        text = content.decode("utf-8")
        root = _parse_yaml_nodes(text)
        if root is None:
            _fail(name, None, "the file is empty, a document was expected", code)
        _check_nodes(name, root, code)
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


def _parse_yaml_nodes(text: str) -> Node | None:
    """Parse YAML to its node tree, None for an empty file; aliases are not expanded.

    Raises `yaml.YAMLError` for invalid YAML and for several documents.
    """
    import yaml

    # The fast parser, if PyYAML was built with libyaml; both give the same nodes.
    loader: type[SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.compose(text, Loader=loader)


def _check_nodes(name: str, root: Node, code: str) -> None:
    """Refuse aliases, repeated keys, keys that are no text, and deep nesting.

    Raises `InputError` with the line. An alias is the same node object again: composing the tree
    takes memory only once per node of the file, and aliases are expanded only after this check. The
    root has depth 0, and nodes of a depth above 64 are refused. Keys are compared as written, so
    `1` and `"1"` are equal; only sequences and mappings are no text. `name`: of the file; `code`:
    of the error.
    """
    seen: set[int] = set()
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        line = node.start_mark.line + 1
        if id(node) in seen:
            _fail(name, line, "aliases (& and *) are not read", code, "write the value out")
        if depth > _MAX_DEPTH:
            _fail(name, line, f"values are nested deeper than {_MAX_DEPTH} levels", code)
        seen.add(id(node))
        stack += [(child, depth + 1) for child in _find_children(name, node, code)]


def _find_children(
    name: str,
    node: Node,
    code: str,
) -> list[Node]:
    """Return the child nodes: none of a scalar, the entries of a sequence, the values of a mapping.

    Raises `InputError` at the line of a key that is no text or that occurred before in the mapping.
    Keys themselves are not returned.
    """
    if isinstance(node.value, str):
        return []
    children: list[Node] = []
    keys: set[str] = set()
    for entry in node.value:
        if not isinstance(entry, tuple):
            children.append(entry)
            continue
        key, value = entry
        line = key.start_mark.line + 1
        if not isinstance(key.value, str):
            _fail(
                name,
                line,
                "a key is not a text",
                code,
            )
        if key.value in keys:
            _fail(
                name,
                line,
                f"the key {key.value[:80]!r} occurs twice",
                code,
            )
        keys.add(key.value)
        children.append(value)
    return children


def _fail(
    name: str,
    line: int | None,
    message: str,
    code: str,
    cure: str = "",
) -> NoReturn:
    """Raise `InputError` with this message, cure and code, at a line of the file `name`; None for
    the file as a whole.
    """
    raise InputError(
        message,
        location=Location(name, line),
        cure=cure,
        code=code,
    )
