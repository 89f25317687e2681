"""The one error of this package: what is wrong with a file, and where."""

from __future__ import annotations


class TraceError(ValueError):
    """A file that is no set of traces as readers take them.

    `reason`, `cure`: what is wrong and what to do about it, the latter empty where nothing is
    known. `code`: the same for all defects of a kind. `file`; `byte`: 0-based offset in it;
    `rank`: both None where the defect has no such place.
    """

    def __init__(
        self,
        reason: str,
        file: str,
        *,
        code: str,
        byte: int | None = None,
        rank: int | None = None,
        cure: str = "",
    ) -> None:
        super().__init__(f"{file}: {reason}")
        self.reason = reason
        self.file = file
        self.code = code
        self.byte = byte
        self.rank = rank
        self.cure = cure
