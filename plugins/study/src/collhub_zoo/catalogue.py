"""Catalogues of the zoo, and the algorithms of their entries for a collective, network and size.

A catalogue is the installed one, a folder, the output of a build, or an https address.

A folder has a card per entry, `NAME/card.yaml`, and `machines.yaml`. The output of `collhub zoo
build` contains a copy of its catalogue in `zoo/` and an index, `index.json`, by which a catalogue
at an address is listed. Downloads are the only network access: they use https, follow redirects
only to https, and are limited in size and time.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn, cast

import hub_core
from collhub_zoo.cards import (
    CARD_FILE,
    MACHINES_FILE,
    RANKS,
    Card,
    MachineCard,
    is_file_name,
    parse_card,
    parse_command,
    parse_machines,
)
from hub_core import Algorithm, Collective, CollectiveKind, Registry, Topology, parse_json_object
from hub_core.model import InputError, Location, UsageError, closest
from hub_core.plugin_api import Synthesizer

if TYPE_CHECKING:
    from http.client import HTTPMessage
    from importlib.resources.abc import Traversable

INDEX_FILE = "index.json"
COPY_FOLDER = "zoo"
MAX_FILE_BYTES = 16 << 20
"""Maximum size of a card, of a file next to it, and of a download."""
_MAX_INDEX_BYTES = 64 << 20
_MAX_ENTRIES = 10_000
_TIMEOUT_S = 30.0
Fetch = Callable[[str, int], bytes]


@dataclass(frozen=True, slots=True)
class Entry:
    """An algorithm of a catalogue.

    `path`: its card, for messages. `files`: names of the files next to the card. `read`: returns
    the content of one of them, or of the card.
    """

    card: Card
    path: str
    files: tuple[str, ...]
    read: Callable[[str], bytes]

    def hash_files(self) -> dict[str, str]:
        """Return the SHA-256 of the card and of the files next to it, in hexadecimal, by name.

        The card (`card.yaml`) is first, then `files` in their order. All of them are read, or
        downloaded; errors of `read` pass through.
        """
        names = (CARD_FILE, *self.files)
        return {name: hashlib.sha256(self.read(name)).hexdigest() for name in names}


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Entries, sorted by name, and standard machines. `errors`: of cards that are invalid.

    `index`: content of the index of a build; None for a catalogue that is not built.
    """

    source: str
    entries: tuple[Entry, ...]
    machines: tuple[MachineCard, ...]
    errors: tuple[InputError, ...] = ()
    index: dict[str, object] | None = None

    def find(self, name: str) -> Entry:
        """Return the entry with exactly this name.

        Raises `UsageError` (`unknown-entry`) if there is none; its cure suggests the closest name,
        if one is similar.
        """
        for entry in self.entries:
            if entry.card.name == name:
                return entry
        names = [entry.card.name for entry in self.entries]
        raise UsageError(
            f"the zoo {self.source} has no entry {name!r:.80}",
            cure=closest(name, names) or "see 'collhub zoo list'",
            code="unknown-entry",
        )

    def topologies_of(self, card: Card) -> tuple[str, ...]:
        """Return the intended networks of a card, by default all machines of the catalogue."""
        return tuple(card.topologies) or tuple(machine.topology for machine in self.machines)


def open_catalogue(source: str | None, fetch: Fetch | None = None) -> Catalogue:
    """Open a catalogue of algorithms: an installed one, a folder, or an address.

    - `source` None: the catalogue that is installed with this package.
    - `source` with `://`: read by `_read_address`, whose errors pass through. `fetch` gets a URL
      and the maximum number of bytes. None is `download`, which raises `UsageError` (`not-https`)
      for every protocol except https.
    - Otherwise a folder. With a file `index.json`, cards are read from its subfolder `zoo`, and
      `index` is that file. Otherwise cards are read from the folder itself; `index` is None.

    Entries are subfolders with `card.yaml`, by name; invalid ones are only in `errors`. Without
    `machines.yaml`, `machines` is empty. Raises `UsageError` (`no-zoo`) for no folder, or no card
    at all; `InputError` for an invalid machines file, and an index over 64 MiB or that is invalid.
    """
    if source is None:
        return _read_folder("installed", importlib.resources.files("collhub_zoo") / COPY_FOLDER)
    if "://" in source:
        return _read_address(source, fetch or download)
    folder = Path(source)
    if not folder.is_dir():
        raise UsageError(
            f"{source!r:.200} is no folder with a zoo",
            cure="name a folder with cards, the output of 'collhub zoo build', or an https address",
            code="no-zoo",
        )
    index = folder / INDEX_FILE
    if not index.is_file():
        return _read_folder(source, folder)
    content = _read_limited(index, str(index), _MAX_INDEX_BYTES)
    catalogue = _read_folder(source, folder / COPY_FOLDER)
    document = parse_index(content, str(index))
    return Catalogue(source, catalogue.entries, catalogue.machines, catalogue.errors, document)


def parse_index(content: bytes, path: str) -> dict[str, object]:
    """Parse the index of a build as a JSON object; `path` is its file in messages.

    Raise `InputError` if the text is no JSON object, and (`invalid-zoo`) if its `schema` is
    not `collhub/report-zoo-build-1`. Its other members are not checked.
    """
    document = parse_json_object(content, path)
    if document.get("schema") != "collhub/report-zoo-build-1":
        cure = "name the index.json that 'collhub zoo build' wrote"
        _refuse(path, "this is no index of a zoo", cure)
    return document


def download(url: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Download a file by https and return its content; no credentials are sent.

    Redirects to https are followed. Raises `UsageError` (`not-https`) if the URL does not start
    with `https://`. Raises `InputError` (`invalid-zoo`) in these cases:

    - The connection fails, or no data arrives for 30 s. The duration of the download has no limit.
    - The server returns an HTTP error such as 404, or a malformed or truncated answer.
    - The server redirects to a URL without https.
    - The content has more than `max_bytes` (default 16 MiB).
    """
    # Imported here: the only command that needs the network imports its library.
    import http.client
    import urllib.error
    import urllib.request

    class RefuseOtherProtocols(urllib.request.HTTPRedirectHandler):
        """Follows redirects to https only."""

        def redirect_request(
            self,
            req: urllib.request.Request,
            fp: IO[bytes],
            code: int,
            msg: str,
            headers: HTTPMessage,
            newurl: str,
        ) -> urllib.request.Request | None:
            if not newurl.startswith("https://"):
                _refuse(url, "the server redirects to an address without https", "use another one")
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    if not url.startswith("https://"):
        raise UsageError(f"{url!r:.200} is no https address", cure="use https://", code="not-https")
    try:
        opener = urllib.request.build_opener(RefuseOtherProtocols())
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            content = cast("bytes", answer.read(max_bytes + 1))
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        _refuse(url, f"the download failed: {reason:.200}", "check the address and the connection")
    if len(content) > max_bytes:
        _refuse(url, f"the file is larger than {max_bytes >> 20} MiB", "download it yourself")
    return content


def check_sha256(content: bytes, expected: str, path: str) -> bytes:
    """Return the content unchanged if its SHA-256 is `expected` (hexadecimal digits, lower case).

    Otherwise raises `InputError`. `path`: address or file of the content, for the message.
    """
    actual = hashlib.sha256(content).hexdigest()
    if actual != expected:
        _refuse(path, f"the SHA-256 is {actual}, expected {expected}", "download the file again")
    return content


def _read_folder(source: str, folder: Traversable) -> Catalogue:
    machines_file = folder / MACHINES_FILE
    machines: tuple[MachineCard, ...] = ()
    if machines_file.is_file():
        path = f"{source}/{MACHINES_FILE}"
        machines = parse_machines(_read_limited(machines_file, path), path)
    entries, errors = [], []
    for child in sorted(folder.iterdir(), key=lambda child: child.name):
        if not (child / CARD_FILE).is_file():
            continue
        path = f"{source}/{child.name}/{CARD_FILE}"
        try:
            entries.append(_read_entry(child, path))
        except InputError as error:
            errors.append(error)
    if not (entries or errors):
        raise UsageError(
            f"{source!r:.200} has no entries",
            cure=f"name a folder with NAME/{CARD_FILE}",
            code="no-zoo",
        )
    return Catalogue(source, tuple(entries), machines, tuple(errors))


def _read_entry(folder: Traversable, path: str) -> Entry:
    names = sorted(child.name for child in folder.iterdir() if child.is_file())
    files = tuple(name for name in names if name != CARD_FILE and is_file_name(name))

    def read(name: str) -> bytes:
        _check_member(name, files, path)
        return _read_limited(folder / name, f"{path.removesuffix(CARD_FILE)}{name}")

    return Entry(parse_card(read(CARD_FILE), path, folder.name), path, files, read)


def _read_address(address: str, fetch: Fetch) -> Catalogue:
    """Download the index at an address and return its catalogue.

    The index is at `address` + `/index.json`; an address may also end with `index.json`
    already. Only the index is downloaded here, with a limit of 64 MiB. Files of entries are
    downloaded from `zoo/NAME/FILE` next to the index whenever `Entry.read` is called.

    Entries are sorted by name, with equal names in the order of the index. `machines` has one
    machine for each object with `topology` in the member `machines` of the index; its title is
    the topology text too. Other values there are ignored, and `machines` of another type gives
    none. `errors` is empty and `index` is the content of the index.

    Raises `InputError`: of `parse_index`; `invalid-zoo` if `entries` is missing, no list, or
    longer than 10 000; and of `parse_card` for the first invalid card. Errors of `fetch` pass
    through.
    """
    base = address.removesuffix(INDEX_FILE).rstrip("/")
    url = f"{base}/{INDEX_FILE}"
    index = parse_index(fetch(url, _MAX_INDEX_BYTES), url)
    listed = index.get("entries")
    if not isinstance(listed, list) or len(listed) > _MAX_ENTRIES:
        _refuse(url, "the index has no list of entries", "build it again")
    entries = [_read_listed(item, f"{base}/{COPY_FOLDER}", url, fetch) for item in listed]
    machines = index.get("machines")
    objects = (
        [one for one in machines if isinstance(one, dict)] if isinstance(machines, list) else []
    )
    texts = [str(one["topology"]) for one in objects if "topology" in one]
    standard = tuple(MachineCard(topology=text, title=text) for text in texts)
    return Catalogue(
        address, tuple(sorted(entries, key=lambda entry: entry.card.name)), standard, (), index
    )


def _read_listed(item: object, base: str, url: str, fetch: Fetch) -> Entry:
    """Return the entry for one item of an index; its files are downloaded when they are read.

    The card is the member `card` of the item, so it is not downloaded. The member `files` maps
    file names to SHA-256 digits. `Entry.files` has these names sorted, without `card.yaml` and
    without names that `is_file_name` refuses. It is empty if `files` is missing or no object.
    `base`: address of the folder of all entries. `url`: the index, for error messages.

    `Entry.read(name)` downloads `base/CARD NAME/name`, at most 16 MiB, in every call. It raises
    `InputError` if `name` is neither `card.yaml` nor in `Entry.files`, and if the SHA-256
    differs from that of the index or the index has none. Errors of `fetch` pass through.

    Raises `InputError` (of `parse_card`) for an invalid card, and for an item without a card or
    that is no object.
    """
    item = item if isinstance(item, dict) else {}
    card = parse_card(json.dumps(item.get("card")).encode(), url)
    hashes = item.get("files")
    hashes = hashes if isinstance(hashes, dict) else {}
    files = tuple(name for name in sorted(hashes) if name != CARD_FILE and is_file_name(name))

    def read(name: str) -> bytes:
        _check_member(name, files, url)
        place = f"{base}/{card.name}/{name}"
        return check_sha256(fetch(place, MAX_FILE_BYTES), str(hashes.get(name)), place)

    return Entry(card, f"{base}/{card.name}/{CARD_FILE}", files, read)


def _check_member(name: str, files: tuple[str, ...], path: str) -> None:
    """Raise `InputError` unless a name is that of the card or of a file next to it."""
    if name != CARD_FILE and name not in files:
        cure = f"the files are: {', '.join(files) or 'none'}"
        _refuse(path, f"there is no file {name!r:.80} next to the card", cure)


def _read_limited(file: Traversable, path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except OSError as error:
        _refuse(path, f"the file cannot be read: {error.strerror}", "check its permissions")
    if len(content) > max_bytes:
        _refuse(path, f"the file is larger than {max_bytes >> 20} MiB", "make it smaller")
    return content


def _refuse(path: str, message: str, cure: str) -> NoReturn:
    raise InputError(message, location=Location(path), cure=cure, code="invalid-zoo")


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
        """Return why the card excludes a collective on a network; "" if it does not exclude it.

        The card excludes collectives that it does not list. If it lists numbers of ranks, it
        also excludes networks whose number of NPUs is not in the list.
        """
        card, ranks = self._entry.card, topology.num_npus
        if kind.value not in card.collectives:
            return f"the card has {', '.join(card.collectives)}, not {kind.value}"
        if card.ranks and ranks not in card.ranks:
            return f"the card has {', '.join(map(str, card.ranks))} ranks, not {ranks}"
        return ""

    def create(self, kind: CollectiveKind, topology: Topology, size: int) -> Algorithm:
        """Return the algorithm for a collective of `size` bytes on a topology; it is not verified.

        If the card has a synthesizer, the algorithm is synthesized in every call, with root 0
        for rooted collectives. Otherwise it is read from the card's file or the download. It is
        read once per number of ranks (the NPUs of the topology) and returned unchanged for all
        sizes.

        Raises `UsageError` for the first that applies:

        1. The card does not list the collective `kind`, or lists numbers of ranks without this
           one.
        2. The card has only figures (`no-algorithm`), or its download is missing
           (`not-fetched`).
        3. The file has another collective or number of ranks (`other-collective`).

        Errors of the synthesis and of `_read_file`, all `HubError`, pass through.
        """
        card = self._entry.card
        if reason := self.refusal(kind, topology):
            raise UsageError(f"{card.name}: {reason}", cure="choose one of the card")
        if not self.is_available:
            raise self._refuse_unavailable()
        ranks, command = topology.num_npus, self._command
        if command is not None and command.synthesizer:
            root = 0 if kind.traits.is_rooted else None
            return hub_core.synthesize(
                Collective(kind, ranks, kind.traits.parts(ranks), root, True, True),
                topology,
                size,
                name=command.synthesizer,
                options=dict(command.options),
                registry=self._registry,
            ).algorithm
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

    def _read_file(self, ranks: int) -> Algorithm:
        """Return the algorithm in the card's file, or in its download; nothing is cached here.

        The content is written to a temporary folder under its original name (for a download,
        the last part of the URL), so that the suffix selects the reader. The folder is removed
        afterwards. A card's file is read with the options of its command. If the command has
        arguments, each `{ranks}` within them is replaced by the number `ranks`, and they are
        joined to the option `arguments`. A download is read without options.

        Findings of the reader are discarded. The collective and the ranks of the result are not
        compared with the card. Raises `InputError` if the file is not next to the card, and the
        `HubError`s of `hub_core.read` if the content cannot be read.
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
