"""Runtime against the size M of the latent state."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from cru.evaluation.figures.palette import look
from cru.evaluation.figures.style import line, make_figure, plain
from cru.evaluation.timing import best

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor
    from torch.nn import Module

SIZES = (10, 20, 40, 80, 160)
_LAYERS = {"cru": "CRU", "f-cru": "FastCRU", "paired": "PairedCRU"}


def measure_runtime(
    sizes: Sequence[int] = SIZES, *, batch: int = 20, steps: int = 20, repeats: int = 5
) -> dict[str, dict[int, float]]:
    """CPU seconds of a forward and backward pass of each layer for each M: one thread, best of ``repeats``.

    Gaps of mean 1 and, for the CRU, transitions of ‖A‖ = 1.2 or so: as a layer is made, A = 0, and its exponential
    costs nothing.

    >>> measure_runtime([4], batch=2, steps=3, repeats=1)["cru"].keys()
    dict_keys([4])
    """
    import torch

    from cru import layers

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    measured: dict[str, dict[int, float]] = {name: {} for name in _LAYERS}
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for size in sizes:
                x = torch.randn(batch, steps, size // 2)
                times = torch.empty(batch, steps, dtype=torch.float64).exponential_().clamp(max=2.5).cumsum(1)
                for name, kind in _LAYERS.items():
                    layer = getattr(layers, kind)(size // 2, size)
                    _stir(layer)
                    _step(layer, x, times)  # the filter is compiled on first use
                    measured[name][size] = best(partial(_step, layer, x, times), repeats)
    finally:
        torch.set_num_threads(threads)
    return measured


def _stir(layer: "Module") -> None:
    """Transitions as large as after a training."""
    import torch

    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name == "basis.values":
                weights = torch.randn(50, len(parameter)).softmax(-1)
                parameter.normal_()
                basis = layer.basis()  # type: ignore[operator]
                norms = torch.linalg.matrix_norm(torch.einsum("nk,kij->nij", weights, basis), 2)
                parameter.mul_(1.2 / norms.mean())
            elif name in ("eigenvalues", "raw_eigenvectors"):
                parameter.normal_(0, 0.3)


def _step(layer: "Module", x: "Tensor", times: "Tensor") -> None:
    layer(x, times)[0].sum().backward()


def draw_runtime(measured: Mapping[str, Mapping[int, float]], *, title: str = "") -> "Figure":
    """Milliseconds against M, both logarithmic, a line for each layer."""
    figure = make_figure(5.6, 3.8)
    axis = figure.subplots()
    for name, seconds in measured.items():
        milliseconds = [1e3 * value for value in seconds.values()]
        axis.plot(list(seconds), milliseconds, marker="o", markersize=4, label=look(name).name, **line(name))
    sizes = sorted({size for seconds in measured.values() for size in seconds})
    axis.set(xscale="log", yscale="log")
    axis.set_xticks(sizes, [str(size) for size in sizes], minor=False)
    axis.set_xticks([], minor=True)
    plain(axis, x="latent state size M [dimensions]", y="forward and backward pass [ms of CPU time]", title=title)
    axis.legend(fontsize=8, frameon=False)
    return figure
