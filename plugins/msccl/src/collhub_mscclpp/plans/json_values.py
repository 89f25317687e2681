"""Values of an untrusted JSON document, and refusals of plans in older formats.

A value is checked when it is used, and errors give its JSON path. Plans of the format before July
2025 (pull request #579 of microsoft/mscclpp) are recognised by their keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.model import InputError, Location

# The executor counts chunks and bytes of a rank in 32 bits.
MOST_CHUNKS = (1 << 32) - 1
MOST_BYTES = (1 << 64) - 1
_SHOWN = 40


class JsonValue:
    """A value of a document, and where it stands; the path is put together where it is told."""

    __slots__ = ("_key", "_parent", "value")

    def __init__(self, value: object, key: str, parent: JsonValue | None = None) -> None:
        """A member or an element of `parent`; of the whole document `key` is its file."""
        self.value = value
        self._key = key
        self._parent = parent

    @property
    def path(self) -> str:
        """JSON path, as `$.gpus[0].channels`."""
        return "$" if self._parent is None else f"{self._parent.path}{self._key}"

    @property
    def _file(self) -> str:
        """The file that the value stands in."""
        return self._key if self._parent is None else self._parent._file

    def fail(
        self,
        message: str,
        cure: str = "",
        code: str = "plan-schema",
    ) -> InputError:
        """An error at this place."""
        return InputError(
            f"{self.path}: {message}", location=Location(self._file), cure=cure, code=code
        )

    def _expected(
        self,
        what: str,
        cure: str = "",
    ) -> InputError:
        shown = repr(self.value)
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]}..."
        return self.fail(f"expected {what}, got {shown}", cure)

    def has(
        self,
        key: str,
    ) -> bool:
        """Whether an object has a member."""
        return isinstance(self.value, dict) and key in self.value

    def member(
        self,
        key: str,
        cure: str = "",
    ) -> JsonValue:
        """A member that must be there. Raises `InputError` where this is no object with it."""
        if not isinstance(self.value, dict):
            raise self._expected("an object")
        if key not in self.value:
            raise self.fail(f"the member {key!r} is missing", cure or f"add {key!r}")
        return JsonValue(self.value[key], f".{key}", self)

    def items(self) -> list[JsonValue]:
        """The elements of a list. Raises `InputError` for anything else."""
        if not isinstance(self.value, list):
            raise self._expected("a list")
        return [JsonValue(one, f"[{at}]", self) for at, one in enumerate(self.value)]

    def integer(
        self,
        least: int,
        most: int,
        cure: str = "",
    ) -> int:
        """A whole number in a range. Raises `InputError` for anything else."""
        value = self.value
        # True and False are integers to Python.
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:  # type: ignore[operator]
            raise self._expected(f"a whole number in {least}..{most}", cure)
        return value  # type: ignore[return-value]

    def text(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            raise self._expected("a string")
        return self.value

    def flag(self) -> bool:
        """A boolean."""
        if not isinstance(self.value, bool):
            raise self._expected("true or false")
        return self.value

    def choice(
        self,
        known: Sequence[str],
    ) -> str:
        """One of several strings."""
        if not isinstance(self.value, str) or self.value not in known:
            raise self._expected(f"one of {', '.join(known)}")
        return self.value


_CURE = "write the plan anew with the DSL of a release since July 2025"
_OLD_GPU_KEYS = ("inputChunks", "outputChunks", "scratchChunks", "chunkGroups")
_OLD_OPERATION_KEYS = ("i_cids", "o_cids", "i_buff", "o_buff", "srcs", "dsts")


def refuse_old_rank(gpu: JsonValue) -> None:
    """Raise `InputError` for a rank as older releases wrote it."""
    for key in _OLD_GPU_KEYS:
        if gpu.has(key):
            raise _refusal(gpu, f"{key!r} is a member of the plan format before July 2025")
    if not gpu.has("remote_buffers"):
        raise _refusal(gpu, "'remote_buffers' is missing, as in the plan format before July 2025")


def refuse_old_operation(operation: JsonValue) -> None:
    """Raise `InputError` for an operation as older releases wrote it."""
    for key in _OLD_OPERATION_KEYS:
        if operation.has(key):
            message = f"{key!r} is a member of operations of the plan format before July 2025"
            raise _refusal(operation, message)


def refuse_old_switch(channel: JsonValue) -> None:
    """Raise `InputError` for a switch channel as older releases wrote it."""
    if channel.has("buff") and not channel.has("buffer_type"):
        message = "a switch channel with 'buff' is of the plan format before 'buffer_type'"
        raise _refusal(channel, message)


def _refusal(
    value: JsonValue,
    message: str,
) -> Exception:
    return value.fail(message, _CURE, "old-plan")
