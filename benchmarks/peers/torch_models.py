"""Two Transformers of PyTorch, with one matrix for embeddings and logits.

`Standard` is `torch.nn.Transformer`. Unlike the paper, it has dropout also on attention
weights and inside the feed-forward layer. `Fused` is what PyTorch's users write today:
`scaled_dot_product_attention`, one matrix for queries, keys and values, no biases in
attention, dropout where the paper has it. Layers are post-norm.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models import DROPOUT, Sizes
from jaxformer.models.layers import sinusoidal_positions


class _Embedded(nn.Module):
    """The embedding; sentences have at most `longest` pieces."""

    def __init__(self, sizes: Sizes, longest: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.d_model)
        nn.init.normal_(self.embedding.weight, std=sizes.d_model**-0.5)
        table = torch.from_numpy(sinusoidal_positions(longest, sizes.d_model))
        self.register_buffer("positions", table)
        self.dropout = nn.Dropout(DROPOUT)
        self.scale = math.sqrt(sizes.d_model)

    def embed(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * self.scale
        return self.dropout(x + self.positions[: ids.shape[1]])

    def logits(self, x: Tensor) -> Tensor:
        return x @ self.embedding.weight.T


class Standard(_Embedded):
    """`torch.nn.Transformer`."""

    def __init__(self, sizes: Sizes, longest: int) -> None:
        super().__init__(sizes, longest)
        layers = sizes.layers, sizes.layers
        self.transformer = nn.Transformer(
            sizes.d_model, sizes.num_heads, *layers, sizes.d_ff, DROPOUT,
            batch_first=True,
        )  # fmt: skip

    def forward(
        self, source: Tensor, target: Tensor, *padding: Tensor | None
    ) -> Tensor:
        """Score target ids [B, T], shifted by one: logits [B, T, V].

        `padding` are masks of source and target, True at padding, or None.
        """
        source_padding, target_padding = padding
        length = target.shape[1]
        ones = torch.ones(length, length, dtype=torch.bool, device=target.device)
        hidden = self.transformer(
            self.embed(source), self.embed(target), tgt_mask=ones.triu(1),
            src_key_padding_mask=source_padding, tgt_key_padding_mask=target_padding,
            memory_key_padding_mask=source_padding, tgt_is_causal=True,
        )  # fmt: skip
        return self.logits(hidden)


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
        self, x: Tensor, memory: Tensor | None, padding: Tensor | None, *, causal: bool
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
    """A layer of the encoder or, if it `decodes`, of the decoder."""

    def __init__(self, sizes: Sizes, *, decodes: bool) -> None:
        super().__init__()
        self.attention, self.decodes = Attention(sizes), decodes
        self.cross_attention = Attention(sizes) if decodes else None
        self.hidden = nn.Linear(sizes.d_model, sizes.d_ff)
        self.output = nn.Linear(sizes.d_ff, sizes.d_model)
        self.norms = nn.ModuleList(
            nn.LayerNorm(sizes.d_model) for _ in range(2 + decodes)
        )
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, padding: Tensor | None, *memory: Any) -> Tensor:
        """Compute x [B, L, D]; `memory` is that of the encoder and its padding."""
        first, *_, last = self.norms
        found = self.attention(x, None, padding, causal=self.decodes)
        x = first(x + self.dropout(found))
        if self.decodes:
            found = self.cross_attention(x, *memory, causal=False)
            x = self.norms[1](x + self.dropout(found))
        found = self.output(functional.relu(self.hidden(x)))
        return last(x + self.dropout(found))


class Fused(_Embedded):
    """A Transformer with fused attention."""

    def __init__(self, sizes: Sizes, longest: int) -> None:
        super().__init__(sizes, longest)
        self.encoder, self.decoder = (
            nn.ModuleList(Layer(sizes, decodes=each) for _ in range(sizes.layers))
            for each in (False, True)
        )

    def forward(
        self, source: Tensor, target: Tensor, *padding: Tensor | None
    ) -> Tensor:
        """Compute what `Standard.forward` does."""
        source_padding, target_padding = padding
        memory, x = self.embed(source), self.embed(target)
        for layer in self.encoder:
            memory = layer(memory, source_padding)
        for layer in self.decoder:
            x = layer(x, target_padding, memory, source_padding)
        return self.logits(x)
