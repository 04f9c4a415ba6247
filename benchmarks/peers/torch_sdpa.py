"""The Transformer as PyTorch's users write it today.

Fused attention (`scaled_dot_product_attention`), one matrix for queries, keys and
values, no biases in attention, dropout where the paper has it. Layers are post-norm.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models import DROPOUT, Sizes
from jaxformer.models.layers import sinusoidal_positions


class Attention(nn.Module):
    """Attention of queries [B, Q, D] to `memory` [B, K, D], or to themselves."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, width = sizes.num_heads, sizes.d_model
        # Of queries, keys and values, one below the other.
        self.input = nn.Parameter(torch.empty(3 * width, width))
        nn.init.xavier_uniform_(self.input)
        self.output = nn.Linear(width, width, bias=False)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        padding: Tensor | None = None,
        *,
        causal: bool = False,
    ) -> Tensor:
        if memory is None:
            parts = functional.linear(x, self.input).chunk(3, -1)
        else:
            of_x, of_memory = self.input.split([x.shape[-1], 2 * x.shape[-1]])
            others = functional.linear(memory, of_memory).chunk(2, -1)
            parts = functional.linear(x, of_x), *others
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts
        )
        mask = None if padding is None else ~padding[:, None, None]
        if causal and mask is not None:
            length = x.shape[1]
            ones = torch.ones(length, length, dtype=torch.bool, device=x.device)
            mask, causal = mask & ones.tril(), False
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal
        )
        return self.output(mixed.transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    """A layer of the encoder or, with `memory`, of the decoder."""

    def __init__(self, sizes: Sizes, *, decodes: bool) -> None:
        super().__init__()
        width = sizes.d_model
        self.attention = Attention(sizes)
        self.cross_attention = Attention(sizes) if decodes else None
        self.hidden = nn.Linear(width, sizes.d_ff)
        self.output = nn.Linear(sizes.d_ff, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 + decodes))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(
        self,
        x: Tensor,
        padding: Tensor | None,
        memory: Tensor | None = None,
        memory_padding: Tensor | None = None,
    ) -> Tensor:
        first, *_, last = self.norms
        decodes = self.cross_attention is not None
        found = self.attention(x, padding=padding, causal=decodes)
        x = first(x + self.dropout(found))
        if decodes:
            found = self.cross_attention(x, memory, memory_padding)
            x = self.norms[1](x + self.dropout(found))
        found = self.output(functional.relu(self.hidden(x)))
        return last(x + self.dropout(found))


class Transformer(nn.Module):
    """Encoder, decoder and one embedding; sentences have at most `longest` pieces."""

    def __init__(self, sizes: Sizes, longest: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.d_model)
        nn.init.normal_(self.embedding.weight, std=sizes.d_model**-0.5)
        self.encoder, self.decoder = (
            nn.ModuleList(Layer(sizes, decodes=each) for _ in range(sizes.layers))
            for each in (False, True)
        )
        table = torch.from_numpy(sinusoidal_positions(longest, sizes.d_model))
        self.register_buffer("positions", table)
        self.dropout = nn.Dropout(DROPOUT)
        self.scale = math.sqrt(sizes.d_model)

    def embed(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * self.scale
        return self.dropout(x + self.positions[: ids.shape[1]])

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_padding: Tensor | None,
        target_padding: Tensor | None,
    ) -> Tensor:
        """Score target ids [B, T], shifted by one: logits [B, T, V]."""
        memory, x = self.embed(source), self.embed(target)
        for layer in self.encoder:
            memory = layer(memory, source_padding)
        for layer in self.decoder:
            x = layer(x, target_padding, memory, source_padding)
        return x @ self.embedding.weight.T
