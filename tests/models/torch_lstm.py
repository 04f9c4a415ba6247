"""The LSTM with attention of `configs/lstm.py` by PyTorch's own modules, or an RNN.

It computes what `jaxformer.models.recurrent` does for rows of one sentence.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jaxformer.models.recurrent.config import RecurrentConfig
from jaxformer.tokens import PAD


class AttentionalLSTM(nn.Module):
    """`nn.LSTM` or `nn.RNN` layers with residual connections, and general attention."""

    def __init__(self, config: RecurrentConfig, vocabulary: int) -> None:
        super().__init__()
        d = config.d_model
        self.embedding = nn.Embedding(vocabulary, d)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)
        kind = {"lstm": nn.LSTM, "tanh": nn.RNN}[config.cell]
        self.is_bidirectional = config.bidirectional
        states = d // 2 if config.bidirectional else d
        self.encoder = nn.ModuleList(
            kind(d, states, batch_first=True, bidirectional=config.bidirectional)
            for _ in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            kind(d, d, batch_first=True) for _ in range(config.decoder_layers)
        )
        self.start = nn.Linear(d, d)
        self.key = nn.Linear(d, d, bias=False)
        self.output = nn.Linear(2 * d, d, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, source: Tensor, target: Tensor, padding: Tensor | None = None, *_: Tensor
    ) -> Tensor:
        """Score target ids [B, T], shifted, for source ids [B, S]: [B, T, V]."""
        memory = self._run(self.encoder, source, padding)
        first, last = memory[:, 0], memory[:, -1]
        if padding is not None:
            index = (~padding).sum(1) - 1
            last = memory[torch.arange(len(memory)), index]
        if self.is_bidirectional:
            half = memory.shape[2] // 2
            last = torch.cat([last[:, :half], first[:, half:]], 1)
        start = self.start(last).tanh()
        states = self._run(self.decoder, target, None, start[None])
        mask = None if padding is None else ~padding[:, None]
        context = F.scaled_dot_product_attention(
            states, self.key(memory), memory, mask, scale=1.0
        )
        hidden = self.output(torch.cat([context, states], 2)).tanh()
        return self.dropout(hidden) @ self.embedding.weight.T

    def _run(
        self,
        layers: nn.ModuleList,
        ids: Tensor,
        padding: Tensor | None,
        start: Tensor | None = None,
    ) -> Tensor:
        """Compute the outputs [B, L, D] of a stack's last layer."""
        x = self.embedding(ids)
        for n, layer in enumerate(layers):
            inputs = self.dropout(x)
            if padding is not None:
                lengths = (ids != PAD).sum(1).cpu()
                inputs = nn.utils.rnn.pack_padded_sequence(
                    inputs, lengths, batch_first=True, enforce_sorted=False
                )
            is_lstm = isinstance(layer, nn.LSTM) and start is not None
            y, _ = layer(inputs, (start, start) if is_lstm else start)
            if padding is not None:
                y, _ = nn.utils.rnn.pad_packed_sequence(
                    y, batch_first=True, total_length=ids.shape[1]
                )
            x = x + y if n else y
        return x
