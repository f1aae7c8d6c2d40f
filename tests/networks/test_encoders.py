"""Encoders: shapes, layouts, memory format, whose statistics go where, and texts whatever their padding."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from vmpo.config import AgentConfig
from vmpo.errors import UserError
from vmpo.networks import encoders
from vmpo.networks.activations import Tanh
from vmpo.networks.encoders import MLP, Encoder, ResidualBlock, TextEncoder
from vmpo.networks.linear import Linear
from vmpo.records import ArraySpec

SMALL = AgentConfig(resnet_channels=(4, 8, 8), pixel_features=16, hidden=(12, 6), text_units=5)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def pixels(*shape: int, layout: str = "CHW") -> ArraySpec:
    return ArraySpec(shape=shape, dtype=np.dtype(np.uint8), kind="pixels", layout=layout)  # type: ignore[arg-type]


def vector(width: int) -> ArraySpec:
    return ArraySpec(shape=(width,), dtype=np.dtype(np.float32), kind="vector")


def text(length: int) -> ArraySpec:
    return ArraySpec(shape=(length,), dtype=np.dtype(np.int64), kind="text", vocabulary=50)


def images(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_resnet_has_the_papers_sections():
    config = AgentConfig(resnet_channels=(16, 32, 32))
    encoder = Encoder({"image": pixels(3, 72, 96)}, config)
    convolutions = [m for m in encoder.modules() if isinstance(m, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels) for c in convolutions] == [
        (3, 16), *[(16, 16)] * 4, (16, 32), *[(32, 32)] * 4, (32, 32), *[(32, 32)] * 4,
    ]  # fmt: skip
    assert all(c.kernel_size == (3, 3) and c.stride == (1, 1) for c in convolutions)
    assert encoder.pixels[0].readout.in_features == 32 * 9 * 12
    assert encoder({"image": images(2, 3, 72, 96)}).shape == (2, encoder.width) == (2, 256)


def test_nature_cnn_flattens_to_3136_on_atari_frames():
    encoder = Encoder({"image": pixels(4, 84, 84)}, AgentConfig(pixels="nature", pixel_features=512))
    assert encoder.pixels[0].readout.in_features == 64 * 7 * 7
    assert encoder({"image": images(2, 4, 84, 84)}).shape == (2, 512)


def test_residual_block_adds_two_relu_convolutions_to_its_input():
    block = ResidualBlock(3)
    x = torch.randn(2, 3, 5, 5)
    inner = torch.relu(block.first(torch.relu(x)))
    torch.testing.assert_close(block(x), x + block.second(inner))


def test_convolutions_run_in_channels_last_on_intensities_between_0_and_1():
    encoder = Encoder({"image": pixels(3, 16, 16)}, SMALL)
    first = next(m for m in encoder.modules() if isinstance(m, nn.Conv2d))
    seen = []
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    frames = images(2, 3, 16, 16)
    encoder({"image": frames})
    assert first.weight.is_contiguous(memory_format=torch.channels_last)
    assert not first.weight.is_contiguous()
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert not seen[0].is_contiguous()
    torch.testing.assert_close(seen[0], frames.float() / 255.0)


def test_image_layouts_agree():
    encoder = Encoder({"image": pixels(3, 16, 20)}, SMALL)
    transposed = Encoder({"image": pixels(16, 20, 3, layout="HWC")}, SMALL)
    transposed.load_state_dict(encoder.state_dict())
    frames = images(4, 3, 16, 20)
    torch.testing.assert_close(
        transposed({"image": frames.permute(0, 2, 3, 1).contiguous()}), encoder({"image": frames})
    )


@pytest.mark.parametrize("shape", [(3, 20, 84), (3, 84, 35)])
def test_images_too_small_for_the_nature_cnn_are_refused(shape):
    with pytest.raises(UserError, match=f"{shape[1]}x{shape[2]} are too small"):
        Encoder({"image": pixels(*shape)}, AgentConfig(pixels="nature"))


def test_resnet_takes_images_of_one_pixel_and_refuses_images_without_channels():
    assert Encoder({"image": pixels(1, 1, 1)}, SMALL)({"image": images(2, 1, 1, 1)}).shape == (2, 16)
    with pytest.raises(UserError, match="channels, height and width"):
        Encoder({"image": pixels(84, 84)}, SMALL)


def test_every_observation_reaches_the_features():
    spec = {
        "left": pixels(3, 16, 16),
        "right": pixels(3, 16, 16),
        "joints": vector(3),
        "speed": vector(2),
        "say": text(4),
    }
    encoder = Encoder(spec, dataclasses.replace(SMALL, activation="elu"))
    assert encoder.width == 16 + 16 + 6 + 5
    observation = {
        "left": images(1, 3, 16, 16), "right": images(1, 3, 16, 16), "joints": torch.ones(1, 3),
        "speed": torch.ones(1, 2), "say": torch.tensor([[1, 2, 0, 0]]),
    }  # fmt: skip
    before = encoder(observation)
    assert before.shape == (1, encoder.width)
    for name, value in observation.items():
        changed = (encoder({**observation, name: value + 1}) - before)[0].abs() > 1e-5
        parts = [part.any().item() for part in changed.split([16, 16, 6, 5])]
        assert parts == [name == "left", name == "right", name in ("joints", "speed"), name == "say"]


def test_no_observations_are_refused():
    with pytest.raises(UserError, match="no observations"):
        Encoder({}, SMALL)


def test_mlp_activates_every_layer_and_is_the_identity_without_layers():
    x = torch.randn(5, 7)
    assert MLP(7, ()).width == 7
    assert torch.equal(MLP(7, ())(x), x)
    mlp = MLP(7, (9, 4), "elu")
    hidden = nn.functional.elu(mlp.layers[0](x))
    torch.testing.assert_close(mlp(x), nn.functional.elu(mlp.layers[2](hidden)))


def test_layer_norm_follows_the_first_layer_and_bounds_the_scale_of_inputs():
    mlp = MLP(7, (9, 4), layer_norm=True)
    assert [type(m) for m in mlp.layers] == [Linear, nn.LayerNorm, Tanh, Linear, nn.ReLU]
    x = torch.randn(5, 7)
    torch.testing.assert_close(mlp(x), mlp(1000.0 * x), atol=1e-3, rtol=1e-3)


def test_hidden_layers_start_orthogonal_with_gain_sqrt_2():
    layer = MLP(20, (8,)).layers[0]
    torch.testing.assert_close(layer.weight @ layer.weight.T, 2.0 * torch.eye(8), atol=1e-5, rtol=0)
    assert not layer.bias.any()


def test_large_resnet_starts_with_features_of_order_one():
    encoder = Encoder({"image": pixels(4, 42, 42)}, AgentConfig(resnet_channels=(64, 128, 128)))
    with torch.no_grad():
        scale = encoder({"image": images(2, 4, 42, 42)}).square().mean().sqrt()
    assert 0.3 < scale < 3.0


def see(encoder: Encoder, observation: dict[str, torch.Tensor], valid: torch.Tensor) -> None:
    """As unrolls of one environment."""
    moments = encoder.moments({name: x[:, None] for name, x in observation.items()}, valid[:, None])
    for normaliser, seen in zip(encoder.normalisers, moments, strict=True):
        normaliser.merge(seen)
        normaliser.commit()


def test_encoder_normalises_all_vectors_together():
    config = AgentConfig(hidden=(), normalise_observations=True)
    encoder = Encoder({"a": vector(1), "b": vector(2)}, config)
    observation = {"a": torch.tensor([[1.0], [3.0]]), "b": torch.tensor([[0.0, 5.0], [2.0, 9.0]])}
    assert encoder.vector(observation).tolist() == [[1, 0, 5], [3, 2, 9]]
    assert encoder.normaliser is not None
    see(encoder, observation, torch.ones(2, dtype=torch.bool))
    torch.testing.assert_close(encoder(observation), torch.tensor([[-1.0, -1, -1], [1, 1, 1]]))


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_each_image_is_normalised_by_its_own_statistics_and_texts_by_none(layout):
    shape = (2, 36, 40) if layout == "CHW" else (36, 40, 2)
    specs = {"front": pixels(*shape, layout=layout), "say": text(3), "back": pixels(*shape, layout=layout)}
    config = dataclasses.replace(SMALL, pixels="nature", normalise_observations=True)
    encoder, plain = Encoder(specs, config), Encoder(specs, dataclasses.replace(config, normalise_observations=False))
    plain.load_state_dict({name: x for name, x in encoder.state_dict().items() if "normaliser" not in name})
    seen = {"front": images(40, *shape), "say": torch.zeros(40, 3, dtype=torch.int64), "back": images(40, *shape) // 2}
    torch.testing.assert_close(encoder(seen), plain(seen), rtol=1e-3, atol=1e-4)
    see(encoder, seen, torch.ones(40, dtype=torch.bool))
    front, back = encoder.normalisers
    sample = seen["back"][::17].double()
    torch.testing.assert_close(back.mean, (sample if layout == "CHW" else sample.movedim(-1, 1)).mean(0))
    assert front.mean.mean() > 1.5 * back.mean.mean()
    assert not torch.allclose(encoder(seen), plain(seen), atol=0.1)


def test_texts_do_not_depend_on_padding_and_empty_ones_are_zero():
    encoder = TextEncoder(text(3), SMALL)
    short = encoder(torch.tensor([[3, 7], [4, 0], [0, 0]]))
    long = encoder(torch.tensor([[3, 7, 0, 0], [4, 0, 0, 0], [0, 0, 0, 0]]))
    torch.testing.assert_close(short, long)
    assert not short[2].any()
    assert short[0].any()
    assert not torch.allclose(short[0], short[1])


def test_texts_differ_by_a_size_that_a_core_can_hear():
    """PyTorch's own initialisation gives 0.03, a twentieth of what a picture gives."""
    encoder = TextEncoder(text(5), AgentConfig())
    codes = torch.randint(1, 51, (64, 5), generator=torch.Generator().manual_seed(2))
    assert 0.1 < encoder(codes).std(dim=0).mean() < 1.0


def test_repeated_texts_give_the_outputs_and_gradients_of_single_ones():
    encoder = TextEncoder(text(3), SMALL)
    codes = torch.tensor([[3, 7, 0], [9, 1, 2], [3, 7, 0], [0, 0, 0], [3, 7, 0]])
    weights = torch.randn(5, encoder.width)

    def gradients(outputs: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad((outputs * weights).sum(), list(encoder.parameters()), retain_graph=True))

    together, apart = encoder(codes), torch.cat([encoder(row[None]) for row in codes])
    torch.testing.assert_close(together, apart)
    torch.testing.assert_close(gradients(together), gradients(apart))
    assert all(gradient.any() for gradient in gradients(together))


@pytest.mark.parametrize("normalise", [False, True])
def test_images_in_chunks_are_as_all_at_once(monkeypatch, normalise):
    config = dataclasses.replace(SMALL, normalise_observations=normalise)
    encoder, seen = Encoder({"image": pixels(2, 42, 42)}, config), {"image": images(10, 2, 42, 42)}

    def results() -> list[torch.Tensor]:
        features = encoder(seen)
        return [features, *torch.autograd.grad(features.square().sum(), list(encoder.parameters()))]

    whole, calls = results(), []
    monkeypatch.setattr(encoders, "CHUNK", 4)
    encoder.pixels[0].convolutions.register_forward_hook(lambda module, given, maps: calls.append(len(maps)))
    for mine, theirs in zip(results(), whole, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4 * float(theirs.detach().abs().max()))
    assert calls == [4, 4, 2]


def test_images_given_as_floats_stay_as_they_are():
    spec = dataclasses.replace(pixels(2, 42, 42), dtype=np.dtype(np.float32))
    given = images(3, 2, 42, 42).float()
    before = given.clone()
    last = given.to(memory_format=torch.channels_last)
    for each in (given, last):
        Encoder({"image": spec}, SMALL)({"image": each})
        assert torch.equal(each, before)
