"""Small listings for the conformance kit.

Only formats with bandwidths can be read without options, which trees are not.
"""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Source

# Two hosts at one switch, one of them with two cards.
_INFINIBAND = """\
#
# Topology file: generated on Thu Jan  1 00:00:00 2026
#
vendid=0x2c9
switchguid=0x2c90200000001(2c90200000001)
Switch\t36 "S-0002c90200000001"\t\t# "leaf-1" enhanced port 0 lid 1 lmc 0
[1]\t"H-0002c90300000001"[1](2c90300000001) \t\t# "node1 mlx5_0" lid 4 4xHDR
[2]\t"H-0002c90300000002"[1](2c90300000002) \t\t# "node1 mlx5_1" lid 5 4xHDR
[3]\t"H-0002c90300000003"[1](2c90300000003) \t\t# "node2 mlx5_0" lid 6

caguid=0x2c90300000001
Ca\t1 "H-0002c90300000001"\t\t# "node1 mlx5_0"
[1](2c90300000001) \t"S-0002c90200000001"[1]\t\t# lid 4 lmc 0 "leaf-1" lid 1 4xHDR

Ca\t1 "H-0002c90300000002"\t\t# "node1 mlx5_1"
[1](2c90300000002) \t"S-0002c90200000001"[2]\t\t# lid 5 lmc 0 "leaf-1" lid 1 4xHDR

Ca\t1 "H-0002c90300000003"\t\t# "node2 mlx5_0"
[1](2c90300000003) \t"S-0002c90200000001"[3]\t\t# lid 6 lmc 0 "leaf-1" lid 1 4xEDR
"""


def build_infiniband_samples() -> Sequence[Source]:
    """Return a listing of three cards at a switch."""
    return [Source.of_bytes("leaf.ibnetdiscover", _INFINIBAND.encode("ascii"))]
