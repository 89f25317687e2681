"""Environment variables that change NCCL's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collhub_machine_profiles.nccl_constants import ALGORITHMS, PROTOCOLS
from collhub_machine_profiles.nccl_costs import Alternative

from hub_core.model import UsageError

_ALGORITHM_WORDS = {
    "tree": "tree", "ring": "ring", "collnetdirect": "collnet_direct",
    "collnetchain": "collnet_chain", "nvls": "nvls", "nvlstree": "nvls_tree", "pat": "pat",
}  # fmt: skip
_PROTOCOL_WORDS = {"ll": "ll", "ll128": "ll128", "simple": "simple"}
_COLLECTIVE_WORDS = {
    "broadcast": "broadcast", "reduce": "reduce", "allgather": "all-gather",
    "reducescatter": "reduce-scatter", "allreduce": "all-reduce",
}  # fmt: skip
_MAX_CHANNELS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS")
_MIN_CHANNELS = ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS")
VARIABLES = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", *_MAX_CHANNELS, *_MIN_CHANNELS)
"""Variables whose effect is known."""


@dataclass(frozen=True, slots=True)
class NcclSettings:
    """Effect of environment variables.

    `excluded` gives the setting that excludes (collective, word), where a word is an algorithm or a
    protocol. Channels are limited to `min_channels` and `max_channels`, 0 for no limit.
    """

    excluded: Mapping[tuple[str, str], str]
    min_channels: int = 0
    max_channels: int = 0

    def apply(self, collective: str, alternatives: Sequence[Alternative]) -> list[Alternative]:
        """Refuse the alternatives that a setting excludes."""
        return [self._apply(collective, row) for row in alternatives]

    def _apply(self, collective: str, alternative: Alternative) -> Alternative:
        if alternative.refusal:
            return alternative
        for word in (alternative.algorithm, alternative.protocol):
            setting = self.excluded.get((collective, word))
            if setting:
                return Alternative(
                    alternative.algorithm, alternative.protocol, refusal=f"excluded by {setting}"
                )
        return alternative

    def limit_channels(self, channels: int) -> int:
        """Return a number of channels within the limits."""
        channels = max(channels, self.min_channels)
        return min(channels, self.max_channels) if self.max_channels else channels


NO_SETTINGS = NcclSettings({})


def parse_settings(assignments: Sequence[str]) -> NcclSettings:
    """Parse texts such as `NCCL_ALGO=allreduce:^tree`; a later text overrides an earlier one.

    Raises `UsageError` for other variables, and for words that NCCL does not know: releases before
    2.24 ignore them silently.
    """
    settings = NO_SETTINGS
    for text in assignments:
        name, equals, value = text.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or name not in VARIABLES:
            message = f"--env {text!r:.60} is not one of the variables with a known effect"
            raise UsageError(message, cure=f"give NAME=VALUE, NAME of {', '.join(VARIABLES)}")
        if name in {"NCCL_ALGO", "NCCL_PROTO"}:
            words = _ALGORITHM_WORDS if name == "NCCL_ALGO" else _PROTOCOL_WORDS
            excluded = dict(settings.excluded)
            every = ALGORITHMS if name == "NCCL_ALGO" else PROTOCOLS
            for collective, allowed in _parse_lists(name, value, words).items():
                for word in every:
                    excluded.pop((collective, word), None)
                    if word not in allowed:
                        excluded[collective, word] = f"{name}={value}"
            settings = replace(settings, excluded=excluded)
        elif name == "NCCL_NVLS_ENABLE":
            settings = _parse_nvls(settings, name, value)
        else:
            count = _parse_count(name, value)
            if name in _MAX_CHANNELS:
                settings = replace(settings, max_channels=count)
            else:
                settings = replace(settings, min_channels=count)
    return settings


def _parse_lists(name: str, value: str, words: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the allowed words by collective: lists separated by `;`, with `collective:` before."""
    allowed: dict[str, set[str]] = {}
    for position, entry in enumerate(value.split(";")):
        prefix, colon, listed = entry.rpartition(":")
        if not colon and position:
            message = f"{name}: {entry!r:.40} has no collective before it"
            raise UsageError(message, cure="write for example ring;allreduce:tree,nvls")
        if colon and prefix.strip().lower() not in _COLLECTIVE_WORDS:
            message = f"{name}: {prefix!r:.40} is not a collective"
            raise UsageError(message, cure=f"known: {', '.join(_COLLECTIVE_WORDS)}")
        is_inverted = listed.strip().startswith("^")
        chosen = set()
        for word in listed.strip().removeprefix("^").split(","):
            known = words.get(word.strip().lower())
            if known is None:
                message = f"{name}: {word.strip()!r:.40} is not a word of NCCL"
                raise UsageError(message, cure=f"known: {', '.join(words)}, and ^ to exclude")
            chosen.add(known)
        if is_inverted:
            chosen = set(words.values()) - chosen
        names = [_COLLECTIVE_WORDS[prefix.strip().lower()]] if colon else _COLLECTIVE_WORDS.values()
        allowed |= dict.fromkeys(names, chosen)
    return allowed


def _parse_nvls(settings: NcclSettings, name: str, value: str) -> NcclSettings:
    if value not in {"0", "1", "2"}:
        raise UsageError(f"{name}: {value!r:.40} is not 0, 1 or 2", cure=f"write {name}=0")
    excluded = dict(settings.excluded)
    for collective in _COLLECTIVE_WORDS.values():
        for algorithm in ("nvls", "nvls_tree"):
            if value == "0":
                excluded[collective, algorithm] = f"{name}=0"
            elif excluded.get((collective, algorithm), "").startswith(name):
                del excluded[collective, algorithm]
    return replace(settings, excluded=excluded)


def _parse_count(name: str, value: str) -> int:
    if not value.isascii() or not value.isdecimal() or not 1 <= int(value[:9]) <= 64:
        raise UsageError(f"{name}: {value!r:.40} is not 1 to 64", cure=f"write {name}=16")
    return int(value)
