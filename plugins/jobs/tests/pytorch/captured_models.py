"""Small models for captures; imported only where PyTorch is present."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return cast("torch.Tensor", x + self.down(functional.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    """Language model whose output is the loss."""

    def __init__(
        self, words: int = 32, width: int = 16, heads: int = 4, layers: int = 2, length: int = 8
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.positions
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x)).flatten(0, 1)
        return functional.cross_entropy(scores, labels.flatten())
