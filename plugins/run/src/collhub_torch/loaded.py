"""Algorithms for training jobs: a built library as an operator of torch and as a process group."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

from collhub_torch.native_library import Manifest, NativeLibrary, read_manifest
from collhub_torch.plugin import DEVICES
from collhub_torch.process_group import GroupOptions, SizeWindow, new_group
from collhub_torch.session import OPS, SHAPES, Session, check_tensor
from hub_core.model import CollectiveKind, PluginError, UsageError


class LoadedAlgorithm:
    """The library of one folder.

    `op`: the operator `torch.ops.collhub.<collective>_<name>(input, op, group)`, which returns a
    new tensor. `op` is sum, prod, min, max or avg, and ignored by collectives without reduction;
    `group` is the result of `attach`.
    """

    def __init__(self, manifest: Manifest, device: str) -> None:
        """Load the library for `device` (cpu or cuda) and register its operator with torch.

        The operator is `torch.ops.collhub.NAME`; NAME is the library's run function without the
        prefix `collhub_`. It takes a tensor, the name of the reduction and the name of an attached
        group, and returns a new tensor. For torch.compile, the output's shape follows from the
        collective and the number of ranks. The object has no attached group at first.

        Raises, before an operator is registered: `ValueError` for an unknown collective, `KeyError`
        for a collective without tensors of equal shape (not in `SHAPES`) and for an unknown device,
        `PluginError` if the library is not built (`not-built`) or cannot be loaded
        (`not-loadable`). `load_once` checks collective and device first.
        """
        self.manifest = manifest
        self.device = device
        self.kind = CollectiveKind(manifest.collective)
        self.shape = SHAPES[self.kind]
        self._library = NativeLibrary(manifest, device)
        self._sessions: dict[str, Session] = {}
        # Names are not reused, so an old name never refers to a new group.
        self._attached = 0
        # Register the operator, and its output shape for torch.compile.
        name = self.manifest.functions["run"].removeprefix("collhub_")
        schema = "(Tensor input, str op, str group) -> Tensor"
        custom_op = torch.library.custom_op(
            f"collhub::{name}", self._call, mutates_args=(), schema=schema
        )
        custom_op.register_fake(
            lambda source, op, group: self.shape.like(source, self.manifest.num_ranks)
        )
        operator: torch._ops.OpOverloadPacket = getattr(torch.ops.collhub, name)
        self.op = operator

    def attach(self, group: dist.ProcessGroup | None = None) -> str:
        """Allow a process group to call `op`; return the name to pass as `group` in these calls.

        `group`: None is torch's default group. Names are "1", "2" and so on, in the order of calls.
        A group that is attached again gets another name and another communicator; old names stay
        valid until `detach`. No communication takes place here. The first call of `op` on all ranks
        joins the communicator, so every rank of the group must attach it.

        Raises `UsageError`: `no-group` if `group` is None and torch has no default group, then
        `group-size` if the group has another number of ranks than the algorithm. After `group-size`
        the next name is skipped.
        """
        group = dist.group.WORLD if group is None else group
        if group is None:
            message = "torch.distributed has no default group"
            cure = "call torch.distributed.init_process_group before, or name a group"
            raise UsageError(message, cure=cure, code="no-group")
        self._attached += 1
        name = str(self._attached)
        self._sessions[name] = self.session(group)
        return name

    def detach(self, name: str) -> None:
        """Undo `attach`: close the communicator of a group, if it was joined, and forget the name.

        `name`: result of `attach`. The names of other attachments of the group stay valid. Call
        it before the process group is destroyed. Raises `UsageError` (`no-group`) for any other
        name, also one that is already detached.
        """
        self._get_session(name).close()
        del self._sessions[name]

    def session(self, group: dist.ProcessGroup) -> Session:
        """Create a session of the algorithm for this rank of a group.

        Its communicator is joined by the first run. Raises `UsageError` (`group-size`) for a group
        of another size.
        """
        ranks = self.manifest.num_ranks
        if group.size() != ranks:
            message = f"the algorithm is for {ranks} ranks, the group has {group.size()}"
            raise UsageError(message, code="group-size")
        return Session(self._library, group, self.manifest.root)

    def new_group(
        self,
        ranks: list[int] | None = None,
        *,
        min_bytes: int = 0,
        max_bytes: int | None = None,
        fallback: str | None = None,
    ) -> dist.ProcessGroup:
        """Create a group of torch.distributed that runs the algorithm.

        All ranks of the default group must call it, also those outside of the new group.
        `ranks`: members, None for all ranks. Calls of this collective with `min_bytes` to
        `max_bytes` of the full buffer (inclusive; None: no limit) run the algorithm. All other
        calls use a second group of the backend `fallback`, by default nccl for GPUs and gloo
        for the CPU. Raises `UsageError` (`group-size`) on the members if their number is not
        that of the algorithm.
        """
        backend = fallback or ("nccl" if self.device == "cuda" else "gloo")
        window = SizeWindow(min_bytes, max_bytes)
        return new_group(ranks, backend, GroupOptions(self.session, self.kind, self.device, window))

    def _get_session(self, name: str) -> Session:
        """Return the session of an attached group by the name that `attach` returned.

        Raises `UsageError` (`no-group`) for any other name, also after `detach`.
        """
        if name not in self._sessions:
            message = f"group {name[:40]!r} is not attached"
            cure = "pass the result of LoadedAlgorithm.attach"
            raise UsageError(message, cure=cure, code="no-group")
        return self._sessions[name]

    def _call(self, source: torch.Tensor, op: str, group: str) -> torch.Tensor:
        """Run the collective on an attached group, and return a new tensor with the output.

        This is the function of the torch operator. `source` is not changed. The output has the
        dtype and device of `source`. Its first dimension is multiplied or divided by the number of
        ranks as the collective requires (`Shape.like`). `op`: a name in `OPS` (sum, prod, min, max,
        avg), also required for collectives without reduction. `group`: result of `attach`.

        The first call on a group joins the communicator and waits for all ranks. Later calls on a
        GPU are enqueued on the current stream without waiting for the result.

        Raises `UsageError`, in this order:

        - `no-group`: the group is not attached
        - `tensor`: another device type than that of the library, not contiguous, or an unsupported
          dtype
        - `op`: an unknown reduction
        - `tensor`: a first dimension that cannot be divided as the collective needs

        Raises `PluginError` (`nccl`) if NCCL reports an error.
        """
        session = self._get_session(group)
        check_tensor(source, self.device)
        ranks = self.manifest.num_ranks
        if op not in OPS:
            raise UsageError(f"op {op[:40]!r} is not one of {', '.join(OPS)}", code="op")
        if not self.shape.divides(source, ranks):
            message = f"the first dimension of the input has no {ranks} equal parts"
            raise UsageError(message, code="tensor")
        target = self.shape.like(source, ranks)
        session.run(source, target, self.shape.count(source, ranks), op)
        return target


@cache
def load_once(folder: Path, device: str) -> LoadedAlgorithm:
    """Return the loaded library of a folder, which must be a resolved path; load it at most once.

    Further calls with the same folder and device return the same object. A failed load is not
    remembered: the next call tries again. Errors, in the order of the checks:

    - `UsageError` (`device`): the device is not cpu or cuda
    - `InputError`: the folder has no readable and valid description of a library
    - `PluginError` (`collective`): the collective is not in `SHAPES`
    - `UsageError` (`name-taken`): an operator of this name is registered, for another folder or
      for this folder and another device
    - `PluginError`: the library is not built (`not-built`) or cannot be loaded (`not-loadable`)
    """
    if device not in DEVICES:
        raise UsageError(
            f"device {device[:40]!r} is not one of {', '.join(DEVICES)}", code="device"
        )
    manifest = read_manifest(folder)
    name = manifest.functions["run"]
    if manifest.collective not in SHAPES:
        known = ", ".join(SHAPES)
        message = f"{folder}: {manifest.collective} is not one of {known}"
        cure = f"call {name} of the library from C"
        raise PluginError(message, cure=cure, code="collective")
    if hasattr(torch.ops.collhub, name.removeprefix("collhub_")):
        message = (
            f"{folder}: {name} is loaded from another folder, or for another device than {device}"
        )
        cure = "write one of them with -O name=another_name; load a folder for one device only"
        raise UsageError(message, cure=cure, code="name-taken")
    return LoadedAlgorithm(manifest, device)
