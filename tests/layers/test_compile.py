"""`torch.compile` of a layer and `torch.export` of its step.

They run in separate processes, because the run-time shape checks of pytest cannot be traced.
"""

import subprocess
import sys

import pytest

from cru import native

pytestmark = pytest.mark.slow

COMPILE = """
import os
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no further processes
import torch, cru

def check(name):
    layer = getattr(cru, name)(3, 8)
    x, times = torch.randn(4, 6, 3), torch.rand(4, 6).cumsum(1)
    x[0, 2] = torch.nan
    output, state = layer(x, times)
    output.sum().backward()
    expected = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    layer.zero_grad()
    # The other layers are traced as well, but PyTorch takes long to generate code.
    compiled = torch.compile(layer, fullgraph=True, backend="inductor" if name == "CRU" else "aot_eager")
    again, end = compiled(x, times)
    again.sum().backward()
    found = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
    torch.testing.assert_close(again, output)
    torch.testing.assert_close(end.upper, state.upper)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
"""

EXPORT = """
import torch, cru

def check(name):
    layer = getattr(cru, name)(3, 8)

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, time, *state):
            output, belief = self.layer.step(x, time, cru.Belief(*state))
            return output, *belief

    with torch.no_grad():
        _, state = layer(torch.randn(4, 6, 3), torch.rand(4, 6, dtype=torch.float64).cumsum(1))
        x, time = torch.randn(4, 3), state.time + 1.5
        program = torch.export.export(Step(), (x, time, *state))
        assert not any("cru" in str(node.target) for node in program.graph.nodes), "cru is needed"
        for gap in (0.0, 0.4, 1e5):
            found = program.module()(x, state.time + gap, *state)
            output, belief = layer.step(x, state.time + gap, state)
            torch.testing.assert_close(found[0], output, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found[2], belief.upper, rtol=1e-4, atol=1e-5)
"""


LAYERS = """
for name in ("CRU", "FastCRU", "RKN", "PairedCRU"):
    try:
        check(name)
    except Exception as error:
        raise AssertionError(name) from error
"""


@pytest.mark.parametrize(
    "program",
    [pytest.param(COMPILE, marks=pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")), EXPORT],
    ids=["compile", "export"],
)
def test_traced(program: str) -> None:
    """All layers in one process, because each process first loads the compiler of PyTorch."""
    run_program(program + LAYERS)


UNCOMPILED = """
import os, sys
os.environ["CRU_NATIVE"] = "0"
import torch, cru

assert "torch._dynamo" not in sys.modules, "the compiler of PyTorch takes a second to import"
layer, x, times = cru.CRU(3, 8), torch.randn(4, 6, 3), torch.rand(4, 6).cumsum(1)
expected, _ = layer(x, times)
found, _ = torch.compile(layer, backend="aot_eager")(x, times)
torch.testing.assert_close(found, expected)
assert torch._dynamo.utils.counters["graph_break"], "the sequence is not traced"
"""


def test_without_compiled_filters_the_sequence_is_not_traced() -> None:
    run_program(UNCOMPILED)


STRUCTURAL = """
import torch, cru
from cru.functional.structural import StructuralState

class Stream(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = cru.StructuralLayer(2, [1.0, 10.0], [24.0])

    def forward(self, values, times, *state):
        found = self.layer.filter(values, times, state=StructuralState(*state))
        return found.mean, found.var, *found.state

stream, values = Stream(), torch.randn(3, 4, 2)
values[0, 1] = torch.nan
with torch.no_grad():
    state = stream.layer.filter(values, torch.arange(4)).state
    program = torch.export.export(stream, (values, torch.arange(4.0, 8.0, dtype=torch.float64), *state)).module()
    compiled = torch.compile(stream, fullgraph=True, backend="eager")
    assert not any("cru" in str(node.target) for node in program.graph.nodes)
    for gap in (0.0, 0.4, 1e5):
        times = torch.arange(4.0, 8.0, dtype=torch.float64) + gap
        expected = stream(values, times, *state)
        for found in (program(values, times, *state), compiled(values, times, *state)):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
"""


def test_the_structural_layer_traced() -> None:
    run_program(STRUCTURAL)


def run_program(program: str) -> None:
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
