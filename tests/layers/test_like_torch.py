"""What people do with `torch.nn.GRU` and expect of these layers, too."""

import copy
import inspect
import io

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import cru
from cru import native
from cru.layers.checks import as_mask

LAYERS = {
    "cru": lambda **options: cru.CRU(2, 8, coupling=0.3, **options),
    "f-cru": lambda **options: cru.FastCRU(2, 8, **options),
    "rkn": lambda **options: cru.RKN(2, 8, **options),
    "rkn-dt": lambda **options: cru.RKN(2, 8, time_aware=True, **options),
    "paired": lambda **options: cru.PairedCRU(2, 8, span=20.0, **options),
}
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def moved(layer: nn.Module) -> nn.Module:
    """With other parameters than at the start, where much is zero."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer


@every_layer
def test_a_state_is_a_copy(make):
    layer, x, clock, state, outputs = make(), torch.randn(4, 6, 2), torch.zeros(4), None, []
    with torch.no_grad():
        for step in range(6):
            output, state = layer.step(x[:, step], clock, state)
            outputs.append(output)
            clock += 0.5  # in place
        whole, state = layer(x, torch.arange(6) * 0.5)
        torch.testing.assert_close(torch.stack(outputs, 1), whole, rtol=1e-4, atol=1e-5)
        before = state.mean.clone()
        whole.mul_(10)
        assert torch.equal(state.mean, before)
        file = io.BytesIO()
        torch.save(layer(torch.randn(1, 5000, 2), torch.arange(5000.0))[1], file)
    assert len(file.getvalue()) < 10_000


@every_layer
def test_the_output_may_be_changed_in_place(make):
    layer, x = make(), torch.randn(3, 5, 2)
    output = layer(x, torch.arange(5.0))[0]
    output += 1
    output.relu_().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)


@every_layer
def test_begun_anew_it_is_as_new(make):
    torch.manual_seed(5)
    new = make()
    after = torch.rand(())
    for layer in (moved(make()), make(device="meta").to_empty(device="cpu")):
        torch.manual_seed(5)
        layer.reset_parameters()
        assert torch.equal(torch.rand(()), after)
        for name, value in new.state_dict().items():
            assert torch.equal(layer.state_dict()[name], value), name


def test_reset_parameters_unfreezes_a_layer():
    layer = moved(cru.FastCRU(2, 8)).eval()
    layer.freeze()
    layer.reset_parameters()
    x, times = torch.randn(1, 3, 2), torch.arange(3.0)
    torch.testing.assert_close(layer(x, times)[0], copy.deepcopy(layer)(x, times)[0])
    assert layer.eigenvalues.std() == 0


@pytest.mark.parametrize("kind", [cru.CRU, cru.FastCRU, cru.RKN, cru.PairedCRU])
def test_made_without_a_start_or_elsewhere_than_by_default(kind):
    assert nn.utils.skip_init(kind, 2, 8).input_size == 2
    with torch.device("meta"):
        assert {parameter.device.type for parameter in kind(2, 8, device="cpu").parameters()} == {"cpu"}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, of its forward mode
@every_layer
def test_forward_mode_and_second_derivatives_of_functions(make):
    layer, x, times = (
        moved(make(dtype=torch.float64)),
        torch.randn(1, 3, 2).double(),
        torch.tensor([0.0, 0.7, 2.0]).double(),
    )
    direction = torch.randn_like(x)

    def answer(value):
        return layer(value, times)[0]

    whole = torch.autograd.functional.jacobian(answer, x)
    expected = torch.einsum("abcdef,def->abc", whole, direction)
    torch.testing.assert_close(torch.func.jvp(answer, (x,), (direction,))[1], expected)
    with forward_ad.dual_level():
        torch.testing.assert_close(forward_ad.unpack_dual(answer(forward_ad.make_dual(x, direction))).tangent, expected)
    torch.testing.assert_close(torch.func.jacrev(answer)(x), whole)
    gaps = torch.func.jacrev(lambda value: layer(x, value)[0])(times)
    torch.testing.assert_close(torch.func.jacfwd(lambda value: layer(x, value)[0])(times), gaps)
    curvature = torch.func.hessian(lambda value: answer(value).square().sum())(x)
    slope = torch.func.grad(lambda value: answer(value).square().sum())
    step = 1e-5 * direction
    numeric = (slope(x + step) - slope(x - step)) / 2e-5
    torch.testing.assert_close(torch.einsum("abcdef,def->abc", curvature, direction), numeric, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["cru", "f-cru", "paired"])
def test_a_gap_of_zero_has_a_derivative(name):
    layer, x = moved(LAYERS[name](dtype=torch.float64)), torch.randn(1, 3, 2).double()
    times = torch.tensor([[0.0, 0.0, 1.0]]).double().requires_grad_()

    def answer(at):
        return layer(x, at)[0].sum()

    slope = torch.autograd.grad(answer(times), times)[0][0, 1]
    here, near, far = (answer(times + torch.tensor([[0.0, step, 0.0]]).double()) for step in (0.0, 1e-6, 2e-6))
    torch.testing.assert_close(slope, (4 * near - 3 * here - far) / 2e-6, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", ["cru", "paired"])
def test_a_second_derivative_says_what_to_do_and_that_works(name, monkeypatch):
    layer, x, times = LAYERS[name](), torch.randn(2, 4, 2, requires_grad=True), torch.arange(4.0)

    def penalty():
        slope = torch.autograd.grad(layer(x, times)[0].square().sum(), x, create_graph=True)[0]
        slope.square().sum().backward()

    with pytest.raises(RuntimeError, match="for a second one set CRU_NATIVE=0"):
        penalty()
    monkeypatch.setenv("CRU_NATIVE", "0")
    penalty()
    assert torch.isfinite(x.grad).all()


def test_impossible_beliefs_are_refused():
    layer = cru.CRU(2, 8)
    negative = cru.Belief(torch.zeros(1, 8), *torch.full((3, 1, 4), -1.0))
    correlated = layer.initial(1)._replace(side=torch.full((1, 4), 50.0))
    for state in (negative, correlated):
        with pytest.raises(ValueError, match="`state` must have a valid covariance"):
            layer(torch.randn(1, 3, 2), torch.arange(3.0), state=state)


def test_weights_that_would_be_ignored_are_refused():
    layer = cru.CRU(2, 8)
    nn.utils.parametrizations.weight_norm(layer.coefficients)
    layer(torch.randn(1, 3, 2), torch.arange(3.0))
    layer.coefficients = nn.Sequential(nn.Linear(8, 15), nn.Tanh())
    with pytest.raises(ValueError, match="`coefficients` must be a plain"):
        layer(torch.randn(1, 3, 2), torch.arange(3.0))


def test_first_mistakes_get_a_sentence():
    layer, x, times = cru.CRU(2, 8), torch.randn(1, 3, 2), torch.arange(3.0)
    for arguments, sentence in (
        ((x[0], times), r"For one series, pass x\[None\]"),
        ((x, times.to("meta")), "`times` must be on cpu"),
        ((x, times, None, layer.initial(1).to("meta")), "`state.mean` must be on cpu"),
    ):
        with pytest.raises(ValueError, match=sentence):
            layer(*arguments)
    with pytest.raises(ValueError, match="got a belief"):
        inspect.unwrap(as_mask)(layer.initial(1), x)  # as it is outside the tests, without checks of types


def test_the_representation_is_readable():
    assert "time_aware=True" in repr(cru.RKN(2, 8, time_aware=True)) and "span=20.0" in repr(LAYERS["paired"]())
    assert "bandwidth=3, coupling=0.3" in repr(LAYERS["cru"]())
