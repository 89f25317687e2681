"""The script for clusters: `torchrun --nproc-per-node 4 -m collhub_torch ring.xml --size 64MiB`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import torch
import torch.distributed as dist
from collhub_execution import StartedRun, print_findings, run_script, script_command, script_rank

from collhub_torch.plugin import DEVICES, TorchOptions
from collhub_torch.rank import Array, RankPlace, join, torch_engine
from hub_core.model import Diagnostic, UsageError

# Set by torchrun: docs.pytorch.org, torch.distributed.run, "Environment Variables".
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class TorchChannel:
    """The group that torchrun has started; bytes are sent from the device of the group."""

    rank: int
    num_ranks: int
    device: torch.device

    def send(self, array: Array, peer: int) -> None:
        """Send bytes."""
        # A copy, because received arrays may be read-only, about which torch warns.
        dist.send(torch.from_numpy(array.copy()).to(self.device), peer)

    def receive(self, array: Array, peer: int) -> None:
        """Receive bytes from rank `peer` into all of `array`, by way of a tensor on the device.

        Blocks until they have arrived. The sender must send the same number of bytes.
        """
        # NCCL accesses only memory of its GPU.
        tensor = torch.empty(len(array), dtype=torch.uint8, device=self.device)
        dist.recv(tensor, peer)
        array[:] = tensor.cpu().numpy()


@script_command
@click.option(
    "--device",
    type=click.Choice(DEVICES),
    default="cpu",
    help="cpu: gloo; cuda: NCCL, a GPU per rank",
)
@click.option("--batch", is_flag=True, help="one batch_isend_irecv a level; on cuda always so")
def main(algorithm: str, as_json: bool, device: str, batch: bool, **values: Any) -> None:
    """Run one rank of `algorithm` (a file) with torch.distributed; `values`: further options.

    The process exits with the status of `collhub run`. Only the process with `RANK` 0 (the default)
    prints an error.
    """
    is_first = os.environ.get("RANK", "0") == "0"
    options = TorchOptions(device, batch)
    run_script(partial(_run, algorithm, values, options, as_json), is_first=is_first)


def _run(name: str, values: dict[str, Any], options: TorchOptions, as_json: bool) -> int:
    """Run this rank in the group that torchrun has started, and return its exit status.

    1. Read the environment variables of torchrun. Raises `UsageError` (`no-torchrun`) for the first
       one that is not set, and `ValueError` for one that is no integer.
    2. Read the algorithm file `name` and check the options `values`. Raises `HubError`.
    3. Limit torch to one thread, and join the group. Raises `PluginError` (`no-gpu`) if a rank has
       no GPU for NCCL.
    4. Run the rank. Rank 0 prints the report, with `as_json` as one line of JSON. An error is
       passed on, and step 5 is skipped. At the time limit the rank prints its diagnostics, and the
       process ends at once with status 1.
    5. Wait for all ranks, and destroy the group.

    Rank 0 returns 1 (`INVALID`) for a wrong result. In all other cases the status is 0.
    """
    # Read and checked before the group is joined, so that an error needs no clean-up.
    # The ranks that torchrun has assigned to this process.
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        message = (
            f"the environment variable {missing[0]} is not set: this script is one rank of several"
        )
        cure = "start it by torchrun, or use collhub run --executor torch"
        raise UsageError(message, cure=cure, code="no-torchrun")
    position = RankPlace(*(int(os.environ[name]) for name in _VARIABLES))
    run = StartedRun.read(name, values, position.num_ranks)
    torch.set_num_threads(1)
    device = join(options.device, position, "env://")
    channel = TorchChannel(position.rank, position.num_ranks, device)
    engine_of = partial(torch_engine, device=device, is_batched=options.batch)
    status = script_rank(run, channel, engine_of, _stop_rank, as_json=as_json)
    # A rank that exits early may discard messages that other ranks still receive.
    dist.barrier()
    dist.destroy_process_group()
    return status


def _stop_rank(findings: Sequence[Diagnostic]) -> None:
    """Print the diagnostics of this rank and exit with status 1.

    torchrun then ends the other ranks. There is no clean-up.
    """
    print_findings(findings)
    os._exit(1)


if __name__ == "__main__":
    main(prog_name="torchrun ... -m collhub_torch")
