"""How a layer is built: one description of its options, and a short path from a call to the recursion."""

import inspect
import sys

import pytest
import torch

import cru
from cru import native
from cru.layers import KalmanLayer
from tests.helpers import calls_of

COMMON = ["time_scale", "noise_map", "variance_map", "device", "dtype"]
OPTIONS = {
    "CRU": ["coupling", "num_basis", "bandwidth", *COMMON],
    "FastCRU": ["num_basis", "bandwidth", *COMMON],
    "RKN": ["time_aware", "num_basis", "bandwidth", *COMMON],
    "PairedCRU": ["span", *COMMON],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_signature_shows_every_option_with_its_default(name: str) -> None:
    parameters = inspect.signature(getattr(cru, name)).parameters
    assert list(parameters) == ["input_size", "hidden_size", *OPTIONS[name]]
    base = inspect.signature(KalmanLayer).parameters
    for option in COMMON:
        assert parameters[option] == base[option]
    assert all(parameters[option].kind is inspect.Parameter.KEYWORD_ONLY for option in OPTIONS[name])
    defaults = {option: parameters[option].default for option in OPTIONS[name]}
    assert getattr(cru, name)(2, 4, **defaults).extra_repr() == getattr(cru, name)(2, 4).extra_repr()


def test_a_subclass_with_its_own_constructor_shows_it() -> None:
    class Own(cru.CRU):
        def __init__(self, size: int) -> None:
            super().__init__(size, 2 * size)

    class Loose(cru.CRU):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)

    assert list(inspect.signature(Own).parameters) == ["size"]
    assert list(inspect.signature(Loose).parameters) == ["args", "kwargs"]
    assert Own(4).hidden_size == Loose(4, 8).hidden_size == 8


@pytest.mark.parametrize("name", OPTIONS)
def test_an_unknown_option_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'hidden'"):
        getattr(cru, name)(2, 4, hidden=3)


MOST_FILES = {"CRU": 8, "FastCRU": 9, "RKN": 9, "PairedCRU": 10}  # a transition in closed form has files of its own


@pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", OPTIONS)
def test_a_call_passes_through_few_files_and_two_private_stages(name: str) -> None:
    layer, x, times = getattr(cru, name)(3, 8), torch.randn(2, 5, 3), torch.arange(5.0)
    layer(x, times)  # the first call loads the compiled filter
    found = calls_of(lambda: layer(x, times))
    assert len(found) <= MOST_FILES[name], sorted(found)
    files = ("layers/filter.py", "layers/cru.py", "layers/paired.py")
    private = {function for file in files for function in found.get(file, ()) if function.startswith("_")}
    dynamics = {"_coefficients", "_transitions"}  # compute what the recursion reads, and pass nothing on
    assert private - dynamics == {"_prepare_inputs", "_filter_sequence"}


def test_the_gain_is_computed_on_access_only(monkeypatch) -> None:
    from cru.functional import update

    layer, y, times = cru.CRU(3, 8), torch.randn(2, 5, 4), torch.arange(5.0)
    expected = layer.filter(y, torch.ones_like(y), times)
    upper = expected.prior.upper / (expected.prior.upper + 1)
    torch.testing.assert_close(expected.gain.upper, upper)
    module = sys.modules[update.__module__]
    monkeypatch.setattr(module, "gain", None)
    result = layer.filter(y, torch.ones_like(y), times)
    with pytest.raises(TypeError):
        _ = result.gain
