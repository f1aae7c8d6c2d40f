"""The auxiliary head of UNREAL: for every cell of the image, how much can each action change it?"""

from __future__ import annotations

from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from vmpo.errors import UserError
from vmpo.networks.encoders import channels_first_shape, orthogonal, pixels_as_channels_first
from vmpo.records import DiscreteActions, EnvSpec, Observation

CELL_SIZE = 4
"""Pixels along a side of a cell (Jaderberg et al. 2017; Hessel et al. 2018)."""

MAP_CHANNELS = 32
"""Channels of the spatial map before the deconvolutions (Jaderberg et al. 2017)."""


class PixelControlHead(nn.Module):
    """Q-values of the features: a linear layer to a small map, a ReLU, then duelling 4x4 deconvolutions of stride 2.

    Jaderberg et al. (2017), used for DMLab (Sec. 5.1, Table 5). Where the stride does not hit the number of cells, the
    map is one cell larger and loses its lower or right edge. With several images, the first one counts.
    """

    def __init__(self, width_in: int, spec: EnvSpec):
        super().__init__()
        images = [name for name, array in spec.observation.items() if array.kind == "pixels"]
        if not images:
            raise UserError("pixel control needs an observation of pixels; set loss.pixel_control_cost=0 without one")
        if not isinstance(spec.action, DiscreteActions) or len(spec.action.sizes) != 1:
            raise UserError(
                f"pixel control needs one discrete action, not {spec.action}; set loss.pixel_control_cost=0"
            )
        self.name, self.spec = images[0], spec.observation[images[0]]
        _, height, width = channels_first_shape(self.spec)
        self.cells = (height // CELL_SIZE, width // CELL_SIZE)
        if min(self.cells) < 1:
            raise UserError(f"pixel control needs images of at least {CELL_SIZE}x{CELL_SIZE}, not {height}x{width}")
        self.map_size = tuple(max(1, (cells - 1) // 2) for cells in self.cells)
        self.hidden = orthogonal(nn.Linear(width_in, MAP_CHANNELS * self.map_size[0] * self.map_size[1]))
        self.advantage = orthogonal(nn.ConvTranspose2d(MAP_CHANNELS, spec.action.sizes[0], 4, stride=2), gain=1.0)
        self.value = orthogonal(nn.ConvTranspose2d(MAP_CHANNELS, 1, 4, stride=2), gain=1.0)

    def frames(self, observation: Observation) -> Shaped[Tensor, "*batch C H W"]:
        """The images that the cells divide, as a view with the channels first: what the loss takes."""
        return pixels_as_channels_first(observation[self.name], self.spec)

    def forward(self, features: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch A h w"]:
        batch = features.shape[:-1]
        maps = F.relu(self.hidden(features.reshape(-1, features.shape[-1])))
        maps = maps.unflatten(1, (MAP_CHANNELS, *self.map_size))
        advantage = self.advantage(maps)
        q_values = self.value(maps) + advantage - advantage.mean(dim=1, keepdim=True)
        return q_values[:, :, : self.cells[0], : self.cells[1]].unflatten(0, batch)
