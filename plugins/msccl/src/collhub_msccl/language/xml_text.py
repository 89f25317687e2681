"""Write an algorithm as the text of an MSCCL-IR file, with the plugin's own writer."""

from __future__ import annotations

from collhub_msccl import plugin
from hub_core.model import Algorithm, parse_size
from hub_core.plugin_api import FormatWriter, Option, OptionType, WriteResult, resolve


def xml_text(algorithm: Algorithm) -> str:
    """The text for the writer's default runtime. Raises `HubError` for what it cannot express."""
    writer = _xml_writer()
    options = {option.name: _default(option) for option in writer.options}
    result = resolve(writer.write)(algorithm, options)
    assert isinstance(result, WriteResult)
    return b"".join(artifact.content() for artifact in result.artifacts).decode()


def _xml_writer() -> FormatWriter:
    # Through the offer, so that a program's XML() and `collhub convert` cannot differ.
    for offer in plugin.collhub_consumers():
        if isinstance(offer, FormatWriter) and offer.format.name == "msccl-xml":
            return offer
    raise LookupError("this plugin offers no writer of msccl-xml")


def _default(option: Option) -> str | int | float | bool | None:
    """The default of an option as its function gets it: sizes may be declared as texts."""
    if option.type is OptionType.SIZE and isinstance(option.default, str):
        return parse_size(option.default)
    return option.default
