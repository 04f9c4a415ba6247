"""PyTorch as a contestant: `torch.nn.Transformer` and its habits.

One matrix for embeddings and logits; label smoothing, Adam and dropout are PyTorch's.
Unlike the paper, `nn.Transformer` has dropout also on attention weights and inside the
feed-forward layer. With `fused` it is the model of peers/torch_sdpa.py and AdamW.
"""

import math
from collections.abc import Callable
from typing import Any

from benchmarks.models import (
    BETA1,
    BETA2,
    DROPOUT,
    EPSILON,
    LABEL_SMOOTHING,
    Sizes,
    device_name,
)
from benchmarks.peers.flax_port import LEARNING_RATE
from jaxformer.batch import Batch
from jaxformer.models.layers import sinusoidal_positions
from jaxformer.tokens import BOS, PAD


def torch_update(
    sizes: Sizes, *, compiled: bool, longest: int, fused: bool = False
) -> Callable[[Batch], Any]:
    """Draw parameters and give the update, on a GPU if there is one.

    `compiled` by torch.compile; `fused` is for Transformers. Sentences have at most
    `longest` pieces. Masks of padding are given only where there is padding: without
    them PyTorch takes its fast paths.
    """
    import torch
    from torch import nn

    device = device_name()
    torch.manual_seed(0)
    if device == "cuda":  # TF32, as JAX has it there
        torch.set_float32_matmul_precision("high")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(sizes.vocabulary, sizes.d_model)
            nn.init.normal_(self.embedding.weight, std=sizes.d_model**-0.5)
            self.transformer = nn.Transformer(
                sizes.d_model, sizes.num_heads, sizes.layers, sizes.layers,
                sizes.d_ff, DROPOUT, batch_first=True,
            )  # fmt: skip
            table = torch.from_numpy(sinusoidal_positions(longest, sizes.d_model))
            self.register_buffer("positions", table)
            self.dropout = nn.Dropout(DROPOUT)

        def embed(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embedding(ids) * math.sqrt(sizes.d_model)
            return self.dropout(x + self.positions[: ids.shape[1]])

        def forward(self, source, target, source_padding, target_padding):
            ones = torch.ones(
                target.shape[1], target.shape[1], dtype=torch.bool, device=target.device
            )
            hidden = self.transformer(
                self.embed(source), self.embed(target), tgt_mask=ones.triu(1),
                src_key_padding_mask=source_padding,
                tgt_key_padding_mask=target_padding,
                memory_key_padding_mask=source_padding, tgt_is_causal=True,
            )  # fmt: skip
            return hidden @ self.embedding.weight.T

    if sizes.architecture == "convolutional":
        from benchmarks.peers.torch_convs2s import ConvS2S

        model = ConvS2S(sizes.model().config, sizes.vocabulary)
    elif sizes.architecture == "recurrent":
        from benchmarks.peers.torch_lstm import AttentionalLSTM

        model = AttentionalLSTM(sizes.model().config, sizes.vocabulary)
    elif fused:
        from benchmarks.peers.torch_sdpa import Transformer

        model = Transformer(sizes, longest)
    else:
        model = Model()
    model = model.to(device).train()
    optimizer = (torch.optim.AdamW if fused else torch.optim.Adam)(
        model.parameters(), lr=LEARNING_RATE, betas=(BETA1, BETA2), eps=EPSILON,
        fused=fused or device == "cuda" or None,
    )  # fmt: skip
    loss_of = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=LABEL_SMOOTHING)

    def forward_loss(source, target, *padding) -> torch.Tensor:
        start = torch.full_like(target[:, :1], BOS)
        shifted = torch.cat([start, target[:, :-1]], 1)
        logits = model(source, shifted, *padding)
        return loss_of(logits.flatten(0, 1), target.flatten())

    if compiled:
        forward_loss = torch.compile(forward_loss)

    def update(batch: Batch) -> torch.Tensor:
        sides = [
            torch.from_numpy(ids).to(device, torch.long)
            for ids in (batch.source, batch.target)
        ]
        padding = [
            ids == PAD if (given == PAD).any() else None
            for ids, given in zip(sides, (batch.source, batch.target), strict=True)
        ]
        with torch.autocast(device, torch.bfloat16, enabled=sizes.dtype == "bfloat16"):
            loss = forward_loss(*sides, *padding)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return update
