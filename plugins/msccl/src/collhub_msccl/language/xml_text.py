"""Write an algorithm as the text of an MSCCL-IR file, with the plugin's own writer."""

from __future__ import annotations

from collhub_msccl.options import WriteOptions
from collhub_msccl.writing.write_xml import write
from hub_core.model import Algorithm


def xml_text(algorithm: Algorithm) -> str:
    """The text for the writer's default runtime. Raises `HubError` for what it cannot express."""
    # The function of the offer, so that a program's XML() and `collhub convert` cannot differ.
    result = write(algorithm, WriteOptions())
    return b"".join(artifact.content() for artifact in result.artifacts).decode()
