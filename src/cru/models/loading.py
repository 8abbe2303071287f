"""Models from the contents of a file. Everything is validated before use."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cru.errors import explained
from cru.models.base import Model, Spec
from cru.models.registry import check_loadable, create, is_own
from cru.schema import Schema, Size, check, check_options

_Shape = Annotated[list[Size], Field(min_length=1, max_length=3)]
_Time = Annotated[float, Field(ge=-1e30, le=1e30)]
_Length = Annotated[float, Field(ge=1e-30, le=1e30)]


class SpecSchema(Schema):
    """The fields of a `Spec` in JSON."""

    input_shape: _Shape
    target_shape: _Shape
    likelihood: Literal["gaussian", "bernoulli"]
    time_scale: _Length
    time_start: _Time
    time_end: _Time
    longest_gap: _Length | None
    causal: bool
    regression: bool


def load_spec(found: Any, where: Path | str) -> Spec:
    """Make a spec from the result of `Spec.as_dict`.

    Raises:
        ValueError: a field is missing or not valid.
    """
    listed = {key: list(value) if isinstance(value, tuple) else value for key, value in dict(found).items()}
    checked = check(SpecSchema, listed, where)
    try:
        return Spec.from_dict(checked.model_dump())
    except ValueError as error:
        raise explained(ValueError(f"{where} is damaged."), error) from None


def restore_model(
    name: str,
    spec: Spec,
    options: Any,
    tensors: Mapping[str, Tensor],
    where: Path | str,
    *,
    allow_code: bool,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """Make the model ``name`` with the weights ``tensors``.

    A model of this library is first created on the device "meta", without memory. Its tensors are compared with those
    of the file. A manipulated size in the file therefore cannot exhaust the memory.

    Args:
        name: name of the model.
        spec: description of the data.
        options: options of the model.
        tensors: the weights.
        where: the path of the file, for error messages.
        allow_code: whether a model outside this library may be imported.
        dtype: type of the weights.

    Raises:
        ValueError: the name, an option or a tensor is not valid.
    """
    check_loadable(name, where, allow_code=allow_code)
    options = check_options(options, where)
    try:
        if not is_own(name):
            with torch.device("meta"), _Limit(tensors):
                planned = create(name, spec, **options).to(dtype)
            check_tensors(tensors, planned.state_dict(), where)
        model = create(name, spec, **options).to(dtype)
        check_tensors(tensors, model.state_dict(), where)
    except (TypeError, ValueError, ArithmeticError, RuntimeError, LookupError, AssertionError) as error:
        if is_own(name):
            raise
        raise explained(ValueError(f"{where} must hold a model {name!r} whose options fit together."), error) from None
    model.load_state_dict(dict(tensors))
    return model.eval()


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: Path | str) -> None:
    """Check the tensors of a file.

    Args:
        tensors: the tensors.
        expected: tensors with the expected names, shapes and types.
        where: the path of the file, for error messages.

    Raises:
        ValueError: a name, shape or type differs, or a number is not finite.
    """
    odd = sorted(tensors.keys() ^ expected.keys())
    if odd:
        rule = "not one of them" if odd[0] in tensors else "missing"
        raise ValueError(f"{where} must hold the tensors of its model: {odd[0]!r:.100} is {rule}.")
    for name, tensor in expected.items():
        found = tensors[name]
        if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(
                f"{name!r:.100} in {where} must be {tensor.dtype} of the shape {tuple(tensor.shape)}, got "
                f"{found.dtype} of {tuple(found.shape)}."
            )
        if found.is_floating_point() and not bool(torch.isfinite(found).all()):
            raise ValueError(f"{name!r:.100} in {where} must hold finite numbers.")


class _Limit(TorchDispatchMode):
    """A mode that stops the construction of a model that is much larger than the tensors of its file."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries = 2**18 + 64 * sum(tensor.numel() for tensor in tensors.values())
        self.calls = 2000 + 200 * len(tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.calls -= 1
        self.entries -= made.numel() if isinstance(made, Tensor) else 0
        if self.calls < 0 or self.entries < 0:
            raise ValueError("the options must match the weights: they describe a much larger model.")
        return made
