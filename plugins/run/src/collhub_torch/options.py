"""The options of the executor `torch`; does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """The device of tensors, and how messages start."""

    device: str = choice(DEVICES, "device of the data: cpu (gloo), or cuda (NCCL, a GPU per rank)")
    batch: bool = option(
        OptionType.BOOL,
        False,
        "start the messages of a level by one batch_isend_irecv; on cuda always so",
    )
