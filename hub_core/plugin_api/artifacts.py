"""Artifacts: the files that writers make, lazily, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hub_core.model.losses import Loss


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file to write.

    `name`: FILE: empty; PREFIX: what follows the prefix (`.0.et`); FOLDER: a relative path.
    `content` is called once, when the file is written. `executable` sets the mode of scripts.
    """

    name: str
    content: Callable[[], bytes]
    executable: bool = False


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
