"""Refuse a description of a cluster: the file, the line, what is wrong and what to do."""

from __future__ import annotations

from typing import NoReturn

from hub_core.model import InputError, Location

CODE = "invalid-fabric"
"""The code of all errors in descriptions."""


def refuse(file: str, line: int | None, message: str, cure: str = "") -> NoReturn:
    """Raise `InputError` at a line of a file, from 1, or for the file as a whole."""
    # One code for all formats here: scripts tell refused files by it, people read the message.
    raise InputError(
        message,
        location=Location(file, line),
        cure=cure,
        code=CODE,
    )
