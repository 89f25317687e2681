"""The grammar of GOAL text as patterns.

Source: the scanner and parser of txt2bin, which LogGOPSim and ATLAHS (github.com/spcl/atlahs) come
with. A file states `num_ranks`, then one block for every rank in ascending order. A block has one
statement a line: an operation, with a label before it if others wait for it, or a dependency
between two labels. Parts of an operation stand in a fixed order: size, peer, tag, cpu, nic.
"""

from __future__ import annotations

import re

KEYWORDS = frozenset(
    (
        b"num_ranks",
        b"rank",
        b"calc",
        b"send",
        b"recv",
        b"to",
        b"from",
        b"tag",
        b"cpu",
        b"nic",
        b"requires",
        b"irequires",
    )
)
HEAD = re.compile(rb"\s*num_ranks[ \t]+([0-9]{1,9})[ \t]*\n")
BLOCK = re.compile(rb"\s*rank[ \t]+([0-9]{1,9})[ \t]*\{([^{}]*)\}")
# Only where a line may start: behind a statement, txt2bin takes no comment.
COMMENT = re.compile(rb"(?m)^[ \t]*(//[^\n]*|/\*(?s:.*?)\*/)")
OPEN_COMMENT = re.compile(rb"(?m)^[ \t]*/\*")
# Bounded, so that no text makes the search for a colon long.
_LABEL = rb"[A-Za-z][A-Za-z0-9_]{0,254}"
# 18 digits always fit int64.
_NUMBER = rb"[0-9]{1,18}"
STATEMENT = re.compile(
    rb"(?m)^[ \t]*(?:"
    rb"(?:(" + _LABEL + rb")[ \t]*:[ \t]*)?(?:"
    rb"calc[ \t]+(" + _NUMBER + rb")"
    rb"|send[ \t]+(" + _NUMBER + rb")b[ \t]+to[ \t]+(" + _NUMBER + rb")"
    rb"|recv[ \t]+(" + _NUMBER + rb")b[ \t]+from[ \t]+(" + _NUMBER + rb"|-1)"
    rb")(?:[ \t]+tag[ \t]+([0-9]{1,18}|-1))?"
    rb"(?:[ \t]+cpu[ \t]+([0-9]{1,9}))?"
    rb"(?:[ \t]+nic[ \t]+([0-9]{1,9}))?"
    rb"|(" + _LABEL + rb")[ \t]+(i?requires)[ \t]+(" + _LABEL + rb")"
    rb")[ \t]*$"
)
"""Groups: label, then the texts of `OPERATION_PARTS`, then later label, word, earlier label."""
OPERATION_PARTS = ("calc", "send", "to", "recv", "from", "tag", "cpu", "nic")
FILLED_LINE = re.compile(rb"(?m)^[ \t]*[^ \t\n]")
BLANK = re.compile(rb"\s*")
EXPECTED = (
    "expected calc N, send Nb to R, recv Nb from R (then tag, cpu, nic in this order), "
    "or LABEL requires LABEL"
)
