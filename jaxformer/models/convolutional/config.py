"""The hyper-parameters of a convolutional model: the config section `model`."""

from dataclasses import dataclass
from typing import ClassVar

from jaxformer.config.settings import Section, setting, tied_embeddings
from jaxformer.system.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ConvolutionalConfig(Section, name="model"):
    """The hyper-parameters of Gehring et al. (2017), with one width for all layers."""

    of_side: ClassVar = {
        "encoder": {"encoder_layers": 1},
        "decoder": {"decoder_layers": 1},
    }
    architecture: str = setting("Kind of model.", choices=("convolutional",))
    encoder_layers: int = setting("Layers of the encoder.", least=1, most=1000)
    decoder_layers: int = setting("Layers of the decoder.", least=1, most=1000)
    d_model: int = setting("Width of embeddings and layers.", least=1, most=2**16)
    kernel_width: int = setting(
        "Positions of a convolution, k; odd.", least=1, most=2**10
    )
    max_dilation: int = setting(
        "Bound of the distance of these positions, which doubles by layer and then "
        "starts at 1 again (ByteNet: 16); ConvS2S: 1.",
        least=1, most=2**10,
    )  # fmt: skip
    separable: bool = setting(
        "Convolve each channel by itself, and mix channels by a linear map (Kaiser et "
        "al. 2018), in place of ConvS2S's convolutions.",
        earlier=False,
    )
    tied_embeddings: str = tied_embeddings()
    dropout: float = setting(
        "Of embeddings, of inputs of convolutions and of the decoder's output.",
        least=0, below=1, free=True,
    )  # fmt: skip
    max_positions: int = setting(
        "Tokens of a sequence that the learned positions hold.", least=1, most=2**20
    )
    dtype: str = setting(
        "Activations' type; parameters are float32.",
        choices=("float32", "bfloat16"),
        free=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel_width % 2 == 0:
            raise InputError(
                f"model.kernel_width is {self.kernel_width}; it must be odd"
            )

    @property
    def longest(self) -> int:
        return self.max_positions

    def dilation(self, layer: int) -> int:
        """Return the distance of the positions in a layer: 1, 2, 4, ..."""
        return 2 ** (layer % self.max_dilation.bit_length())

    def offsets(self, stack: str, layer: int) -> list[int]:
        """List where the inputs of an output are, relative to it."""
        last = 0 if stack == "decoder" else self.kernel_width // 2
        first = last - self.kernel_width + 1
        return [self.dilation(layer) * n for n in range(first, last + 1)]
