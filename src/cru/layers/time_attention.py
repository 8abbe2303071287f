"""Multi-time attention: the interpolation of a series at any other times (Shukla and Marlin 2021)."""

import torch
from torch import Tensor, nn

from cru.layers.checks import require
from cru.shapes import Bool, Float

_MIN_LOG_WEIGHT = -600.0  # relative to the largest weight: e^-600 is negligible, and float64 represents it


class TimeEmbedding(nn.Module):
    """The embedding φ(t) = (ω_0 t + α_0, sin(ω_1 t + α_1), ..., sin(ω_d t + α_d)) with trained ω and α.

    >>> from cru.layers.time_attention import TimeEmbedding
    >>> TimeEmbedding(16)(torch.rand(2, 5)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self, size: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        device = torch.device(device) if device is not None else None
        self.angles = nn.Linear(1, size, device=device, dtype=dtype)

    def forward(self, times: Float[Tensor, "*n time"]) -> Float[Tensor, "*n time embedding"]:
        """Compute the linear term and the sines."""
        angles = self.angles(times[..., None])
        return torch.cat([angles[..., :1], angles[..., 1:].sin()], -1)


class TimeAttention(nn.Module):
    """An interpolation of (batch, time, feature) at other times, by attention on the times only.

    Every head computes a weighted mean of the observations of each feature. Queries are W φ(t), keys are V φ(t_i):

        Σ_i κ_i x_i,   κ = softmax_i(W φ(t) · V φ(t_i) / √d) over the i where this feature is observed.

    The mean of a feature without any observation is 0. A linear map mixes all features of all heads.

    All features share the scores. The sums of weighted values and of weights are two matrix products. No tensor has
    the size batch × query × time × feature.

    Args:
        input_size: number of input features.
        output_size: number of output features.
        embedding: size of the time embeddings, a multiple of ``num_heads``.
        num_heads: number of heads.
        device: device of the parameters.
        dtype: type of the parameters.

    Raises:
        ValueError: ``embedding`` is not a multiple of ``num_heads``.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        embedding: int = 128,
        num_heads: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require(
            num_heads >= 1 and embedding % num_heads == 0,
            f"`embedding` must be a multiple of `num_heads`, got {embedding} and {num_heads}.",
        )
        device = torch.device(device) if device is not None else None
        self.num_heads = num_heads
        self.query = nn.Linear(embedding, embedding, device=device, dtype=dtype)
        self.key = nn.Linear(embedding, embedding, device=device, dtype=dtype)
        self.output = nn.Linear(input_size * num_heads, output_size, device=device, dtype=dtype)

    def scores(
        self, query: Float[Tensor, "#batch query embedding"], key: Float[Tensor, "#batch time embedding"]
    ) -> Float[Tensor, "batch head query time"]:
        """Compute W φ(t) · V φ(t_i) / √d for each head."""

        def heads(x: Tensor) -> Tensor:
            return x.view(*x.shape[:2], self.num_heads, x.shape[-1] // self.num_heads).transpose(1, 2)

        q, k = heads(self.query(query)), heads(self.key(key))
        scores: Tensor = q @ k.mT / q.shape[-1] ** 0.5
        return scores

    def read(
        self,
        scores: Float[Tensor, "batch head query time"],
        values: Float[Tensor, "batch time feature"],
        mask: Bool[Tensor, "batch time feature"] | None = None,
    ) -> Float[Tensor, "batch head query feature"]:
        """Compute softmax-weighted means of values.

        Args:
            scores: the scores from `scores`.
            values: the values.
            mask: True where observed. The mean of a feature uses these times only. None: all times.
        """
        if mask is None:
            return scores.softmax(-1) @ values[:, None]
        some = mask.any(-1)[:, None, None]
        largest = scores.masked_fill(~some, -torch.inf).amax(-1, keepdim=True).nan_to_num(neginf=0.0).detach()
        # float64, because all observations of one feature can have tiny weights
        weights = (scores - largest).double().clamp(_MIN_LOG_WEIGHT, 0.0).exp()
        seen = mask.double()[:, None]
        total = weights @ seen
        read = (weights @ (values[:, None] * seen)) / torch.where(total > 0, total, 1.0)
        return read.to(values.dtype)

    def forward(
        self,
        query: Float[Tensor, "#batch query embedding"],
        key: Float[Tensor, "#batch time embedding"],
        values: Float[Tensor, "batch time feature"],
        mask: Bool[Tensor, "batch time feature"] | None = None,
    ) -> Float[Tensor, "batch query output"]:
        """Interpolate values at other times.

        Args:
            query: the embedded times of the results.
            key: the embedded times of the values.
            values: the values.
            mask: True where observed. None: all values.
        """
        read = self.read(self.scores(query, key), values, mask)
        mixed: Tensor = self.output(read.transpose(1, 2).flatten(2))
        return mixed
