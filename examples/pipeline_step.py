"""A whole training step on a pipeline: generated, expanded, verified, simulated, and drawn.

Three stages on the GPUs of three DGX H100. Stages differ in their meshes, so that activations and
gradients are resharded between them; ranks with the same tile add up their partial results, and
those with the same weights their gradients at the end. `python examples/pipeline_step.py FOLDER`
writes the step, the step with all collectives as messages, and `timeline.json` for ui.perfetto.dev;
it prints what every way to hand activations over takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HAND_OVERS = ("send-recv", "broadcast", "all-gather")
TOPOLOGY = "dgx-h100:3"
STEP = {
    "schedule": "eager-1f1b",
    "stages": "3",
    "micro_batches": "6",
    "activation_tensor": "8x1024x4096:bfloat16",
    # Two halves of the batch, then the width in eight parts, then the batch and the rows.
    "meshes": "mesh(2,4): S0 R R; mesh(1,8): R R S1; mesh(2,4): S0 S1 R",
    "forward": "2ms",
    "input_gradient": "2ms",
    "weight_gradient": "2ms",
    "gradients": "256MiB",
}


def collhub(*arguments: object) -> str:
    """What a command of the hub prints."""
    # Beside this Python, whether its folder is on the path or not.
    command = [str(Path(sys.executable).with_name("collhub")), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def simulated_ms(folder: Path, hand_over: str) -> float:
    """Write, expand, verify and simulate a step; its milliseconds."""
    options = [text for key, value in STEP.items() for text in ("-O", f"{key}={value}")]
    options += ["-O", f"hand_over={hand_over}"]
    step, flat = folder / hand_over / "step", folder / hand_over / "flat"
    flat.parent.mkdir(parents=True, exist_ok=True)
    collhub("generate", "pipeline", *options, "-o", step, "--force")
    rule = ("--collective", "all-reduce=ring", "--topology", TOPOLOGY)
    collhub("expand", step, *rule, "-o", flat, "--force")
    collhub("verify", flat)
    drawn = ("--timeline", flat.with_name("timeline.json"))
    report = collhub("simulate", flat, "--topology", TOPOLOGY, "--json", *drawn)
    return float(json.loads(report)["time_ns"]) / 1e6


def main(folder: Path) -> int:
    """Compare the ways, the simplest first."""
    for hand_over in HAND_OVERS:
        print(f"{hand_over:10}  {simulated_ms(folder, hand_over):8.3f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
