"""The options of the executor `torch`; nothing of torch is imported."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """Where tensors lie, and how messages start."""

    device: str = option(
        OptionType.TEXT,
        "cpu",
        "where the data lies: cpu (gloo), or cuda (NCCL, a GPU per rank)",
        choices=DEVICES,
    )
    batch: bool = option(
        OptionType.BOOL,
        False,
        "start the messages of a level by one batch_isend_irecv; on cuda always so",
    )
