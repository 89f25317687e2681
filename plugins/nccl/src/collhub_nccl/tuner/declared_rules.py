"""Declarations of the findings in files of tuners of NCCL, RCCL and NCCLX."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules

_RULES = (
    (
        "unit",
        "A size has another unit than the tuner reads.",
        "A number has a unit such as K, or a comment names bytes per rank in place of total bytes.",
        "Write bytes, in total or per rank as the tuner reads them.",
        "allreduce,0,64K,ring,simple,2,1,8",
    ),
    (
        "not-a-rule",
        "A line is no rule, so that the tuner skips it or reads other values.",
        "It has too few fields, blanks, an empty field, or is too long; JSON has another form.",
        "Write all required fields; -1 means any number.",
        "allreduce,0,65536,tree,simple",
    ),
    (
        "unknown-word",
        "A word is not known to the tuner, which takes another one or skips the line.",
        "A name is misspelt or belongs to another library.",
        "Use a word that the error lists.",
        "allreduce,0,65536,rign,simple,2,1,8",
    ),
    (
        "out-of-range",
        "A number is outside of the range that the tuner accepts.",
        "The end of a range precedes its start, or numbers of nodes and ranks are exchanged.",
        "Write the number that the cure names.",
        "allreduce,65536,0,ring,simple,2,1,8",
    ),
    (
        "refused-choice",
        "The runtime refuses the choice of the line and uses its own.",
        "The algorithm does not implement the collective or protocol.",
        "Choose an algorithm that the cure names.",
        "broadcast,0,65536,tree,simple,2,1,8",
    ),
    (
        "slow-choice",
        "The choice is never faster than another one.",
        "A tree on one node is a chain of GPUs.",
        "Write ring.",
        "allreduce,0,65536,tree,simple,2,1,8",
    ),
    (
        "conditional-rule",
        "The line applies only under a condition of the call.",
        "It states numPipeOps or regBuff.",
        "None is needed; write -1 for any value.",
        "allreduce,0,65536,ring,simple,2,1,8,1,-1",
    ),
    (
        "too-many",
        "The file has more lines than the tuner reads.",
        "Its table has a fixed size.",
        "Join neighbouring ranges of sizes.",
        "one line per size and communicator",
    ),
    (
        "unknown-file",
        "A file of the folder is not read by the tuner.",
        "It has another name.",
        "Remove or rename it.",
        "notes.txt",
    ),
    (
        "ends-early",
        "A range ends at 4 GiB - 1, and no line matches larger calls.",
        "The largest number of 32 bits was taken as no limit.",
        "Write the largest size that the cure names.",
        "allreduce,0,4294967295,ring,simple,2,-1,-1",
    ),
    (
        "short-gap",
        "Fewer than 16 bytes between two ranges have no line.",
        "A range begins one element after the end of the range before it.",
        "Begin the line at the byte that the cure names.",
        "ranges 0 to 1023 and 1028 to 65536",
    ),
    (
        "never-reached",
        "A line is never used, because earlier lines match all its calls.",
        "The tuner takes the first line that matches.",
        "Remove the line, or move it before the others.",
        "the same line twice",
    ),
    (
        "overlap",
        "Two lines match the same calls and choose differently.",
        "Ranges of sizes overlap.",
        "Divide the ranges.",
        "allreduce to 65536 bytes by tree and from 1024 bytes by ring",
    ),
    (
        "gap",
        "No line matches 16 or more bytes between two ranges; the library chooses there.",
        "A range ends before the next one begins.",
        "Write lines without a gap.",
        "ranges 0 to 1023 and 2048 to 65536",
    ),
    (
        "one-channel",
        "The tuner gives calls without a matching line one channel, which is slow.",
        "NCCL's example tuner starts with one channel if no line matches.",
        "Write lines for all sizes with -1,-1 for nNodes,nRanks, as `collhub tune` does.",
        "a file with a line for all-reduces only",
    ),
    (
        "not-searched",
        "Sizes without a line are searched only for the first communicators.",
        "The file has lines for many communicators.",
        "None is needed.",
        "lines for 100 different numbers of ranks",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules of the readers of tuner files."""
    return declare_rules("files of tuners of NCCL, RCCL and NCCLX, by `collhub verify`", _RULES)
