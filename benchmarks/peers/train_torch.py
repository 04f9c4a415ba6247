"""PyTorch's own Transformer as a contestant: `torch.nn.Transformer`, its habits.

Embeddings and the matrix of the logits are one; label smoothing, Adam and dropout are
PyTorch's. Dropout is also on attention weights and inside the feed-forward, as
`nn.Transformer` has it, which the paper has not.
"""

import math

from benchmarks.peers.training import (
    BETA1,
    BETA2,
    DROPOUT,
    EPSILON,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    TrainSizes,
    Update,
    positions,
)
from jaxformer.batch import BOS, PAD, Batch


def torch_update(
    sizes: TrainSizes, *, device: str, compiled: bool, fused: bool, longest: int
) -> Update:
    """Draw parameters; gives the update.

    `compiled` by torch.compile; Adam `fused` in one kernel, or PyTorch's default.
    Sentences have at most `longest` pieces. Masks of padding are given only where there
    is padding, so that batches without it take the fast paths.
    """
    import torch
    from torch import nn

    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(sizes.vocabulary, sizes.d_model)
            nn.init.normal_(self.embedding.weight, std=sizes.d_model**-0.5)
            self.transformer = nn.Transformer(
                sizes.d_model, sizes.num_heads, sizes.num_layers, sizes.num_layers,
                sizes.d_ff, DROPOUT, batch_first=True,
            )  # fmt: skip
            table = torch.from_numpy(positions(longest, sizes.d_model))
            self.register_buffer("positions", table)
            self.dropout = nn.Dropout(DROPOUT)

        def embed(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embedding(ids) * math.sqrt(sizes.d_model)
            return self.dropout(x + self.positions[: ids.shape[1]])

        def forward(
            self,
            source: torch.Tensor,
            target: torch.Tensor,
            source_padding: torch.Tensor | None,
            target_padding: torch.Tensor | None,
        ) -> torch.Tensor:
            length = target.shape[1]
            future = torch.ones(
                length, length, dtype=torch.bool, device=target.device
            ).triu(1)
            hidden = self.transformer(
                self.embed(source),
                self.embed(target),
                tgt_mask=future,
                src_key_padding_mask=source_padding,
                tgt_key_padding_mask=target_padding,
                memory_key_padding_mask=source_padding,
                tgt_is_causal=True,
            )
            return hidden @ self.embedding.weight.T

    model = Model().to(device).train()
    optimizer = torch.optim.Adam(
        model.parameters(), lr=LEARNING_RATE, betas=(BETA1, BETA2), eps=EPSILON,
        fused=True if fused else None,
    )  # fmt: skip
    loss_of = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=LABEL_SMOOTHING)

    def forward_loss(*inputs: torch.Tensor | None) -> torch.Tensor:
        source, target, source_padding, target_padding = inputs
        start = torch.full_like(target[:, :1], BOS)
        shifted = torch.cat([start, target[:, :-1]], 1)
        logits = model(source, shifted, source_padding, target_padding)
        return loss_of(logits.flatten(0, 1), target.flatten())

    if compiled:
        forward_loss = torch.compile(forward_loss)

    def update(batch: Batch) -> float:
        sides = [
            torch.from_numpy(ids).to(device, torch.long)
            for ids in (batch.source, batch.target)
        ]
        padding = [ids == PAD if bool((ids == PAD).any()) else None for ids in sides]
        with torch.autocast(device, torch.bfloat16, enabled=sizes.dtype == "bfloat16"):
            loss = forward_loss(*sides, *padding)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    return update
