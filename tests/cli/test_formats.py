"""`collhub formats`: what can be read, written and simulated with."""

from __future__ import annotations

import pytest

from hub_core.cli.reports.installation_records import default_text
from hub_core.plugin_api.options import Option, OptionType


def test_the_core_alone_reads_and_writes_its_canonical_forms(collhub) -> None:
    report = collhub("--no-plugins", "formats", "--json").report()
    ways = {(way["name"], way["does"]) for way in report["formats"]}
    assert ways == {
        ("chakra", "read"),
        ("chakra", "write"),
        ("chakra-json", "read"),
        ("json", "read"),
        ("json", "write"),
        ("topology-json", "read topology"),
        ("topology-json", "write topology"),
    }


def test_one_row_a_format_says_what_can_be_done_with_it(collhub) -> None:
    run = collhub("--no-plugins", "formats")
    rows = [line.split("  ")[0] for line in run.out.splitlines()]
    assert rows == ["name", "chakra", "chakra-json", "json", "topology-json"]
    assert "read, write" in run.out


def test_plugins_that_are_not_loaded_are_noted_on_stderr(collhub, msccl: None) -> None:
    run = collhub("--disable-plugin", "msccl", "formats")
    assert "msccl-xml" not in run.out
    assert "plugin msccl" in run.err


def test_a_name_shows_the_options(collhub) -> None:
    run = collhub("formats", "chakra")
    assert run.code == 0
    assert "-O flatten=BOOL" in run.out


def test_a_misspelt_name_gets_the_closest(collhub) -> None:
    run = collhub("formats", "jsno")
    assert (run.code, run.error_lines) == (
        2,
        [
            "error: there is no format, picture, synthesizer, generator, pass, simulator, executor, "
            "engine or check 'jsno'; did you mean 'json'? [unknown-name]"
        ],
    )


def test_a_misspelt_name_of_any_kind_that_is_listed_gets_the_closest(collhub, msccl: None) -> None:
    listed = {way["name"] for way in collhub("formats", "--json").report()["formats"]}
    for name, misspelt in {"svg": "svgg", "relabel": "relabl", "rccl": "rcccl"}.items():
        if name in listed:
            assert f"did you mean {name!r}?" in collhub("formats", misspelt).err


def test_a_misspelt_plugin_to_disable_is_refused(collhub) -> None:
    assert collhub("--disable-plugin", "nonsense", "formats").code == 2


def test_a_default_size_is_shown_with_its_unit(collhub, msccl: None) -> None:
    run = collhub("formats", "mscclang")
    assert "(default 4GiB)" in run.out


@pytest.mark.parametrize(("size", "text"), [(0, "0B"), (1234567, "1234567B"), (1 << 30, "1GiB")])
def test_a_default_size_is_exact(size: int, text: str) -> None:
    # 1234567 bytes are rounded to 1.177 MiB, which is no whole number of bytes; users cannot give
    # a size of 0, but a plugin may declare it as the default.
    assert default_text(Option("limit", OptionType.SIZE, size, "")) == text
