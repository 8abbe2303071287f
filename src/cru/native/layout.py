"""Memory layouts and numbers that Python and C++ share.

Every structure here has a counterpart of the same name in ``common.h``. `generated_header` converts both lists to C++.
The compiler then refuses a structure whose size or offsets differ.
"""

import ctypes

import torch

from cru.functional.belief import bounds
from cru.functional.eigen import FLOOR_SLACK
from cru.functional.expm import MAX_DOUBLINGS
from cru.functional.transition import DiscreteTransition, EigenTransition, ExpmTransition
from cru.functional.update import MIN_VARIANCE

REAL = {torch.float32: ("float", 8), torch.float64: ("double", 4)}
"""The C++ type of each floating type, and the multiple that the size of an observation is padded to (32 bytes)."""
KINDS: dict[type, int] = {ExpmTransition: 0, EigenTransition: 1, DiscreteTransition: 2}
MAX_POINTS = 16
"""The largest Gauss-Lobatto rule of the compiled CRU."""
MAX_COEFFICIENTS = 64
"""The largest number of coefficients of one variable in the compiled structural model."""


def _integers(names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, ctypes.c_int64) for name in names.split())


def _arrays(names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, ctypes.c_void_p) for name in names.split())


class Beliefs(ctypes.Structure):
    """Arrays of a belief: the mean, and three diagonals of its covariance."""

    _fields_ = _arrays("mean upper lower side")


def _beliefs(names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, Beliefs) for name in names.split())


class FilterOutputs(ctypes.Structure):
    """Outputs of a filter."""

    _fields_ = _beliefs("prior posterior")


class FilterSaved(ctypes.Structure):
    """Inputs of the backward pass of a filter: its outputs and the gradients by them."""

    _fields_ = _beliefs("prior posterior grad_prior grad_posterior")


class LocallyLinearSizes(ctypes.Structure):
    """Sizes of the filter of CRU, f-CRU and RKN.

    ``kind`` is one of `KINDS`. ``inputs`` is the number of columns of the coefficient network.
    """

    _fields_ = _integers("kind batch time obs basis inputs")


class LocallyLinearInputs(ctypes.Structure):
    """Inputs of the filter of CRU, f-CRU and RKN."""

    _fields_ = (
        *_arrays("y y_var mask delta stepped"),
        *_beliefs("start"),
        *_arrays("weight bias basis eigenvectors noise quadrature"),
    )


class LocallyLinearGradients(ctypes.Structure):
    """Gradients by `LocallyLinearInputs`."""

    _fields_ = (*_arrays("y y_var"), *_beliefs("start"), *_arrays("weight bias basis eigenvectors noise"))


class PairedSizes(ctypes.Structure):
    """Sizes of the paired filter and smoother."""

    _fields_ = _integers("batch time obs")


class PairedInputs(ctypes.Structure):
    """Inputs of the paired filter. The fields from cos to side are the transitions."""

    _fields_ = (*_arrays("y y_var mask cos sin upper lower side"), *_beliefs("start"))


class PairedGradients(ctypes.Structure):
    """Gradients by `PairedInputs`."""

    _fields_ = (*_arrays("y y_var cos sin upper lower side"), *_beliefs("start"))


class SmoothInputs(ctypes.Structure):
    """Inputs of the paired smoother."""

    _fields_ = (*_beliefs("prior posterior"), *_arrays("cos sin upper lower"))


class SmoothGradients(ctypes.Structure):
    """Gradients by `SmoothInputs`, without those by the noise of a transition, on which G does not depend."""

    _fields_ = (*_beliefs("prior posterior"), *_arrays("cos sin"))


class StructuralSizes(ctypes.Structure):
    """Sizes of the structural model."""

    _fields_ = _integers("time variables coefficients groups")


class StructuralInputs(ctypes.Structure):
    """Inputs of the structural model. The fields mean and explained are the start."""

    _fields_ = _arrays("delta values mask regressors rate var noise mean explained group")


class StructuralFilterOutputs(ctypes.Structure):
    """Outputs of the structural filter."""

    _fields_ = _arrays("mean var nll state_mean state_explained")


class StructuralSmoothOutputs(ctypes.Structure):
    """Outputs of the structural smoother."""

    _fields_ = _arrays("mean var loo_mean loo_var")


class StructuralLikelihoodOutputs(ctypes.Structure):
    """The negative log likelihood, and its gradients or null."""

    _fields_ = _arrays("nll rate var noise values")


LAYOUTS: tuple[type[ctypes.Structure], ...] = (
    Beliefs,
    FilterOutputs,
    FilterSaved,
    LocallyLinearSizes,
    LocallyLinearInputs,
    LocallyLinearGradients,
    PairedSizes,
    PairedInputs,
    PairedGradients,
    SmoothInputs,
    SmoothGradients,
    StructuralSizes,
    StructuralInputs,
    StructuralFilterOutputs,
    StructuralSmoothOutputs,
    StructuralLikelihoodOutputs,
)


def generated_header(dtype: torch.dtype, padded: int) -> str:
    """Write the C++ header that ``common.h`` expects: constants, and a check of every layout.

    Args:
        dtype: the floating type of the library.
        padded: the padded size of the latent observation, which is the number of lanes in half a row of a matrix.

    Returns:
        The text of the header.
    """
    constants: dict[str, object] = {"REAL": REAL[dtype][0], "CRU_PADDED_OBS": padded}
    constants |= {f"CRU_{name.upper()}_BOUND": value for name, value in bounds(dtype)._asdict().items()}
    constants |= {f"CRU_KIND_{kind.__name__.removesuffix('Transition').upper()}": n for kind, n in KINDS.items()}
    constants |= {"CRU_MIN_VARIANCE": MIN_VARIANCE, "CRU_FLOOR_SLACK": FLOOR_SLACK}
    constants |= {"CRU_MAX_DOUBLINGS": MAX_DOUBLINGS, "CRU_MAX_POINTS": MAX_POINTS}
    constants |= {"CRU_MAX_COEFFICIENTS": MAX_COEFFICIENTS}
    lines = [f"#define {name} {value}" for name, value in constants.items()]
    checks = [check for layout in LAYOUTS for check in _checks(layout)]
    return "\n".join([*lines, "#define CRU_CHECK_LAYOUTS \\", *(f"  {check} \\" for check in checks), "", ""])


def _checks(layout: type[ctypes.Structure]) -> list[str]:
    """Write one assertion for the size of a structure, and one for the offset of each field."""
    name = layout.__name__
    facts = {f"sizeof({name})": ctypes.sizeof(layout)}
    facts |= {f"offsetof({name}, {field[0]})": getattr(layout, field[0]).offset for field in layout._fields_}
    return [f'static_assert({fact} == {value}, "Python has {fact} = {value}");' for fact, value in facts.items()]
