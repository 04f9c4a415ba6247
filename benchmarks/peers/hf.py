"""Hugging Face's MarianMTModel as a contestant: the same sizes, other parameters."""

from collections.abc import Callable, Sequence

from benchmarks.peers.sizes import Decode, Sizes
from jaxformer.batch import BOS, EOS, PAD


def huggingface(sizes: Sizes, *, threads: int) -> Callable[[int], Decode]:
    """Make a model; gives a contestant, as `ours` is, of each beam size.

    Its attention has biases; nothing else differs in what is computed.
    """
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = MarianMTModel(
        MarianConfig(
            vocab_size=sizes.vocabulary, d_model=sizes.d_model,
            encoder_layers=sizes.num_layers, decoder_layers=sizes.num_layers,
            encoder_attention_heads=sizes.num_heads,
            decoder_attention_heads=sizes.num_heads, encoder_ffn_dim=sizes.d_ff,
            decoder_ffn_dim=sizes.d_ff, activation_function="relu",
            scale_embedding=True, max_position_embeddings=512, pad_token_id=PAD,
            eos_token_id=EOS, decoder_start_token_id=BOS, forced_eos_token_id=None,
        )
    ).eval()  # fmt: skip

    def of(beam_size: int) -> Decode:
        def decode(sources: Sequence[Sequence[int]]) -> list[list[int]]:
            ids = torch.tensor([[*source, EOS] for source in sources])
            with torch.inference_mode():
                found = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    num_beams=beam_size,
                    do_sample=False,
                    min_new_tokens=sizes.target,
                    max_new_tokens=sizes.target,
                )
            return found[:, 1:].tolist()  # without the start

        return decode

    return of
