"""Write the machine profiles that collhub-study ships, from public measurements.

`python benchmarks/machines/build_profiles.py [measured.json [FOLDER]]` calibrates every machine of
`MACHINES` with the functions of `collhub calibrate` and writes one profile each into FOLDER
(default: the package data). Tables contain points only of sources whose licence permits copies.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from collhub_machine_profiles.gpus import known_gpu
from collhub_machine_profiles.machine_profile import Constant, MachineProfile, profile_bytes
from collhub_machines.calibration import CalibrationRequest, calibrate_machines, read_points

from hub_core.plugin_api import MeasurementSet

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT.parent / "shared/corpus/measured/measured.json"
PROFILES = ROOT / "plugins/study/src/collhub_machine_profiles/profiles"
COPYABLE_LICENCES = frozenset({"Apache-2.0", "MIT", "MIT-0"})


@dataclass(frozen=True, slots=True)
class Machine:
    """A shipped profile.

    `part` is a text in the labels of its points. Without points of one node, the constants come
    from the profile `sibling`.
    """

    name: str
    label: str
    part: str = ""
    sibling: str = ""


MACHINES = (
    Machine("a100", "8x A100-SXM4-80GB, NVSwitch (NVLink3, 300 GB/s)", "8x A100-SXM4"),
    Machine("h100", "8x H100-SXM5-80GB, NVSwitch (NVLink4, 450 GB/s)", "8x H100-SXM5"),
    Machine("h200", "8x H200-SXM, NVSwitch (NVLink4, 450 GB/s)", "8x H200-SXM"),
    Machine("b200", "8x B200-SXM, NVSwitch (NVLink5, 900 GB/s)", "8x B200-SXM"),
    Machine("b300", "8x B300-SXM, NVSwitch (NVLink5, 900 GB/s)", sibling="b200"),
    Machine("gb200", "GB200 tray, 4 GPUs (NVLink5, 900 GB/s)", "GB200 tray"),
    Machine("gb300", "GB300 tray, 4 GPUs (NVLink5, 900 GB/s)", sibling="gb200"),
    Machine("p4de", "AWS p4de: 8x A100, 4x 100 Gb/s EFA a node", "p4de", "a100"),
    Machine("p5", "AWS p5: 8x H100, 32x 100 Gb/s EFA a node", sibling="h100"),
    Machine("p6-b200", "AWS p6-b200: 8x B200, 8x 400 Gb/s EFA a node", "p6-b200", "b200"),
    Machine("gh200-slingshot", "CSCS Alps: 4x GH200, 4x 200 Gb/s Slingshot a node", "Alps"),
    Machine("l40s", "8x L40S, PCIe 4", "8x L40S"),
    Machine("rtx-pro-6000", "8x RTX PRO 6000 Blackwell server, PCIe 5", "RTX PRO 6000"),
)


def build_profiles(read: MeasurementSet) -> list[MachineProfile]:
    """Return the profiles of `MACHINES`, in their order; siblings follow their originals."""
    profiles: dict[str, MachineProfile] = {}
    for machine in MACHINES:
        profile = _calibrated(machine, read)
        if machine.sibling:
            profile = _with_sibling(machine, profile, profiles[machine.sibling])
        if profile is None:
            raise SystemExit(f"{machine.name}: no measurements")
        profiles[machine.name] = replace(profile, name=machine.name, label=machine.label)
    return list(profiles.values())


def _calibrated(machine: Machine, read: MeasurementSet) -> MachineProfile | None:
    """Calibrate the points of one machine, None without points."""
    points = [
        replace(point, machine=machine.label)
        for point in read.points
        if machine.part and machine.part in point.machine
    ]
    if not points:
        return None
    (calibrated,) = calibrate_machines(
        MeasurementSet(points, [], read.sources), CalibrationRequest()
    )
    licences = {read.sources[point.source].get("licence") for point in points}
    profile = calibrated.profile
    if licences <= COPYABLE_LICENCES:
        return profile
    errors = tuple(error for error in profile.errors if error.predictor == "model")
    return replace(profile, tables=(), errors=errors)


def _with_sibling(
    machine: Machine, profile: MachineProfile | None, sibling: MachineProfile
) -> MachineProfile:
    """Take the constants of a sibling if the machine has none of its own."""
    if profile is not None and profile.constants:
        return profile
    constants = {
        name: Constant(constant.value, "sibling", 0) for name, constant in sibling.constants.items()
    }
    origin = [{**source, "use": f"constants of {sibling.name}"} for source in sibling.sources]
    if profile is not None:
        sources = (*profile.sources, *origin)
        return replace(profile, constants=constants, sources=sources)
    gpu = known_gpu(machine.label)
    return replace(
        sibling,
        gpu=gpu.name if gpu else "",
        constants=constants,
        tables=(),
        errors=(),
        sources=tuple(origin),
    )


def write_profiles(profiles: Iterable[MachineProfile], folder: Path) -> None:
    """Write one file per profile."""
    folder.mkdir(parents=True, exist_ok=True)
    for profile in profiles:
        file = folder / f"{profile.name}.json"
        file.write_bytes(profile_bytes(profile))
        parts = f"{len(profile.constants)} constants, {len(profile.tables)} tables"
        print(f"{file.name:<22} {parts}, {len(profile.networks)} networks")


def main() -> None:
    """Write all profiles."""
    results = sys.argv[1] if len(sys.argv) > 1 else str(CORPUS)
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else PROFILES
    write_profiles(build_profiles(read_points([results])), folder)


if __name__ == "__main__":
    main()
