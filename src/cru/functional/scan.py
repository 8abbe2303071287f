"""The associative scan in O(log T) depth, and the 2×2 matrices that the paired filter combines with it."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from cru.shapes import Float

Elements = TypeVar("Elements", bound=tuple[Tensor, ...])


def associative_scan(
    combine: Callable[[Elements, Elements], Elements],
    elements: Elements,
    extend: Callable[[Elements, Elements], Elements] | None = None,
) -> Elements:
    """Compute e₀, e₀∘e₁, e₀∘e₁∘e₂, … along dimension 1.

    Args:
        combine: an associative operation on tuples of tensors (batch, time, …).
        elements: the tuple of tensors.
        extend: the operation where the first argument starts with e₀, which may be cheaper. None: ``combine``.

    >>> from cru.functional.scan import associative_scan
    >>> associative_scan(lambda a, b: (a[0] + b[0],), (torch.arange(5.0)[None],))
    (tensor([[ 0.,  1.,  3.,  6., 10.]]),)
    """
    count = elements[0].shape[1]
    if count < 2:
        return elements
    make, paired = _maker(elements), count // 2 * 2
    first, second = (make(e[:, start:paired:2] for e in elements) for start in (0, 1))
    extend = extend or combine
    odd = associative_scan(combine, combine(first, second), extend)
    later = make(e[:, 2::2] for e in elements)
    even = extend(make(o[:, : later[0].shape[1]] for o in odd), later) if later[0].shape[1] else later
    whole = (torch.cat([e[:, :1], v], 1) for e, v in zip(elements, even, strict=True))
    return make(_interleaved(a, b) for a, b in zip(whole, odd, strict=True))


def _maker(elements: Elements) -> Callable[[Iterable[Tensor]], Elements]:
    kind: Any = type(elements)
    make: Callable[[Iterable[Tensor]], Elements] = (
        kind._make if hasattr(kind, "_make") else kind
    )  # NamedTuple, or tuple
    return make


def _interleaved(even: Tensor, odd: Tensor) -> Tensor:
    """Interleave the even and the odd places. There may be one more even place."""
    both = torch.stack([even[:, : odd.shape[1]], odd], 2).flatten(1, 2)
    return both if even.shape[1] == odd.shape[1] else torch.cat([both, even[:, -1:]], 1)


class Matrix2(NamedTuple):
    """A 2×2 matrix of tensors [[a, b], [c, d]]."""

    a: Float[Tensor, "*any"]
    b: Float[Tensor, "*any"]
    c: Float[Tensor, "*any"]
    d: Float[Tensor, "*any"]

    def __matmul__(self, other: "Matrix2") -> "Matrix2":
        return Matrix2(
            self.a * other.a + self.b * other.c,
            self.a * other.b + self.b * other.d,
            self.c * other.a + self.d * other.c,
            self.c * other.b + self.d * other.d,
        )

    def plus(self, other: "Matrix2") -> "Matrix2":
        """Add a matrix (the operator `+` joins tuples)."""
        return Matrix2(*(x + y for x, y in zip(self, other, strict=True)))

    def minus(self, other: "Matrix2") -> "Matrix2":
        """Subtract a matrix."""
        return Matrix2(*(x - y for x, y in zip(self, other, strict=True)))

    @property
    def mT(self) -> "Matrix2":
        """The transpose."""
        return Matrix2(self.a, self.c, self.b, self.d)

    def inverse(self) -> "Matrix2":
        """Invert by the adjugate. The matrix must be regular."""
        scale = 1 / (self.a * self.d - self.b * self.c)
        return Matrix2(self.d * scale, -self.b * scale, -self.c * scale, self.a * scale)

    def times(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply by the vector (x, y)."""
        return self.a * x + self.b * y, self.c * x + self.d * y
