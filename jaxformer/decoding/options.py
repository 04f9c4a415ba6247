"""How to search, and what a finished translation's score is.

Used by `jaxformer.decoding.search`; the command line's help prints the formulas.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError

LENGTH_PENALTIES = {
    "gnmt": "((5 + n) / 6)^alpha, the paper's",
    "power": "n^alpha, that of fairseq, Marian and CTranslate2",
}


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search; all but the first two are off unless given.

    A temperature above 0 samples: W translations of each sentence, independent of each
    other. Else `beam_size` 1 is greedy search, more a beam search. Raises InputError
    for values that name no search.
    """

    beam_size: int  # W
    alpha: float  # exponent of the length penalty
    n_best: int = 1  # how many of the W must be right; the others may be found or not
    length_penalty: str = "gnmt"  # a key of LENGTH_PENALTIES; n counts EOS
    no_repeat_ngram: int = 0  # no n-gram of so many pieces occurs twice; 0: no rule
    temperature: float = 0.0  # logits are divided by it before sampling
    top_k: int = 0  # sample among the k most probable pieces; 0: among all
    top_p: float = 1.0  # sample among the fewest pieces of at least this probability

    def __post_init__(self) -> None:
        """Check what no search could do."""
        least = {"beam_size": 1, "n_best": 1}
        for name in ("alpha", "no_repeat_ngram", "temperature", "top_k"):
            least[name] = 0
        for name, bound in least.items():
            value = getattr(self, name)
            if not bound <= value < float("inf"):
                raise InputError(
                    f"decoding.{name} is {value}; set it to {bound} or more."
                )
        if self.n_best > self.beam_size:
            raise InputError(
                f"n_best is {self.n_best}, more than beam_size = {self.beam_size}; "
                "widen the beam"
            )
        if not 0 < self.top_p <= 1:
            raise InputError(
                f"decoding.top_p is {self.top_p}; set it above 0, up to 1."
            )
        if self.length_penalty not in LENGTH_PENALTIES:
            raise InputError(
                f"length_penalty is {self.length_penalty!r}; use one of "
                f"{', '.join(LENGTH_PENALTIES)}."
            )
        if not self.is_sampling and (self.top_k or self.top_p < 1):
            raise InputError("top_k and top_p choose among samples; set a temperature.")

    @property
    def is_sampling(self) -> bool:
        return self.temperature > 0

    @property
    def is_beam(self) -> bool:
        return self.beam_size > 1 and not self.is_sampling


def length_penalty(lengths: jax.Array, alpha: float, kind: str = "gnmt") -> jax.Array:
    """What log P is divided by for n tokens, EOS included: f32, shaped as `lengths`.

    "gnmt" is ((5 + n) / 6)^alpha: section 6.1 takes it from Wu et al. (2016), equation
    14, where |Y| is the length of the output; tensor2tensor, which trained the paper's
    models, counts EOS, as here. "power" is n^alpha.
    """
    n = lengths.astype(jnp.float32)
    base = (5 + n) / 6 if kind == "gnmt" else jnp.maximum(n, 1)
    return base**alpha
