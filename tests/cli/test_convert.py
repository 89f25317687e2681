"""`collhub convert`: formats, options, losses, pipes, and output that is whole or absent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hub_core
from hub_core.testing import ring_all_reduce

COLLHUB = (sys.executable, "-P", "-m", "hub_core.cli.main")


def test_a_path_without_suffix_is_the_prefix_of_traces(collhub, ring: Path, tmp_path: Path) -> None:
    run = collhub("convert", ring, "-o", tmp_path / "out" / "ring")
    assert (run.code, run.out) == (0, "")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"ring.{rank}.et" for rank in range(4)
    ]
    assert run.err == f"wrote {tmp_path}/out/ring.0.et and 3 more\n"


def test_there_and_back_is_the_same_document(collhub, ring: Path, tmp_path: Path) -> None:
    assert collhub("convert", ring, "-o", tmp_path / "t").code == 0
    run = collhub("convert", tmp_path / "t", "-o", tmp_path / "again.json")
    assert (run.code, run.err) == (0, f"wrote {tmp_path}/again.json\n")
    assert (tmp_path / "again.json").read_bytes() == ring.read_bytes()


def test_the_report_names_formats_artifacts_and_losses(collhub, ring: Path, tmp_path: Path) -> None:
    report = collhub("convert", ring, "-o", tmp_path / "t", "--json").report()
    assert (report["from"], report["to"], report["losses"]) == ("json", "chakra", [])
    assert report["artifacts"] == [str(tmp_path / f"t.{rank}.et") for rank in range(4)]


def test_standard_input_and_output_are_pipes(collhub, ring: Path) -> None:
    run = collhub("convert", "-", "-o", "-", "--to", "json", stdin=ring.read_bytes())
    assert (run.code, run.err) == (0, "")
    assert run.out.encode() == ring.read_bytes()


def test_convert_into_verify_through_a_shell_pipe(ring: Path) -> None:
    converter = subprocess.Popen(
        [*COLLHUB, "convert", str(ring), "-o", "-", "--to", "json"], stdout=subprocess.PIPE
    )
    with converter:
        verifier = subprocess.run(
            [*COLLHUB, "verify", "-", "--json"],
            stdin=converter.stdout,
            capture_output=True,
            timeout=60,
        )
    assert (converter.returncode, verifier.returncode, verifier.stderr) == (0, 0, b"")
    assert json.loads(verifier.stdout)["ok"] is True


def test_several_files_do_not_fit_into_standard_output(collhub, ring: Path) -> None:
    run = collhub("convert", ring, "-o", "-", "--to", "chakra")
    assert (run.code, run.out, len(run.error_lines)) == (2, "", 1)


def test_json_report_and_output_cannot_share_standard_output(collhub, ring: Path) -> None:
    run = collhub("convert", ring, "-o", "-", "--to", "json", "--json")
    assert (run.code, run.out) == (2, "")


def test_a_misspelt_format_names_the_closest(collhub, ring: Path, tmp_path: Path) -> None:
    run = collhub("convert", ring, "-o", tmp_path / "x", "--to", "chakar")
    assert run.code == 2
    assert "'chakar'; did you mean 'chakra'?" in run.err


def test_an_option_that_nobody_declares_is_refused(collhub, ring: Path, tmp_path: Path) -> None:
    run = collhub("convert", ring, "-o", tmp_path / "x.json", "-O", "colour=red")
    assert (run.code, len(run.error_lines)) == (2, 1)
    assert "there is no option 'colour' here" in run.err
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("out", ["missing.nope", "x.unknown"])
def test_an_unknown_suffix_asks_for_the_format(
    collhub, ring: Path, tmp_path: Path, out: str
) -> None:
    run = collhub("convert", ring, "-o", tmp_path / out)
    assert run.code == 2
    assert "--to" in run.err


def test_strict_refuses_losses_and_writes_nothing(collhub, ring: Path, tmp_path: Path) -> None:
    # Flattened traces no longer say which dependencies were only program order.
    root = json.loads(ring.read_text())
    root["steps"]["control"] = [[], [0], *[[]] * 46]
    ring.write_text(json.dumps(root))
    arguments = ("convert", ring, "-o", tmp_path / "out" / "x", "-O", "flatten=true")
    refused = collhub(*arguments, "--strict")
    assert (refused.code, (tmp_path / "out").exists()) == (4, False)
    assert all("refused, the conversion loses: " in line for line in refused.error_lines)
    accepted = collhub(*arguments)
    assert accepted.code == 0
    assert accepted.err.startswith("warning: ")


def test_an_existing_file_is_replaced_as_a_whole(collhub, ring: Path, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("old")
    assert collhub("convert", ring, "-o", tmp_path / "x.json").code == 0
    assert (tmp_path / "x.json").read_bytes() == ring.read_bytes()


def test_ranks_of_an_older_set_are_not_mixed_with_new_ones(
    collhub, ring: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.9.et").write_bytes(b"old")
    refused = collhub("convert", ring, "-o", tmp_path / "t")
    assert (refused.code, sorted(tmp_path.glob("t.*.et"))) == (2, [tmp_path / "t.9.et"])
    assert collhub("convert", ring, "-o", tmp_path / "t", "--force").code == 0
    assert sorted(path.name for path in tmp_path.glob("t.*.et")) == [
        f"t.{rank}.et" for rank in range(4)
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unwritable for root")
def test_a_folder_that_cannot_be_written_is_one_line(collhub, ring: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    run = collhub("convert", ring, "-o", closed / "x.json")
    assert (run.code, len(run.err.splitlines())) == (2, 1)


def test_an_output_below_a_file_is_one_line(collhub, ring: Path) -> None:
    run = collhub("convert", ring, "-o", ring / "x.json")
    assert (run.code, len(run.error_lines), len(run.err.splitlines())) == (2, 1, 1)


def test_what_is_wrong_is_refused_with_its_causes_and_nothing_written(
    collhub, racy: Path, tmp_path: Path
) -> None:
    run = collhub("convert", racy, "-o", tmp_path / "out.json")
    assert (run.code, run.out) == (1, "")
    assert "nothing orders this reducing receive" in run.error_lines[0]
    assert "--verify warn or --verify off" in run.error_lines[-1]
    assert not (tmp_path / "out.json").exists()


def test_what_is_wrong_passes_with_warnings_where_asked_for(
    collhub, racy: Path, tmp_path: Path
) -> None:
    run = collhub("convert", racy, "-o", tmp_path / "out.json", "--verify", "warn")
    assert (run.code, run.error_lines) == (0, [])
    assert run.err.startswith("warning: ")
    assert (tmp_path / "out.json").read_bytes() == _rewritten(racy)


def test_nothing_is_judged_where_asked_for(collhub, racy: Path, tmp_path: Path) -> None:
    run = collhub("convert", racy, "-o", tmp_path / "out.json", "--verify", "off")
    assert (run.code, run.err) == (0, f"wrote {tmp_path}/out.json\n")
    assert (tmp_path / "out.json").read_bytes() == _rewritten(racy)


def _rewritten(document: Path) -> bytes:
    """The bytes of a document as the program writes them."""
    algorithm = hub_core.read(document)
    hub_core.write(algorithm, document.with_name("rewritten.json"))
    return document.with_name("rewritten.json").read_bytes()


def test_the_input_is_not_overwritten_unless_forced(collhub, ring: Path) -> None:
    before = ring.read_bytes()
    run = collhub("convert", ring, "-o", ring)
    assert (run.code, ring.read_bytes()) == (2, before)
    assert run.err == (
        f"error: {ring} is the input itself; choose another place, or overwrite with --force "
        "[output-is-input]\n"
    )
    link = ring.with_name("link.json")
    link.symlink_to(ring)
    assert collhub("convert", link, "-o", ring).code == 2
    assert collhub("convert", ring, "-o", ring, "--force").code == 0
    assert ring.read_bytes() == before


def test_a_set_of_traces_is_not_overwritten_by_itself(collhub, ring: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "t" / "ring"
    assert collhub("convert", ring, "-o", prefix).code == 0
    for name in (prefix, f"{prefix}.et", f"{prefix}.2.et", f"{tmp_path}/t/"):
        run = collhub("convert", prefix, "-o", name, "-O", "flatten=true")
        assert (run.code, "is the input itself" in run.err) == (2, True)
    assert collhub("convert", prefix, "-o", prefix, "--force").code == 0


def test_a_folder_with_a_slash_gets_the_output_inside_named_after_the_input(
    collhub, ring: Path, tmp_path: Path
) -> None:
    out = f"{tmp_path}/new/"
    run = collhub("convert", ring, "-o", out)
    assert (run.code, run.err) == (0, f"wrote {tmp_path}/new/ring.0.et and 3 more\n")
    report = collhub("convert", f"{tmp_path}/new/ring", "-o", out, "--to", "json", "--json")
    assert report.report()["artifacts"] == [f"{tmp_path}/new/ring.json"]
    assert (tmp_path / "new" / "ring.json").read_bytes() == ring.read_bytes()


def test_what_comes_from_a_pipe_has_a_name_in_a_folder(collhub, ring: Path, tmp_path: Path) -> None:
    out = f"{tmp_path}/in.json/"
    run = collhub("convert", "-", "-o", out, "--to", "json", stdin=ring.read_bytes())
    assert (run.code, run.err) == (0, f"wrote {tmp_path}/in.json/algorithm.json\n")


def test_transform_writes_into_folders_and_not_over_its_input(
    collhub, ring: Path, tmp_path: Path
) -> None:
    pytest.importorskip("collhub_compose")
    passes = ("--pass", "rescale", "-O", "factor=2")
    assert collhub("transform", ring, *passes, "-o", ring).code == 2
    run = collhub("transform", ring, *passes, "-o", f"{tmp_path}/new/", "--to", "json")
    assert run.code == 0, run.err
    assert (tmp_path / "new" / "ring.json").exists()


def test_a_slash_behind_the_name_of_a_file_means_a_folder(tmp_path: Path) -> None:
    with pytest.raises(hub_core.UsageError, match="is a folder; name a file or prefix in it"):
        hub_core.write(ring_all_reduce(2), f"{tmp_path}/out.json/", format="json")
    assert list(tmp_path.iterdir()) == []
