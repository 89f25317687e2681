"""Completion in bash of words that contain `=` or `:`, at which bash splits words."""

from __future__ import annotations

from click.shell_completion import BashComplete, CompletionItem

_BREAKS = frozenset("=:")


class BashWords(BashComplete):
    """Bash completion that treats words such as `-O key=value` and `ring:8` as one word.

    Bash splits words at the characters of COMP_WORDBREAKS and replaces only the last part, so that
    only this part is printed.
    """

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one that is completed, and that word as typed so far."""
        parts, last = super().get_completion_args()
        words: list[str] = []
        is_open = False
        for part in (*parts, last):
            is_break = bool(part) and _BREAKS.issuperset(part)
            if words and (is_break or is_open):
                words[-1] += part
            else:
                words.append(part)
            is_open = is_break
        incomplete = words[-1]
        # The part before the last break is not replaced.
        self._typed = len(incomplete) - (0 if is_open else len(last))
        return words[:-1], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Format the type and the part of the value that bash replaces."""
        value = item.value[self._typed :] if item.type == "plain" else item.value
        return f"{item.type},{value}"
