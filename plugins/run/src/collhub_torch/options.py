"""The options of the executor `torch`; nothing of torch is imported."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """Where tensors lie, and how messages start."""

    device: str = choice(DEVICES, "where the data lies: cpu (gloo), or cuda (NCCL, a GPU per rank)")
    batch: bool = option(
        OptionType.BOOL,
        False,
        "start the messages of a level by one batch_isend_irecv; on cuda always so",
    )
