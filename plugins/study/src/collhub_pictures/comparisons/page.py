"""The page of a comparison: the picture and all of its numbers, in one HTML file of its own."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from collhub_pictures.comparisons.curves import ranked, winners
from collhub_pictures.comparisons.picture import draw
from hub_core.model import format_bandwidth, format_bytes
from hub_core.plugin_api import BandwidthSeries, ReportRequest

_STYLE = (
    "body{font:14px sans-serif;color:#222;margin:2em}"
    "svg{max-width:100%;height:auto}"
    "div{overflow-x:auto}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "caption{text-align:left;padding:.5em 0}"
    "td,th{padding:.25em .7em;border-bottom:1px solid #ddd;white-space:nowrap}"
    "td{text-align:right}th{text-align:right}"
    "th[scope=row]{text-align:left;position:sticky;left:0;background:#fff}"
    "td.w{font-weight:bold;background:#e3f1ea}"
)
_CAPTION = "Bus bandwidth by size of the full buffer, as nccl-tests define it; the fastest in bold."


def page(request: ReportRequest) -> bytes:
    """The HTML document, ASCII, the same bytes for the same numbers.

    It loads nothing from elsewhere and runs no script. Raises `UsageError` as `draw` does.
    """
    title = _text(request.title)
    picture = draw(request).decode("ascii")
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{_STYLE}</style></head><body>",
        f"{picture.rstrip()}",
        f"<div><table><caption>{_CAPTION}</caption>",
        *_table(request),
        "</table></div></body></html>",
        "",
    ]
    return "\n".join(lines).encode("ascii", "xmlcharrefreplace")


def _table(request: ReportRequest) -> Iterator[str]:
    """A column a size, a row an algorithm in the order of the picture, and one for the bound."""
    sizes = "".join(f'<th scope="col">{_text(format_bytes(size))}</th>' for size in request.sizes)
    yield f'<tr><th scope="row">algorithm</th>{sizes}</tr>'
    fastest = winners(request.series, len(request.sizes))
    for one in ranked(request.series):
        yield _row(one, [name == one.name for name in fastest])
    if request.bound is not None:
        yield _row(request.bound, [False] * len(request.sizes))


def _row(series: BandwidthSeries, is_fastest: list[bool]) -> str:
    cells = ""
    for value, wins in zip(series.bandwidths, is_fastest, strict=True):
        text = "-" if value is None else _text(format_bandwidth(value))
        cells += f'<td class="w">{text}</td>' if wins else f"<td>{text}</td>"
    return f'<tr><th scope="row">{_text(series.name)}</th>{cells}</tr>'


def _text(text: str) -> str:
    """Names are not to be trusted: markup is escaped, and what HTML cannot hold is replaced."""
    return escape(
        "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
    )
