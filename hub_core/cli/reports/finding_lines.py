"""Lines of findings: of a byte in a text file, or of a path in a JSON document."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from hub_core.model.diagnostics import Diagnostic

# Larger files are not searched.
_MAX_SEARCHED_BYTES = 64 << 20
# The path with which readers of JSON begin a message, such as `$.gpus[0].id: expected ...`.
_PATH = re.compile(r"\$(?:\.[\w-]+|\[\d+\]|\['[^']*'\])*(?=:? )")
_PART = re.compile(r"\.([\w-]+)|\[(\d+)\]|\['([^']*)'\]")
_BLANKS = re.compile(r"[ \t\r\n]*")
_PARSER = json.JSONDecoder()


class FileLines:
    """Lines of findings; the text of the last file is kept, because findings follow by file."""

    def __init__(self) -> None:
        self._file: str | None = None
        self._content = b""

    def find_line(self, file: str, finding: Diagnostic, *, has_bytes: bool) -> int:
        """Return the 1-based line of a finding in `file`; 1 if it is not known.

        The first of these that the finding has decides:

        1. The line of its location, if it is at least 1.
        2. The byte of its location: the line of this byte. It is 1 if a zero byte precedes it in
           the file (a binary file). It is also 1 if `has_bytes` is False: the byte is of another
           file.
        3. The JSON path of its location, otherwise the path at the start of its message, such as
           `$.gpus[0].id: expected ...`: the line that `find_json_line` returns.

        Rules 2 (with `has_bytes`) and 3 read the first 64 MiB of the file. They are cached until
        another file is read. A file that cannot be read counts as empty. Nothing is raised.
        """
        location = finding.location
        if location.line is not None and location.line >= 1:
            return location.line
        if location.byte is not None:
            head = self._read(file)[: location.byte] if has_bytes else b""
            # Traces are binary; a null byte does not occur in text.
            return 1 if b"\0" in head else head.count(b"\n") + 1
        path = location.path
        if path is None:
            match = _PATH.match(finding.message)
            path = match[0] if match else None
        return 1 if path is None else find_json_line(self._read(file), path)

    def _read(self, file: str) -> bytes:
        """Return the first 64 MiB of a file; empty if it cannot be read.

        The content of the last file is cached.
        """
        if file != self._file:
            self._file = file
            try:
                with open(file, "rb") as stream:
                    self._content = stream.read(_MAX_SEARCHED_BYTES)
            except (OSError, ValueError):
                self._content = b""
        return self._content


def find_json_line(content: bytes, path: str) -> int:
    """Return the 1-based line on which the value at a JSON path begins.

    Parts of a path are `.name`, `['name']` and `[index]`, such as `$.gpus[0].channels`. The search
    goes from the root inwards. It stops where the next part does not exist, or where the JSON
    before this part is invalid. The result is the line of the innermost value that was found, at
    least that of the first character that is not white space. Returns 1 for content that is not
    UTF-8.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return 1
    at = _skip_blanks(text, 0)
    parts: Sequence[str | int] = [
        int(match[2]) if match[2] else match[1] or match[3] or "" for match in _PART.finditer(path)
    ]
    for part in parts:
        inner = _find_member(text, at, part)
        if inner is None:
            break
        at = inner
    return text.count("\n", 0, at) + 1


def _find_member(text: str, at: int, part: str | int) -> int | None:
    """Return the position in `text` at which the value of a member or element begins.

    `at`: position of the opening bracket of the object or list. `part`: a string is the name of a
    member of an object; an integer is the index of an element of a list, from 0. Of equal names,
    the first counts.

    Returns None if the character at `at` is not the bracket of this kind, if there is no such part,
    or if the JSON before the value is invalid or too deeply nested. Exception: missing commas, and
    a comma before the closing bracket, are accepted. The text from the value on is not checked.
    """
    is_object = isinstance(part, str)
    if text[at : at + 1] != ("{" if is_object else "["):
        return None
    at = _skip_blanks(text, at + 1)
    number = 0
    try:
        while text[at : at + 1] not in ("", "}", "]"):
            name: object = number
            if is_object:
                name, at = _PARSER.raw_decode(text, at)
                at = _skip_blanks(text, at)
                if text[at : at + 1] != ":":
                    return None
                at = _skip_blanks(text, at + 1)
            if name == part:
                return at
            _, at = _PARSER.raw_decode(text, at)
            at = _skip_blanks(text, at)
            if text[at : at + 1] == ",":
                at = _skip_blanks(text, at + 1)
            number += 1
    except (ValueError, RecursionError):
        return None
    return None


def _skip_blanks(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return match.end() if match else at
