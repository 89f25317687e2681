"""Create the algorithm of an entry for a collective, a network and a size, as its card says."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

import hub_core
from collhub_zoo.cards import RANKS, CardCommand, parse_command
from collhub_zoo.catalogue import Entry, check_sha256
from hub_core import Algorithm, Collective, CollectiveKind, Registry, Topology, UsageError
from hub_core.plugin_api import Synthesizer


class AlgorithmSource:
    """Algorithms of an entry; one that is read from a file is read once per number of ranks.

    `download`: content of the file that a card with `fetch` names; its SHA-256 is checked here.
    Raises `InputError` for another one, and `HubError` for an unknown synthesizer.
    """

    def __init__(self, entry: Entry, registry: Registry, download: bytes | None = None) -> None:
        self._entry = entry
        self._registry = registry
        self._command = parse_command(entry.card, entry.path)
        if self._command is not None and self._command.synthesizer:
            registry.find(Synthesizer, self._command.synthesizer)
        self._download: bytes | None = None
        if download is not None and entry.card.fetch is not None:
            self._download = check_sha256(download, entry.card.fetch.sha256, entry.path)
        self._read: dict[int, Algorithm] = {}

    @property
    def is_available(self) -> bool:
        """Whether an algorithm can be created: not for figures and for files not downloaded."""
        return self._command is not None or self._download is not None

    @property
    def depends_on_size(self) -> bool:
        """Whether a synthesizer creates the algorithm, anew for every size; False for files and
        downloads.
        """
        return self._command is not None and bool(self._command.synthesizer)

    def refusal(self, kind: CollectiveKind, topology: Topology) -> str:
        """Return the reason why the card excludes a collective on a network, or an empty text: the
        collective is not listed, or the card lists ranks without the number of NPUs.
        """
        card, ranks = self._entry.card, topology.num_npus
        if kind.value not in card.collectives:
            return f"the card has {', '.join(card.collectives)}, not {kind.value}"
        if card.ranks and ranks not in card.ranks:
            return f"the card has {', '.join(map(str, card.ranks))} ranks, not {ranks}"
        return ""

    def create(self, kind: CollectiveKind, topology: Topology, size: int) -> Algorithm:
        """Create the algorithm for `size` bytes; it is not verified.

        A file is read once per number of ranks, and its algorithm serves all sizes. Raises
        `UsageError` if the card excludes the call, needs a download, or its file has another
        collective or number of ranks, and `HubError` if the synthesis or the reading fails.
        """
        card = self._entry.card
        if reason := self.refusal(kind, topology):
            raise UsageError(f"{card.name}: {reason}", cure="choose one of the card")
        if not self.is_available:
            raise self._refuse_unavailable()
        if self._command is not None and self._command.synthesizer:
            return self._synthesize(self._command, kind, topology, size)
        ranks = topology.num_npus
        if ranks not in self._read:
            self._read[ranks] = self._read_file(ranks)
        algorithm = self._read[ranks]
        actual = algorithm.collective
        if (actual.kind, actual.num_ranks) != (kind, ranks):
            raise UsageError(
                f"{card.name}: the file has {actual.kind.value} of {actual.num_ranks} ranks, "
                f"not {kind.value} of {ranks}",
                cure="correct collectives and ranks of the card",
                code="other-collective",
            )
        return algorithm

    def _synthesize(
        self, command: CardCommand, kind: CollectiveKind, topology: Topology, size: int
    ) -> Algorithm:
        ranks = topology.num_npus
        root = 0 if kind.traits.is_rooted else None
        collective = Collective(kind, ranks, kind.traits.parts(ranks), root, True, True)
        return hub_core.synthesize(
            collective,
            topology,
            size,
            name=command.synthesizer,
            options=dict(command.options),
            registry=self._registry,
        ).algorithm

    def _read_file(self, ranks: int) -> Algorithm:
        """Read the card's file or its download from a temporary folder, where its reader finds the
        suffix. `RANKS` in the arguments of the command is replaced by `ranks`; findings of the
        reader are discarded. Raises `HubError` if it cannot be read.
        """
        command = self._command
        if command is None:
            assert self._entry.card.fetch is not None
            name = Path(self._entry.card.fetch.url).name
            content, options = self._download or b"", {}
        else:
            name, content = command.file, self._entry.read(command.file)
            options = dict(command.options)
            if command.arguments:
                words = [word.replace(RANKS, str(ranks)) for word in command.arguments]
                options["arguments"] = shlex.join(words)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)
            return hub_core.read(
                path, options=options, registry=self._registry, report=lambda finding: None
            )

    def _refuse_unavailable(self) -> UsageError:
        card = self._entry.card
        if card.fetch is None:
            return UsageError(
                f"{card.name} has published figures only, no algorithm",
                cure=f"see 'collhub zoo show {card.name}'",
                code="no-algorithm",
            )
        return UsageError(
            f"{card.name} is a file of another project, which the zoo does not contain",
            cure=f"download {card.fetch.url} and give it with --fetched FILE",
            code="not-fetched",
        )
