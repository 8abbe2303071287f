"""Shapes of arrays and tensors in annotations: those of jaxtyping where it is installed, as in the tests.

>>> from cru.shapes import Float
>>> import torch
>>> def scale(x: Float[torch.Tensor, "batch time"]) -> Float[torch.Tensor, "batch time"]:
...     return 2 * x
"""

from typing import TYPE_CHECKING, Any

__all__ = ["Bool", "Float", "Float32", "Float64", "Int", "Int64", "Real", "Shaped", "UInt8"]

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float32, Float64, Int, Int64, Real, Shaped, UInt8
else:
    try:
        from jaxtyping import Bool, Float, Float32, Float64, Int, Int64, Real, Shaped, UInt8
    except ModuleNotFoundError:

        class _Unchecked:
            """An annotation that stands for the type of the array alone."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Float32 = Float64 = Int = Int64 = Real = Shaped = UInt8 = _Unchecked
