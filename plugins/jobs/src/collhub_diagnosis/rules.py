"""Rules of dumps and records of jobs that hang, read by `collhub diagnose`."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules

_RULES = (
    (
        "invalid-dump",
        "The file is no Flight Recorder dump, or an entry has a value of another type.",
        "The dump is damaged, or was written by another tool.",
        "Give the files that TORCH_FR_DUMP_TEMP_FILE names; copy them again.",
        "`entries` that is no list",
    ),
    (
        "invalid-pickle",
        "The pickle is damaged or exceeds a limit of the reader.",
        "The file was copied incompletely.",
        "Copy it again.",
        "a pickle without STOP",
    ),
    (
        "forbidden-opcode",
        "The pickle would import or call code.",
        "It is not a Flight Recorder dump, or was manipulated; dumps contain only plain values.",
        "Do not load this file; write the dump as JSON.",
        "a pickle with the opcode GLOBAL",
    ),
    (
        "invalid-inspector",
        "No line is a record of NCCL's Inspector.",
        "The file is another log.",
        "Give the files of NCCL_INSPECTOR_DUMP_DIR.",
        "a file with the line `{}`",
    ),
    (
        "invalid-ras",
        "The output of NCCL's RAS has a value of another type.",
        "The JSON was changed, or is of an unknown version.",
        "Query it again: `ncclras -f json`.",
        '`"communicators": 3`',
    ),
    (
        "no-rank",
        "The name of a dump does not end with a rank.",
        "The file was renamed.",
        "Name the files like the dumps of PyTorch: a prefix and the rank.",
        "`dump.bin`",
    ),
    (
        "no-dumps",
        "The folder has no file whose name ends with a rank.",
        "The folder is another one, or the dumps were not written.",
        "Name the folder of TORCH_FR_DUMP_TEMP_FILE.",
        "an empty folder",
    ),
    (
        "duplicate-rank",
        "Two dumps are of the same rank.",
        "The folder contains dumps of several runs.",
        "Keep the dumps of one run.",
        "`a_0` and `b_0` in one folder",
    ),
    (
        "not-readable",
        "A file or folder cannot be read.",
        "It does not exist, or permissions are missing.",
        "Correct the path or the permissions.",
        "`collhub diagnose missing`",
    ),
    (
        "too-large",
        "A file or the number of files exceeds the limit of the reader.",
        "The folder contains other files.",
        "Name only the dumps.",
        "a file of several GiB",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return declare_rules("files for `collhub diagnose`", _RULES)
