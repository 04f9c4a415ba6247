"""The hyper-parameters of recurrent models: the config section `model`."""

from dataclasses import dataclass
from typing import ClassVar

from jaxformer.config.settings import Section, setting, tied_embeddings
from jaxformer.system.errors import InputError


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(Section, name="model"):
    """The choices by which published recurrent models differ."""

    of_side: ClassVar = {
        "encoder": {"encoder_layers": 1, "bidirectional": False},
        "decoder": {
            "decoder_layers": 1, "attention": "none", "attention_window": None,
            "attention_reading": "soft", "feeding": "none",
        },
    }  # fmt: skip
    architecture: str = setting("Kind of model.", choices=("recurrent",))
    cell: str = setting("Cell of all layers.", choices=("lstm", "gru", "tanh"))
    bidirectional: bool = setting(
        "Give half of the encoder's width to layers that read backwards; False: all "
        "layers read forwards.",
        earlier=True,
    )
    encoder_layers: int = setting("Layers of the encoder.", least=1, most=100)
    decoder_layers: int = setting("Layers of the decoder.", least=1, most=100)
    d_model: int = setting(
        "Width of embeddings and states; half of it in each direction of a "
        "bidirectional encoder.",
        least=2, most=2**16,
    )  # fmt: skip
    attention: str = setting(
        "Scores of attention: none, additive (Bahdanau et al. 2015), dot, general, or "
        "general within a predicted window, local (Luong et al. 2015).",
        choices=("none", "additive", "dot", "general", "local"),
    )
    attention_window: int | None = setting(
        "Positions on either side that local attention sees, D.", least=1
    )
    attention_reading: str = setting(
        "What attention reads: soft, the average of the encoder's states by its "
        "weights, or hard, one state, which training draws by them and translation "
        "chooses as the largest (Xu et al. 2015).",
        choices=("soft", "hard"),
        earlier="soft",
    )
    feeding: str = setting(
        "What the decoder reads besides the newest token: none; attentional, the last "
        "output (Luong et al. 2015); context, that of attention by the last state "
        "(Bahdanau et al. 2015) or, without attention, the encoder's final states (Cho "
        "et al. 2014).",
        choices=("none", "attentional", "context"),
    )
    tied_embeddings: str = tied_embeddings()
    dropout: float = setting(
        "Of the inputs of layers and of outputs (Zaremba et al. 2014).",
        least=0, below=1, free=True,
    )  # fmt: skip
    dtype: str = setting(
        "Type of products; parameters and cells are float32.",
        choices=("float32", "bfloat16"),
        free=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bidirectional and self.d_model % 2:
            raise InputError(
                f"model.d_model is {self.d_model}; it must be even, or set "
                "model.bidirectional=False"
            )
        if (self.attention == "local") != (self.attention_window is not None):
            raise InputError(
                f"model.attention is {self.attention} and model.attention_window is "
                f"{self.attention_window}; local attention needs a window, and others "
                "have none"
            )
        if self.is_hard and self.attention in ("none", "local"):
            raise InputError(
                f"model.attention is {self.attention} and model.attention_reading is "
                "hard; hard attention needs the weights additive, dot or general"
            )
        if self.attention == "none" and self.feeding == "attentional":
            raise InputError(
                "model.feeding is attentional and model.attention is none; choose an "
                "attention, or feeding none or context"
            )

    @property
    def halves(self) -> bool:
        return self.bidirectional

    @property
    def is_hard(self) -> bool:
        return self.attention_reading == "hard"

    @property
    def loops_over_attention(self) -> bool:
        """Whether a step of the decoder needs the attention of the step before."""
        return self.attention != "none" and self.feeding != "none"
