"""Speed of the layers: forward + backward on the paper's three shapes, against the literal reference and `nn.GRU`.

One thread, CPU time, best of several, all contenders in one run. `python benchmarks/layers.py [--quick]`
"""

import subprocess
import sys

import torch
from common import best, report
from torch import Tensor, nn

import cru
from cru.functional import filter_sequence, filter_sequence_reference, gaps
from cru.layers import KalmanLayer

SHAPES = {  # batch, time, hidden size M, bases K, bandwidth b
    "pendulum": (50, 50, 30, 15, 3),
    "physionet": (100, 100, 20, 20, 10),
    "ushcn": (50, 730, 10, 15, 3),
}
KINDS = {"CRU": cru.CRU, "f-CRU": cru.FastCRU, "RKN": cru.RKN}


def layer(kind: str, hidden: int, basis: int, bandwidth: int, dtype: torch.dtype) -> KalmanLayer:
    """A layer whose transitions have ‖A‖ = 1.2 on average (RKN: A close to the identity), the same for every dtype.

    The transitions decay. Growing transitions make gradients overflow float32.
    """
    torch.manual_seed(0)
    options = {"num_basis": basis, "dtype": torch.float64} | ({} if kind == "f-CRU" else {"bandwidth": bandwidth})
    made = KINDS[kind](1, hidden, **options)
    with torch.no_grad():
        if kind == "f-CRU":
            made.eigenvalues.normal_(0, 0.4).abs_().neg_()
            made.raw_eigenvectors.normal_(0, 0.3)
        else:
            made.basis.values.normal_()
            index = torch.arange(made.obs_size)
            diagonal = (index[:, None] == index)[(index[:, None] - index).abs() <= bandwidth]
            made.basis.values[:, [[0], [3]], diagonal.nonzero().squeeze(1)] -= mixtures(made).mean()
            made.basis.values.mul_((0.02 if kind == "RKN" else 1.2) / mixtures(made).mean())
        made.coefficients.weight.normal_(0, 0.3)
    return made.to(dtype)


def mixtures(made: KalmanLayer, count: int = 1000) -> Tensor:
    """Spectral norms of A = Σ α_k B_k for random weights α."""
    alpha = torch.softmax(torch.randn(count, made.num_basis, generator=torch.Generator().manual_seed(2)), -1)
    basis = made.basis().detach().double()
    return torch.linalg.matrix_norm(torch.einsum("bk,kij->bij", alpha.double(), basis), 2)


def latent(batch: int, time: int, obs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Observations, variances and times: exponential gaps of mean 1, at most 2.5."""
    generator = torch.Generator().manual_seed(1)
    y = torch.randn(batch, time, obs, generator=generator, dtype=torch.float64)
    y_var = 0.1 + torch.rand(batch, time, obs, generator=generator, dtype=torch.float64)
    delta = torch.empty(batch, time, dtype=torch.float64).exponential_(generator=generator).clamp(max=2.5)
    return y.to(dtype).requires_grad_(), y_var.to(dtype).requires_grad_(), delta.cumsum(1)


def norms(made: KalmanLayer, delta: Tensor) -> str:
    """Mean and largest ‖A Δ‖ (spectral norm)."""
    if not isinstance(made, cru.CRU):
        return "-"
    size = mixtures(made, delta.numel()) * delta.flatten()
    return f"{size.mean():.1f} / {size.max():.1f}"


def fast(made: KalmanLayer, y: Tensor, y_var: Tensor, times: Tensor) -> None:
    made.filter(y, y_var, times).posterior.mean.square().mean().backward()


def literal(made: KalmanLayer, y: Tensor, y_var: Tensor, times: Tensor) -> None:
    delta = gaps(times, None, 1.0, y.dtype)
    mask = torch.ones_like(y, dtype=torch.bool)
    _, posterior = filter_sequence_reference(made.transition(), made.initial(len(y)), y, y_var, mask, delta)
    posterior.mean.square().mean().backward()


def in_pytorch(made: KalmanLayer, y: Tensor, y_var: Tensor, times: Tensor) -> None:
    delta = gaps(times, None, 1.0, y.dtype)
    mask = torch.ones_like(y, dtype=torch.bool)
    stepped = delta != 0
    stepped[:, 0] = False
    _, posterior = filter_sequence(made.transition(), made.initial(len(y)), y, y_var, mask, delta, stepped)
    posterior.mean.square().mean().backward()


def smoother(made: cru.PairedCRU, y: Tensor, y_var: Tensor, times: Tensor) -> None:
    made.smooth(y, y_var, times).mean.square().mean().backward()


def check_gradients(y: Tensor, expected: Tensor) -> None:
    """Raise RuntimeError if the gradients of two implementations differ."""
    error = float((y.grad.double() - expected.grad).abs().max() / expected.grad.abs().max())
    if not error < 1e-3:
        raise RuntimeError(f"the gradients differ by {error:.1g} of the largest.")
    y.grad = expected.grad = None


def against_reference(quick: bool) -> None:
    rows, paired = [], []
    for shape, (batch, time, hidden, basis, bandwidth) in SHAPES.items():
        if quick:
            time = min(time, 20)
        gru, x = nn.GRU(hidden // 2, 75, batch_first=True), torch.randn(batch, time, hidden // 2, requires_grad=True)
        gru_time = best(lambda gru=gru, x=x: gru(x)[0].square().mean().backward())
        for kind in KINDS:
            sizes = (hidden, basis, bandwidth)
            low, high = (torch.float32, torch.float64)
            quick_inputs, exact_inputs = (latent(batch, time, hidden // 2, dtype) for dtype in (low, high))
            made, exact = layer(kind, *sizes, low), layer(kind, *sizes, high)
            fast(made, *quick_inputs)
            literal(exact, *exact_inputs)
            check_gradients(quick_inputs[0], exact_inputs[0])
            fast_time = best(lambda made=made, inputs=quick_inputs: fast(made, *inputs))
            double_time = best(lambda made=exact, inputs=exact_inputs: fast(made, *inputs), 3)
            torch_time = best(lambda made=made, inputs=quick_inputs: in_pytorch(made, *inputs), 3)
            reference_time = best(lambda made=exact, inputs=exact_inputs: literal(made, *inputs), 2)
            delta = gaps(quick_inputs[2], None, 1.0, high)
            cells = [1e3 * t for t in (reference_time, torch_time, double_time, fast_time)]
            ratios = [f"{reference_time / torch_time:.1f}×", f"{reference_time / fast_time:.0f}×"]
            gru_cells = [1e3 * gru_time, f"{fast_time / gru_time:.2f}"]
            rows.append([shape, kind, norms(made, delta), *cells, *ratios, *gru_cells])
            print(f"{shape} {kind}: {', '.join(ratios)}", flush=True)
            if kind == "CRU":
                paired.append([shape, *paired_row(batch, time, hidden, reference_time, gru_time)])
    columns = ["shape", "layer", "‖AΔ‖ mean / max", "reference, float64 (ms)", "PyTorch, float32 (ms)"]
    columns += [
        "compiled, float64 (ms)",
        "compiled, float32 (ms)",
        "reference / PyTorch",
        "reference / compiled",
        "GRU 75 (ms)",
        "compiled / GRU",
    ]
    report("layers", "Layers: forward + backward, one thread, CPU time", columns, rows)
    columns = ["shape", "pairs", "float64 (ms)", "float32 (ms)", "on a grid of 10 gaps (ms)", "smoother, float32 (ms)"]
    columns += ["CRU reference / paired", "GRU 75 (ms)", "paired / GRU"]
    report("layers-paired", "Paired CRU: forward + backward, one thread, CPU time", columns, paired)


def paired_row(batch: int, time: int, hidden: int, reference: float, gru: float) -> list[object]:
    """Measure a paired layer, also on a regular grid, where equal gaps are computed once."""
    found = []
    cases = ((fast, torch.float64, False), (fast, torch.float32, False), (fast, torch.float32, True))
    for work, dtype, grid in (*cases, (smoother, torch.float32, False)):
        made, (y, y_var, times) = cru.PairedCRU(1, hidden, dtype=dtype), latent(batch, time, hidden // 2, dtype)
        inputs = (y, y_var, (4 * times).round() / 4 if grid else times)
        found.append(best(lambda work=work, made=made, inputs=inputs: work(made, *inputs)))
    ratios = f"{reference / found[1]:.0f}×", 1e3 * gru, f"{found[1] / gru:.2f}"
    return [hidden // 2, *(1e3 * seconds for seconds in found), *ratios]


def scaling() -> None:
    rows = []
    for kind in KINDS:
        times = {}
        for time in (50, 100, 200, 400, 800):
            made, inputs = layer(kind, 20, 15, 3, torch.float32), latent(50, time, 10, torch.float32)
            times[time] = best(lambda made=made, inputs=inputs: fast(made, *inputs), 5)
        rows.append([f"{kind}, T", *(1e3 * t for t in times.values()), f"{times[800] / times[50]:.1f}× for 16×"])
    report(
        "layers-time",
        "Time (ms) against length T = 50, 100, 200, 400, 800 (batch 50, M 20)",
        ["layer", "50", "100", "200", "400", "800", "growth"],
        rows,
    )
    rows = []
    sizes = (10, 20, 50, 100, 200)
    for kind in ("CRU", "f-CRU"):
        times = {}
        for hidden in sizes:
            made, inputs = layer(kind, hidden, 15, 3, torch.float32), latent(20, 20, hidden // 2, torch.float32)
            times[hidden] = best(lambda made=made, inputs=inputs: fast(made, *inputs), 5)
        exponent = torch.tensor(times[200] / times[10]).log().item() / torch.tensor(20.0).log().item()
        rows.append(
            [kind, *(1e3 * t for t in times.values()), f"{times[200] / times[10]:.0f}× for 20× (M^{exponent:.2f})"]
        )
    report(
        "layers-size", "Time (ms) against state size M (batch 20, T 20)", ["layer", *map(str, sizes), "growth"], rows
    )


def paired_scaling() -> None:
    sweeps = {
        "T (batch 10, M 20)": [(time, 10, time, 20) for time in (50, 200, 1000, 5000, 20000)],
        "M (batch 20, T 20)": [(hidden, 20, 20, hidden) for hidden in (10, 50, 200, 500, 1000)],
    }
    for title, cases in sweeps.items():
        times = {}
        for size, batch, time, hidden in cases:
            made, inputs = cru.PairedCRU(1, hidden), latent(batch, time, hidden // 2, torch.float32)
            times[size] = best(lambda made=made, inputs=inputs: fast(made, *inputs), 5)
        least, most = min(times), max(times)
        growth = f"{times[most] / times[least]:.0f}× for {most // least}×"
        report(
            f"layers-paired-{title[0]}",
            f"Paired CRU: time (ms) against {title}",
            [*map(str, times), "growth"],
            [[*(1e3 * seconds for seconds in times.values()), growth]],
        )


MEMORY = """
import sys, torch
from pathlib import Path
sys.path.insert(0, "benchmarks")
from layers import SHAPES, KINDS, fast, latent, layer
torch.set_num_threads(1)
batch, time, *sizes = SHAPES["ushcn"]
made, inputs = layer(sys.argv[1], *sizes, torch.float32), latent(batch, time, 5, torch.float32)
def peak():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return float(line.split()[1]) / 1024
before = peak()
optimiser = torch.optim.Adam(made.parameters())
fast(made, *inputs)
optimiser.step()
print(before, peak())
"""


def memory() -> None:
    rows = []
    for kind in KINDS:
        result = subprocess.run([sys.executable, "-c", MEMORY, kind], capture_output=True, text=True, check=True)
        before, peak = (float(number) for number in result.stdout.split())
        rows.append([kind, before, peak, peak - before])
    report(
        "layers-memory",
        "Memory (MB) of a process that takes one USHCN training step",
        ["layer", "before", "peak", "the step"],
        rows,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    against_reference("--quick" in sys.argv)
    scaling()
    paired_scaling()
    memory()
