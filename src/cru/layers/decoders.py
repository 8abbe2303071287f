"""Decoders of appendix D: maps from the state at one time to raw outputs, (n, features) to (n, *target).

The model maps raw outputs to positive variances or to probabilities, so any module can be a decoder.
"""

from torch import Tensor, nn

from cru.layers.encoders import in_chunks, layer_norm, mlp
from cru.shapes import Float


def mlp_decoder(input_size: int, output_size: int, hidden_sizes: tuple[int, ...] = (50, 50, 50)) -> nn.Sequential:
    """Make the decoder of USHCN and PhysioNet: fully connected layers with ReLU and layer norm, linear output."""
    return mlp(input_size, hidden_sizes).append(nn.Linear((input_size, *hidden_sizes)[-1], output_size))


def tanh_decoder(input_size: int, output_size: int, hidden_size: int = 30) -> nn.Sequential:
    """Make the decoder of pendulum regression: one fully connected layer with tanh, linear output."""
    return nn.Sequential(nn.Linear(input_size, hidden_size), nn.Tanh(), nn.Linear(hidden_size, output_size))


class ConvDecoder(nn.Module):
    """Decoder of pendulum interpolation: one fully connected layer and three transposed convolutions.

    It returns images of 1 x 24 x 24 pixels. ``norm`` adds a layer norm over (channel, height, width) after the first
    two convolutions.

    >>> from cru.layers import ConvDecoder
    >>> ConvDecoder(30)(torch.zeros(2, 30)).shape
    torch.Size([2, 1, 24, 24])
    """

    output_shape = (1, 24, 24)

    def __init__(self, input_size: int, *, norm: bool = True) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(input_size, 144),
            nn.ReLU(),
            nn.Unflatten(1, (16, 3, 3)),
            nn.ConvTranspose2d(16, 16, 5, stride=4, padding=2),
            layer_norm(16) if norm else nn.Identity(),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 12, 3, stride=2, padding=1),
            layer_norm(12) if norm else nn.Identity(),
            nn.ReLU(),
            nn.ConvTranspose2d(12, 1, 2, stride=2, padding=5),
        )

    def forward(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n 1 24 24"]:
        """Return the logits of the pixels."""
        return in_chunks(self.layers, features)
