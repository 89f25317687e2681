"""Formats: how files of one kind are named, recognised and laid out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Layout(StrEnum):
    """How a format's artifacts lie on disk: one file; one file a rank behind a prefix; a folder."""

    FILE = "file"
    PREFIX = "prefix"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class Format:
    """A format by name. Detection is declarative: suffixes first, then `signature`.

    `suffixes`: file name endings with the dot (`.xml`). `signature`: a regular expression (bytes)
    searched in the first 4096 bytes, empty for none. PREFIX: part files are
    `PREFIX.<rank><suffix>`. FOLDER: both are those of a file directly in the folder that tells what
    the folder is. A format of which a suffix ends in `.gz` is also read from gzip archives of any
    name: its reader gets the decompressed content, in which the signature is searched. `members`:
    the usual top-level members of a JSON format, by which errors name the format nearest to a file
    that no reader recognises.
    """

    name: str
    description: str
    suffixes: tuple[str, ...]
    signature: bytes = b""
    layout: Layout = Layout.FILE
    members: tuple[str, ...] = ()

    @property
    def accepts_gzip(self) -> bool:
        """Whether files of the format may be gzip archives."""
        return any(suffix.endswith(".gz") for suffix in self.suffixes)


@dataclass(frozen=True, slots=True)
class FormatOffer:
    """What readers and writers have in common: they are called as their format is."""

    format: Format

    @property
    def name(self) -> str:
        """The name of the format."""
        return self.format.name
