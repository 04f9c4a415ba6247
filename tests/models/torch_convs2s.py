"""ConvS2S of PyTorch's own modules: `Conv1d`, `Linear`, weight normalisation, GLU.

It computes what `jaxformer.models.convolutional` does for rows of one sentence.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from jaxformer.models.convolutional.config import ConvolutionalConfig
from jaxformer.tokens import PAD

HALF = math.sqrt(0.5)


class ScaleGradient(torch.autograd.Function):
    """The identity; the gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple:
        return ctx.factor * gradient, None


class Layer(nn.Module):
    def __init__(self, config: ConvolutionalConfig, number: int, causal: bool) -> None:
        super().__init__()
        d, dilation = config.d_model, config.dilation(number)
        reach = dilation * (config.kernel_width - 1)
        self.padding = (reach, 0) if causal else (reach // 2, reach // 2)
        width, self.dropout = config.kernel_width, config.dropout
        if config.separable:
            depthwise = nn.Conv1d(d, d, width, dilation=dilation, groups=d, bias=False)
            self.depthwise = weight_norm(depthwise)
            self.pointwise = weight_norm(nn.Linear(d, 2 * d))
        else:
            convolution = nn.Conv1d(d, 2 * d, width, dilation=dilation)
            self.convolution = weight_norm(convolution)
        if causal:
            self.query, self.output = (weight_norm(nn.Linear(d, d)) for _ in range(2))

    def forward(self, x: Tensor, padding: Tensor | None, *source: Tensor) -> Tensor:
        y = F.dropout(x, self.dropout, self.training)
        if padding is not None:
            y = y.masked_fill(padding[..., None], 0)
        y = F.pad(y.transpose(1, 2), self.padding)
        if hasattr(self, "depthwise"):
            y = self.pointwise(self.depthwise(y).transpose(1, 2))
        else:
            y = self.convolution(y).transpose(1, 2)
        y = F.glu(y)
        if source:
            target, key, value, scores = source
            query = (self.query(y) + target) * HALF
            scores = torch.baddbmm(scores, query, key.transpose(1, 2))
            y = (y + self.output(scores.softmax(-1) @ value)) * HALF
        return (x + y) * HALF


class Stack(nn.Module):
    def __init__(self, config: ConvolutionalConfig, count: int, causal: bool) -> None:
        super().__init__()
        d, self.dropout = config.d_model, config.dropout
        self.positions = nn.Embedding(config.max_positions, d)
        self.input, self.output = (weight_norm(nn.Linear(d, d)) for _ in range(2))
        self.layers = nn.ModuleList(Layer(config, n, causal) for n in range(count))

    def embed(self, rows: Tensor) -> Tensor:
        x = rows + self.positions.weight[: rows.shape[1]]
        return F.dropout(x, self.dropout, self.training)

    def forward(self, x: Tensor, padding: Tensor | None, *source: Tensor) -> Tensor:
        x = self.input(x)
        for layer in self.layers:
            x = layer(x, padding, *source)
        return self.output(x)


class ConvS2S(nn.Module):
    """Maps ids of sources and shifted targets to logits [B, T, V]."""

    def __init__(self, config: ConvolutionalConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocabulary, config.d_model)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.logits_bias = nn.Parameter(torch.zeros(vocabulary))
        self.encoder = Stack(config, config.encoder_layers, causal=False)
        self.decoder = Stack(config, config.decoder_layers, causal=True)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_padding: Tensor | None = None,
        target_padding: Tensor | None = None,
    ) -> Tensor:
        x = self.encoder.embed(self.embedding(source))
        key = self.encoder(x, source_padding)
        key = ScaleGradient.apply(key, 0.5 / self.config.decoder_layers)
        count = (source != PAD).sum(dim=1)[:, None, None]
        value = (key + x) * HALF * count.sqrt()
        scores = x.new_zeros(())  # what padding adds to the scores
        if source_padding is not None:
            scores = x.new_zeros(source_padding.shape)
            scores = scores.masked_fill(source_padding, -math.inf)[:, None]
        x = self.decoder.embed(self.embedding(target))
        x = self.decoder(x, None, x, key, value, scores)
        x = F.dropout(x, self.config.dropout, self.training)
        return F.linear(x, self.embedding.weight, self.logits_bias)
