"""Cards are untrusted input; catalogues are the installed one, folders and addresses."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest
from collhub_zoo.cards import parse_card, parse_machines
from collhub_zoo.catalogue import AlgorithmSource, download, open_catalogue

import hub_core
import hub_core.reports
from hub_core import CollectiveKind, InputError, UsageError, run_registry

CARD = """schema: collhub/zoo-card-1
name: ring
title: Ring
collectives: [all-reduce]
origin: {licence: MIT}
command: [synthesize, ring, "-O", "order=given"]
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: Ring", "title: !!python/name:os.system Ring", "this is not YAML"),
        ("title: Ring", "title: Ring\nspeed: high", "speed"),
        ("title: Ring\n", "", "title"),
        ("name: ring", "name: other", "differs from the folder"),
        ("all-reduce", "all-sum", "all-sum"),
        ("[synthesize, ring", "[run, ring", "is not allowed"),
        ("synthesize, ring", "synthesize, ../ring", "no name of a synthesizer"),
        ("synthesize, ring", "convert, ../ring.xml", "no file name"),
        ("synthesize, ring", "convert, /etc/passwd", "no file name"),
        ('"-O", "order=given"', '"-o", "out.xml"', "'-o' is not allowed"),
        ('"-O", "order=given"', '"-O"', "is not allowed"),
        ("order=given", "order=/etc/passwd", "is a path"),
        ("order=given", "sandbox=false", "the option sandbox is not allowed"),
        ('"-O", "order=given"', '"--", "8"', "takes no arguments"),
        ("title: Ring", "title: Ring\nfile: ring.xml", "exactly one of"),
        ("title: Ring", "title: Ring\ntopologies: [../net.json]", "net.json"),
        ("{licence: MIT}", "{licence: MIT, url: http://example.org}", "http://example.org"),
    ],
)
def test_invalid_card_is_refused_with_its_file(old: str, new: str, message: str) -> None:
    assert old in CARD
    with pytest.raises(InputError, match=r"ring/card\.yaml") as refusal:
        parse_card(CARD.replace(old, new, 1).encode(), "ring/card.yaml", "ring")
    assert message in str(refusal.value)


def test_error_of_a_card_has_the_line_of_its_key() -> None:
    with pytest.raises(InputError, match=r"card\.yaml:4: "):
        parse_card(CARD.replace("[all-reduce]", "[]").encode(), "card.yaml", "ring")


def test_machine_that_occurs_twice_is_refused() -> None:
    machine = "  - {topology: dgx-h100, title: DGX}\n"
    text = f"schema: collhub/zoo-machines-1\nmachines:\n{machine}{machine}"
    with pytest.raises(InputError, match="dgx-h100 occurs twice"):
        parse_machines(text.encode(), "machines.yaml")


def test_installed_catalogue_has_all_classic_algorithms() -> None:
    plugin = pytest.importorskip("collhub_classic.plugin")
    classic = {offer.name for offer in plugin.collhub_producers()}
    catalogue = open_catalogue(None)
    assert catalogue.errors == ()
    assert len(catalogue.machines) == 12
    assert classic | {"tacos", "blink", "flows", "auto"} <= {e.card.name for e in catalogue.entries}
    for offer in plugin.collhub_producers():
        card = catalogue.find(offer.name).card
        kinds = {kind.value for kind in offer.collectives}
        # Collectives with sizes by rank have no single size, by which the zoo compares.
        assert set(card.collectives) == {kind for kind in kinds if not kind.endswith("-v")}


def test_list_filters_by_collective_machine_and_ranks(collhub) -> None:
    result = collhub("zoo", "list", "--collective", "all-to-all", "--ranks", "16", "--json")
    names = [entry["card"]["name"] for entry in json.loads(result.out)["entries"]]
    assert (result.code, "bruck" in names, "ring" in names) == (0, True, False)
    result = collhub("zoo", "list", "--machine", "mesh:4x4", "--json")
    assert [entry["card"]["name"] for entry in json.loads(result.out)["entries"]] == [
        "teccl-mesh-4"
    ]


def test_folder_with_an_invalid_card_lists_the_others(collhub, tmp_path: Path) -> None:
    for name in ("ring", "wrong"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "card.yaml").write_text(CARD)
    result = collhub("zoo", "list", "--zoo", str(tmp_path))
    assert (result.code, "ring" in result.out) == (1, True)
    assert "wrong/card.yaml" in result.err


def test_get_writes_a_verified_algorithm(collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_classic")
    out = tmp_path / "ring.json"
    arguments = ("--machine", "ring:4", "--collective", "all-gather", "-o", str(out), "--json")
    result = collhub("zoo", "get", "ring", *arguments)
    assert (result.code, json.loads(result.out)["artifacts"]) == (0, [str(out)]), result.err
    assert hub_core.verify(hub_core.read(out)).ok


def test_get_of_an_unknown_entry_suggests_the_closest(collhub) -> None:
    result = collhub("zoo", "get", "rnig", "-o", "out.xml")
    assert (result.code, "did you mean 'ring'" in result.err) == (2, True)


def test_downloaded_file_needs_the_sha256_of_the_card() -> None:
    entry = open_catalogue(None).find("teccl-mesh-4")
    with pytest.raises(InputError, match="the SHA-256 is"):
        AlgorithmSource(entry, run_registry(), b"{}")
    source = AlgorithmSource(entry, run_registry())
    with pytest.raises(UsageError, match="--fetched FILE"):
        source.create(CollectiveKind.ALL_GATHER, hub_core.parse_topology("mesh:4x4"), 1 << 20)


def test_address_without_https_is_refused(collhub) -> None:
    for address in ("http://example.org/zoo", "file:///etc/passwd"):
        with pytest.raises(UsageError, match="no https address"):
            download(f"{address}/index.json")
        assert collhub("zoo", "list", "--zoo", address).code == 2


def test_an_answer_that_is_no_http_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*arguments: object, **options: object) -> None:
        raise http.client.BadStatusLine("SSH-2.0-OpenSSH_9.6")

    monkeypatch.setattr("urllib.request.OpenerDirector.open", answer)
    with pytest.raises(InputError, match=r"the download failed: .*SSH-2\.0"):
        download("https://example.org/index.json")


def test_catalogue_at_an_address_checks_its_files() -> None:
    entry = open_catalogue(None).find("mscclang-rings")
    program = entry.read("program.py")
    card = hub_core.reports.to_json(entry.card)
    index = {
        "schema": "collhub/report-zoo-build-1",
        "machines": [{"topology": "switch:8", "title": "Switch"}],
        "entries": [{"card": card, "files": entry.hash_files()}],
    }
    files = {
        "https://example.org/zoo/index.json": json.dumps(index).encode(),
        "https://example.org/zoo/zoo/mscclang-rings/program.py": program,
    }
    catalogue = open_catalogue("https://example.org/zoo", lambda url, limit: files[url])
    remote = catalogue.find("mscclang-rings")
    assert remote.read("program.py") == program
    files["https://example.org/zoo/zoo/mscclang-rings/program.py"] = b"import os\n"
    with pytest.raises(InputError, match="the SHA-256 is"):
        remote.read("program.py")
    with pytest.raises(InputError, match="there is no file"):
        remote.read("../card.yaml")
