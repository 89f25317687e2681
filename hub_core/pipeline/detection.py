"""Choose the format of an input or an output: by suffix, then by content; ambiguity is an error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, TypeVar

from hub_core.model.diagnostics import HubError, InputError, Location, PluginError, UsageError
from hub_core.pipeline.calls import blame
from hub_core.pipeline.json_heads import JsonHead, scan_json_head
from hub_core.pipeline.sources import Input, content_of, has_signature, may_read
from hub_core.plugin_api import (
    Format,
    FormatReader,
    FormatWriter,
    Layout,
    TopologyReader,
    WorkloadReader,
    WorkloadWriter,
)
from hub_core.plugin_api.offers import Offer, noun_of
from hub_core.plugin_api.options import resolve
from hub_core.registry.plugins import Provided, Registry
from hub_core.trace_profile.formats import CHAKRA, CHAKRA_JSON

CANONICAL_FORMAT = "chakra"
_JSON = Format("json", "JSON of any kind", (".json",))
# From which on two names of members count as the same word with a spelling mistake.
_MIN_SIMILARITY = 0.85
R = TypeVar("R", FormatReader, TopologyReader)
W = TypeVar("W", FormatWriter, WorkloadWriter)


def reader_for(opened: Input, kind: type[R], registry: Registry) -> Provided[R]:
    """The only reader that claims an input.

    The suffix decides where one reader has it, unless its signature does not fit and that of the
    only format without suffixes does; else the signature, in the first 4096 bytes, among the
    readers that have the suffix or, where none fits, among all. Raises `UsageError` or, where a
    plugin that is not loaded may be the one, `PluginError`.

    Contents never select a format that executes them: such a reader is considered only for a file
    that the user named with its suffix.
    """
    name = opened.source.parts[0].name
    able = [
        provided
        for provided in registry.all(kind)
        if may_read(opened, provided.offer.format)
        and (not _executes(provided.offer) or _is_named_program(opened, provided.offer.format))
    ]
    named = [provided for provided in able if _has_suffix(name, provided.offer.format)]
    json_head = scan_json_head(opened.head)
    searched = opened.head if json_head is None else json_head.searched
    signed = [found for found in able if has_signature(searched, found.offer.format)]
    if len(named) == 1:
        # A format without suffixes, such as one kind of XML among several, has only its contents.
        is_contradicted = named[0].offer.format.signature and named[0] not in signed
        is_other = len(signed) == 1 and not signed[0].offer.format.suffixes
        return signed[0] if is_contradicted and is_other else named[0]
    fitting = [found for found in signed if found in named] or signed
    # What may be either is an algorithm, unless a reader of workloads says that it is its own.
    others = [found for found in named or able if isinstance(found.offer, WorkloadReader)]
    plain = [found for found in fitting if found not in others]
    if len(plain) == 1:
        return next((found for found in others if _claims(found, opened)), plain[0])
    # What has no signature is left to the only reader of algorithms, which says what is wrong.
    unsure = [found for found in named if found not in others]
    # A signature that does not fit speaks against a reader, where another one has none.
    rest = fitting or [one for one in unsure if not one.offer.format.signature] or unsure
    if len(rest) == 1:
        return rest[0]
    is_json = json_head is not None or (bool(named) and _has_suffix(name, _JSON))
    if fitting or not is_json or registry.unavailable_hint():
        raise _undecided(opened, fitting or named, noun_of(kind), registry)
    raise _json_error(opened, json_head, kind, registry)


def writer_for(out: str, kind: type[W], registry: Registry) -> Provided[W]:
    """The writer that the suffix of a path names; without suffix, of the canonical traces."""
    writers = registry.all(kind)
    named = [provided for provided in writers if _has_suffix(out, provided.offer.format)]
    # Of `.json` and `.program.json`, the longer one says more.
    length = {one.name: max(map(len, one.offer.format.suffixes)) for one in named}
    named = [one for one in named if length[one.name] == max(length.values())]
    if len(named) == 1:
        return named[0]
    if not named and not PurePath(out).suffix and out != "-":
        traces = [found for found in writers if is_trace(found.offer.format)]
        return traces[0] if len(traces) == 1 else registry.find(kind, CANONICAL_FORMAT)
    known = sorted({suffix for provided in writers for suffix in provided.offer.format.suffixes})
    message = f"the name {out!r} does not tell the format"
    if named:
        message = f"{out!r} may be {_names(named)}"
    cure = f"name the format with --to; suffixes that do: {', '.join(known)}"
    raise UsageError(message, cure=cure, code="undecided-format")


def is_trace(format: Format) -> bool:
    """Whether files of a format are Chakra traces, by their names."""
    return trace_form(format) is not None


def trace_form(format: Format) -> Format | None:
    """The form of the canonical traces, binary or JSON, that files of a format have."""
    if set(format.suffixes) & set(CHAKRA.suffixes):
        return CHAKRA
    is_json = format.layout is Layout.PREFIX and format.suffixes == CHAKRA_JSON.suffixes
    return CHAKRA_JSON if is_json else None


def _executes(offer: Offer) -> bool:
    """Whether reading runs the content as a program."""
    return isinstance(offer, FormatReader) and offer.executes_source


def _is_named_program(opened: Input, format: Format) -> bool:
    """Whether the user named one file, by the suffix of a format that executes it."""
    return opened.layout is Layout.FILE and _has_suffix(opened.source.name, format)


def _claims(found: Provided[R], opened: Input) -> bool:
    """Whether a reader of workloads says that a source is one."""
    claims = getattr(found.offer, "claims", "")
    if not claims or (opened.is_gzip and not found.offer.format.accepts_gzip):
        return False
    with blame(found):
        return bool(resolve(claims)(content_of(opened, found.offer.format)))


def may_be_topology_file(text: str, registry: Registry) -> bool:
    """Whether a text that names no file looks like one: it has folders, or a known suffix."""
    readers = registry.all(TopologyReader)
    return "/" in text or any(_has_suffix(text, reader.offer.format) for reader in readers)


def _has_suffix(name: str, format: Format) -> bool:
    # The suffixes of a folder are those of a file in it, which tells nothing of its own name.
    suffixes = () if format.layout is Layout.FOLDER else format.suffixes
    return name.lower().endswith(tuple(suffix.lower() for suffix in suffixes))


def _undecided(
    opened: Input, candidates: Sequence[Provided[Offer]], noun: str, registry: Registry
) -> HubError:
    place = Location(opened.source.name)
    if candidates:
        message, cure = f"may be {_names(candidates)}", "name the format with --from"
        return InputError(message, location=place, cure=cure, code="ambiguous-format")
    message = f"no {noun} claims it, neither by its name nor by its first bytes"
    if hint := registry.unavailable_hint():
        message, cure = f"{message}; {hint}", "see 'collhub plugins list'"
        return PluginError(message, location=place, cure=cure, code="not-available")
    cure = "name the format with --from; 'collhub formats' lists them"
    return InputError(message, location=place, cure=cure, code="unknown-format")


def _json_error(
    opened: Input, head: JsonHead | None, kind: type[Offer], registry: Registry
) -> InputError:
    """The error for JSON, or a file named `.json`, that has the signature of no format."""
    noun, place = noun_of(kind), Location(opened.source.name)
    cure = "name the format with --from; 'collhub formats' lists them"
    if head is None:
        start = opened.head[:40].decode("utf-8", "replace").split("\n")[0]
        message = f"is not JSON: it begins with {start!r}"
        return InputError(message, location=place, cure=cure, code="not-json")
    if head.hub_schema:
        message = f"no {noun} reads the schema {head.hub_schema!r:.60}"
    elif head.is_object:
        members = ", ".join(f"{member!r:.40}" for member in head.members[:6]) or "none"
        message = f"no {noun} recognises this JSON object with the members {members}"
    else:
        message = f"no {noun} recognises this JSON list"
    nearest = _nearest_format(head, registry)
    if nearest is not None:
        format = nearest.offer.format
        cure = (
            f"the nearest format is {format.name} ({format.description}) "
            f"with the members {', '.join(map(repr, format.members))}"
        )
        if isinstance(nearest.offer, TopologyReader) and kind is not TopologyReader:
            cure = f"{cure}, which describes a topology"
        if kind is TopologyReader and not isinstance(nearest.offer, TopologyReader):
            cure = f"{cure}, which describes no topology"
    return InputError(message, location=place, cure=cure, code="unknown-format")


def _nearest_format(head: JsonHead, registry: Registry) -> Provided[Any] | None:
    """The reader of the format that shares most members with a JSON object, None for none.

    Spelling counts little: `collective_size` is near `collective-size` and `collectiveSize`.
    """
    # Imported here, since most inputs are recognised.
    from difflib import get_close_matches

    readers: list[Provided[Any]] = [
        *registry.all(FormatReader),
        *registry.all(WorkloadReader),
        *registry.all(TopologyReader),
    ]
    texts = [_plain_name(member) for member in head.members]
    best: tuple[float, Provided[Any]] | None = None
    for provided in readers:
        format = provided.offer.format
        known = {_plain_name(member) for member in format.members}
        shared = sum(bool(get_close_matches(text, known, 1, _MIN_SIMILARITY)) for text in texts)
        # Among formats that share as many, the one with fewer other members is nearer.
        score = shared - len(known) / 1000
        if shared and (best is None or score > best[0]):
            best = score, provided
    return None if best is None else best[1]


def _plain_name(member: str) -> str:
    return "".join(character for character in member.lower() if character.isalnum())


def _names(candidates: Sequence[Provided[Offer]]) -> str:
    return " or ".join(f"{provided.name} ({provided.plugin})" for provided in candidates)
