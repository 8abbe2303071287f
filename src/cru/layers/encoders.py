"""Encoders of appendix D: maps from the observation at one time to the input features of a layer.

Any module from (n, *input) to (n, features) can be an encoder. The paper uses the two classes of this module.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cru.compute import evaluating
from cru.shapes import Bool, Float

NORM_FLOOR = 1e-8  # smallest norm that divides
CHUNK = 64  # images that a CPU processes at a time


def normalised(features: Float[Tensor, "n features"]) -> Float[Tensor, "n features"]:
    """Scale each vector of features to the norm 1."""
    return F.normalize(features, dim=-1, eps=NORM_FLOOR)


def mlp(input_size: int, hidden_sizes: tuple[int, ...]) -> nn.Sequential:
    """Make a network with a linear layer, ReLU and layer norm for each of ``hidden_sizes``."""
    sizes = (input_size, *hidden_sizes)
    parts: list[nn.Module] = []
    for before, after in pairwise(sizes):
        parts += [nn.Linear(before, after), nn.ReLU(), nn.LayerNorm(after)]
    return nn.Sequential(*parts)


class MLPEncoder(nn.Module):
    """Encoder of USHCN and PhysioNet: three fully connected layers of 50 units with ReLU and layer norm.

    >>> from cru.layers import MLPEncoder
    >>> MLPEncoder(37)(torch.zeros(2, 37)).shape
    torch.Size([2, 50])
    """

    def __init__(self, input_size: int, hidden_sizes: tuple[int, ...] = (50, 50, 50)) -> None:
        super().__init__()
        self.layers = mlp(input_size, hidden_sizes)

    def forward(self, x: Float[Tensor, "n input"]) -> Float[Tensor, "n features"]:
        """Return features of norm 1."""
        return normalised(self.layers(x))


class ConvEncoder(nn.Module):
    """Encoder of the pendulum: two convolutions with pooling and one fully connected layer of 30 units.

    ``norm`` adds a layer norm over (channel, height, width) after each convolution, as for interpolation in the paper.

    >>> from cru.layers import ConvEncoder
    >>> ConvEncoder((1, 24, 24))(torch.zeros(2, 1, 24, 24)).shape
    torch.Size([2, 30])
    """

    def __init__(
        self, input_shape: tuple[int, int, int], output_size: int = 30, *, channels: int = 12, norm: bool = False
    ) -> None:
        super().__init__()
        colours, height, width = input_shape
        if min(height, width) < 7:  # the second pooling would return nothing
            raise ValueError(f"`input_shape` must be at least 7 x 7 pixels, got {height} x {width}. Pass an `encoder`.")
        self.layers = nn.Sequential(
            ChannelsLastConv2d(colours, channels, 5, padding=2),
            layer_norm(channels) if norm else nn.Identity(),
            nn.MaxPool2d(2),  # before the ReLU: the result is the same, with a quarter of the work
            nn.ReLU(),
            ChannelsLastConv2d(channels, channels, 3, padding=1, stride=2),
            layer_norm(channels) if norm else nn.Identity(),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
        )
        left = ((height // 2 + 1) // 2 // 2) * ((width // 2 + 1) // 2 // 2)
        self.output = nn.Linear(channels * left, output_size)

    def forward(self, x: Float[Tensor, "n channel height width"]) -> Float[Tensor, "n features"]:
        """Return features of norm 1."""
        return normalised(self.output(in_chunks(self.layers, x)).relu())


class ChannelsLastConv2d(nn.Conv2d):
    """A convolution that always computes in the memory format channels-last, which is faster on a CPU.

    The parameters have the default format, in which they are saved. The copy of the weights has the format
    channels-last, also with one channel, where the strides of both formats are equal.
    """

    def forward(self, input: Float[Tensor, "n channel height width"]) -> Tensor:  # noqa: A002
        """Convolve, as `torch.nn.Conv2d` does."""
        weight = self.weight.clone(memory_format=torch.channels_last)
        return F.conv2d(input, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def in_chunks(module: nn.Module, x: Float[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
    """Compute ``module(x)``. On a CPU, process a few images at a time, so that activations stay in the cache."""
    if x.device.type != "cpu" or x.shape[0] <= CHUNK:
        whole: Tensor = module(x)
        return whole
    return torch.cat([module(part) for part in torch.split(x, CHUNK)])


def layer_norm(channels: int) -> nn.GroupNorm:
    """Make a layer norm over (channel, height, width) with a scale and an offset for each channel."""
    return nn.GroupNorm(1, channels)


def apply_where(
    module: nn.Module, x: Float[Tensor, "batch time *inputs"], where: Bool[Tensor, "batch time"], fill: float = 0.0
) -> Float[Tensor, "batch time *outputs"]:
    """Apply a module at some times only, without any work for padding.

    Args:
        module: the module, from (n, *inputs) to (n, *outputs).
        x: the inputs.
        where: True at the times to compute.
        fill: the result at all other times.
    """
    if bool(where.all()) and where.numel():
        every: Tensor = module(x.flatten(0, 1))
        return every.reshape(*where.shape, *every.shape[1:])
    rows = where.flatten().nonzero().squeeze(1)
    given = x.flatten(0, 1).index_select(0, rows)
    found: Tensor = module(given) if len(rows) else _run_on_empty(module, given)
    everywhere = found.new_full((where.numel(), *found.shape[1:]), fill).index_copy(0, rows, found)
    return everywhere.reshape(*where.shape, *found.shape[1:])


def _run_on_empty(module: nn.Module, none: Float[Tensor, "0 *inputs"]) -> Float[Tensor, "0 *outputs"]:
    """Compute the empty output of an empty batch from one row of zeros, because some modules fail on empty batches."""
    with evaluating(module):
        return module(none.new_zeros(1, *none.shape[1:]))[:0]  # type: ignore[no-any-return]


def features_of(encoder: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Count the features of an encoder, by a call with two zero inputs.

    Raises:
        ValueError: the result is not of the shape (n, features).
    """
    like = next((p for p in encoder.parameters()), torch.empty(0))
    with torch.no_grad(), evaluating(encoder):
        found = encoder(like.new_zeros(2, *input_shape))
    if not isinstance(found, Tensor) or found.ndim != 2 or found.shape[0] != 2:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"`encoder` must map (n, {', '.join(map(str, input_shape))}) to (n, features), got {shape}.")
    return found.shape[1]
