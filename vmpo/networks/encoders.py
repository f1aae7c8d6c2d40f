"""From a dict of observations to one feature vector: images, vectors and words, each through its own network.

Weights start orthogonal (gain sqrt 2 before a ReLU) with zero biases; embeddings keep PyTorch's defaults.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from vmpo.config import AgentConfig
from vmpo.errors import UserError, unknown
from vmpo.networks.activations import ACTIVATIONS, Tanh
from vmpo.networks.linear import Linear
from vmpo.networks.normalisers import ImageNormaliser, RunningStatistics, VectorNormaliser
from vmpo.records import ArraySpec, Observation
from vmpo.user_code import find, own_code

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d, nn.ConvTranspose2d)


def orthogonal(layer: Layer, gain: float = math.sqrt(2.0)) -> Layer:
    """Initialise a layer in place: orthogonal weights of the given gain, zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


UPPER_GAIN = 6.0
"""What brings the hidden states of an LSTM layer, about 1/6 wide at the start, to unit width for the layer above."""


def recurrent(lstm: nn.LSTM) -> nn.LSTM:
    """Initialise an LSTM in place: inputs of unit width, orthogonal recurrence, the forget gates open by a bias of 1.

    PyTorch's default scales by the hidden width whatever the input's. An instruction then leaves the text LSTM at a
    tenth of the picture's size, and each layer of the core takes away most of the rest: three of them leave 0.003 of a
    unit input in place of 0.17. Such an agent does not learn to read.
    """
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight_ih"):
            gain = 1.0 if name == "weight_ih_l0" else UPPER_GAIN
            nn.init.normal_(parameter, std=gain * parameter.shape[1] ** -0.5)
        elif name.startswith("weight_hh"):
            for gate in parameter.chunk(4):
                nn.init.orthogonal_(gate)
        else:
            nn.init.zeros_(parameter)
            if name.startswith("bias_ih"):
                nn.init.ones_(parameter.chunk(4)[1])  # PyTorch's order: input, forget, cell, output.
    return lstm


class MLP(nn.Module):
    """Linear layers, each followed by the activation; without layers it is the identity.

    With ``layer_norm`` the first activation is LayerNorm and tanh, which bounds whatever the observations are.
    """

    def __init__(
        self,
        width_in: int,
        hidden: Sequence[int],
        activation: Literal["relu", "elu", "tanh"] = "relu",
        layer_norm: bool = False,
    ):
        super().__init__()
        widths = (width_in, *hidden)
        layers: list[nn.Module] = []
        for index, (inputs, outputs) in enumerate(pairwise(widths)):
            layers.append(orthogonal(Linear(inputs, outputs)))
            bounded = layer_norm and index == 0
            layers.extend([nn.LayerNorm(outputs), Tanh()] if bounded else [ACTIVATIONS[activation]()])
        self.layers = nn.Sequential(*layers)
        self.width_in, self.width = width_in, widths[-1]

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch width"]:
        for layer in self.layers:
            # Calling the layer itself costs more than a small product does.
            x = layer.forward(x)
        return x


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), both 3x3.

    Gain 1 here and in the sections keeps the activations of the whole ResNet near 1 at the start; gain sqrt 2
    would double the variance in every block and make the first policy almost deterministic.
    """

    def __init__(self, channels: int):
        super().__init__()
        self.first = orthogonal(nn.Conv2d(channels, channels, 3, padding=1), gain=1.0)
        self.second = orthogonal(nn.Conv2d(channels, channels, 3, padding=1), gain=1.0)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C H W"]:
        return x + self.second(F.relu(self.first(F.relu(x)), inplace=True))


def resnet(channels_in: int, channels: Sequence[int]) -> nn.Sequential:
    """The ResNet of App. F (Hessel et al. 2018; Espeholt et al. 2018) up to and with its final ReLU.

    Per section: conv 3x3, max-pool 3x3 of stride 2, two residual blocks. The order within a block is IMPALA's.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in zip((channels_in, *channels[:-1]), channels, strict=True):
        layers.append(orthogonal(nn.Conv2d(inputs, outputs, 3, padding=1), gain=1.0))
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        layers.extend([ResidualBlock(outputs), ResidualBlock(outputs)])
    return nn.Sequential(*layers, nn.ReLU(inplace=True))


def nature_cnn(channels_in: int) -> nn.Sequential:
    """The three convolutions of Mnih et al. (2015)."""
    return nn.Sequential(
        orthogonal(nn.Conv2d(channels_in, 32, 8, stride=4)),
        nn.ReLU(inplace=True),
        orthogonal(nn.Conv2d(32, 64, 4, stride=2)),
        nn.ReLU(inplace=True),
        orthogonal(nn.Conv2d(64, 64, 3)),
        nn.ReLU(inplace=True),
    )


def pixels_as_channels_first(pixels: Shaped[Tensor, "*batch a b c"], spec: ArraySpec) -> Shaped[Tensor, "*batch C H W"]:
    """A view of images with the channels before height and width, whatever the simulator's layout."""
    return pixels.movedim(-1, -3) if spec.layout == "HWC" else pixels


def channels_first_shape(spec: ArraySpec) -> tuple[int, int, int]:
    """Channels, height and width of an image observation."""
    if len(spec.shape) != 3:
        raise UserError(f"pixels have channels, height and width, not the shape {spec.shape}; add the missing axis")
    first, second, third = spec.shape
    return (third, first, second) if spec.layout == "HWC" else (first, second, third)


CHUNK = 32
"""Images that a CPU convolves at a time: what one layer leaves is in its caches when the next one comes."""


class PixelEncoder(nn.Module):
    """Convolutions, then a linear layer and a ReLU. Images stay uint8 until here."""

    def __init__(self, spec: ArraySpec, config: AgentConfig):
        super().__init__()
        self.spec = spec
        channels, height, width = channels_first_shape(spec)
        convolutions = resnet(channels, config.resnet_channels) if config.pixels == "resnet" else nature_cnn(channels)
        try:
            with torch.no_grad():
                flat = convolutions(torch.zeros(1, channels, height, width)).numel()
        except RuntimeError as error:
            raise UserError(
                f"pixels of {height}x{width} are too small for agent.pixels={config.pixels!r}; "
                "use agent.pixels='resnet' or larger images"
            ) from error
        self.normaliser = ImageNormaliser(channels, height, width) if config.normalise_observations else None
        self.convolutions = convolutions.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.readout = orthogonal(Linear(flat, config.pixel_features))
        self.width = config.pixel_features

    def channels_first(self, pixels: Shaped[Tensor, "*batch a b c"]) -> Shaped[Tensor, "*batch C H W"]:
        return pixels_as_channels_first(pixels, self.spec)

    def forward(self, pixels: Shaped[Tensor, "N a b c"]) -> Float[Tensor, "N width"]:
        whole = pixels.device.type != "cpu" or torch.compiler.is_compiling()
        maps = [self._convolve(some) for some in ([pixels] if whole else pixels.split(CHUNK))]
        return F.relu(self.readout(maps[0] if len(maps) == 1 else torch.cat(maps)))

    def _convolve(self, pixels: Shaped[Tensor, "N a b c"]) -> Float[Tensor, "N flat"]:
        # A copy in any case: it is normalised in place.
        images = self.channels_first(pixels).to(torch.float32, memory_format=torch.channels_last, copy=True)
        images = images.mul_(1.0 / 255.0) if self.normaliser is None else self.normaliser(images)
        # Flattened in the order in which channels_last stores them, which is a view.
        return self.convolutions(images).permute(0, 2, 3, 1).flatten(1)


class TextEncoder(nn.Module):
    """An LSTM over embedded words, read at the last word; an empty text is all zeros (App. F, DMLab)."""

    def __init__(self, spec: ArraySpec, config: AgentConfig):
        super().__init__()
        self.embedding = nn.Embedding(spec.vocabulary + 1, config.text_embedding, padding_idx=0)
        self.lstm = recurrent(nn.LSTM(config.text_embedding, config.text_units, batch_first=True))
        self.norm = nn.LayerNorm(config.text_units) if config.layer_norm else nn.Identity()
        self.width = config.text_units

    def forward(self, codes: Int64[Tensor, "N L"]) -> Float[Tensor, "N width"]:
        # An episode repeats its instruction at every step: encode each one once, and let indexing sum its gradients.
        texts, which = torch.unique(codes, dim=0, return_inverse=True)
        positions = torch.arange(1, codes.shape[1] + 1, device=codes.device)
        lengths = (positions * (texts != 0)).amax(dim=1)
        outputs, _ = self.lstm(self.embedding(texts))
        last = outputs.gather(1, (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, self.width)).squeeze(1)
        return (self.norm(last) * (lengths > 0)[:, None])[which]


class Encoder(nn.Module):
    """Encodes every named observation and concatenates: each image by itself, all vectors together, each text.

    Humanoid's pixels and proprioception, or DMLab's pixels and instructions, are dicts like any other.
    """

    def __init__(self, observation: dict[str, ArraySpec], config: AgentConfig):
        super().__init__()
        names = {kind: [n for n, s in observation.items() if s.kind == kind] for kind in ("pixels", "vector", "text")}
        if not any(names.values()):
            raise UserError("the environment has no observations; it must give at least one of pixels, vector or text")
        self.pixel_names, self.vector_names, self.text_names = names["pixels"], names["vector"], names["text"]
        self.pixels = nn.ModuleList([PixelEncoder(observation[name], config) for name in self.pixel_names])
        self.texts = nn.ModuleList([TextEncoder(observation[name], config) for name in self.text_names])
        self.normaliser: VectorNormaliser | None = None
        self.mlp: MLP | None = None
        if self.vector_names:
            width = sum(observation[name].shape[0] for name in self.vector_names)
            self.normaliser = VectorNormaliser(width) if config.normalise_observations else None
            self.mlp = MLP(width, config.hidden, config.activation, config.layer_norm)
        self.width = config.pixel_features * len(self.pixels) + config.text_units * len(self.texts)
        self.width += self.mlp.width if self.mlp is not None else 0

    @property
    def normalisers(self) -> list[RunningStatistics]:
        """Of the images and of all vectors together, where the configuration asks for them."""
        each = (*(pixels.normaliser for pixels in self.pixels), self.normaliser)
        return [normaliser for normaliser in each if normaliser is not None]  # type: ignore[misc]

    def moments(self, observation: Observation, valid: Bool[Tensor, "T B"]) -> list[Tensor]:
        """What ``[T, B, ...]`` observations add to the statistics of each normaliser."""
        if not self.normalisers:
            return []
        seen = [
            pixels.channels_first(observation[name])  # type: ignore[operator]
            for name, pixels in zip(self.pixel_names, self.pixels, strict=True)
        ]
        if self.vector_names:
            seen.append(self.vector(observation))
        return [normaliser.moments(x, valid) for normaliser, x in zip(self.normalisers, seen, strict=True)]

    def vector(self, observation: Observation) -> Float[Tensor, "*batch D"]:
        """All vector observations side by side, as the normaliser counts them."""
        return _side_by_side([observation[name].float() for name in self.vector_names])

    def forward(self, observation: Observation) -> Float[Tensor, "N width"]:
        parts = [encode(observation[name]) for name, encode in zip(self.pixel_names, self.pixels, strict=True)]
        if self.vector_names:
            vector, normaliser, mlp = self.vector(observation), self.normaliser, self.mlp
            parts.append(mlp.forward(vector if normaliser is None else normaliser(vector)))  # type: ignore[union-attr]
        if self.text_names:
            parts += [encode(observation[name]) for name, encode in zip(self.text_names, self.texts, strict=True)]
        return _side_by_side(parts)


def make_encoder(observation: dict[str, ArraySpec], config: AgentConfig) -> nn.Module:
    """The standard encoder or the user's: a module of ``(observation, config)`` with a ``width`` and a ``forward``."""
    if config.encoder == "standard":
        return Encoder(observation, config)
    if ":" not in config.encoder:
        raise unknown("encoder", config.encoder, ["standard", "my_module:MyEncoder"])
    zeros = {name: torch.from_numpy(np.zeros((2, *spec.shape), spec.dtype)) for name, spec in observation.items()}
    make = find("encoder", config.encoder)
    with own_code(config.encoder):
        encoder = make(observation, config)
        with torch.no_grad():
            features = encoder(zeros)
    if features.shape != (2, encoder.width):
        raise UserError(
            f"{config.encoder} makes features of the shape {tuple(features.shape)} from two observations; "
            f"by its width that should be (2, {encoder.width})"
        )
    return encoder


def _side_by_side(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
