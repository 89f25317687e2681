"""Every table of the program fits into narrow terminals, with whole words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hub_core.cli import output

EXAMPLES = Path(__file__).parents[2] / "examples"
RING = str(EXAMPLES / "ring_all_reduce_8.xml")
PAIRS = str(EXAMPLES / "all_pairs_all_reduce_8.xml")
COMMANDS = (
    ("formats",),
    ("formats", "analytical"),
    ("plugins", "list"),
    ("plugins", "show", "astra_sim"),
    ("inspect", RING),
    ("verify", RING),
    ("verify", RING, "--runtime", "msccl"),
    ("diff", RING, PAIRS),
    ("simulate", RING, "--topology", "dgx1v", "--size", "1MiB"),
    ("simulate", RING, "--topology", "dgx1v", "--size", "1MiB..16MiB"),
    ("topology", "show", "dgx-h100:4?network=leaf-spine:4,8,4&network-bandwidth=400Gb/s"),
    ("topology", "show", "dgx1v", "--links"),
    ("topology", "check", "mesh:2x2", "--size", "1MiB"),
    ("compare", "--collective", "allreduce", "--topology", "fc:4", "--size", "1MiB..2MiB",
     "--with", "ring", "--with", "recursive-doubling", "--with", "halving-doubling",
     "--jobs", "1", "--no-cache"),
)  # fmt: skip


@pytest.mark.needs_plugins
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:3])[-40:])
def test_tables_fit_and_keep_their_words(
    collhub, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = collhub(*command).out
    # Names and numbers with units; a long text may be divided behind its punctuation.
    words = set(re.findall(r"[0-9.]+ [A-Za-zµ%/]+|[A-Za-z0-9_]{1,24}", wide))
    for columns in (60, 80):
        with monkeypatch.context() as narrow:
            narrow.setattr(output, "_get_terminal_width", lambda stream=None, room=columns: room)
            shown = collhub(*command).out
        assert max(map(len, shown.splitlines())) <= columns
        lost = [word for word in words if word not in shown and not _is_wrapped(word, shown)]
        assert lost == []


def _is_wrapped(text: str, shown: str) -> bool:
    """Whether a phrase is there with a line break in a place of a blank; a number never is."""
    return " " in text and not text[0].isdigit() and all(part in shown for part in text.split())
