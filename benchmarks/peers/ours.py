"""The contestant of this repository, by what `--mode=translate` calls."""

from collections.abc import Sequence

from jaxformer.commands.runs import Run, make_translator

from benchmarks.peers.sizes import Decode, Sizes
from configs import wmt_base
from jaxformer.batch import EOS
from jaxformer.models.sequence_model import Model
from jaxformer.training.sharding import copy_to, local_mesh


class Numbers:
    """Stands in for a tokeniser: a sentence is numbers, and each of them is an id."""

    source_model = target_model = b"no SentencePiece model"

    def __init__(self, vocabulary: int) -> None:
        self.vocab_size = vocabulary

    def pieces(self) -> list[str]:
        """Reserved pieces, then the numbers."""
        words = map(str, range(EOS + 1, self.vocab_size))
        return ["<pad>", "<unk>", "<s>", "</s>", *words]

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Ids of each sentence, EOS last."""
        return [[*map(int, sentence.split()), EOS] for sentence in sentences]

    def decode(self, ids: Sequence[int]) -> str:
        """The numbers before EOS."""
        ids = list(ids)
        return " ".join(map(str, ids[: ids.index(EOS)]))


def ours(model: Model, params: dict, sizes: Sizes, beam_size: int) -> Decode:
    """Give a function from source ids, EOS left out, to those of the translations.

    A translation ends where its limit is, with the only EOS: that is its last token.
    """
    decoding = wmt_base.get_config().decoding.to_dict()
    decoding |= {"beam_size": beam_size, "extra_length": sizes.target - sizes.source}
    run = Run(None, {"decoding": decoding}, Numbers(sizes.vocabulary), model)
    mesh = local_mesh()
    translator = make_translator(run, mesh, copy_to(mesh, params))

    def decode(sources: Sequence[Sequence[int]]) -> list[list[int]]:
        lines = [" ".join(map(str, source)) for source in sources]
        found = translator(lines)
        return [[*map(int, line.split()), EOS] for line in found]

    return decode
