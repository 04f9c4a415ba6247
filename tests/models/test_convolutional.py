"""ConvS2S against PyTorch's modules and against its formulas in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy.special import expit, softmax

from jaxformer.batch import shift_right
from jaxformer.models.convolutional.layers import scale_gradient
from tests.models.test_transformer import BATCH
from tests.models.tiny import VOCABULARY as V
from tests.models.tiny import config_of, model_of, params_of

convolutional = functools.partial(model_of, architecture="convolutional")
MODELS = {
    "published": convolutional(decoder_layers=2),
    "dilated": convolutional(layers=2, kernel_width=5, max_dilation=3),
    "separable": convolutional(layers=2, max_dilation=2, separable=True),
}
D = 16


def logits_and_gradients(model, params):
    """Logits, and the gradient of the sum of log-probabilities of the targets."""

    def loss(params):
        logits = model.logits(params, BATCH)
        scores = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(scores, BATCH.target[..., None], axis=-1)
        return chosen.sum(), logits

    grads, logits = jax.jit(jax.grad(loss, has_aux=True))(params)
    return logits, grads


# Against PyTorch ----------------------------------------------------------------------


def to_torch(params: dict, torch) -> dict:
    """Our parameters under the names and in the layouts of the reference module."""
    state = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        *parts, kind = (key.key for key in path)
        name = ".".join(parts).replace("layer_", "layers.").replace(".attention", "")
        leaf = torch.from_numpy(np.array(leaf))
        weight = f"{name}.parametrizations.weight.original"
        is_depthwise = parts[-1:] == ["depthwise"]  # groups of one channel
        if kind == "kernel":
            leaf = leaf[:, None] if is_depthwise else leaf
            state[weight + "1"] = leaf.permute(*reversed(range(leaf.ndim)))
        elif kind == "scale":
            width = params_at(params, parts)["kernel"].ndim + is_depthwise
            state[weight + "0"] = leaf.reshape(-1, *[1] * (width - 1))
        else:
            tables = {"position_embedding": f"{name}.positions.weight"}
            tables |= {"embedding": "embedding.weight", "logits_bias": "logits_bias"}
            state[tables.get(kind, f"{name}.bias")] = leaf
    return state


def params_at(tree: dict, path: list[str]) -> dict:
    return functools.reduce(dict.__getitem__, path, tree)


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_equal_those_of_torch(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from tests.models.torch_convs2s import ConvS2S

    model, params = MODELS[name], params_of(MODELS[name])
    theirs = ConvS2S(model.config, V)
    theirs.load_state_dict(to_torch(params, torch))
    theirs.double()  # ours is in float32
    source, target = (torch.from_numpy(np.array(side)).long() for side in BATCH[:2])
    shifted = np.array(shift_right(BATCH.target, BATCH.target_segments))
    logits = theirs(source, torch.from_numpy(shifted).long(), source == 0)
    found, grads = logits_and_gradients(model, params)
    np.testing.assert_allclose(found, logits.detach().numpy(), 0, 5e-6)
    scores = logits.log_softmax(-1).gather(-1, target[..., None]).sum()
    scores.backward()
    grads = to_torch(grads, torch)
    for key, parameter in theirs.named_parameters():
        scale = parameter.grad.abs().max()
        np.testing.assert_allclose(grads[key] / scale, parameter.grad / scale, 0, 2e-5)


# Against formulas ---------------------------------------------------------------------


def test_attention_follows_section_3_3():
    """Of one layer, from the outputs of its own maps, in float64."""
    model = convolutional()
    params = jax.tree.map(np.float64, params_of(model))
    found, outputs = {}, {}

    def linear(name, x):
        node = params_at(params, name.split("/"))
        kernel = node["kernel"].reshape(-1, len(node["scale"]))
        weight = kernel / np.linalg.norm(kernel, axis=0) * node["scale"]
        return x @ weight + node["bias"]

    def block(stack, x, before, after):
        """A gated convolution over one sentence [L, D]."""
        padded = np.pad(x, ((before, after), (0, 0)))
        window = np.concatenate([padded[n : n + len(x)] for n in range(3)], axis=-1)
        value, gate = np.split(linear(f"{stack}/layer_0/convolution", window), 2, -1)
        return value * expit(gate)

    for row in range(2):
        source = np.array(BATCH.source[row][BATCH.source_segments[row] > 0])
        target = np.array(shift_right(BATCH.target, BATCH.target_segments)[row])
        positions = params["encoder"]["position_embedding"][: len(source)]
        embedded = params["embedding"][source] + positions
        x = linear("encoder/input", embedded)
        z = linear("encoder/output", (x + block("encoder", x, 1, 1)) * np.sqrt(0.5))
        positions = params["decoder"]["position_embedding"][: len(target)]
        g = params["embedding"][target] + positions
        x = linear("decoder/input", g)
        h = block("decoder", x, 2, 0)
        d = (linear("decoder/layer_0/attention/query", h) + g) * np.sqrt(0.5)
        weights = softmax(d @ z.T, axis=-1)
        m = len(source)
        c = weights @ ((z + embedded) * np.sqrt(0.5)) * m * np.sqrt(1 / m)
        h = (h + linear("decoder/layer_0/attention/output", c)) * np.sqrt(0.5)
        h = linear("decoder/output", (x + h) * np.sqrt(0.5))
        found[row] = weights
        outputs[row] = h @ params["embedding"].T + params["logits_bias"]

    maps, logits = jax.jit(
        lambda params: (model.attention(params, BATCH), model.logits(params, BATCH))
    )(params_of(model))
    assert maps.encoder.shape == (0, 2, 1, 5, 5)
    assert maps.decoder.shape == (0, 2, 1, 4, 4)
    assert maps.cross.shape == (1, 2, 1, 4, 5)
    for row, weights in found.items():
        expected = np.pad(weights, ((0, 0), (0, 5 - weights.shape[1])))
        np.testing.assert_allclose(maps.cross[0, row, 0], expected, atol=1e-5)
        np.testing.assert_allclose(logits[row], outputs[row], atol=5e-5)


def test_only_the_encoder_s_gradient_is_scaled():
    """By one in twice the number of attentions; that of the decoder is not."""
    x, factor = jnp.arange(3.0), 0.25
    value, gradient = jax.value_and_grad(lambda x: scale_gradient(x, factor).sum())(x)
    assert value == 3
    np.testing.assert_array_equal(gradient, [factor] * 3)
    model = MODELS["published"]
    params = params_of(model)
    _, scaled = logits_and_gradients(model, params)
    with pytest.MonkeyPatch.context() as patch:
        network = "jaxformer.models.convolutional.network.scale_gradient"
        patch.setattr(network, lambda x, factor: x)
        _, plain = logits_and_gradients(model, params)
    for name, ratio in (("encoder", 1 / 4), ("decoder", 1.0)):
        kernels = (each[name]["output"]["kernel"] for each in (scaled, plain))
        np.testing.assert_allclose(next(kernels), ratio * next(kernels), rtol=1e-5)


def test_initial_weights_keep_the_variance_of_section_3_5():
    """A GLU passes a fourth, and dropout of the input raises it before."""
    model = convolutional(d_model=64, dropout=0.2)
    params = jax.jit(lambda key: nn.unbox(model.init(key)))(jax.random.key(0))
    layer, stack = params["decoder"]["layer_0"], params["decoder"]
    for node, variance in (
        (layer["convolution"], 4 * 0.8 / (3 * 64)),
        (layer["attention"]["query"], 1 / 64),
        (stack["input"], 0.8 / 64),
        (stack["output"], 1 / 64),
    ):
        kernel = np.asarray(node["kernel"])
        assert kernel.var() == pytest.approx(variance, rel=0.1)
        norms = np.linalg.norm(kernel.reshape(-1, kernel.shape[-1]), axis=0)
        np.testing.assert_allclose(node["scale"], norms, rtol=1e-6)
        assert not np.any(node["bias"])
    separable = convolutional(d_model=512, dropout=0.2, separable=True)
    params = jax.jit(lambda key: nn.unbox(separable.init(key)))(jax.random.key(0))
    layer = params["encoder"]["layer_0"]
    for name, variance in (("depthwise", 1 / 3), ("pointwise", 4 * 0.8 / 512)):
        kernel, scale = (np.asarray(layer[name][part]) for part in ("kernel", "scale"))
        assert kernel.var() == pytest.approx(variance, rel=0.1)
        np.testing.assert_allclose(scale, np.linalg.norm(kernel, axis=0), rtol=1e-6)
    tables = params["embedding"], stack["position_embedding"]
    assert [np.std(table) for table in tables] == pytest.approx([0.1, 0.1], rel=0.1)


def test_an_output_that_overflows_is_named():
    """A large direction has no effect, by weight normalisation; a large norm has."""
    model = MODELS["published"]
    params = jax.tree.map(jnp.asarray, params_of(model))
    watch = jax.jit(lambda params: model.watch(params, BATCH, jax.random.key(0)))
    layer = params["decoder"]["layer_0"]["convolution"]
    layer["kernel"] *= 1e15
    assert all(watch(params).values())
    layer["scale"] = jnp.full_like(layer["scale"], 3e38)
    found = [name for name, is_finite in watch(params).items() if not is_finite]
    assert "decoder/layer_0/convolution" in found
    assert not any(name.startswith("encoder") for name in found)


def test_a_bound_of_the_dilation_need_not_be_a_power_of_two():
    config = config_of("convolutional", max_dilation=7)
    assert [config.dilation(layer) for layer in range(5)] == [1, 2, 4, 1, 2]


def test_a_sequence_longer_than_its_positions_is_refused():
    model = convolutional(max_positions=4)
    assert model.longest == 4
    with pytest.raises(ValueError, match=r"5 tokens .* model.max_positions = 4"):
        model.logits(params_of(model), BATCH)
