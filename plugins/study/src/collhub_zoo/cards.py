"""Cards of the zoo: one YAML document per algorithm, parsed as untrusted input.

A card describes an algorithm and names its source: a `collhub` command, a file next to the card, or
a file that the user downloads. A card without a source only has published figures. A command is a
list of arguments, never a shell line, and is restricted to the synthesizers and to the conversion
of a file next to the card.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NoReturn, TypeVar

import msgspec
from collhub_networks import document_of

from hub_core import schema_violations
from hub_core.model import InputError, Location
from hub_core.plugin_api import Source
from hub_core.reports import Meta, Record, Report, get_schema_name

CARD_FILE = "card.yaml"
MACHINES_FILE = "machines.yaml"
# Argument of a command that stands for the number of ranks of the network.
RANKS = "{ranks}"
_CODE = "invalid-card"
_VERBS = ("synthesize", "convert")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}(\.[A-Za-z0-9]{1,10}){1,2}")
_PATH = re.compile(r"[/\\]|\.\.|^[.~]")
# A name of a builder with its arguments, never the path of a file.
_TOPOLOGY = (
    r"^[a-z][a-z0-9-]*(:[0-9]+([x,][0-9]+)*)?(\?[a-z]+=[A-Za-z0-9./]+(&[a-z]+=[A-Za-z0-9./]+)*)?$"
)

Line = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f\x7f]+$")]
Url = Annotated[str, Meta(pattern=r"^https://[^\s<>\"()]+$", max_length=500)]
TopologyText = Annotated[str, Meta(pattern=_TOPOLOGY, max_length=100)]
CollectiveName = Annotated[
    str,
    Meta(
        pattern="^(all-gather|reduce-scatter|all-reduce|broadcast|reduce|gather|scatter|all-to-all)$"
    ),
]


class PublishedSource(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Authors' publication or project of an algorithm."""

    paper: Line | None = None
    project: Line | None = None
    licence: Annotated[Line, Meta(description="Licence of the file or of the creating program.")]
    url: Url | None = None


class Fetch(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """File of another project, which the user downloads and the hub checks."""

    url: Url
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Figure(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published figure, with its source."""

    topology: Line
    collective: CollectiveName
    quantity: Annotated[Line, Meta(description="Such as algorithm bandwidth.")]
    value: float
    unit: Line
    source: Annotated[Line, Meta(description="Publication, table or file with the figure.")]


class Card(Report, tag="collhub/zoo-card-1", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Card of an algorithm in the zoo (`card.yaml`)."""

    name: Annotated[
        str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,63}$", description="Name of the folder.")
    ]
    title: Line
    collectives: Annotated[Sequence[CollectiveName], Meta(min_length=1, max_length=8)]
    ranks: Annotated[
        Sequence[Annotated[int, Meta(ge=1, le=1 << 20)]],
        Meta(description="Numbers of ranks for which the algorithm exists; empty: any."),
    ] = ()
    origin: PublishedSource
    topologies: Annotated[
        Sequence[TopologyText],
        Meta(description="Intended networks; empty: all machines of the catalogue."),
    ] = ()
    command: Annotated[
        Sequence[Annotated[str, Meta(min_length=1, max_length=200)]],
        Meta(
            description="`synthesize NAME` or `convert FILE`, then `-O KEY=VALUE`, and for a "
            "program `--` and its arguments, of which {ranks} is the number of ranks."
        ),
    ] = ()
    file: Annotated[
        Annotated[str, Meta(max_length=80)] | None,
        Meta(description="File with the algorithm, in the folder of the card."),
    ] = None
    fetch: Fetch | None = None
    figures: Sequence[Figure] = ()
    notes: Annotated[str, Meta(max_length=2000)] = ""


class MachineCard(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Standard machine on which the algorithms of a catalogue are timed."""

    topology: TopologyText
    title: Line
    small: Annotated[bool, Meta(description="Also part of a small build.")] = False


class MachinesCard(
    Report, tag="collhub/zoo-machines-1", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Standard machines of a catalogue (`machines.yaml`)."""

    machines: Annotated[Sequence[MachineCard], Meta(min_length=1, max_length=100)]


C = TypeVar("C", Card, MachinesCard)


@dataclass(frozen=True, slots=True)
class CardCommand:
    """Parsed command of a card.

    `synthesizer`: name of the synthesizer, or "" if the algorithm is in `file`. `options`: those of
    the synthesizer or the reader. `arguments`: of a program, with `RANKS` not yet replaced.
    """

    synthesizer: str = ""
    file: str = ""
    options: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()


def parse_card(content: bytes, path: str, name: str | None = None) -> Card:
    """Parse and check a card of the zoo, a YAML document.

    `name`: name of its folder, which the card must repeat; None for any. Raises `InputError`
    (`invalid-card`), located in `path`, for the first of these defects:

    1. invalid YAML, or the first violation of the schema, such as an unknown key; with its line
       if known
    2. a name that differs from `name`
    3. more than one of command, file and fetch, or none of them and no figures
    4. a file, or a last part of the URL to fetch, that is no file name with a suffix
    5. a command that `parse_command` refuses
    """
    card = _parse(content, path, Card)
    if name is not None and card.name != name:
        _refuse(path, f"the name {card.name!r} differs from the folder {name!r}", f"name: {name}")
    sources = [bool(card.command), card.file is not None, card.fetch is not None]
    if sum(sources) > 1 or not (any(sources) or card.figures):
        _refuse(
            path,
            "the card needs exactly one of command, file and fetch, or only figures",
            "keep the key that creates the algorithm",
        )
    if card.file is not None:
        _check_file_name(card.file, path)
    if card.fetch is not None:
        _check_file_name(card.fetch.url.rpartition("/")[2], path)
    parse_command(card, path)
    return card


def parse_machines(content: bytes, path: str) -> tuple[MachineCard, ...]:
    """Parse the standard machines of a catalogue, in order.

    Raise `InputError`, located in the file `path`, for a text that is no YAML, for a
    document that violates the schema, and if two machines have the same topology text.
    """
    machines = tuple(_parse(content, path, MachinesCard).machines)
    texts = [machine.topology for machine in machines]
    repeated = next((text for text in texts if texts.count(text) > 1), None)
    if repeated is not None:
        _refuse(path, f"the machine {repeated} occurs twice", "remove one of them")
    return machines


def parse_command(card: Card, path: str) -> CardCommand | None:
    r"""Parse how a card creates its algorithm; None if the card has no file and no command.

    If the card has a file, only `file` is set and the command is not checked. A command is
    `synthesize NAME` or `convert FILE`, then pairs `-O KEY=VALUE`, then `--` and arguments.
    Options and arguments keep their order; repeated keys are kept. Raises `InputError`
    (`invalid-card`), located in `path`, for the first of these defects:

    1. The command has fewer than two words, or another verb.
    2. NAME has characters other than a-z, 0-9 and `-`, or begins with `-`. FILE has a folder, no
       suffix, or other characters (`is_file_name`).
    3. `synthesize` has arguments after `--`. A `--` without arguments is allowed.
    4. A pair before `--` (checked in order) is not `-O KEY=VALUE`. KEY has characters other than
       a-z, 0-9, `_` and `-`, begins with no letter, or is `sandbox` or `arguments`. VALUE without
       its `B/s` contains `/`, `\` or `..`, or begins with `.` or `~`.
    """
    if card.file is not None:
        return CardCommand(file=card.file)
    if not card.command:
        return None
    if len(card.command) < 2 or card.command[0] not in _VERBS:
        cure = "write [synthesize, NAME] or [convert, FILE]"
        _refuse(path, f"the command {' '.join(card.command)!r:.80} is not allowed", cure)
    verb, subject, *rest = card.command
    is_synthesis = verb == "synthesize"
    if is_synthesis and not re.fullmatch(r"[a-z0-9][a-z0-9-]*", subject):
        _refuse(path, f"{subject!r:.80} is no name of a synthesizer", "see 'collhub formats'")
    if not is_synthesis:
        _check_file_name(subject, path)
    before, after = rest, []
    if "--" in rest:
        position = rest.index("--")
        before, after = rest[:position], rest[position + 1 :]
    if after and is_synthesis:
        _refuse(path, "a synthesizer takes no arguments after --", "use -O KEY=VALUE")
    options = []
    for flag, pair in zip(before[::2], [*before[1::2], ""], strict=False):
        key, equals, value = pair.partition("=")
        if flag != "-O" or not equals or not re.fullmatch(r"[a-z][a-z0-9_-]*", key):
            _refuse(path, f"{flag!r:.80} is not allowed in a command", "use -O KEY=VALUE")
        if key in ("sandbox", "arguments"):
            _refuse(path, f"the option {key} is not allowed in a card", "remove it")
        if _PATH.search(value.replace("B/s", "")):
            _refuse(path, f"the value of {key} is a path", "give a value that is no path")
        options.append((key, value))
    return CardCommand(
        subject if is_synthesis else "",
        "" if is_synthesis else subject,
        tuple(options),
        tuple(after),
    )


def is_file_name(name: str) -> bool:
    """Return whether a text is the name of a file with suffix, without folders."""
    return bool(_FILE_NAME.fullmatch(name))


def _check_file_name(name: str, path: str) -> None:
    if not is_file_name(name):
        cure = "name a file in the folder of the card, as program.py"
        _refuse(path, f"{name!r:.80} is no file name with a suffix", cure)


def _parse(content: bytes, path: str, kind: type[C]) -> C:
    """Parse a YAML document, check it by the schema of `kind`, and return it as `kind`.

    `path`: its name in messages. Raises `InputError` (`invalid-card`) for a text that is no
    YAML, and for the first violation of the schema, with the line of its top-level key if
    known.
    """
    document = document_of(Source.of_bytes(path, content), _CODE).raw
    schema = f"{get_schema_name(kind).removeprefix('collhub/')}.json"
    for violation in schema_violations(document, schema):
        line = _find_line(content, violation.path)
        _refuse(path, f"{violation.path}: {violation.message}", violation.cure, line)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        _refuse(path, str(error), f"see schemas/{schema}")


def _find_line(content: bytes, where: str) -> int | None:
    """Return the line (from 1) of the top-level key of a path such as `$.origin.url`.

    It is the first line that begins with the key and a colon, here `origin:`. Blanks may
    precede the colon, but not the key. The result is None if no line does, or if the path
    has no key of lower-case letters, digits and underscores after `$.`.
    """
    key = re.match(r"\$\.([a-z0-9_]+)", where)
    if key is None:
        return None
    text = content.decode("utf-8", "replace")
    match = re.search(rf"^{key[1]}\s*:", text, re.MULTILINE)
    return None if match is None else text.count("\n", 0, match.start()) + 1


def _refuse(path: str, message: str, cure: str, line: int | None = None) -> NoReturn:
    raise InputError(message, location=Location(path, line), cure=cure, code=_CODE)
