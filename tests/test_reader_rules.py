"""Changes of the readers' samples that trigger the rules of the readers, one per rule.

`ELSEWHERE` names the tests of rules that no change of a sample triggers. Every module that a reader
uses is searched for errors without a rule.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from hub_core.model import Diagnostic, HubError
from hub_core.plugin_api import (
    FormatReader,
    MeasurementReader,
    RuleSet,
    Source,
    TopologyReader,
    resolve,
)
from hub_core.registry.bind_options import bind_options
from hub_core.registry.compatibility import reference_of
from hub_core.registry.discovery import discover
from hub_core.testing.checked_plugin import AnyReader, load_declared_samples

pytestmark = [pytest.mark.needs_plugins, pytest.mark.once]
ROOT = Path(__file__).resolve().parents[1]
# By rule set: rule, format of the reader, text of a sample, and its replacement. An empty text
# stands for the entire content, `+` for an additional file with the content of the first one, and
# `-` for the removal of the last file.
CHANGES: Mapping[str, tuple[tuple[str, str, str, str], ...]] = {
    "goal": (
        ("goal-syntax", "goal", "a: calc 100", "a: calc ten"),
        ("goal-ranks", "goal", "num_ranks 2", "num_ranks 3"),
        ("goal-label", "goal", "b requires a", "b requires z"),
        ("goal-dependencies", "goal", "c irequires b", "c irequires b\nb irequires c"),
        (
            "size-range",
            "goal",
            "b: send 1024b to 1 tag 7 cpu 0",
            "b: send 1024b to 1 tag 7\n" + 5 * "send 999999999999999999b to 1 tag 7\n",
        ),
        ("irequires", "goal", "", ""),
        ("nic", "goal", "", ""),
        ("large-tag", "goal", " tag 8", " tag 4000000700"),
    ),
    "sccl": (
        ("sccl-schema", "sccl", '"steps": [', '"steps": 3, "other": ['),
        ("sccl-algorithm", "sccl", "[0, 0, 1]", "[9, 0, 1]"),
        ("invalid-taccl-topology", "taccl-topology", '"alpha": 0.5', '"alpha": -1'),
        ("assumed-units", "taccl-topology", '"alpha": 0.5', '"alpha": 0.6'),
    ),
    "teccl": (
        ("teccl-schema", "teccl", "0->1 in epoch 0", "0-1 in epoch 0"),
        ("teccl-schedule", "teccl", "via switches 3", "via switches 2"),
        (
            "demand-not-met",
            "teccl",
            '"Demand at 1 for chunk 0 from 2 met by epoch 2": ["2->1 in epoch 0"], ',
            "",
        ),
    ),
    "jobs": (
        ("simai", "simai", "all_gpus: 8", "all_gpus: 7"),
        ("simccl", "simccl", "0,0,1,1024", "0,1,1,1024"),
        ("simai-flows", "simai-flows", "2 0 1 1024", "2 0 1 -1"),
        ("no-schedule", "simai-flows", "", "0b000001 0b000101 10000 100 4096 5 31 30\n"),
    ),
    "profiles": (
        ("profile-record", "kineto", '"dur": 5', '"dur": "x"'),
        ("not-json", "kineto", "", "hello"),
        ("truncated", "kineto", "", '{"schemaVersion": 1, "traceEvents": [{"ph":'),
        ("format", "pytorch-et", '"schema"', '"scheme"'),
        ("empty", "kineto", "", '{"schemaVersion": 1, "traceEvents": []}'),
        ("sqlite", "nsys", "CREATE TABLE", "CREATE TABBE"),
        ("parquet", "nsys-parquet", "PAR1", "PAR2"),
        ("mixed-jobs", "kineto", '"world_size": 2', '"world_size": 3'),
        ("rank-twice", "kineto", "+", ""),
        ("rank-range", "kineto", '"rank": 0', '"rank": 2'),
        ("missing-ranks", "kineto", "-", ""),
        ("ranks", "deepspeed-log", "1129.23", "7.0"),
        ("communicator", "nccl-inspector", '"rank": 0', '"rank": 7'),
        ("profile", "kineto", "", ""),
        ("ccl-bench", "ccl-bench", "", ""),
    ),
    "hlo": (
        ("hlo", "hlo", "f32[] add(%x, %y)", "f32[] add(%x, %y"),
        ("cut", "hlo", "ENTRY ", ""),
        ("format", "hlo", "HloModule train, is_scheduled=true, num_partitions=4\n", ""),
        ("bytecode", "stablehlo", "", "ML\xefR"),
        ("dangling", "hlo", "add(%x, %y)", "add(%x, %missing)"),
        ("group", "hlo", "replica_groups={{0,", "replica_groups={{9,"),
        (
            "size",
            "hlo",
            "%gather-start = (f32[64,1024]{1,0}, f32[256,1024]",
            "%gather-start = (f32[64,1024]{1,0}, f32[250,1024]",
        ),
        ("rank-range", "hlo", "num_partitions=4", "num_partitions=0"),
        ("hlo-devices", "hlo", "", ""),
        ("hlo-unfused", "stablehlo", "", ""),
        ("hlo-roofline", "hlo", "", ""),
    ),
    "coconet": (
        ("schema", "tensor-program", '"arguments": [', '"arguments": 3, "other": ['),
        ("not-a-program", "tensor-program-python", "", "x = 1\n"),
        ("element-type", "captured-graph", "float32", "complex64"),
        ("undefined", "captured-graph", '{"value": "g"}', '{"value": "z"}'),
        ("size", "captured-graph", '"shape": [8]', '"shape": [0]'),
        ("reduction", "captured-graph", '"sum"', '"avg2"'),
        ("name", "captured-graph", '"name": "a1"', '"name": "a"'),
        (
            "shape",
            "captured-graph",
            '[{"name": "g", "element": "float32", "shape": [8]}]',
            '[{"name": "g", "element": "float32", "shape": [4]}]',
        ),
        ("archive", "torch-export", "", "no archive"),
        ("layout", "tensor-program", '"layout": "local"', '"layout": "replicated"'),
        ("axis", "tensor-program", '"operands": ["d"]', '"operands": ["d"], "axes": ["tp"]'),
        ("operand", "tensor-program", '"operands": ["d"]', '"operands": [0.5]'),
        ("element", "tensor-program-python", '"float32"', '"float33"'),
        ("state", "tensor-program", '"state": true', '"state": false'),
        ("dimension", "tensor-program", '"dimension": 0', '"dimension": 7'),
        ("symbol", "tensor-program", '"sizes": {"N": [16, 16]}', '"sizes": {"M": [16, 16]}'),
        ("operands", "tensor-program", '["w", "a"]', '["w"]'),
        ("attribute", "tensor-program", '"operands": ["d"]', '"operands": ["d"], "root": 0'),
    ),
    "nccl-files": (
        ("invalid-nccl-graph", "nccl-graph", 'version="1"', 'version="2"'),
        ("nccl-log", "nccl-log", "", ""),
        (
            "no-rings",
            "nccl-log",
            "",
            "node0:1:1 [0] NCCL INFO ncclCommInitRankConfig comm 0xa0 rank 0 nranks 2 cudaDev 0 "
            "nvmlDev 0 busId 1000 commId 0x9ca74fa6e40df7f4 - Init COMPLETE\n",
        ),
        ("channel", "nccl-log", "0 1 3 2", "0 1 1 2"),
        ("invalid-nccl-topology", "nccl-topology", 'link_width="16"', 'link_width="x"'),
        ("not-xml", "nccl-topology", "</system>", ""),
        ("doctype", "nccl-topology", "<system", "<!DOCTYPE system><system"),
        ("no-link-speed", "nccl-topology", 'link_speed="32.0 GT/s PCIe" ', ""),
        ("unknown-cpu", "nccl-topology", "GenuineIntel", "Other"),
        ("invalid-nvidia-smi", "nvidia-smi", "PXB", "PXC"),
        ("unknown-link", "nccl-topology", "<nvlink", "<newlink"),
        ("unknown-element", "nccl-topology", "<gpu ", "<note/><gpu "),
        ("unknown-gpu", "nccl-topology", 'gcn="910"', 'gcn="gfx9999"'),
        ("link-target", "nccl-topology", 'target="0000:02:00.0"', 'target="0000:99:00.0"'),
        ("gpu-without-rank", "nccl-topology", ' rank="3"', ""),
        ("port-speed", "nccl-topology", 'speed="400000"', 'speed="400000000"'),
        ("port-without-device", "nccl-topology", 'dev="1" speed="400000"', 'speed="400000"'),
        (
            "pcilink-target",
            "nccl-topology",
            '<pci busid="0000:08:00.0"',
            '<pcilink target="0000:99:00.0"/><pci busid="0000:08:00.0"',
        ),
    ),
    "fabrics": (
        ("invalid-fabric", "ibnetdiscover", "36 ", "x "),
        ("unequal-rates", "ibnetdiscover", "lid 6\n", "lid 6 4xHDR\n"),
    ),
    "infragraph": (
        ("invalid-infragraph", "infragraph", "target: npu.1", "target: npu.9"),
        ("no-bandwidth", "infragraph", ", bandwidth: 400 Gbps", ""),
        ("no-npu", "infragraph", "xpu, rank", "cpu, rank"),
        ("ranks", "infragraph", "rank: 1", "rank: 0"),
        ("supplied-latency", "infragraph", ", latency: 250 ns", ""),
    ),
    "astra-sim": (
        ("invalid-network-yaml", "astra-sim-network", "Ring", "Rings"),
        ("invalid-network-json", "astra-sim-1-network", "Switch", "Bus"),
        ("links-count", "astra-sim-1-network", "[6, 1]", "[7, 1]"),
        ("ring-bandwidth", "astra-sim-1-network", '"FullyConnected"', '"Ring"'),
        (
            "nic-latency",
            "astra-sim-1-network",
            '"FullyConnected", "Switch"],',
            '"Ring", "Switch"], "nic-latency": [100, 0],',
        ),
        ("memory", "astra-sim-1-network", '"links-count"', '"hbm-scale": [1, 0], "links-count"'),
        ("unknown-keys", "astra-sim-1-network", "dimension-type", "dimensions-type"),
        ("invalid-ns3-topology", "ns3", "400Gbps", "400"),
        ("link-count", "ns3", "3 1 2", "3 1 3"),
        ("invalid-htsim-topology", "htsim", "Nodes 16", "Nodes 0"),
    ),
    "core": (("invalid-topology", "topology-json", '"to": 1', '"to": 0'),),
}
# Rules that tests of the plugins trigger: the file of the test, and a part of the message that it
# expects, or of the input.
ELSEWHERE: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "topologies": {
        "npu-without-links": (
            "plugins/networks/tests/topologies/facts/test_facts.py",
            '"npu-without-links"',
        ),
        "one-way-links": (
            "plugins/networks/tests/topologies/facts/test_facts.py",
            '"one-way-links"',
        ),
        "unequal-directions": (
            "plugins/networks/tests/topologies/facts/test_facts.py",
            '"unequal-directions"',
        ),
        "parallel-links": (
            "plugins/networks/tests/topologies/facts/test_facts.py",
            '"parallel-links"',
        ),
        "idle-switch": ("plugins/networks/tests/topologies/facts/test_facts.py", '"idle-switch"'),
        "unreachable": ("plugins/networks/tests/topologies/facts/test_facts.py", '"unreachable"'),
    },
    "synthesis": {
        "certificate-partial": (
            "plugins/synthesis/tests/certificates/test_recheck.py",
            "certificate-partial",
        ),
        **{
            f"certificate-{code}": ("plugins/synthesis/tests/certificates/test_recheck.py", text)
            for code, text in {
                "form": '"certificate-form"',
                "collective": '"certificate-collective"',
                "topology": '"certificate-topology"',
                "ranks": '"broadcast", "ranks", ',
                "tree": '"broadcast", "tree", ',
                "trees": '"certificate-trees"',
                "load": '"certificate-load"',
                "parts": '"all-gather", "parts", ',
                "rate": '"certificate-rate"',
                "traffic": '"certificate-traffic"',
                "bound": '"certificate-bound"',
                "optimal": '"certificate-optimal"',
            }.items()
        },
        "certificate-planes": (
            "plugins/synthesis/tests/certificates/test_time_cut_flaws.py",
            "a tree is on a plane that the network does not have",
        ),
        "certificate-prices": (
            "plugins/synthesis/tests/flows/test_flow_certificate.py",
            "test_prices_that_prove_nothing_are_refused",
        ),
    },
    "reshard": {
        "no-solver": ("plugins/reshard/tests/scheduling/test_best.py", "OR-tools is not installed"),
        **{
            f"reshard-{code}": (f"plugins/reshard/tests/{file}.py", f'"reshard-{code}"')
            for code, file in {
                "form": "test_command",
                "topology": "test_command",
                "tasks": "test_command",
                "sender": "test_command",
                "receivers": "test_fabric_streams",
                "coverage": "test_command",
                "release": "test_command",
                "duration": "test_command",
                "overlap": "test_command",
                "makespan": "test_command",
                "bound": "test_command",
                "optimal": "test_false_proofs",
                "traffic": "test_command",
            }.items()
        },
    },
    "execution": {
        "mode-not-claimed": ("plugins/run/tests/local/test_run.py", "does not claim to work"),
        "order-changed": ("tests/test_rules_by_command.py", '"order-changed"'),
        "size-rounded": (
            "plugins/run/tests/execution/test_running.py",
            "bytes are not a whole number of",
        ),
        "rank-died": ("plugins/run/tests/execution/test_launching.py", "the process of rank"),
        "timeout": ("plugins/run/tests/execution/test_launching.py", '"timeout"'),
    },
    "study": {
        "missing-file": ("plugins/study/tests/tuning/test_tune.py", "the file is gone"),
        "falls-back": ("plugins/study/tests/tuning/test_tune.py", '"falls-back" in collhub'),
        "contract-range": (
            "plugins/study/tests/compose/test_sequence.py",
            "a unit outside its buffer",
        ),
    },
    "astra-sim": {
        "h1": ("plugins/astra_sim/tests/workloads/test_hazard_rules.py", '"h1": ('),
        "h2": ("plugins/astra_sim/tests/workloads/test_hazard_rules.py", '"h2": ('),
        "h3": ("plugins/astra_sim/tests/workloads/test_hazard_rules.py", '"h3": ('),
        "h6": ("plugins/astra_sim/tests/workloads/test_hazard_rules.py", '"h6": ('),
        "h7": ("plugins/astra_sim/tests/workloads/test_hazard_rules.py", '"h7": ('),
        "h8": ("plugins/astra_sim/tests/workloads/test_hazard_rules.py", '"h8": ('),
        "h9": ("plugins/astra_sim/tests/workloads/test_hazard_rules.py", '"h9": ('),
        "host-message": (
            "plugins/astra_sim/tests/workloads/test_hazard_rules.py",
            '"host-message": (',
        ),
        "no-size": ("plugins/astra_sim/tests/workloads/test_hazard_rules.py", '"no-size": ('),
        "no-tag": ("plugins/astra_sim/tests/workloads/test_hazard_rules.py", '"no-tag": ('),
        "foreign-end": (
            "plugins/astra_sim/tests/workloads/test_hazard_rules.py",
            '"foreign-end": (',
        ),
        "empty-message": (
            "plugins/astra_sim/tests/workloads/test_hazard_rules.py",
            '"empty-message": (',
        ),
        "no-memory": ("plugins/astra_sim/tests/workloads/test_hazard_rules.py", '"no-memory": ('),
        "no-operations": (
            "plugins/astra_sim/tests/workloads/test_hazard_rules.py",
            '"no-operations": (',
        ),
        "unfinished-node": (
            "plugins/astra_sim/tests/workloads/test_hazard_rules.py",
            '"unfinished-node": (',
        ),
        "slot-occupied": (
            "plugins/astra_sim/tests/workloads/test_hazard_rules.py",
            '"slot-occupied": (',
        ),
        "never-issued": (
            "plugins/astra_sim/tests/workloads/test_hazard_rules.py",
            '"never-issued": (',
        ),
        "unfinished": ("plugins/astra_sim/tests/workloads/test_hazard_rules.py", '"unfinished"'),
        "omitted-transfers": (
            "plugins/astra_sim/tests/workloads/test_hazard_rules.py",
            '"omitted-transfers"',
        ),
        "astra-sim-aborts": (
            "plugins/astra_sim/tests/simulating/test_analytical.py",
            '"astra-sim-aborts"',
        ),
        "never-finishes": (
            "plugins/astra_sim/tests/simulating/test_analytical.py",
            '"never-finishes"',
        ),
        "loss": ("plugins/astra_sim/tests/test_run_binary.py", '"loss"'),
        "lost-event": ("plugins/astra_sim/tests/test_run_binary.py", '"lost-event"'),
        "invalid-system": ("tests/test_rules_by_command.py", "_write_astra_sim_folder"),
        "astra-sim-folder": (
            "plugins/astra_sim/tests/folders/test_read_folder.py",
            "are read without size, network and groups",
        ),
        "congestion-unaware": (
            "plugins/astra_sim/tests/folders/test_read_folder.py",
            "congestion-unaware",
        ),
        "inexpressible-topology": (
            "plugins/astra_sim/tests/networks/test_cables.py",
            "a link joins two NPUs, or two switches",
        ),
        "too-few-npus": (
            "plugins/astra_sim/tests/folders/test_folder.py",
            '{"topology": "ring:1"}',
        ),
        "topology-too-small": (
            "plugins/astra_sim/tests/folders/test_read_folder.py",
            "choose a topology of at least 15 NPUs",
        ),
        "uneven-servers": (
            "plugins/astra_sim/tests/networks/test_cables.py",
            "joins NPUs 0 to 1, others 3 NPUs of a server",
        ),
    },
    "coconet": {
        "send": ("tests/test_rules_by_command.py", "isend"),
        "operator": ("tests/test_rules_by_command.py", "torch.ops.two words"),
        "input": ("tests/test_rules_by_command.py", "token"),
        "argument": ("tests/test_rules_by_command.py", "as_complex"),
        "count": (
            "plugins/coconet/tests/test_operations.py",
            "the 9 largest of 8 elements are requested",
        ),
        "data-dependent": (
            "plugins/jobs/tests/pytorch/test_captured_graphs.py",
            "value mm has the size 'u0', which is no number",
        ),
        "graph-break": ("plugins/jobs/tests/pytorch/test_captured_graphs.py", "has branches"),
        "counts": ("plugins/coconet/tests/test_uneven.py", "the counts need 7"),
        "group": ("plugins/coconet/tests/test_typing.py", "operands lie on groups 0, 1"),
        "groups": ("plugins/coconet/tests/test_torch_meshes.py", "groups"),
        "mesh": ("plugins/coconet/tests/test_mesh.py", "a mesh of 2 x 2 has not 6 ranks"),
        "no-program": (
            "plugins/coconet/tests/test_language.py",
            "function 'step' needs the arguments n, m: give them default",
        ),
        "partial": ("plugins/coconet/tests/test_operations.py", "a cast to int8 does not add up"),
        "placement": ("plugins/coconet/tests/test_torch_meshes.py", "placement"),
        "program": (
            "plugins/coconet/tests/test_hlo_programs.py",
            "collective-permute 'r' is a message between devices, not a",
        ),
        "ranks": (
            "plugins/coconet/tests/test_torch_meshes.py",
            "the graph has 2000000000000 ranks, 2 to 65536 are read",
        ),
        "rate": ("plugins/coconet/tests/test_typing.py", "the rate is 1.0"),
        "root": ("plugins/coconet/tests/test_mesh.py", "root 1 is no rank of 1"),
        "splits": (
            "plugins/coconet/tests/test_torch_programs.py",
            "the split sizes of other ranks are unknown",
        ),
        "stage": ("plugins/coconet/tests/test_documents.py", "member x is no operation"),
        "tensor-attributes": (
            "plugins/coconet/tests/test_from_traces.py",
            "operation, operands, element type, shape and layout",
        ),
        "unknown-operator": (
            "plugins/coconet/tests/test_torch_programs.py",
            "has no entry in the table",
        ),
        "version": (
            "plugins/jobs/tests/pytorch/test_captured_graphs.py",
            "schema version 99 is not supported",
        ),
    },
    "diagnosis": {
        "late": ("plugins/jobs/tests/diagnosis/test_hangs.py", '"late"'),
        "order": ("plugins/jobs/tests/diagnosis/test_hangs.py", '"order"'),
        "type": ("plugins/jobs/tests/diagnosis/test_hangs.py", '"type"'),
        "size": ("plugins/jobs/tests/diagnosis/test_hangs.py", '"size"'),
        "dtype": ("plugins/jobs/tests/diagnosis/test_hangs.py", '"dtype"'),
        "all-to-all": ("plugins/jobs/tests/diagnosis/test_hangs.py", '"all-to-all"'),
        "device": ("plugins/jobs/tests/diagnosis/test_hangs.py", '"device"'),
        "network": ("plugins/jobs/tests/diagnosis/test_hangs.py", '"network"'),
        "undecided": ("plugins/jobs/tests/diagnosis/test_hangs.py", '"undecided"'),
        "skew": ("plugins/jobs/tests/diagnosis/test_hangs.py", '"skew"'),
        "none": ("plugins/jobs/tests/diagnosis/test_hangs.py", '"none"'),
        "too-large": (
            "tests/test_rules_by_command.py",
            "the file has 100 bytes; at most 64 are read",
        ),
        "invalid-inspector": (
            "tests/test_rules_by_command.py",
            "no line is a record of NCCL's Inspector",
        ),
        "duplicate-rank": (
            "plugins/jobs/tests/diagnosis/test_command.py",
            "two dumps of rank 0: the other one is",
        ),
        "forbidden-opcode": (
            "plugins/jobs/tests/diagnosis/test_command.py",
            "the opcode GLOBAL is not allowed in a dump",
        ),
        "invalid-dump": (
            "plugins/jobs/tests/diagnosis/test_command.py",
            "state 'running' is not scheduled, started or completed",
        ),
        "invalid-pickle": (
            "plugins/jobs/tests/diagnosis/test_pickle_values.py",
            "STOP does not leave exactly one value",
        ),
        "invalid-ras": (
            "plugins/jobs/tests/diagnosis/test_nccl_evidence.py",
            "communicators: it is not a list of objects",
        ),
        "no-dumps": (
            "plugins/jobs/tests/diagnosis/test_command.py",
            "has no file whose name ends with a rank",
        ),
        "no-rank": ("plugins/jobs/tests/diagnosis/test_command.py", "does not end with a rank"),
        "not-readable": ("plugins/jobs/tests/diagnosis/test_command.py", "No such file"),
    },
    "fabrics": {
        "aggregation-node": (
            "plugins/networks/tests/fabrics/test_ibnetdiscover.py",
            "aggregation-node",
        ),
        "inexpressible-topology": (
            "plugins/astra_sim/tests/networks/test_cables.py",
            "link from 0 to 1 has no reverse link of the same bandwidth",
        ),
        "empty-leaves": ("plugins/networks/tests/fabrics/test_trees.py", "empty-leaves"),
        "hosts-without-switch": (
            "plugins/networks/tests/fabrics/test_trees.py",
            "hosts-without-switch",
        ),
        "nvlink-domains": ("plugins/networks/tests/fabrics/test_trees.py", "nvlink-domains"),
        "one-cable": ("plugins/networks/tests/fabrics/test_trees.py", "one-cable"),
    },
    "goal": {
        "too-large": ("tests/test_rules_by_command.py", "a.goal"),
        "unmatched-message": ("plugins/formats/tests/goal/test_goal.py", "do not match"),
    },
    "hlo": {
        "hlo-loss": ("plugins/jobs/tests/hlo/test_reading.py", "custom calls of unknown"),
        "hlo-unpartitioned": (
            "plugins/jobs/tests/hlo/test_stablehlo.py",
            "the collectives that partitioning will add",
        ),
        "recursion": ("plugins/jobs/tests/hlo/test_stablehlo.py", "@main calls itself"),
        "too-large": (
            "plugins/jobs/tests/hlo/test_reading.py",
            "more than 1000 nodes on 4 devices",
        ),
        "trip-count": ("plugins/jobs/tests/hlo/test_stablehlo.py", "iterations"),
    },
    "infragraph": {
        "cut-edges": ("plugins/networks/tests/infragraph/test_expansion.py", "cut-edges"),
        "supplied-bandwidth": (
            "plugins/networks/tests/infragraph/test_bandwidths.py",
            "4 links have no bandwidth: unlimited by option",
        ),
        "unconnected-npus": (
            "plugins/networks/tests/infragraph/test_expansion.py",
            "the NPUs form 3 parts without a link between them: h.0.xpu.0",
        ),
    },
    "jobs": {
        "empty": ("plugins/jobs/tests/simai/test_simai.py", "has no flows of this collective"),
        "pipeline-csv": ("plugins/jobs/tests/pipeline/test_schedule_csv.py", "is no action"),
        "too-large": ("plugins/jobs/tests/simai/test_simai.py", "SimaiOptions(max_nodes=99)"),
    },
    "measurements": {
        "wrong-results": ("plugins/study/tests/machines/test_measurement_readers.py", "FAILED"),
        "contradicting-bandwidth": (
            "plugins/study/tests/machines/test_measurement_readers.py",
            "test_a_time_that_contradicts_its_bandwidth_gives_a_note",
        ),
        "few-repeats": ("plugins/study/tests/machines/test_calibrate.py", "have fewer than"),
        "waits": ("plugins/study/tests/machines/test_framework_results.py", "[waits]"),
        "mixed-versions": (
            "plugins/study/tests/machines/test_calibrate.py",
            "only NCCL 2.29.2 is fitted",
        ),
        "no-machine": ("plugins/study/tests/machines/test_calibrate.py", "does not name its GPU"),
        "no-points": ("plugins/study/tests/machines/test_calibrate.py", "no point remains"),
        "table-only": ("plugins/study/tests/machines/test_calibrate.py", "too few for a model"),
        "prior-constants": (
            "plugins/study/tests/machines/test_calibrate.py",
            "no point determines",
        ),
        "other-machine": (
            "plugins/study/tests/machines/test_calibrate.py",
            "the profile is of 8x H100",
        ),
        "sibling": (
            "plugins/study/tests/machines/test_calibrate.py",
            "the model alone is compared",
        ),
        "no-table": ("plugins/study/tests/machines/test_calibrate.py", "no table for broadcast"),
        "beyond-table": ("plugins/study/tests/machines/test_calibrate.py", "larger than the table"),
        "invalid-profile": (
            "plugins/study/tests/machines/test_calibrate.py",
            "'name' is a required property",
        ),
        "measurements": (
            "plugins/study/tests/machines/test_measurement_readers.py",
            "pyarrow is not installed",
        ),
        "missing-facts": (
            "plugins/study/tests/machines/test_measurement_readers.py",
            "on      alpha device ",
        ),
        "no-results": (
            "plugins/study/tests/machines/test_measurement_readers.py",
            "run was aborted",
        ),
        "other-constants": (
            "plugins/study/tests/machines/test_calibrate.py",
            "the constants belong to version",
        ),
        "skipped": (
            "plugins/study/tests/machines/test_measurement_readers.py",
            "1 line of other programs skipped, from this line on",
        ),
        "unknown-machine": (
            "plugins/study/tests/machines/test_shipped_profiles.py",
            "there is no machine profile 'x1'",
        ),
    },
    "nccl-files": {
        "too-many-ranks": ("tests/test_rules_by_command.py", "257 ranks do not fit one node"),
        "too-large": ("tests/test_rules_by_command.py", "the log exceeds"),
        "no-gpu": ("tests/test_rules_by_command.py", "the file names no GPU"),
        "graph-not-read": ("plugins/nccl/tests/graphs/test_read_graph.py", "graph-not-read"),
        "no-net": (
            "plugins/nccl/tests/topologies/test_topology_xml.py",
            "test_machines_without_ports_need_their_speed",
        ),
        "no-tuning-lines": ("plugins/nccl/tests/explain/test_explain.py", "no TUNING lines"),
        "not-rings": (
            "plugins/nccl/tests/graphs/test_graph_xml.py",
            "rank 0 receives part 0 from more than one rank",
        ),
        "one-node": ("plugins/nccl/tests/graphs/test_read_graph.py", "one-node"),
        "partial-topology": (
            "plugins/nccl/tests/topologies/test_topology_xml.py",
            "partial-topology",
        ),
        "pci-only-matrix": ("plugins/nccl/tests/topologies/test_nvidia_smi.py", "pci-only-matrix"),
        "storage-nics": ("plugins/nccl/tests/topologies/test_nvidia_smi.py", "storage-nics"),
        "too-many-channels": (
            "plugins/nccl/tests/graphs/test_graph_xml.py",
            "shares 33, 2 of the data need 35 equal",
        ),
        "unknown-line": (
            "plugins/nccl/tests/explain/test_explain.py",
            "test_lines_of_no_known_form_are_reported",
        ),
        "unknown-machine": ("plugins/nccl/tests/explain/test_explain.py", "not identify the"),
        "unknown-nic": (
            "plugins/nccl/tests/topologies/test_nvidia_smi.py",
            "there is no network card 'mlx5_77'",
        ),
    },
    "profiles": {
        "assumption": ("plugins/study/tests/machine_timing/test_profiled_jobs.py", "assumed: "),
        "too-large": ("tests/test_rules_by_command.py", "_write_profile_of_size"),
        "not-predicted": ("tests/test_rules_by_command.py", "l40s has no times of 3 ranks"),
        "no-issuer": ("tests/test_rules_by_command.py", "_write_orphan"),
        "deadlock": ("tests/test_rules_by_command.py", "this node never starts"),
        "clocks": ("plugins/jobs/tests/pytorch/test_profiles.py", "clocks cannot be aligned"),
        "collective-mismatch": (
            "plugins/jobs/tests/pytorch/test_profiles.py",
            "collective 1 of process group '0' is an all-reduce of ",
        ),
        "collective-missing": ("plugins/jobs/tests/pytorch/test_nccl_records.py", "has only 1"),
        "group": ("plugins/jobs/tests/pytorch/test_profiles.py", "is no list of the ranks"),
        "mixed-formats": (
            "plugins/jobs/tests/pytorch/test_nccl_records.py",
            "these are events of NCCL's profiler plugin",
        ),
        "no-times": ("plugins/jobs/tests/pytorch/test_profiles.py", "a node has no measured time"),
        "no-traces": (
            "plugins/jobs/tests/pytorch/test_ccl_bench.py",
            "there are no traces next to the card",
        ),
        "step": ("plugins/jobs/tests/pytorch/test_profiles.py", "there is no ProfilerStep#3"),
        "view": ("plugins/jobs/tests/pytorch/test_nsys.py", "not a stored table"),
    },
    "sccl": {
        "inexpressible-topology": (
            "plugins/formats/tests/sccl/solver_inputs/test_profiles.py",
            "6 NPUs are no 4 nodes",
        ),
        "sccl-inexpressible": (
            "plugins/formats/tests/sccl/test_write.py",
            "cannot be written as steps of sends: a rank sends other",
        ),
    },
    "teccl": {
        "volumes-rounded": ("tests/test_rules_by_command.py", "_write_teccl"),
        "flows-lost": ("plugins/formats/tests/teccl/test_read.py", "flows-lost"),
        "teccl-claims": (
            "plugins/formats/tests/teccl/test_claims.py",
            "2.00 epochs where each link takes a chunk in one, and claims",
        ),
    },
}


def list_triggered(set_name: str) -> set[str]:
    """Return the rules of a set that a row of `CHANGES` triggers."""
    return {row[0] for row in CHANGES.get(set_name, ())}


def _list_readers() -> dict[str, list[AnyReader]]:
    readers: dict[str, list[AnyReader]] = {}
    for kind in (FormatReader, TopologyReader):
        for provided in discover().all(kind):
            readers.setdefault(provided.offer.format.name, []).append(provided.offer)
    return readers


def _change(source: Source, old: str, new: str) -> Source | None:
    """Return the source with a change of its first part that contains `old`; None without one."""
    parts = source.parts
    if old == "+":
        return Source(source.name, (*parts, replace(parts[0], name=f"other-{parts[0].name}")))
    if old == "-":
        return Source(source.name, parts[:-1]) if len(parts) > 1 else None
    for number, part in enumerate(parts):
        content = bytes(part.load())
        before, after = old.encode("latin-1"), new.encode("latin-1")
        if before and before not in content:
            continue
        changed = content.replace(before, after) if before else after or content
        replaced = replace(part, load=lambda changed=changed: changed, size=len(changed))
        return Source(source.name, (*parts[:number], replaced, *parts[number + 1 :]))
    return None


def _find_rules(format: str, old: str, new: str) -> set[str]:
    """Return the identifiers of all findings in the changed samples of the readers of a format."""
    findings: list[Diagnostic] = []
    for reader in _list_readers()[format]:
        for sample in load_declared_samples(reader).values():
            changed = _change(sample, old, new)
            if changed is None:
                continue
            source = Source(changed.name, changed.parts, findings.append)
            try:
                resolve(reference_of(reader))(source, bind_options(reader.options, {}, {}, "test"))  # type: ignore[attr-defined]
            except HubError as error:
                findings += error.diagnostics
    return {finding.code for finding in findings}


@pytest.mark.parametrize(
    ("rule", "format", "old", "new"),
    [row for rows in CHANGES.values() for row in rows],
    ids=[f"{name}-{row[0]}" for name, rows in CHANGES.items() for row in rows],
)
def test_a_changed_sample_triggers_its_rule(rule: str, format: str, old: str, new: str) -> None:
    if format == "nsys-parquet":
        pytest.importorskip("pyarrow")
    findings = _find_rules(format, old, new)
    assert rule in findings
    # Only declared rules have a page.
    assert sorted(findings - _list_declared_rules().keys()) == []


@functools.cache
def _list_declared_rules() -> Mapping[str, set[str]]:
    """Return the names of all rules, with the sets that declare each."""
    declared: dict[str, set[str]] = {}
    for provided in discover().all(RuleSet):
        for rule in resolve(provided.offer.rules)():  # type: ignore[attr-defined]
            declared.setdefault(rule.name, set()).add(provided.name)
    return declared


def test_every_rule_of_a_reader_is_triggered_or_listed() -> None:
    for provided in discover().all(RuleSet):
        name = provided.name
        # Classes of request errors are in test_rules_by_command.py.
        declared = {
            rule.name
            for rule in resolve(provided.offer.rules)()  # type: ignore[attr-defined]
            if not rule.subject.startswith("requests: ")
        }
        elsewhere = ELSEWHERE.get(name, {})
        assert elsewhere.keys() <= declared - list_triggered(name), name
        for file, expected in elsewhere.values():
            assert expected in (ROOT / file).read_text(), (file, expected)
        # Tests of the rules of these sets are in test_rule_triggers.py.
        if name not in ("core", "jobs", "mpi", "msccl", "mscclpp", "nccl"):
            assert declared == list_triggered(name) | elsewhere.keys(), name


# --- source code ---

# Variables whose content is the text of a message.
_TEXT_VARIABLES = {"message", "text", "reason", "have", "first_line", "wrong"}


def _list_packages() -> dict[str, Path]:
    """Return the modules of all plugins by dotted name."""
    modules: dict[str, Path] = {}
    for folder in sorted(ROOT.glob("plugins/*/src")):
        for file in sorted(folder.glob("*/**/*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


def _list_imports(file: Path) -> set[str]:
    """Return the dotted names that a module imports, also in functions; modules and members."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def _list_modules_of_readers() -> list[Path]:
    """Return the modules of plugins that any reader imports, directly or through other modules."""
    modules = _list_packages()
    open_names = [
        reference_of(provided.offer).partition(":")[0]
        for kind in (FormatReader, MeasurementReader, TopologyReader)
        for provided in discover().all(kind)
    ]
    used: set[str] = set()
    while open_names:
        name = open_names.pop()
        if name in modules and name not in used:
            used.add(name)
            open_names += _list_imports(modules[name])
    return [modules[name] for name in sorted(used)]


def _find_errors_without_rule(module: Path) -> list[int]:
    """Return the lines of `InputError(message)` without the argument `code`, in ascending order.

    An error that consists of diagnostics, as in `InputError(findings)`, has their identifiers: its
    argument is no text, no formatted text, and no variable that names one.
    """
    lines = []
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "InputError":
            continue
        is_named = any(keyword.arg == "code" for keyword in node.keywords)
        if not is_named and node.args and _is_text(node.args[0]):
            lines.append(node.lineno)
    return sorted(lines)


def _is_text(value: ast.expr) -> bool:
    is_variable = isinstance(value, ast.Name) and value.id in _TEXT_VARIABLES
    return is_variable or isinstance(value, ast.JoinedStr | ast.Constant | ast.BinOp)


def _find_position(function: ast.FunctionDef) -> int | None:
    """Return the position of the parameter `code` without self; None if there is none."""
    names = [one.arg for one in function.args.posonlyargs + function.args.args]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    return names.index("code") if "code" in names else None


def _find_positions(modules: Iterable[ast.Module]) -> dict[str, int]:
    """Return the position of `code` by name of a function; all functions of the name have it."""
    positions: dict[str, set[int | None]] = {"Diagnostic": {0}}
    for module in modules:
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef):
                positions.setdefault(node.name, set()).add(_find_position(node))
    return {
        name: position
        for name, at in positions.items()
        if len(at) == 1 and (position := min(at, key=str)) is not None
    }


def _name_function(call: ast.Call) -> str:
    """Return the name of the called function or method; "" if it has none."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return getattr(call.func, "id", name)


def _list_identifiers(module: ast.Module, positions: Mapping[str, int]) -> Iterable[str]:
    """Yield the literal identifiers of the errors and findings that a module creates.

    They are arguments `code`, by name or by position, their defaults, and values of the variables
    `code` and `..._CODE`.
    """
    for node in ast.walk(module):
        given: list[ast.expr] = []
        if isinstance(node, ast.Call):
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            position = positions.get(_name_function(node), len(node.args))
            given += node.args[position : position + 1]
        elif isinstance(node, ast.arguments):
            parameters = (node.posonlyargs + node.args)[::-1]
            defaults = [*zip(parameters, node.defaults[::-1], strict=False)]
            pairs = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            defaults += [(parameter, value) for parameter, value in pairs if value is not None]
            given = [value for parameter, value in defaults if parameter.arg == "code"]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if any(re.fullmatch(r"code|\w*_CODE", one) for one in names):
                given = [node.value]
        for value in given:
            options = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            for option in options:
                if isinstance(option, ast.Constant) and isinstance(option.value, str):
                    yield option.value


@pytest.mark.once
def test_every_error_of_a_reader_has_a_declared_rule() -> None:
    files = _list_modules_of_readers()
    assert len(files) > 150
    nameless = {
        f"{file.relative_to(ROOT)}:{line}"
        for file in files
        for line in _find_errors_without_rule(file)
    }
    assert sorted(nameless) == []


# Functions that put a prefix before the identifier, by distribution: prefix, and position of the
# argument with the rest of the identifier.
_PREFIXES: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "coconet": {"require": ("refused-", 1), "build_refusal": ("refused-", 0)},
    "reshard": {"ProofFlawError": ("reshard-", 0)},
    "synthesis": {"FlawError": ("certificate-", 0)},
}


def _list_prefixed_identifiers(
    file: Path, functions: Mapping[str, tuple[str, int]]
) -> Iterable[str]:
    """Yield the identifiers of calls of `functions`, as in `_PREFIXES`, whose rest is a literal.

    Calls of `require` that record a condition which holds (`True`) create no finding.
    """
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = _name_function(node)
        holds = bool(node.args) and getattr(node.args[0], "value", None) is True
        if name in functions and not holds:
            prefix, position = functions[name]
            rest = node.args[position]
            if isinstance(rest, ast.Constant):
                yield prefix + str(rest.value)


@pytest.mark.once
def test_every_identifier_with_a_prefix_has_a_page() -> None:
    created = {
        name
        for distribution, functions in _PREFIXES.items()
        for file in sorted((ROOT / "plugins" / distribution / "src").rglob("*.py"))
        for name in _list_prefixed_identifiers(file, functions)
    }
    assert len(created) > 50
    assert sorted(created - _list_declared_rules().keys()) == []


@pytest.mark.once
def test_every_literal_identifier_has_a_page() -> None:
    files = [*_list_packages().values(), *sorted((ROOT / "hub_core").rglob("*.py"))]
    modules = {file: ast.parse(file.read_text()) for file in files}
    positions = _find_positions(modules.values())
    created = {
        name: file
        for file, module in modules.items()
        for name in _list_identifiers(module, positions)
    }
    assert len(created) > 400
    missing = created.keys() - _list_declared_rules().keys() - {""}
    assert {name: str(created[name].relative_to(ROOT)) for name in sorted(missing)} == {}
