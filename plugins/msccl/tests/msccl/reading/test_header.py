"""What the attributes of <algo> mean."""

from __future__ import annotations

import json

import pytest

from hub_core.model import CollectiveKind, HubError


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", CollectiveKind.ALL_REDUCE),
        ("allgather", CollectiveKind.ALL_GATHER),
        ("reduce_scatter", CollectiveKind.REDUCE_SCATTER),
        ("reducescatter", CollectiveKind.REDUCE_SCATTER),
        ("alltoall", CollectiveKind.ALL_TO_ALL),
        ("broadcast", CollectiveKind.BROADCAST),
        ("reduce", CollectiveKind.REDUCE),
        ("gather", CollectiveKind.GATHER),
        ("scatter", CollectiveKind.SCATTER),
        ("custom", CollectiveKind.CUSTOM),
        ("alltoallv", CollectiveKind.CUSTOM),
        ("send", CollectiveKind.CUSTOM),
        ("recv", CollectiveKind.CUSTOM),
    ],
)
def test_spellings_of_all_dialects(reader, xml, name: str, kind: CollectiveKind) -> None:
    assert reader(xml.local([xml.step("cpy")], coll=name)).collective.kind is kind


def test_unknown_collective_names_the_known_ones(reader, xml) -> None:
    (found,) = reader.refusal(xml.local([xml.step("cpy")], coll="allsum"))
    assert found.startswith(
        "1: unknown-collective: coll 'allsum' is not one of allreduce, allgather, "
    )


@pytest.mark.parametrize(
    ("inplace", "outofplace", "modes"),
    [
        ("1", "0", (True, False)),
        ("0", "1", (False, True)),
        ("1", "1", (True, True)),
        ("1", None, (True, False)),
        ("0", None, (False, True)),
        (None, None, (False, True)),
        ("0", "0", (False, True)),
    ],
)
def test_claimed_modes(
    reader, xml, inplace: str | None, outofplace: str | None, modes: tuple[bool, bool]
) -> None:
    collective = reader(
        xml.local([xml.step("cpy")], inplace=inplace, outofplace=outofplace)
    ).collective
    assert (collective.in_place, collective.out_of_place) == modes


def test_missing_coll_and_inplace_read_as_custom_with_warnings(reader, xml) -> None:
    algorithm = reader(xml.local([xml.step("cpy")], coll=None, inplace=None, outofplace=None))
    assert algorithm.collective.kind is CollectiveKind.CUSTOM
    assert reader.warnings == ["1: missing-attribute", "1: missing-attribute"]


def test_custom_buffers_have_the_declared_sizes(reader, xml) -> None:
    gpus = [xml.gpu(xml.block(xml.step("cpy")), i=1, o=2, s=3), xml.gpu(i=0, o=4)]
    algorithm = reader(xml.algo(*gpus, nchunksperloop=4))
    assert algorithm.collective.input_units().tolist() == [1, 0]
    assert algorithm.collective.output_units().tolist() == [2, 4]
    assert algorithm.scratch_units.tolist() == [3, 0]
    assert algorithm.collective.postcondition() is None


def test_the_option_collective_names_the_collective_of_a_file_without_coll(reader, xml) -> None:
    text = xml.local([xml.step("cpy")], coll=None)
    assert reader(text, collective="alltoall").collective.kind is CollectiveKind.ALL_TO_ALL
    assert reader.warnings == []
    # The file takes precedence.
    text = xml.local([xml.step("cpy")], coll="allgather")
    assert reader(text, collective="alltoall").collective.kind is CollectiveKind.ALL_GATHER


def test_a_missing_number_of_ranks_is_given_as_cure(reader, xml) -> None:
    with pytest.raises(HubError) as caught:
        reader(xml.local([xml.step("cpy")], ngpus=None))
    assert caught.value.diagnostics[0].cure == 'add ngpus="1", the number of <gpu>'


@pytest.mark.parametrize("name", ["ngpus", "nchunksperloop", "nchannels", "proto"])
def test_missing_required_header_attribute_is_named(reader, xml, name: str) -> None:
    assert f"1: missing-attribute: <algo> has no attribute {name!r}" in reader.refusal(
        xml.local([xml.step("cpy")], **{name: None})
    )


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"nchunksperloop": "0"}, "attribute-range: nchunksperloop is 0, which is less than 1"),
        (
            {"nchunksperloop": "99999999999"},
            "attribute-range: nchunksperloop is '99999999999', expected a number below 2^31",
        ),
        ({"nchunksperloop": "many"}, "not-a-number: nchunksperloop is 'many', expected a number"),
        ({"nchannels": "-1"}, "attribute-range: nchannels is -1, which is less than 1"),
        ({"inplace": "2"}, "attribute-range: inplace is 2, expected 0 or 1"),
        ({"proto": "simple"}, "unknown-protocol: proto 'simple' is not one of Simple, LL, LL128"),
        ({"ngpus": "0"}, "attribute-range: ngpus is 0, which is less than 1"),
    ],
)
def test_header_values_out_of_range(reader, xml, header: dict[str, str], message: str) -> None:
    assert reader.refusal(xml.local([xml.step("cpy")], **header))[0] == f"1: {message}"


def test_all_header_errors_are_told_at_once(reader, xml) -> None:
    found = reader.refusal(xml.local([xml.step("cpy")], proto="x", coll="y", nchunksperloop="z"))
    assert len(found) == 3


def test_a_header_of_a_billion_ranks_costs_nothing(reader, xml) -> None:
    (found,) = reader.refusal(xml.local([xml.step("cpy")], ngpus="1000000000"))
    assert (
        found == "1: missing-rank: ngpus is 1000000000, but only 1 rank has a <gpu>;"
        " the first one missing is 1"
    )


def test_a_billion_chunks_cost_nothing(reader, xml) -> None:
    gpu = xml.gpu(
        xml.block(xml.step("cpy"), xml.step("cpy", "i0", "o0", cnt=1_000_000_000)), s=1_000_000_000
    )
    algorithm = reader(xml.algo(gpu, coll="allreduce", nchunksperloop="2000000000"))
    assert algorithm.scratch_units.tolist() == [1_000_000_000]
    assert algorithm.steps.data_indices.tolist() == [0]


def test_chunks_that_ranks_cannot_share_are_refused_with_the_line(reader, xml) -> None:
    text = xml.algo(*[xml.gpu() for _ in range(3)], coll="allgather", nchunksperloop="4")
    assert reader.refusal(text)[0].startswith(
        "1: invalid-collective: all-gather of 3 ranks: unit_count 4"
    )


def test_octal_and_hexadecimal_numbers_read_as_in_the_runtimes(reader, xml) -> None:
    algorithm = reader(xml.local([xml.step("cpy", "i010", "o0x3")], nchunksperloop="0x10"))
    assert (
        algorithm.collective.unit_count,
        int(algorithm.steps.src_offset[0]),
        int(algorithm.steps.dst_offset[0]),
    ) == (16, 8, 3)


def test_a_cut_number_is_read_and_said(reader, xml) -> None:
    assert reader(xml.local([xml.step("cpy", "i3x")])).steps.src_offset.tolist() == [3]
    assert reader.warnings == ["4: odd-number"]


def test_sizes_without_any_call_are_said(reader, xml) -> None:
    reader(xml.local([xml.step("cpy")], minBytes="8", maxBytes="4"))
    assert reader.warnings == ["1: size-range"]


def test_the_header_is_kept_verbatim_and_small(reader, xml) -> None:
    algorithm = reader(
        xml.algo(xml.gpu(s=1), xml.gpu(s=3), nthreads="256", redop="sum", colour="red")
    )
    kept = algorithm.extensions["msccl"]
    assert json.loads(json.dumps(kept)) == kept
    assert {
        name: kept["algo"][name]
        for name in ("name", "proto", "nthreads", "redop", "colour", "ngpus")
    } == {
        "name": "test",
        "proto": "Simple",
        "nthreads": "256",
        "redop": "sum",
        "colour": "red",
        "ngpus": "2",
    }
    assert (kept["i_chunks"], kept["s_chunks"]) == (2, [1, 3])
    assert reader.warnings == ["1: unknown-attribute"]


def test_provenance_names_producer_source_and_options(reader, xml) -> None:
    provenance = reader(xml.local([xml.step("cpy")]), reading="dsl", root=None).provenance
    assert (provenance.producer, provenance.source_name) == ("collhub-msccl", "test.xml")
    assert len(provenance.source_sha256) == 64
    assert dict(provenance.options) == {"reading": "dsl"}
