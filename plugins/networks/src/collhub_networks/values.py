"""YAML and JSON documents: their values with position, and findings about accepted input.

Files are untrusted: no aliases, no repeated keys, bounded nesting and size.

Every error names file and path; findings of a reader are collected and reported once per kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, NoReturn

from hub_core import parse_json_object
from hub_core.model import Diagnostic, InputError, Location, Severity
from hub_core.plugin_api import Source

if TYPE_CHECKING:
    from yaml import SafeLoader
    from yaml.nodes import Node

_MAX_SHOWN_CHARACTERS = 80
_MAX_DIGITS = 40
_MAX_EXPONENT = 99
_TYPE_NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "nothing",
}


@dataclass(frozen=True, slots=True)
class DocumentValue:
    """A value of a document: `raw` as parsed, `path` such as `$.links[3].name`, and the file.

    `code`: code of the errors. All methods raise `InputError` with file, path, expected and actual
    value.
    """

    file: str
    raw: object
    path: str = "$"
    code: str = "invalid-document"

    def fail(
        self,
        message: str,
        cure: str = "",
    ) -> NoReturn:
        """Raise `InputError` with a message that begins with the path of this value.

        The location is the file, and the code is `self.code`. `cure`: what the user can do about
        it.
        """
        place = Location(self.file)
        raise InputError(
            f"{self.path}: {message}",
            location=place,
            cure=cure,
            code=self.code,
        )

    def __getitem__(self, key: str) -> DocumentValue:
        """Return the value of a required key, with its path.

        Raises `InputError` if the key is absent or null (the cure then lists the first 8 keys of
        the object), and if this value is no object.
        """
        # Null counts as absent: some writers emit keys without values.
        value = self.get(key)
        if value is None:
            keys = ", ".join(map(str, list(self._require_object())[:8]))
            self.fail(f"{key!r} is missing", f"add {key}; the keys are: {keys or 'none'}")
        return value

    def get(self, key: str) -> DocumentValue | None:
        """Return the value of a key, or `None` if the key is absent or its value is null.

        Raises `InputError` if this value is no object.
        """
        raw = self._require_object().get(key)
        return None if raw is None else self._build_child(f".{key}", raw)

    def entries(self) -> Iterator[tuple[str, DocumentValue]]:
        """Yield keys (as text) and values of an object, in the order of the file.

        Raises `InputError` for a value that is no object.
        """
        for key, raw in self._require_object().items():
            name = str(key)
            yield name, self._build_child(f".{name[:_MAX_SHOWN_CHARACTERS]}", raw)

    def items(self) -> Iterator[DocumentValue]:
        """Yield the values of a list in their order, each with its path.

        Raises `InputError` at the first value that is requested if this value is no list.
        """
        if not isinstance(self.raw, list):
            self._fail_type("a list")
        for index, raw in enumerate(self.raw):
            yield self._build_child(f"[{index}]", raw)

    def items_of(self, key: str) -> Iterator[DocumentValue]:
        """Yield the values of the list at a key in their order; none if the key is absent or null.

        Raises `InputError`, when the first value is requested, if the value at the key is no
        list, or if this value is no object.
        """
        value = self.get(key)
        if value is not None:
            yield from value.items()

    def text(self) -> str:
        """Return the value as a text that is not empty.

        Integers are converted to text, since YAML parses a name `7` as a number. Raises
        `InputError` for all other types, also for true and false, and for an empty text.
        """
        if isinstance(self.raw, int) and not isinstance(self.raw, bool):
            return str(self.raw)
        if not isinstance(self.raw, str) or not self.raw:
            self._fail_type("text")
        return self.raw

    def text_of(
        self,
        key: str,
        default: str,
    ) -> str:
        """Return the text at a key, or `default` if the key is absent or null.

        Integers are converted to text. Raises `InputError` for other types and for an empty text.
        """
        value = self.get(key)
        return default if value is None else value.text()

    def count(self, maximum: int) -> int:
        """Return the value as an integer in 1..`maximum`, both included.

        Raises `InputError` for integers out of this range, and for other types: true, false, and
        numbers with a decimal point such as 2.0.
        """
        # In Python, True is an integer; in a document it is not.
        if not isinstance(self.raw, int) or isinstance(self.raw, bool):
            self._fail_type("a whole number")
        if not 1 <= self.raw <= maximum:
            shown = str(self.raw)[:_MAX_SHOWN_CHARACTERS]
            self.fail(f"{shown} is not in 1..{maximum}", "check for a digit too many")
        return self.raw

    def number(self) -> Decimal:
        """Return the value as a finite decimal number, exactly as the file states it.

        Integers, floats and texts of numbers are accepted; YAML parses `1e3` as text. Blanks around
        the number in a text are ignored. A number that the parser converted to a float keeps only
        the digits of a double. The number may be negative.

        Raises `InputError` with the code `self.code` for true and false, null, lists and objects,
        infinities and NaN, a magnitude of 1e100 or more, any other text, a text with `_`, and more
        than 40 characters (blanks and sign included).
        """
        # YAML parses 1e3, without point and sign, as text.
        is_number = isinstance(self.raw, int | float | str) and not isinstance(self.raw, bool)
        # The shortest text of a float is the text of the file, up to digits beyond double
        # precision.
        text = repr(self.raw) if isinstance(self.raw, float) else str(self.raw)
        if not is_number or len(text) > _MAX_DIGITS or "_" in text:
            self._fail_type("a number")
        try:
            number = Decimal(text)
        except InvalidOperation:
            self._fail_type("a number")
        if not number.is_finite():
            self._fail_type("a finite number")
        if number and number.adjusted() > _MAX_EXPONENT:
            # Products of such numbers may exceed the range of decimals.
            self._fail_type(f"a number below 1e{_MAX_EXPONENT + 1}")
        return number

    def _require_object(self) -> dict[str, object]:
        """Return the value as a dictionary; it may be empty.

        Raises `InputError` for another type.
        """
        if not isinstance(self.raw, dict):
            self._fail_type("an object")
        return self.raw

    def _fail_type(self, expected: str) -> NoReturn:
        """Raise `InputError` for a value of a wrong type.

        The message states the expected type (`expected`, in words) and the actual type. For a text,
        its first `_MAX_SHOWN_CHARACTERS` characters follow.
        """
        actual = _TYPE_NAMES.get(type(self.raw), type(self.raw).__name__)
        shown = f" {self.raw[:_MAX_SHOWN_CHARACTERS]!r}" if isinstance(self.raw, str) else ""
        self.fail(f"expected {expected}, got {actual}{shown}")

    def _build_child(
        self,
        step: str,
        raw: object,
    ) -> DocumentValue:
        """Wrap `raw` as a value of the same file and code; `step` is appended to the path without a
        separator.
        """
        return DocumentValue(
            self.file,
            raw,
            self.path + step,
            self.code,
        )


class NetworkFindings:
    """Warnings and notes by code and subject, in order of their first occurrence.

    A network repeats its devices, so missing data is missing in many places: the user gets the
    first place and the number of places.
    """

    def __init__(self) -> None:
        self._by_subject: dict[tuple[str, str], tuple[Diagnostic, int]] = {}

    def warn(
        self, code: str, place: Location, message: str, cure: str = "", *, subject: str = ""
    ) -> None:
        """Record a warning at a place.

        The first one of a code and a subject gives the message; warnings of one code on different
        subjects, such as names of elements, are separate.
        """
        self._add(Diagnostic(code, message, Severity.WARNING, place, cure), subject)

    def note(
        self, code: str, place: Location, message: str, cure: str = "", *, subject: str = ""
    ) -> None:
        """Record a note, for example about supplied values; otherwise as `warn`."""
        self._add(Diagnostic(code, message, Severity.NOTE, place, cure), subject)

    def tell(self, report: Callable[[Diagnostic], None]) -> None:
        """Report the first finding of every code and subject, in order of first occurrence.

        If there are more of the same, their number is appended to the message.
        """
        for first, count in self._by_subject.values():
            # Hundreds of equal lines would hide the remaining ones.
            more = f" (and {count - 1} more such places)" if count > 1 else ""
            report(replace(first, message=first.message + more))

    def _add(self, new: Diagnostic, subject: str) -> None:
        """Count a finding under its code and subject; store it if it is the first one of them.

        `subject`: the object of the finding, such as the name of a link. Findings of one code
        with the subject "" are counted together, separately from those with another subject.
        """
        first, count = self._by_subject.get((new.code, subject), (new, 0))
        self._by_subject[new.code, subject] = (first, count + 1)


_MAX_FILE_BYTES = 1 << 26
_MAX_DEPTH = 64
# Of an integer in any notation; Python formats at most 4300 decimal digits.
_MAX_CHARACTERS_OF_INTEGER = 1000


def document_of(source: Source, code: str) -> DocumentValue:
    """Parse a YAML or JSON file whose root is an object; return the root value.

    A file whose first character other than white space is `{` is parsed by the hub's strict
    JSON parser (if that refuses it and its first key is not quoted, as YAML), every other
    file as YAML. Raises `InputError`, with the line if it is known, for a file larger than
    64 MiB, for an empty file, another type of root and invalid content. Repeated keys are
    refused, and aliases of YAML, since a few hundred bytes with aliases can represent
    gigabytes. `code`: code of the errors and of the values; errors of the JSON parser have
    the code `invalid-json` instead.
    """
    content = source.content()
    if len(content) > _MAX_FILE_BYTES:
        _fail(source.name, None, f"the file is larger than {_MAX_FILE_BYTES >> 20} MiB", code)
    if content.lstrip()[:1] == b"{":
        try:
            return DocumentValue(source.name, parse_json_object(content, source.name), code=code)
        except InputError:
            # It may be YAML in flow style. JSON has a quoted first key, or no key.
            if content.lstrip()[1:].lstrip()[:1] in (b'"', b"}", b""):
                raise
    return DocumentValue(source.name, _parse_yaml(source.name, content, code), code=code)


def _parse_yaml(name: str, content: bytes, code: str) -> object:
    """Parse a YAML document in UTF-8 whose root is an object; return this object.

    `name`: of the file, `code`: of the errors. Raises `InputError` in these cases, with a line if
    the parser or the check gives one:

    - the file is empty, or its root is no object
    - invalid UTF-8 or YAML, also YAML that is nested too deeply
    - everything that `_check_nodes` refuses
    - a value that does not fit its tag or type, such as `!!bool foo` or the date `2026-99-99`
    """
    # Imported here, since conversions without YAML do not need it.
    import yaml

    try:
        text = content.decode("utf-8")
        # The fast parser, if PyYAML was built with libyaml; both give the same nodes. Aliases are
        # not expanded: an alias is the node object to which it refers.
        loader: type[SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        root = yaml.compose(text, Loader=loader)
        if root is None:
            _fail(name, None, "the file is empty, a document was expected", code)
        _check_nodes(name, root, code)
        try:
            raw = yaml.SafeLoader("").construct_document(root)
        except (LookupError, AttributeError):
            # PyYAML does not check the texts of explicit tags: !!bool foo is a KeyError.
            cure = "write the value without a tag"
            message = "a value does not fit its tag"
            _fail(name, _find_misfit_line(root), message, code, cure)
        except ValueError as error:
            # Such as `!!int foo` and the date 2026-99-99.
            message = f"a value is not of its type: {str(error).splitlines()[0]}"
            _fail(name, _find_misfit_line(root), message, code, "quote it if it is text")
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        _fail(name, line, f"this is not YAML: {error.problem}", code)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        first_line = str(error).splitlines()[0]
        _fail(name, None, f"this is not YAML: {first_line}", code)
    if not isinstance(raw, dict):
        _fail(name, None, "an object of keys and values was expected at the root", code)
    return raw


def _find_misfit_line(root: Node) -> int | None:
    """Return the first line with a value that PyYAML cannot construct; None if there is none.

    A value cannot be constructed if its text does not fit its explicit tag (`!!bool foo`) or the
    type of which it has the form (the date `2026-99-99`). Lines count from 1. The
    document must be a tree, without aliases.
    """
    import yaml

    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node.value, str):
            try:
                yaml.SafeLoader("").construct_document(node)
            except (LookupError, AttributeError, ValueError):
                return int(node.start_mark.line) + 1
            continue
        # Last entries first on the stack, so that the first line is reported.
        for entry in reversed(node.value):
            stack += reversed(entry) if isinstance(entry, tuple) else [entry]
    return None


def _check_nodes(name: str, root: Node, code: str) -> None:
    """Raise `InputError` if a YAML tree has content that is not read; otherwise do nothing.

    Refused are, with the line:

    - An alias, which is the same node object again, also as a key. Aliases are not expanded before
      this check.
    - Nodes of a depth above 64; the root has depth 0.
    - An integer of more than 1000 characters, in any notation.
    - A key that is a sequence or a mapping.
    - A key that occurs twice in a mapping. Keys are compared as written, so `1` and `"1"` are
      equal.

    If there are several faults, any one of them is reported. `name`: of the file; `code`: of
    the error.
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
        if node.tag.endswith(":int") and len(node.value) > _MAX_CHARACTERS_OF_INTEGER:
            _fail(name, line, f"an integer has more than {_MAX_CHARACTERS_OF_INTEGER} digits", code)
        seen.add(id(node))
        stack += [(child, depth + 1) for child in _find_children(name, node, code)]


def _find_children(
    name: str,
    node: Node,
    code: str,
) -> list[Node]:
    """Return the child nodes of a YAML node: list entries, or the keys and values of a mapping.

    A scalar has none. Each key of a mapping precedes its value. Raises `InputError` with the line
    for a key that is no scalar, and for a key that occurs twice as written.
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
        children += [key, value]
    return children


def _fail(
    name: str,
    line: int | None,
    message: str,
    code: str,
    cure: str = "",
) -> NoReturn:
    """Raise `InputError` with this message, cure and code, at a line of the file `name`. With
    the line None, the error belongs to the entire file.
    """
    raise InputError(
        message,
        location=Location(name, line),
        cure=cure,
        code=code,
    )
