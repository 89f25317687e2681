"""Values of an untrusted JSON document, and refusals of plans in older formats.

A value is checked when it is used, and errors give its JSON path. Plans of the format before July
2025 (pull request #579 of microsoft/mscclpp) are recognised by their keys.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hub_core.model import InputError, Location

# The executor counts the chunks of a rank in 32 bits.
MAX_CHUNKS = (1 << 32) - 1
MOST_BYTES = (1 << 64) - 1
_SHOWN = 40


class JsonValue:
    """A JSON value and its position in the document. The path is built only when it is reported."""

    __slots__ = ("_key", "_parent", "value")

    def __init__(self, value: object, key: str, parent: JsonValue | None = None) -> None:
        """Store a parsed JSON value with its position in the document, for error messages.

        `key`: `.name` or `[index]` within `parent`. Without a parent it is the name of the file.
        """
        self.value = value
        self._key = key
        self._parent = parent

    @property
    def path(self) -> str:
        """JSON path such as `$.gpus[0].channels`."""
        return "$" if self._parent is None else f"{self._parent.path}{self._key}"

    @property
    def _file(self) -> str:
        """The file that contains the value."""
        return self._key if self._parent is None else self._parent._file

    def fail(
        self,
        message: str,
        cure: str = "",
        code: str = "plan-schema",
    ) -> InputError:
        """Create an error with the file and the JSON path of this value."""
        return InputError(
            f"{self.path}: {message}", location=Location(self._file), cure=cure, code=code
        )

    def _report_expected(
        self,
        expectation: str,
        cure: str = "",
    ) -> InputError:
        is_literal = self.value is None or isinstance(self.value, bool)
        shown = json.dumps(self.value) if is_literal else repr(self.value)
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]}..."
        return self.fail(f"expected {expectation}, got {shown}", cure)

    def has(
        self,
        key: str,
    ) -> bool:
        """Whether the value is an object with this member."""
        return isinstance(self.value, dict) and key in self.value

    def member(
        self,
        key: str,
        cure: str = "",
    ) -> JsonValue:
        """Return the member `key` of the object, which must exist; its value may be null.

        Raises `InputError` without `cure` if the value is not an object. Raises `InputError` if
        the member is missing; its remedy is `cure`, or `add KEY` if `cure` is "".
        """
        if not isinstance(self.value, dict):
            raise self._report_expected("an object")
        if key not in self.value:
            raise self.fail(f"the member {key!r} is missing", cure or f"add {key!r}")
        return JsonValue(self.value[key], f".{key}", self)

    def items(self) -> list[JsonValue]:
        """Return the elements of a list in order, each with its index as position.

        Raises `InputError` for any other value.
        """
        if not isinstance(self.value, list):
            raise self._report_expected("a list")
        return [
            JsonValue(element, f"[{position}]", self) for position, element in enumerate(self.value)
        ]

    def integer(
        self,
        minimum: int,
        maximum: int,
        cure: str = "",
    ) -> int:
        """Return an integer in `minimum..maximum`, both inclusive.

        Raises `InputError` with the path and `cure` for any other value, also for a boolean and
        for a number with a point or exponent, such as 1.0.
        """
        value = self.value
        # In Python, True and False are integers.
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number or not minimum <= value <= maximum:  # type: ignore[operator]
            raise self._report_expected(f"a whole number in {minimum}..{maximum}", cure)
        return value  # type: ignore[return-value]

    def text(self) -> str:
        """Return the value as a string, which may be empty.

        Raises `InputError` if it is not a string.
        """
        if not isinstance(self.value, str):
            raise self._report_expected("a string")
        return self.value

    def flag(self) -> bool:
        """Return the value as a boolean.

        Raises `InputError` if it is not true or false, also for 0 and 1.
        """
        if not isinstance(self.value, bool):
            raise self._report_expected("true or false")
        return self.value

    def choice(
        self,
        known: Sequence[str],
    ) -> str:
        """Return the string if it is one of `known`, compared with case.

        Otherwise raises `InputError`, whose message lists the known strings.
        """
        if not isinstance(self.value, str) or self.value not in known:
            raise self._report_expected(f"one of {', '.join(known)}")
        return self.value


_CURE = "write the plan again with the DSL of a release since July 2025"
_OLD_GPU_KEYS = ("inputChunks", "outputChunks", "scratchChunks", "chunkGroups")
_OLD_OPERATION_KEYS = ("i_cids", "o_cids", "i_buff", "o_buff", "srcs", "dsts")


def refuse_old_rank(gpu: JsonValue) -> None:
    """Raise `InputError` (`old-plan`) if a rank is in the plan format before July 2025.

    A rank is in this format if it has one of `_OLD_GPU_KEYS`, or no member
    `remote_buffers`. So a value that is no object raises the error too.
    """
    refuse_old_members(gpu)
    if not gpu.has("remote_buffers"):
        raise _describe_refusal(
            gpu, "'remote_buffers' is missing, as in the plan format before July 2025"
        )


def refuse_old_members(gpu: JsonValue) -> None:
    """Raise `InputError` (`old-plan`) if a rank has one of `_OLD_GPU_KEYS`.

    The error names the first of these members in the order of the table. A value that is no object
    has none.
    """
    for key in _OLD_GPU_KEYS:
        if gpu.has(key):
            raise _describe_refusal(gpu, f"{key!r} is a member of the plan format before July 2025")


def refuse_old_operation(operation: JsonValue) -> None:
    """Raise `InputError` for an operation with members of the plan format before July 2025."""
    for key in _OLD_OPERATION_KEYS:
        if operation.has(key):
            message = f"{key!r} is a member of operations of the plan format before July 2025"
            raise _describe_refusal(operation, message)


def refuse_old_switch(channel: JsonValue) -> None:
    """Raise `InputError` for a switch channel in the format of older releases."""
    if channel.has("buff") and not channel.has("buffer_type"):
        message = "a switch channel with 'buff' is of the plan format before 'buffer_type'"
        raise _describe_refusal(channel, message)


def _describe_refusal(value: JsonValue, message: str) -> Exception:
    return value.fail(message, _CURE, "old-plan")
