"""The same logits as torch.nn.Transformer with the same weights."""

import dataclasses
import math

import numpy as np
import pytest

from jaxformer.batch import shift_right
from jaxformer.models.layers import sinusoidal_positions
from tests.models.test_transformer import BATCH, CONFIG, logits_of, make
from tests.models.tiny import params_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed: extra `torch`")


def tensor(array) -> "torch.Tensor":
    return torch.from_numpy(np.array(array))


def copy_attention(ours: dict, theirs) -> None:
    """[D, H, K] kernels into one stacked [3D, D] matrix; a missing bias is zero."""
    d_model = theirs.embed_dim
    inputs, output = [ours[name] for name in ("query", "key", "value")], ours["output"]
    stacked = [np.asarray(each["kernel"]).reshape(d_model, -1).T for each in inputs]
    theirs.in_proj_weight.data = tensor(np.concatenate(stacked))
    theirs.out_proj.weight.data = tensor(output["kernel"].reshape(-1, d_model).T)
    theirs.in_proj_bias.data.zero_()
    theirs.out_proj.bias.data.zero_()
    if "bias" in output:
        biases = [np.ravel(each["bias"]) for each in inputs]
        theirs.in_proj_bias.data = tensor(np.concatenate(biases))
        theirs.out_proj.bias.data = tensor(output["bias"])


def copy_norm(ours: dict, theirs) -> None:
    theirs.weight.data = tensor(ours["scale"])
    theirs.bias.data = tensor(ours["bias"])


def copy_layer(ours: dict, theirs) -> None:
    copy_attention(ours["self_attention"], theirs.self_attn)
    names = ["self_attention_sublayer", "feed_forward_sublayer"]
    if "cross_attention" in ours:
        copy_attention(ours["cross_attention"], theirs.multihead_attn)
        names.insert(1, "cross_attention_sublayer")
    for number, name in enumerate(names, start=1):
        copy_norm(ours[name]["norm"], getattr(theirs, f"norm{number}"))
    for ours_name, linear in (("hidden", theirs.linear1), ("output", theirs.linear2)):
        dense = ours["feed_forward"][ours_name]
        linear.weight.data = tensor(np.asarray(dense["kernel"]).T)
        linear.bias.data = tensor(dense["bias"])


@pytest.mark.filterwarnings("ignore:.*nested.tensor:UserWarning")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("is_published", [False, True])
def test_logits_equal_those_of_torch(norm_first, is_published):
    config = dataclasses.replace(
        CONFIG, d_v=CONFIG.d_k, norm_first=norm_first, encoder_layers=3
    )
    if is_published:
        config = dataclasses.replace(
            config, biases="all", activation="swish",
            layer_norm_epsilon=1e-2,
        )  # fmt: skip
    model = make(config)
    params = params_of(model)
    theirs = torch.nn.Transformer(
        config.d_model, config.num_heads, config.encoder_layers, config.decoder_layers,
        config.d_ff, dropout=0.0, batch_first=True, norm_first=norm_first,
        activation=torch.nn.functional.silu if is_published else "relu",
        layer_norm_eps=config.layer_norm_epsilon,
    ).eval()  # fmt: skip
    for stack in ("encoder", "decoder"):
        module = getattr(theirs, stack)
        for index, layer in enumerate(module.layers):
            copy_layer(params[stack][f"layer_{index}"], layer)
        if norm_first:
            copy_norm(params[stack]["norm"], module.norm)
        else:
            module.norm = None  # torch adds a norm after the stack; the paper has none

    embedding = tensor(params["embedding"])

    def embed(ids) -> "torch.Tensor":
        positions = tensor(sinusoidal_positions(ids.shape[1], config.d_model))
        return embedding[tensor(ids).long()] * math.sqrt(config.d_model) + positions

    length, is_padding = BATCH.target.shape[1], tensor(BATCH.source_segments == 0)
    with torch.no_grad():
        hidden = theirs(
            embed(BATCH.source),
            embed(shift_right(BATCH.target, BATCH.target_segments)),
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            tgt_is_causal=True,
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
        )
        bias = np.asarray(params.get("logits_bias", 0.0))
        expected = (hidden @ embedding.T).numpy() + bias
    logits = logits_of(model, params, BATCH)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
