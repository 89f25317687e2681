"""Plans of the format before July 2025 (pull request #579 of microsoft/mscclpp), by their keys."""

from __future__ import annotations

from collhub_mscclpp.plans.json_values import JsonValue

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
