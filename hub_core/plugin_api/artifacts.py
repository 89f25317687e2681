"""Artifacts: the files that writers make, lazily, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hub_core.model.losses import Loss


@dataclass(frozen=True, slots=True, init=False)
class Artifact:
    """One file to write.

    `name`: FILE: empty; PREFIX: what follows the prefix (`.0.et`); FOLDER: a relative path.
    `content`: the bytes, or a function that returns them, called once, when the file is written.
    `executable` sets the mode of scripts. Raises `TypeError` for any other content.
    """

    name: str
    content: Callable[[], bytes]
    executable: bool = False

    def __init__(
        self, name: str, content: bytes | Callable[[], bytes], executable: bool = False
    ) -> None:
        if not isinstance(content, bytes) and not callable(content):
            kind = f"{type(content).__name__}, expected bytes or a function that returns bytes"
            raise TypeError(f"the content of the artifact {name!r:.80} is {kind}")
        made = (lambda: content) if isinstance(content, bytes) else content
        for field, value in (("name", name), ("content", made), ("executable", executable)):
            object.__setattr__(self, field, value)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Artifacts in the order of writing (may be a generator), and what they cannot carry.

    `restated`: features, named as in `Loss`, that the format states in another form with the same
    meaning, such as steps in another possible order. No loss: the same program is read back, if not
    the same table. `notes`: what the user should know of the files, one sentence each.
    """

    artifacts: Iterable[Artifact]
    losses: Sequence[Loss] = ()
    restated: Sequence[str] = ()
    notes: Sequence[str] = ()
