"""The hyper-parameters of the network (Table 3), and what each may be.

The last four fields are not in the paper: published models differ in them, and with
them their parameters fit (`jaxformer.export.marian_import`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The paper's hyper-parameters of the network (Table 3), one field each."""

    vocab_size: int
    num_layers: int  # N, of the encoder and of the decoder
    d_model: int
    d_ff: int
    num_heads: int  # h
    d_k: int
    d_v: int
    dropout: float  # P_drop, on sub-layer outputs and on embedding + position
    positions: str  # "sinusoidal" (3.5) or "learned" (Table 3, row E)
    max_positions: int  # longest sequence, in pieces, that a learned table holds
    norm_first: bool  # False is the paper's post-norm
    dtype: str  # of activations: "float32" or "bfloat16"; parameters stay float32
    attention_window: int | None  # r of restricted self-attention (section 4), or all
    fused_attention: bool  # on a GPU, where `models/fused_attention.py` says it fits
    attention_bias: bool  # of all four projections; the paper's have none
    activation: str  # between the feed-forward's two maps: "relu" (eq. 2) or "swish"
    logits_bias: bool  # one number for each piece, added to its logit; the paper: none
    layer_norm_epsilon: float  # added to the variance

    def __post_init__(self) -> None:
        """Refuse values that name nothing. Raises ValueError."""
        if self.positions not in ("sinusoidal", "learned"):
            raise ValueError(
                f"model.positions is {self.positions!r}; use 'sinusoidal' or 'learned'"
            )
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(
                f"model.dtype is {self.dtype!r}; use 'float32' or 'bfloat16'"
            )
        if self.activation not in ("relu", "swish"):
            raise ValueError(
                f"model.activation is {self.activation!r}; use 'relu' or 'swish'"
            )
        window = self.attention_window
        if window is not None and (type(window) is not int or window < 1):
            raise ValueError(
                f"model.attention_window is {window!r}; it must be a whole number from "
                "1 on, or None for attention to all positions"
            )
        if not self.layer_norm_epsilon > 0.0:
            raise ValueError(
                f"model.layer_norm_epsilon is {self.layer_norm_epsilon}; it must be "
                "above 0"
            )
        if self.d_model % 2:
            raise ValueError(f"model.d_model is {self.d_model}; it must be even")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"model.dropout is {self.dropout}; it must be in [0, 1)")
        for name in ("num_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"model.{name} is {getattr(self, name)}; it must be at least 1"
                )
