"""The C functions of a built library, and the functions of NCCL that it uses, by ctypes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from collhub_torch.manifest import Manifest
from hub_core.model import PluginError

# `ncclResult_t`, and the size of `ncclUniqueId`, in nccl.h.
_SUCCESS = 0
_ID_BYTES = 128


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * _ID_BYTES)]


@dataclass(frozen=True, slots=True)
class NativeCall:
    """Arguments of the library's function: addresses, the count, NCCL's numbers of type and
    operator.

    `stream`: address of a CUDA stream, 0 for the default stream.
    """

    send: int
    recv: int
    count: int
    datatype: int
    op: int
    stream: int


class NativeLibrary:
    """A loaded library; errors of its functions are raised as `PluginError`."""

    def __init__(self, manifest: Manifest, device: str) -> None:
        """Load the library for `device`. Raises `PluginError` if it is not built or loadable."""
        path = manifest.library[device]
        target = "library" if device == "cuda" else "double"
        if not path.exists():
            message = f"{path}: the library of the folder is not built for {device}"
            cure = f"run `make {target}` in {manifest.folder}; see its README.md"
            raise PluginError(message, cure=cure, code="not-built")
        try:
            # This also loads NCCL: the one that is already loaded by torch, or the library's.
            self._functions = ctypes.CDLL(str(path.resolve()))
            self._run = self._functions[manifest.functions["run"]]
            self._release = self._functions[manifest.functions["release"]]
            self._error = self._functions[manifest.functions["error"]]
        except (OSError, AttributeError) as error:
            message = f"{path} cannot be loaded: {error}"
            cure = f"rebuild it on this host: `make clean {target}`"
            raise PluginError(message, cure=cure, code="not-loadable") from None
        self._error.restype = ctypes.c_char_p
        for name in ("ncclGetErrorString", "ncclGetLastError"):
            getattr(self._functions, name).restype = ctypes.c_char_p

    def new_id(self) -> bytes:
        """Return the ID of a new communicator, with which all its ranks join."""
        unique_id = _UniqueId()
        self._check(self._functions.ncclGetUniqueId(ctypes.byref(unique_id)), "ncclGetUniqueId")
        return bytes(unique_id)

    def join(self, unique_id: bytes, num_ranks: int, rank: int) -> int:
        """Join a communicator on the current device and return it; waits for all ranks."""
        communicator = ctypes.c_void_p()
        nccl_id = _UniqueId.from_buffer_copy(unique_id)
        status = self._functions.ncclCommInitRank(
            ctypes.byref(communicator), num_ranks, nccl_id, rank
        )
        self._check(status, "ncclCommInitRank")
        assert communicator.value is not None
        return communicator.value

    def leave(self, communicator: int) -> None:
        """Release the library's resources of a communicator, and destroy it."""
        handle = ctypes.c_void_p(communicator)
        self._check(self._release(handle), "release")
        self._check(self._functions.ncclCommDestroy(handle), "ncclCommDestroy")

    def run(self, communicator: int, call: NativeCall) -> None:
        """Enqueue the collective. Raises `PluginError` if it fails."""
        status = self._run(
            ctypes.c_void_p(call.send),
            ctypes.c_void_p(call.recv),
            ctypes.c_size_t(call.count),
            call.datatype,
            call.op,
            ctypes.c_void_p(communicator),
            ctypes.c_void_p(call.stream),
        )
        if status != _SUCCESS:
            reason = self._error().decode(errors="replace")
            raise PluginError(reason, code="nccl", cure="the communicator cannot be used further")

    def _check(self, status: int, call: str) -> None:
        """Raise `PluginError` unless the status is success."""
        if status != _SUCCESS:
            reason = self._functions.ncclGetErrorString(status).decode(errors="replace")
            detail = self._functions.ncclGetLastError(None).decode(errors="replace")
            raise PluginError(f"{call}: {reason}: {detail}", code="nccl")
