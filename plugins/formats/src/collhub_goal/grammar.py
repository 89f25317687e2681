"""The grammar of GOAL text as patterns.

Source: scanner and parser of txt2bin, which is part of LogGOPSim and ATLAHS
(github.com/spcl/atlahs). A file contains `num_ranks`, then one block per rank in ascending order. A
block has one statement per line: an operation, with a label if other operations depend on it, or a
dependency between two labels. The parts of an operation have a fixed order: size, peer, tag, cpu,
nic.
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
# Only at the start of a line: txt2bin accepts no comment after a statement.
COMMENT = re.compile(rb"(?m)^[ \t]*(//[^\n]*|/\*(?s:.*?)\*/)")
OPEN_COMMENT = re.compile(rb"(?m)^[ \t]*/\*")
# Bounded, so that the search for a colon is always short.
_LABEL = rb"[A-Za-z][A-Za-z0-9_]{0,254}"
# 18 digits always fit into int64.
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
"""Groups: label, texts of `OPERATION_PARTS`, then waiting label, keyword, awaited label."""
OPERATION_PARTS = ("calc", "send", "to", "recv", "from", "tag", "cpu", "nic")
FILLED_LINE = re.compile(rb"(?m)^[ \t]*[^ \t\n]")
BLANK = re.compile(rb"\s*")
EXPECTED = (
    "expected calc N, send Nb to R, recv Nb from R (then tag, cpu, nic in this order), "
    "or LABEL requires LABEL"
)
