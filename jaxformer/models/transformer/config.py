"""The hyper-parameters of the Transformer: the config section `model`."""

from dataclasses import dataclass
from typing import ClassVar

from jaxformer.config.settings import Section, setting, tied_embeddings
from jaxformer.system.errors import InputError

SINUSOIDS = "sinusoidal", "tensor2tensor", "fairseq"  # see `models.positions`
BIASES = {  # whether the projections of attention, and the logits, have them
    "none": (False, False),
    "attention": (True, False),
    "logits": (False, True),
    "all": (True, True),
}


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Section, name="model"):
    """The hyper-parameters of Table 3, and others in which published models differ."""

    of_side: ClassVar = {
        "encoder": {
            "encoder_layers": 1, "encoder_projected_keys": None,
            "encoder_global_positions": None,
        },
        "decoder": {
            "decoder_layers": 1, "first_input": "bos",
            "decoder_self_attention": "attention",
        },
    }  # fmt: skip
    architecture: str = setting("Kind of model.", choices=("transformer",))
    encoder_layers: int = setting("Layers of the encoder, N.", least=1, most=1000)
    decoder_layers: int = setting("Layers of the decoder, N.", least=1, most=1000)
    d_model: int = setting("Width of layers; even.", least=2, most=2**16)
    d_ff: int = setting("Width of feed-forward layers.", least=1, most=2**20)
    num_heads: int = setting("Attention heads of a layer, h.", least=1, most=2**12)
    d_k: int = setting("Head size of queries and keys.", least=1, most=2**16)
    d_v: int = setting("Head size of values.", least=1, most=2**16)
    dropout: float = setting(
        "P_drop, of sub-layer outputs and embeddings with position.",
        least=0, below=1, free=True,
    )  # fmt: skip
    positions: str = setting(
        "Positional encoding: sinusoids (section 3.5), those of tensor2tensor and "
        "Marian or of fairseq, or a learned table (Table 3, E), added to embeddings "
        "(Marian: to embeddings that are not multiplied by sqrt(d_model)); "
        "or, in self-attention, rotary (Su et al. 2021) or relative (Shaw et al. "
        "2018).",
        choices=(*SINUSOIDS, "learned", "learned_unscaled", "rotary", "relative"),
    )
    first_input: str = setting(
        "What the decoder reads before the first token: the embedding of BOS, that of "
        "EOS (fairseq) or zeros (Marian).",
        choices=("bos", "eos", "zeros"),
        earlier="bos",
    )
    decoder_self_attention: str = setting(
        "First part of a layer of the decoder: self-attention, or the recurrent unit "
        "SSRU (Kim et al. 2019), whose decoding steps take the same time at every "
        "length. It needs positions that are added to embeddings.",
        choices=("attention", "ssru"),
        earlier="attention",
    )
    max_positions: int = setting(
        "Tokens of a sequence that a learned table, or projected keys, can hold; the "
        "largest distance, k, that relative positions tell apart (Shaw et al.: 16).",
        least=1,
        most=2**20,
    )
    norm_first: bool = setting("Pre-norm instead of the paper's post-norm.")
    dtype: str = setting(
        "Type of activations; on CPUs of the factors of products alone. Parameters are "
        "float32. JAX rounds the factors of float32 products to TF32 on NVIDIA GPUs "
        "and to bfloat16 on TPUs, unless JAX_DEFAULT_MATMUL_PRECISION is highest.",
        choices=("float32", "bfloat16"),
        free=True,
    )
    attention_window: int | None = setting(
        "Positions that self-attention sees, r (section 4); None: all. With "
        "decoder_self_attention=ssru that of the encoder alone.",
        least=1,
    )
    encoder_projected_keys: int | None = setting(
        "Keys that the encoder's self-attention projects a sentence to, k (Linformer, "
        "Wang et al. 2020); None: no projection. Needs batches.layout=buckets.",
        least=1,
        most=2**16,
    )
    encoder_global_positions: int | None = setting(
        "First positions of a source that see all and that all see beside the window "
        "(Longformer, Beltagy et al. 2020). Needs batches.layout=buckets.",
        least=1,
        most=2**16,
    )
    fused_attention: bool = setting(
        "Use cuDNN's attention kernel on GPUs for the sizes it accepts.", free=True
    )
    biases: str = setting(
        "What has biases besides feed-forward layers: the projections of attention, "
        "the logits, all of them or, as in the paper, none.",
        choices=tuple(BIASES),
    )
    tied_embeddings: str = tied_embeddings()
    activation: str = setting(
        "Of feed-forward layers; the paper: relu.", choices=("relu", "swish")
    )
    layer_norm_epsilon: float = setting("Added to the variance.", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % 2:
            raise InputError(f"model.d_model is {self.d_model}; it must be even")
        if self.positions == "rotary" and self.d_k % 2:
            raise InputError(
                f"model.positions=rotary needs an even model.d_k, and it is {self.d_k}"
            )
        is_relative = self.positions == "relative"
        chosen = (self.attention_window, self.encoder_projected_keys)
        if is_relative + sum(each is not None for each in chosen) > 1:
            raise InputError(
                "model.positions=relative, model.attention_window and "
                "model.encoder_projected_keys exclude each other; choose one"
            )
        if self.has_ssru and not self.adds_positions:
            raise InputError(
                f"model.positions={self.positions} is for self-attention, and "
                "model.decoder_self_attention=ssru has none; set "
                "model.positions=sinusoidal or learned"
            )
        if self.encoder_global_positions is not None and self.attention_window is None:
            raise InputError(
                "model.encoder_global_positions is for a window; set "
                "model.attention_window"
            )

    @property
    def relative_distance(self) -> int | None:
        """Largest distance of relative positions, if the model has them."""
        return self.max_positions if self.positions == "relative" else None

    @property
    def attention_bias(self) -> bool:
        return BIASES[self.biases][0]

    @property
    def logits_bias(self) -> bool:
        return BIASES[self.biases][1]

    @property
    def longest(self) -> int | None:
        """Most tokens of a sequence; None: no limit."""
        has_limit = self.has_table or self.encoder_projected_keys is not None
        return self.max_positions if has_limit else None

    @property
    def packs(self) -> bool:
        return self.encoder_projected_keys is self.encoder_global_positions is None

    @property
    def has_table(self) -> bool:
        """Whether positions are learned parameters."""
        return self.positions in ("learned", "learned_unscaled")

    @property
    def embedding_scale(self) -> float:
        """The factor of embeddings (section 3.4)."""
        return 1.0 if self.positions == "learned_unscaled" else self.d_model**0.5

    @property
    def adds_positions(self) -> bool:
        """Whether embeddings have a position added (section 3.5)."""
        return self.positions in SINUSOIDS or self.has_table

    def sublayers(self, stack: str) -> tuple[str, ...]:
        """Name the parts of a layer of a stack, in the order of Figure 1."""
        if stack == "encoder":
            return "self_attention", "feed_forward"
        own = "ssru" if self.has_ssru else "self_attention"
        return own, "cross_attention", "feed_forward"

    @property
    def has_ssru(self) -> bool:
        return self.decoder_self_attention == "ssru"

    def layers(self, stack: str) -> int:
        """Return N of a stack, "encoder" or "decoder"."""
        return self.encoder_layers if stack == "encoder" else self.decoder_layers
