"""PyTorch as a contestant of benchmarks/train.py: model, loss, optimiser."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.models import (
    BETA1,
    BETA2,
    EPSILON,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    Sizes,
    device_name,
)
from benchmarks.peers.torch_models import Fused, Standard
from jaxformer.batch import Batch
from jaxformer.tokens import BOS, PAD


def torch_update(
    sizes: Sizes, *, compiled: bool, fused: bool = False
) -> Callable[[Batch], Any]:
    """Draw parameters and give the update, on a GPU if there is one.

    `compiled` by torch.compile; `fused` is the model `Fused` with AdamW. Masks of
    padding are given only where there is padding: without them PyTorch takes its fast
    paths.
    """
    device = device_name()
    torch.manual_seed(0)
    if device == "cuda":  # TF32, as JAX has it there
        torch.set_float32_matmul_precision("high")
    longest = max(sizes.source, sizes.target)
    model = (Fused if fused else Standard)(sizes, longest).to(device).train()
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
        given = batch.source, batch.target
        sides = [torch.from_numpy(ids).to(device, torch.long) for ids in given]
        padding = [
            ids == PAD if (numbers == PAD).any() else None
            for ids, numbers in zip(sides, given, strict=True)
        ]
        with torch.autocast(device, torch.bfloat16, enabled=sizes.dtype == "bfloat16"):
            loss = forward_loss(*sides, *padding)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return update
