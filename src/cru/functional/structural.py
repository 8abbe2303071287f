"""The structural model: a sum of independent Ornstein-Uhlenbeck (OU) processes per variable, exact in linear time.

The signal of one variable at time t is h(t)ᵀ c(t). The regressors h are known. Each coefficient c_d is an OU process
with decay rate λ_d and stationary variance v_d. The kernel of the signal is Σ_d v_d h_d(t) h_d(s) exp(-λ_d |t - s|).
An observation is the signal plus noise of variance R.

The filter carries the mean m and the covariance explained so far, G = diag(v) - P. Over a gap Δ, with a = exp(-λ Δ):

    m ← a m,   G ← a G aᵀ                          predict: both only decay, so any gap is safe
    e = y - hᵀ m,   S = hᵀ P h + R,   K = P h / S    innovation, its variance, gain
    m ← m + K e,   G ← G + S K Kᵀ                  update

The smoother is that of Bryson and Frazier and needs no inverse. From the last row to the first:

    u = e / S - Kᵀ r,   d = 1 / S + Kᵀ N K                 y - u / d and 1 / d leave this observation out
    r ← r + h u,   N ← N + d h hᵀ - h (N K)ᵀ - (N K) hᵀ      at an observed row
    mean = hᵀ m + (P h)ᵀ r,   var = hᵀ P h - (P h)ᵀ N (P h)
    r ← a r,   N ← a N aᵀ                                  over the gap before the row

The arithmetic is in float64, because P is a small difference of large numbers. Results have the type of `values`, and
states are float64. `cru.native` has compiled versions.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from cru.functional.gaps import gaps
from cru.functional.update import MIN_VARIANCE
from cru.shapes import Bool, Float, Float64, Int64


class Components(NamedTuple):
    """Hyperparameters on their natural scale. All are positive; the variances may be zero."""

    rate: Float[Tensor, "variable coefficient"]  # 1 / time constant
    var: Float[Tensor, "variable coefficient"]  # stationary variance
    noise: Float[Tensor, " variable"]  # variance of the observation noise


class StructuralState(NamedTuple):
    """The belief about the coefficients after the last time, in float64."""

    mean: Float64[Tensor, "batch variable coefficient"]
    explained: Float64[Tensor, "batch variable coefficient coefficient"]  # diag(var) - covariance
    time: Float64[Tensor, " batch"]


class Filtered(NamedTuple):
    """The signal predicted from strictly earlier rows, without noise, and the likelihood of the observations."""

    mean: Float[Tensor, "batch time variable"]
    var: Float[Tensor, "batch time variable"]
    nll: Float[Tensor, "batch variable"]  # negative log likelihood, summed over the observed rows
    state: StructuralState


class Smoothed(NamedTuple):
    """The signal given all observations, and its leave-one-out (loo) estimate without the observation of the same row.

    Both estimates are equal where nothing is observed. No variance includes noise.
    """

    mean: Float[Tensor, "batch time variable"]
    var: Float[Tensor, "batch time variable"]
    loo_mean: Float[Tensor, "batch time variable"]
    loo_var: Float[Tensor, "batch time variable"]


class _Row(NamedTuple):
    """One row of the filter. Group quantities keep the part of h that belongs to each group of coefficients."""

    h: Float64[Tensor, "batch 1 coefficient"]
    decay: Float64[Tensor, "batch variable coefficient"]
    mean: Float64[Tensor, "batch variable group"]
    var: Float64[Tensor, "batch variable group"]
    cross: Float64[Tensor, "batch variable group coefficient"]  # P h
    innovation: Float64[Tensor, "batch variable"]  # 0 where nothing is observed
    innovation_var: Float64[Tensor, "batch variable"]
    observed: Bool[Tensor, "batch variable"]


def initial_state(components: Components, times: Float64[Tensor, "batch time"]) -> StructuralState:
    """Return the stationary prior at the first of ``times``."""
    shape = (len(times), *components.rate.shape)
    mean = torch.zeros(shape, dtype=torch.float64, device=times.device)
    return StructuralState(mean, mean.new_zeros(*shape, shape[-1]), times[:, 0])


def filter_structural(
    times: Float64[Tensor, "batch time"],
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    regressors: Float[Tensor, "batch time coefficient"],
    components: Components,
    state: StructuralState | None = None,
) -> Filtered:
    """Predict the signal at every row from the observations of strictly earlier rows.

    Several rows may have the same time. Padding repeats the last time with ``mask`` False.

    Args:
        times: (batch, time).
        values: the observations.
        mask: True where observed.
        regressors: h at every row.
        components: the hyperparameters.
        state: the result of earlier rows. None: the stationary prior.
    """
    selection = regressors.new_ones(1, regressors.shape[-1])
    rows, state = _filter_rows(times, values, mask, regressors, components, state, selection)
    log_var = torch.stack([torch.where(r.observed, torch.log(2 * math.pi * r.innovation_var), 0.0) for r in rows])
    squares = torch.stack([r.innovation**2 / r.innovation_var for r in rows])
    nll = 0.5 * (log_var + squares).sum(0)
    mean, var = (torch.stack(column, 1)[..., 0] for column in ([r.mean for r in rows], [r.var for r in rows]))
    return Filtered(mean.to(values.dtype), var.clamp_min(0).to(values.dtype), nll.to(values.dtype), state)


def smooth_structural(
    times: Float64[Tensor, "batch time"],
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    regressors: Float[Tensor, "batch time coefficient"],
    components: Components,
    state: StructuralState | None = None,
) -> Smoothed:
    """Estimate the signal at every row from all observations. The arguments are those of `filter_structural`."""
    selection = regressors.new_ones(1, regressors.shape[-1])
    rows, _ = _filter_rows(times, values, mask, regressors, components, state, selection)
    mean, var, ratio, precision = _smooth_rows(rows)
    mean, var, noise = mean[..., 0], var[..., 0], _noise(components)
    # The same variance without the cancellation in `var`, for noise far below the prior variance.
    var = torch.where(mask & (noise * precision < 0.5), noise * (1 - noise * precision), var)
    alone = torch.where(mask, values.double() - ratio, mean)
    alone_var = torch.where(mask, (1 / precision - noise).clamp_min(0), var)
    return Smoothed(*(column.to(values.dtype) for column in (mean, var, alone, alone_var)))


def smooth_components(
    times: Float64[Tensor, "batch time"],
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    regressors: Float[Tensor, "batch time coefficient"],
    components: Components,
    groups: Int64[Tensor, " coefficient"],
    state: StructuralState | None = None,
) -> tuple[Float[Tensor, "batch time variable group"], Float[Tensor, "batch time variable group"]]:
    """Estimate the contribution of each group of coefficients to the signal, from all observations.

    Args:
        times: (batch, time).
        values: the observations.
        mask: True where observed.
        regressors: h at every row.
        components: the hyperparameters.
        groups: the number of the group of each coefficient, from 0.
        state: the result of earlier rows.

    Returns:
        Mean and variance of each group. The means add up to the mean of the signal.
    """
    selection = torch.nn.functional.one_hot(groups).T
    rows, _ = _filter_rows(times, values, mask, regressors, components, state, selection)
    mean, var, _, _ = _smooth_rows(rows)
    return mean.to(values.dtype), var.to(values.dtype)


def filter_components(
    times: Float64[Tensor, "batch time"],
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    regressors: Float[Tensor, "batch time coefficient"],
    components: Components,
    groups: Int64[Tensor, " coefficient"],
    state: StructuralState | None = None,
) -> tuple[Float[Tensor, "batch time variable group"], Float[Tensor, "batch time variable group"]]:
    """Estimate the contribution of each group of coefficients to the signal, from the observations up to each row.

    The arguments are those of `smooth_components`.
    """
    selection = torch.nn.functional.one_hot(groups).T
    rows, _ = _filter_rows(times, values, mask, regressors, components, state, selection)
    means, variances = [], []
    for row in rows:
        shared = (row.cross * row.h[:, :, None]).sum(-1)  # covariance of each group with the signal
        means.append(row.mean + shared * (row.innovation / row.innovation_var)[..., None])
        learned = torch.where(row.observed[..., None], shared.square() / row.innovation_var[..., None], 0.0)
        variances.append((row.var - learned).clamp_min(0))
    return torch.stack(means, 1).to(values.dtype), torch.stack(variances, 1).to(values.dtype)


def sample_structural(
    times: Float64[Tensor, "batch time"],
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    regressors: Float[Tensor, "batch time coefficient"],
    components: Components,
    n: int,
    generator: Generator | None = None,
    state: StructuralState | None = None,
    *,
    smooth: Callable[..., Smoothed] = smooth_structural,
) -> Float[Tensor, "n batch time variable"]:
    """Draw the signal at all rows jointly, given all observations, ``n`` times.

    Matheron's rule: draw a signal and its observations from the prior. Then smooth the difference between the real and
    the drawn observations, and add its mean.

    Args:
        times: (batch, time).
        values: the observations.
        mask: True where observed.
        regressors: h at every row.
        components: the hyperparameters.
        n: the number of draws.
        generator: the random generator.
        state: the result of earlier rows.
        smooth: `smooth_structural` or its compiled version.
    """
    signal = _sample_prior(times, regressors, components, n, generator, state)
    noise = torch.randn(signal.shape, dtype=torch.float64, device=signal.device, generator=generator)
    drawn = signal + _noise(components).sqrt() * noise

    def repeated(tensor: Tensor) -> Tensor:
        return tensor.expand(n, *tensor.shape).flatten(0, 1)

    if state is not None:  # the draw already includes the mean of the state
        state = StructuralState(*map(repeated, (torch.zeros_like(state.mean), state.explained, state.time)))
    difference = (values.double() - drawn).flatten(0, 1)
    correction = smooth(repeated(times), difference, repeated(mask), repeated(regressors), components, state).mean
    return (signal + correction.view_as(signal)).to(values.dtype)


def _sample_prior(
    times: Tensor,
    regressors: Tensor,
    components: Components,
    n: int,
    generator: Generator | None,
    state: StructuralState | None,
) -> Float64[Tensor, "n batch time variable"]:
    """Draw signals from the prior after ``state``, by the exact recursion of each coefficient."""
    var, H = components.var.double(), regressors.double()
    delta = gaps(times, None if state is None else state.time, 1.0, torch.float64)
    shape = (n, len(times), *var.shape)

    def draw() -> Tensor:
        return torch.randn(shape, dtype=torch.float64, device=times.device, generator=generator)

    if state is None:
        c = var.sqrt() * draw()
    else:
        values, vectors = torch.linalg.eigh(torch.diag_embed(var) - state.explained)
        root = vectors * values.clamp_min(0).sqrt()[..., None, :]
        c = state.mean + (root @ draw()[..., None])[..., 0]
    rows = []
    for k in range(times.shape[1]):
        a = _decay(delta[:, k], components)
        c = a * c + (var * -torch.expm1(-2 * delta[:, k, None, None] * components.rate.double())).sqrt() * draw()
        rows.append((c * H[:, k, None]).sum(-1))
    return torch.stack(rows, 2)


def propagate(state: StructuralState, times: Float64[Tensor, " batch"], components: Components) -> StructuralState:
    """Move a state to one later time for each series."""
    a = _decay(_elapsed(state, times[:, None])[:, 0], components)
    return StructuralState(a * state.mean, _scaled(state.explained, a), times)


def forecast_structural(
    state: StructuralState,
    times: Float64[Tensor, "batch query"],
    regressors: Float[Tensor, "batch query coefficient"],
    components: Components,
) -> tuple[Float[Tensor, "batch query variable"], Float[Tensor, "batch query variable"]]:
    """Predict mean and variance of the signal.

    Args:
        state: the belief after the observations.
        times: the times, in any order, none of them before ``state``.
        regressors: h at every time.
        components: the hyperparameters.
    """
    h = regressors.double()[:, :, None]
    ah = h * _decay(_elapsed(state, times), components)
    mean = torch.einsum("bqvd,bvd->bqv", ah, state.mean)
    explained = (torch.einsum("bqvd,bvde->bqve", ah, state.explained) * ah).sum(-1)
    var = ((h * h * components.var.double()).sum(-1) - explained).clamp_min(0)
    return mean.to(regressors.dtype), var.to(regressors.dtype)


def _elapsed(state: StructuralState, times: Tensor) -> Tensor:
    """Return the time since ``state``, at least 0. The caller rejects earlier times, except for rounding errors."""
    return (times - state.time[:, None]).clamp_min(0)


def _decay(gap: Float64[Tensor, "*any"], components: Components) -> Float64[Tensor, "*any variable coefficient"]:
    return torch.exp(-gap[..., None, None] * components.rate.double())


def _scaled(matrix: Tensor, a: Tensor) -> Tensor:
    return matrix * a[..., :, None] * a[..., None, :]


def _noise(components: Components) -> Tensor:
    return components.noise.double().clamp_min(MIN_VARIANCE)


def _filter_rows(
    times: Tensor,
    values: Tensor,
    mask: Tensor,
    regressors: Tensor,
    components: Components,
    state: StructuralState | None,
    selection: Tensor,
) -> tuple[list[_Row], StructuralState]:
    """Run the filter. ``selection`` (group, coefficient) has one 1 in every column."""
    var, noise, H = components.var.double(), _noise(components), regressors.double()
    delta = gaps(times, None if state is None else state.time, 1.0, torch.float64)
    state = initial_state(components, times) if state is None else state
    m, G = state.mean.double(), state.explained.double()
    y = torch.where(mask, values.double(), 0.0)
    rows = []
    for k in range(times.shape[1]):
        a, h, on = _decay(delta[:, k], components), H[:, k, None], mask[:, k]
        m, G = a * m, _scaled(G, a)
        parts = h[:, :, None] * selection
        cross = var[:, None] * parts - parts @ G
        means, variances = (parts * m[:, :, None]).sum(-1), (parts * cross).sum(-1)
        Ph = cross.sum(-2)
        S = (h * Ph).sum(-1).clamp_min(0) + noise
        e = torch.where(on, y[:, k] - means.sum(-1), 0.0)
        rows.append(_Row(h, a, means, variances, cross, e, S, on))
        gain = Ph / S[..., None]
        m = m + gain * e[..., None]
        G = G + torch.where(on, S, 0.0)[..., None, None] * gain[..., :, None] * gain[..., None, :]
    return rows, StructuralState(m, G, times[:, -1])


def _smooth_rows(rows: list[_Row]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run the smoother. Return mean and variance of each group, and u / d and d of each row."""
    r, out = torch.zeros_like(rows[0].decay), []
    N = _scaled(torch.zeros_like(r[..., None]), r)
    for row in reversed(rows):
        gain = row.cross.sum(-2) / row.innovation_var[..., None]
        NK = (N @ gain[..., None])[..., 0]
        u = row.innovation / row.innovation_var - (gain * r).sum(-1)
        d = 1 / row.innovation_var + (gain * NK).sum(-1)
        side = row.h[..., :, None] * NK[..., None, :]
        added = d[..., None, None] * row.h[..., :, None] * row.h[..., None, :] - side - side.mT
        r = r + torch.where(row.observed, u, 0.0)[..., None] * row.h
        N = N + torch.where(row.observed[..., None, None], added, 0.0)
        mean = row.mean + (row.cross @ r[..., None])[..., 0]
        var = row.var - ((row.cross @ N) * row.cross).sum(-1)
        out.append((mean, var.clamp_min(0), u / d, d))
        r, N = row.decay * r, _scaled(N, row.decay)
    mean, var, ratio, precision = (torch.stack(column[::-1], 1) for column in zip(*out, strict=True))
    return mean, var, ratio, precision
