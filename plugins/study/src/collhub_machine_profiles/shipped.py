"""Profiles that this distribution ships, and the one that belongs to a topology."""

from __future__ import annotations

import functools
import importlib.resources
import re
from pathlib import Path
from typing import TYPE_CHECKING

from collhub_machine_profiles.gpus import has_switched_links, known_gpu
from hub_core.model import InputError

# Modules that need numpy are imported in the functions: a listing of names does without it.
if TYPE_CHECKING:
    from collhub_machine_profiles.machine_profile import MachineProfile
    from hub_core.network import Topology

_FOLDER = importlib.resources.files("collhub_machine_profiles") / "profiles"
# The name of a machine in the text of a topology: `dgx-h100` in `dgx-h100:4?network=...`.
_HEAD = re.compile(r"[^:?+]*")


@functools.cache
def shipped_names() -> tuple[str, ...]:
    """Return the names of all shipped profiles, sorted."""
    files = (file.name for file in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in files if name.endswith(".json")))


@functools.cache
def shipped_profile(name: str) -> MachineProfile:
    """Return the shipped profile with a name; it is parsed once, and later calls share it.

    Raises `KeyError` for a name that is not in `shipped_names`; case matters.
    """
    from collhub_machine_profiles.machine_profile import parse_profile

    if name not in shipped_names():
        raise KeyError(name)
    content = (_FOLDER / f"{name}.json").read_bytes()
    return parse_profile(content, f"{name}.json", checks_schema=False)


def find_profile(machine: str | Topology) -> MachineProfile | None:
    """Return the shipped profile of a machine; None if no profile describes it. Never raises.

    `machine`: a text, or a topology, whose name is used. The text is not parsed as a topology; case
    does not matter. A topology of several nodes has the profile of one node.

    1. The text before the first `:`, `?` or `+` is the name of a profile, such as `p4de`: this
       profile.
    2. The first 200 characters name a GPU (`known_gpu`), such as `NVIDIA H100 80GB HBM3`: the
       profile with the name of the GPU (`h100`), None if there is none (`MI300X`). Also None if the
       text names PCIe, NVL or NVLink pairs (`A100 PCIe`) and the GPU usually has NVSwitch.
    3. Otherwise None.

    Import this function from `collhub_machine_profiles`, which is no plugin: plugins of all
    distributions that require `collhub-study` may use it.
    """
    text = machine if isinstance(machine, str) else machine.name
    match = _HEAD.match(text.strip().lower())
    head = match[0].strip() if match else ""
    if head in shipped_names():
        return shipped_profile(head)
    gpu = known_gpu(text)
    if gpu is None:
        return None
    name = gpu.name.lower().replace(" ", "-")
    if name not in shipped_names() or (gpu.has_model and not has_switched_links(text)):
        return None
    return shipped_profile(name)


def profile_of_text(text: str) -> MachineProfile | None:
    """Return the profile that a text contains as JSON or names; None if it does neither.

    A text whose first character that is not blank is `{` is JSON. Any other text must be
    exactly a name of `shipped_names`, such as `h100`; case matters. Raise `InputError` for
    invalid JSON and for an invalid profile.
    """
    from collhub_machine_profiles.machine_profile import parse_profile

    if text.lstrip().startswith("{"):
        # An option has the content of its file, not the name.
        return parse_profile(text.encode(), "option machine")
    return shipped_profile(text) if text in shipped_names() else None


def load_profile(name_or_file: str) -> MachineProfile:
    """Return the profile in a file, or the shipped profile of a machine if no such path exists.

    A machine is found as in `find_profile`: by the name of a profile, a GPU or a topology. An
    existing path has priority, also over a machine of the same name, and is read as a file.
    Raises `InputError`: `unknown-machine` if there is neither path nor machine,
    `unreadable-input` for a path that cannot be read (such as a folder), and others for an
    invalid profile.
    """
    from collhub_machine_profiles.machine_profile import read_profile

    if not Path(name_or_file).exists():
        profile = find_profile(name_or_file)
        if profile is not None:
            return profile
        cure = f"give a file of 'collhub calibrate' or one of {', '.join(shipped_names())}"
        message = f"there is no machine profile {name_or_file!r:.80}"
        raise InputError(message, cure=cure, code="unknown-machine")
    return read_profile(name_or_file)
