"""Choose the format of an input or output: by suffix, then by content; ambiguity is an error."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeVar

from hub_core.documents.strict_json import describe_other_version, find_other_version
from hub_core.model.diagnostics import HubError, InputError, Location, PluginError, UsageError
from hub_core.pipeline.calls import blame
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

_HUB_SCHEMA = "collhub/"
# A quoted string, a bracket, a colon or a comma; other characters are skipped.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]:,]', re.DOTALL)
_START = re.compile(rb"\A(?:\xef\xbb\xbf)?\s*([{\[])")
CANONICAL_FORMAT = "chakra"
_JSON = Format("json", "JSON of any kind", (".json",))
# Similarity above which two member names count as the same word, misspelt.
_MIN_SIMILARITY = 0.85
_MIN_SHARED_MEMBERS = 2
R = TypeVar("R", FormatReader, TopologyReader)
W = TypeVar("W", FormatWriter, WorkloadWriter)


@dataclass(frozen=True, slots=True)
class JsonHead:
    """Top level of a JSON text, as far as its first bytes show it.

    `is_object`: True for an object, False for a list. `members`: names of its members, in their
    order. `hub_schema`: the member `schema` of a document of the hub (`collhub/algorithm-1`), else
    "". `searched`: bytes in which signatures of formats are searched. For a document of the hub,
    only its schema; for other objects, without the value of `extensions` (data of any format).
    """

    is_object: bool
    members: tuple[str, ...]
    hub_schema: str
    searched: bytes


def scan_json_head(head: bytes) -> JsonHead | None:
    """Scan the first bytes of a JSON text; None if it begins with neither an object nor a list.

    A byte order mark of UTF-8 and white space may precede. The bytes may end anywhere, and the text
    may be invalid. The result has the names of the members of the outermost object in order, with
    escapes as in the text; none for a list. `schema` is its member `schema` if that begins with
    `collhub/`, otherwise "". `searched` has the bytes in which signatures of formats are searched:
    `schema` in quotes if it is not "", otherwise `head` without the value of the outermost member
    `extensions`, which may contain data of other formats.
    """
    start = _START.match(head)
    if start is None:
        return None
    is_object = start[1] == b"{"
    members: list[str] = []
    schema = ""
    depth = 0
    name: str | None = None
    is_name_next = False
    extensions = [len(head), len(head)]
    for token in _TOKEN.finditer(head):
        text = token[0]
        if text in b"{[":
            depth += 1
            is_name_next = depth == 1 and is_object
        elif text in b"}]":
            depth -= 1
            if depth == 0:
                break
        elif depth == 1 and text == b",":
            if name == "extensions":
                extensions[1] = token.start()
            name, is_name_next = None, is_object
        elif depth == 1 and text[:1] == b'"' and is_name_next:
            name, is_name_next = text[1:-1].decode("utf-8", "replace"), False
            members.append(name)
            if name == "extensions":
                extensions = [token.end(), len(head)]
        elif depth == 1 and text[:1] == b'"' and name == "schema":
            schema = text[1:-1].decode("utf-8", "replace")
    if not schema.startswith(_HUB_SCHEMA):
        searched = head[: extensions[0]] + head[extensions[1] :]
        return JsonHead(is_object, tuple(members), "", searched)
    return JsonHead(is_object, tuple(members), schema, f'"{schema}"'.encode())


def find_reader(opened: Input, kind: type[R], registry: Registry) -> Provided[R]:
    """Return the reader of `kind` for an input, by its suffix and its signature.

    Only readers for the layout of the input (file, folder, ranks) are considered. A reader that
    executes the input also needs its suffix on the one file that the user named. Matching are
    readers whose signature occurs in the first 4096 bytes, if possible only those with the suffix.
    The first case that applies:

    1. Exactly one reader has the suffix: this one. Exception: its format has a signature that does
       not occur, and exactly one reader is matching: that one.
    2. Exactly one matching reader is not for workloads: it, unless a workload reader `claims` the
       content; then the first of these. Workload readers are those with the suffix or matching;
       all, if no reader has the suffix.
    3. Exactly one reader matches: it. If none matches, the only reader with the suffix that is not
       for workloads; of several, the only one without a signature.

    Otherwise raises `InputError` or `PluginError`.
    """
    name = opened.source.parts[0].name
    able = []
    for provided in registry.all(kind):
        offer = provided.offer
        executes = isinstance(offer, FormatReader) and offer.executes_source
        # Only a file that the user named as a program is executed.
        is_named = opened.layout is Layout.FILE and _has_suffix(opened.source.name, offer.format)
        if may_read(opened, offer.format) and (is_named or not executes):
            able.append(provided)
    named = [provided for provided in able if _has_suffix(name, provided.offer.format)]
    json_head = scan_json_head(opened.head)
    searched = opened.head if json_head is None else json_head.searched
    signed = [candidate for candidate in able if has_signature(searched, candidate.offer.format)]
    if len(named) == 1:
        # A suffix may belong to several tools, such as `.topo`; the content decides.
        is_contradicted = named[0].offer.format.signature and named[0] not in signed
        return signed[0] if is_contradicted and len(signed) == 1 else named[0]
    fitting = [candidate for candidate in signed if candidate in named] or signed
    # If the input may be an algorithm or a workload, it is an algorithm, unless a reader of
    # workloads claims it.
    known = named + [one for one in fitting if one not in named] if named else able
    workload_readers = [one for one in known if isinstance(one.offer, WorkloadReader)]
    plain = [candidate for candidate in fitting if candidate not in workload_readers]
    if len(plain) == 1:
        return next(
            (candidate for candidate in workload_readers if _claims(candidate, opened)), plain[0]
        )
    # Without a matching signature, the only reader of algorithms is chosen; it reports the defects.
    unsure = [candidate for candidate in named if candidate not in workload_readers]
    # A reader whose signature does not match is less likely than a reader without a signature.
    rest = (
        fitting
        or [candidate for candidate in unsure if not candidate.offer.format.signature]
        or unsure
    )
    if len(rest) == 1:
        return rest[0]
    is_json = json_head is not None or (bool(named) and _has_suffix(name, _JSON))
    if fitting or not is_json or registry.unavailable_hint():
        raise _create_ambiguity_error(opened, fitting, named, kind, registry)
    raise _create_json_error(opened, json_head, kind, registry)


def recognize_formats(opened: Input, registry: Registry) -> list[Format]:
    """Return the formats of algorithms and workloads that an input may have, sorted by name.

    Only formats whose layout (file, folder, ranks) suits the input are considered.

    1. The result has all formats whose signature, a regular expression, occurs in the first
       4096 bytes. In JSON with a schema `collhub/...`, only this schema is searched. In other
       JSON, the outermost `extensions` is not searched.
    2. If there are none, it has all formats with the suffix of the first file's name. Case is
       ignored. Formats of folders have no suffix.
    3. Otherwise it is empty.
    """
    formats = {
        provided.offer.format.name: provided.offer.format
        for provided in registry.all(FormatReader)
        if may_read(opened, provided.offer.format)
    }
    ordered = [formats[name] for name in sorted(formats)]
    json_head = scan_json_head(opened.head)
    searched = opened.head if json_head is None else json_head.searched
    name = opened.source.parts[0].name
    signed = [format for format in ordered if has_signature(searched, format)]
    return signed or [format for format in ordered if _has_suffix(name, format)]


def find_writer(out: str, kind: type[W], registry: Registry) -> Provided[W]:
    """Return the writer of `kind` for the suffix of an output path, in upper or lower case.

    A format competes if the path ends with one of its suffixes; formats of folders never compete.
    If several compete, those whose longest suffix is longest remain. All suffixes of a format count
    for this, not only that of the path. If one remains, its writer is returned.

    If none competes, and the path has no suffix and is not `-`, the output is traces: the only
    writer of traces or, if there are several or none, the writer `chakra`. If `chakra` is not
    installed, `UsageError` or `PluginError` of `Registry.find` is raised. In all other cases,
    including the path `-`, `UsageError` (`undecided-format`) is raised.
    """
    writers = registry.all(kind)
    named = [provided for provided in writers if _has_suffix(out, provided.offer.format)]
    # `.program.json` takes precedence over `.json`.
    length = {candidate.name: max(map(len, candidate.offer.format.suffixes)) for candidate in named}
    named = [candidate for candidate in named if length[candidate.name] == max(length.values())]
    if len(named) == 1:
        return named[0]
    if not named and not PurePath(out).suffix and out != "-":
        traces = [candidate for candidate in writers if is_trace(candidate.offer.format)]
        return traces[0] if len(traces) == 1 else registry.find(kind, CANONICAL_FORMAT)
    known = sorted({suffix for provided in writers for suffix in provided.offer.format.suffixes})
    message = f"the name {out!r} does not identify the format"
    if named:
        message = f"{out!r} may be {_join_names(named)}"
    cure = f"name the format with --to; suffixes that do: {', '.join(known)}"
    raise UsageError(message, cure=cure, code="undecided-format")


def is_trace(format: Format) -> bool:
    """Whether files of a format are Chakra traces, judging by their names."""
    return trace_form(format) is not None


def trace_form(format: Format) -> Format | None:
    """Return the canonical trace format to which a format belongs; None if to neither.

    `CHAKRA` (binary) if the format has the suffix `.et`, else `CHAKRA_JSON` if it is a set of rank
    files with exactly the suffixes of that format, in the same order.
    """
    if set(format.suffixes) & set(CHAKRA.suffixes):
        return CHAKRA
    is_json = format.layout is Layout.PREFIX and format.suffixes == CHAKRA_JSON.suffixes
    return CHAKRA_JSON if is_json else None


def _claims(provided: Provided[R], opened: Input) -> bool:
    """Return whether a reader of workloads recognises the content as a workload.

    The function `claims` of its offer decides; it gets the source, decompressed if the format
    accepts gzip. False without the function, and for compressed content that the format does not
    accept. If the function of a plugin cannot be imported or fails, `PluginError` is raised.
    `HubError`, `KeyboardInterrupt` and `MemoryError` pass through unchanged, for example
    `InputError` for a damaged archive, and so do all exceptions of an offer of the core.
    """
    claims = getattr(provided.offer, "claims", "")
    if not claims or (opened.is_gzip and not provided.offer.format.accepts_gzip):
        return False
    with blame(provided):
        return bool(resolve(claims)(content_of(opened, provided.offer.format)))


def may_be_topology_file(text: str, registry: Registry) -> bool:
    """Return whether a text that is no existing file was probably meant as a path.

    True if it has a `/`, or the suffix (in any case) of an installed reader of topology files.
    """
    readers = registry.all(TopologyReader)
    return "/" in text or any(_has_suffix(text, reader.offer.format) for reader in readers)


def _has_suffix(name: str, format: Format) -> bool:
    # The suffixes of a folder format are those of a file in the folder.
    suffixes = () if format.layout is Layout.FOLDER else format.suffixes
    return name.lower().endswith(tuple(suffix.lower() for suffix in suffixes))


def _create_ambiguity_error(
    opened: Input,
    fitting: Sequence[Provided[Offer]],
    named: Sequence[Provided[Offer]],
    kind: type[FormatReader] | type[TopologyReader],
    registry: Registry,
) -> HubError:
    """Create the error for an input of which no reader or several readers recognize the format.

    `fitting`: readers whose signature matches; `named`: readers with the suffix; `kind`: the
    readers that may be meant. The error is returned, not raised. The first rule that applies:

    - `fitting` is empty and the text is in UTF-16: `InputError` (`unknown-format`).
    - `fitting` or `named` has a reader, even a single one: `InputError` (`ambiguous-format`).
      It lists `fitting`, or `named` if that is empty; the remedy is `--from`.
    - A file that a tool must export to a format first: `InputError` (`not-exported`).
    - A plugin that is not loaded may have the reader: `PluginError` (`not-available`).
    - Otherwise: `InputError` (`unknown-format`); the remedy is `--from`.
    """
    location, noun = Location(opened.source.name), noun_of(kind)
    if not fitting and opened.head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        message = f"is text in UTF-16, which no {noun} reads"
        cure = "save it as UTF-8"
        return InputError(message, location=location, cure=cure, code="unknown-format")
    if fitting or named:
        message, cure = f"may be {_join_names(fitting or named)}", "name the format with --from"
        if not fitting:
            message = f"no {noun} recognises the content; by its name it {message}"
        return InputError(message, location=location, cure=cure, code="ambiguous-format")
    for provided in registry.all(kind):
        for files in provided.offer.format.unexported:
            if error := files.find_error(opened.source.name, opened.head):
                return error
    message = f"no {noun} claims it, neither by its name nor by its first bytes"
    if opened.layout is Layout.FOLDER:
        message = f"is a folder, and no {noun} recognises its files"
    if hint := registry.unavailable_hint():
        message, cure = f"{message}; {hint}", "see 'collhub plugins list'"
        return PluginError(message, location=location, cure=cure, code="not-available")
    cure = "name the format with --from; 'collhub formats' lists them"
    return InputError(message, location=location, cure=cure, code="unknown-format")


def _create_json_error(
    opened: Input, head: JsonHead | None, kind: type[Offer], registry: Registry
) -> InputError:
    """Create the error about JSON, or a file named `.json`, that no reader recognizes.

    `head`: the scanned start of the file. The first case that applies:

    1. `head` is None: code `not-json`. The message has the first line of the file, at most 40
       bytes. For UTF-16 it says so, and the cure is to save it as UTF-8. All others have
       `unknown-format`.
    2. Its hub schema exists in another version: message and cure name that version.
    3. The message names the unknown hub schema, or the first six members of an object, or a list.
       The cure is the nearest format (`_find_nearest_format`) with its members, or else `--from`.
       The cure gets a remark if the nearest format is a folder. Otherwise it gets one if either
       `kind` or the nearest reader, but not both, is a reader of topologies.
    """
    noun, location = noun_of(kind), Location(opened.source.name)
    cure = "name the format with --from; 'collhub formats' lists them"
    if head is None:
        start = opened.head[:40].decode("utf-8", "replace").split("\n")[0]
        message = f"is not JSON: it begins with {start!r}"
        if opened.head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            message, cure = "is text in UTF-16, and JSON is in UTF-8", "save it as UTF-8"
        return InputError(message, location=location, cure=cure, code="not-json")
    known = find_other_version(head.hub_schema) if head.hub_schema else None
    if known is not None:
        message, cure = describe_other_version(head.hub_schema, known)
        return InputError(message, location=location, cure=cure, code="unknown-format")
    if head.hub_schema:
        message = f"no {noun} reads the schema {head.hub_schema!r:.60}"
    elif head.is_object:
        members = ", ".join(f"{member!r:.40}" for member in head.members[:6])
        described = f"with the members {members}" if members else "without members"
        message = f"no {noun} recognises this JSON object {described}"
    else:
        message = f"no {noun} recognises this JSON list"
    nearest = _find_nearest_format(head, registry)
    if nearest is not None:
        format = nearest.offer.format
        cure = (
            f"the nearest format is {format.name} ({format.description}) "
            f"with the members {', '.join(map(repr, format.members))}"
        )
        if format.layout is Layout.FOLDER:
            cure = f"{cure}; name the folder, not this file of it"
        elif isinstance(nearest.offer, TopologyReader) and kind is not TopologyReader:
            cure = f"{cure}, which describes a topology"
        elif kind is TopologyReader and not isinstance(nearest.offer, TopologyReader):
            cure = f"{cure}, which describes no topology; give a network, such as mesh:4x4"
    return InputError(message, location=location, cure=cure, code="unknown-format")


def _find_nearest_format(head: JsonHead, registry: Registry) -> Provided[Any] | None:
    """Find the reader whose format shares most members with a JSON object; None if none does.

    Readers of algorithms, workloads and topologies are compared. The first one whose
    signature is in the object is returned at once. Two members are shared if their
    normalized names have a similarity of at least 0.85 (`collective_size`,
    `collectiveSize`). On ties, the format with fewer members is nearer, then the first one.
    A single shared member counts only if the object has no other member.
    """
    # Imported here, because most inputs are recognised.
    from difflib import get_close_matches

    kinds: tuple[type[Offer], ...] = (FormatReader, WorkloadReader, TopologyReader)
    readers: list[Provided[Any]] = [one for kind in kinds for one in registry.all(kind)]
    texts = [_normalize_name(member) for member in head.members]
    best: tuple[float, Provided[Any]] | None = None
    for provided in readers:
        format = provided.offer.format
        if has_signature(head.searched, format):
            return provided
        known = {_normalize_name(member) for member in format.members}
        shared = sum(bool(get_close_matches(text, known, 1, _MIN_SIMILARITY)) for text in texts)
        score = shared - len(known) / 1000
        # One common name of a member, such as `nodes`, says nothing about the format.
        is_near = shared >= min(_MIN_SHARED_MEMBERS, len(texts))
        if shared and is_near and (best is None or score > best[0]):
            best = score, provided
    return None if best is None else best[1]


def _normalize_name(member: str) -> str:
    return "".join(character for character in member.lower() if character.isalnum())


def _join_names(candidates: Sequence[Provided[Offer]]) -> str:
    return " or ".join(f"{provided.name} ({provided.plugin})" for provided in candidates)
