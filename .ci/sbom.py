"""Write the software bill of materials of a release, and refuse licences that are not allowed.

    python .ci/sbom.py PYTHON WHEELS OUTPUT

`PYTHON`: the interpreter of an environment in which the release is installed. `WHEELS`: the folder
with the wheels of this repository. `OUTPUT` becomes a CycloneDX 1.6 document in JSON: every
installed distribution with its version, its licence as an SPDX expression, and the SHA-256 digests
of its files: of our wheels, or those in `constraints/install.txt`. Prints name, version and licence
of each. Exits with a message if a
licence is unknown or not in `ALLOWED`.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

ROOT = Path(__file__).resolve().parents[1]
# SPDX identifiers of licences under which an installed distribution may be.
ALLOWED = {
    *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause"),
    *("CC0-1.0", "ISC", "MIT", "MPL-2.0", "PSF-2.0", "Zlib"),
}
# Licences of distributions whose metadata has no SPDX expression: as in the LICENSE of each.
STATED = {
    "numba": "BSD-2-Clause",
    "pathspec": "MPL-2.0",
    "pluggy": "MIT",
    "protobuf": "BSD-3-Clause",
    "pyyaml": "MIT",
    "highspy": "MIT",
    "trove-classifiers": "Apache-2.0",
}
# Not a part of the product: the installer of the environment, with setuptools on Python 3.11.
IGNORED = {"pip", "setuptools"}
INSTALLED = """
import importlib.metadata, json
print(json.dumps([
    [one.metadata["Name"], one.version, one.metadata.get("License-Expression")]
    for one in importlib.metadata.distributions()
]))
"""


def main() -> None:
    """Write the document, or exit with the list of licences that are not allowed."""
    python, wheels, output = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    listed = subprocess.run([python, "-c", INSTALLED], capture_output=True, text=True, check=True)
    digests = {**locked_digests(ROOT / "constraints" / "install.txt"), **wheel_digests(wheels)}
    components, problems = [], []
    for name, version, expression in sorted(json.loads(listed.stdout)):
        key = normalized(name)
        if key in IGNORED:
            continue
        licence = expression or STATED.get(key)
        problem = problem_of(licence)
        if problem:
            problems.append(f"{name} {version}: {problem}")
            continue
        hashes = [HashType(alg=HashAlgorithm.SHA_256, content=one) for one in digests[key]]
        components.append(
            Component(
                name=key,
                version=version,
                type=ComponentType.LIBRARY,
                licenses=[LicenseExpression(licence)],
                purl=PackageURL("pypi", None, key, version),
                bom_ref=f"{key}@{version}",
                hashes=hashes,
            )
        )
    if problems:
        sys.exit("\n".join([*problems, f"allowed licences: {', '.join(sorted(ALLOWED))}"]))
    bom = Bom(components=components)
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        sys.exit(f"the document does not fit CycloneDX 1.6: {error}")
    output.write_text(text + "\n")
    for component in components:
        licence = next(iter(component.licenses))
        print(f"{component.name:28} {component.version or '':16} {licence.value}")
    print(f"{output.name}: {len(components)} distributions, all licences allowed")


def normalized(name: str) -> str:
    """The name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_digests(path: Path) -> dict[str, list[str]]:
    """SHA-256 digests by distribution of a list of constraints."""
    digests: dict[str, list[str]] = {}
    key = ""
    for line in path.read_text().splitlines():
        entry = re.match(r"([\w.-]+)==", line)
        if entry:
            key = normalized(entry[1])
        digests.setdefault(key, []).extend(re.findall(r"sha256:(\w+)", line))
    return digests


def wheel_digests(folder: Path) -> dict[str, list[str]]:
    """The SHA-256 digest of the wheel of every distribution of this repository."""
    return {
        normalized(path.name.split("-")[0]): [hashlib.sha256(path.read_bytes()).hexdigest()]
        for path in folder.glob("*.whl")
    }


def problem_of(licence: str | None) -> str:
    """The reason why a licence is not allowed; empty if it is."""
    if licence is None:
        return "no SPDX expression in its metadata; read its LICENSE and add it to STATED"
    try:
        expression = str(canonicalize_license_expression(licence))
    except InvalidLicenseExpression as error:
        return f"{licence!r} is not an SPDX expression: {error}"
    # Stricter than SPDX: of alternatives all must be allowed.
    parts = re.split(r" (?:AND|OR) ", expression.replace("(", "").replace(")", ""))
    refused = [part for part in parts if part not in ALLOWED]
    return f"{', '.join(refused)} is not allowed" if refused else ""


if __name__ == "__main__":
    main()
