"""Locally linear transitions (section 3.3.1) as plain data: each variant has its parameters and one predict step."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import linear

from cru.functional.belief import Belief, finite_gradient
from cru.functional.discrete import predict_discrete, predict_discrete_reference
from cru.functional.eigen import predict_eigen, predict_eigen_reference
from cru.functional.expm import doublings, predict_expm, predict_expm_reference, spectral_bound_of_means
from cru.shapes import Float


class Coefficients(NamedTuple):
    """The transition network α = softmax(W μ⁺ + b). An optional column M + 1 of W multiplies the gap."""

    weight: Float[Tensor, "basis inputs"]
    bias: Float[Tensor, " basis"]

    def alpha(self, mean: Float[Tensor, "batch state"], delta: Float[Tensor, " batch"]) -> Float[Tensor, "batch basis"]:
        """Compute the weight of each basis matrix for the next gap."""
        state = mean.shape[-1]
        logits = linear(mean, self.weight[:, :state], self.bias)
        if self.weight.shape[1] > state:
            logits = logits + delta[:, None] * self.weight[:, state]
        return logits.softmax(-1)


@runtime_checkable
class Transition(Protocol):
    """Interface of a transition for the filter."""

    @property
    def coefficients(self) -> Coefficients:
        """The network that computes the weights of the basis matrices."""

    @property
    def noise(self) -> Float[Tensor, " state"]:
        """The variance q that the state gains per unit of time."""

    def plan(self, delta: Float[Tensor, "*gaps"]) -> int:
        """Compute the number that `predict` needs of all gaps, before the loop."""

    def predict(self, belief: Belief, delta: Float[Tensor, " batch"], plan: int) -> Belief:
        """Predict the prior after a gap.

        Args:
            belief: the belief before the gap.
            delta: the gap of each series.
            plan: the result of `plan`.
        """

    def predict_reference(self, belief: Belief, delta: Float[Tensor, " batch"]) -> Belief:
        """Predict the prior after a gap, literally as in the paper."""


class ExpmTransition(NamedTuple):
    """CRU: A = Σ_k α_k B_k for any matrices B_k, with the matrix exponential."""

    coefficients: Coefficients
    basis: Float[Tensor, "basis state state"]
    noise: Float[Tensor, " state"]

    def matrix(self, belief: Belief, delta: Float[Tensor, " batch"]) -> Float[Tensor, "batch state state"]:
        """Compute A at this belief."""
        return torch.einsum("bk,kij->bij", self.coefficients.alpha(belief.mean, delta), self.basis)

    def plan(self, delta: Float[Tensor, "*gaps"]) -> int:
        """Bound the number of doublings of any step. The bound holds for every α, because α sums to one."""
        return doublings(spectral_bound_of_means(self.basis) * delta.detach())

    def predict(self, belief: Belief, delta: Float[Tensor, " batch"], plan: int) -> Belief:
        """Call `predict_expm`."""
        return predict_expm(belief, delta, self.matrix(belief, delta), self.noise, plan)

    def predict_reference(self, belief: Belief, delta: Float[Tensor, " batch"]) -> Belief:
        """Call `predict_expm_reference`."""
        return predict_expm_reference(belief, delta, self.matrix(belief, delta), self.noise)


class EigenTransition(NamedTuple):
    """f-CRU: A = E diag(Σ_k α_k d_k) Eᵀ. It is symmetric, and the matrices of all α commute."""

    coefficients: Coefficients
    eigenvalues: Float[Tensor, "basis state"]
    eigenvectors: Float[Tensor, "state state"]
    noise: Float[Tensor, " state"]

    def spectrum(self, belief: Belief, delta: Float[Tensor, " batch"]) -> Float[Tensor, "batch state"]:
        """Compute the eigenvalues of A at this belief."""
        return self.coefficients.alpha(belief.mean, delta) @ self.eigenvalues

    def plan(self, delta: Float[Tensor, "*gaps"]) -> int:
        """Return 0: this predict step needs no number."""
        return 0

    def predict(self, belief: Belief, delta: Float[Tensor, " batch"], plan: int) -> Belief:
        """Call `predict_eigen`."""
        return predict_eigen(belief, delta, self.spectrum(belief, delta), self.eigenvectors, self.noise)

    def predict_reference(self, belief: Belief, delta: Float[Tensor, " batch"]) -> Belief:
        """Call `predict_eigen_reference`."""
        return predict_eigen_reference(belief, delta, self.spectrum(belief, delta), self.eigenvectors, self.noise)


class DiscreteTransition(NamedTuple):
    """RKN: A = I + Σ_k α_k B_k, applied once per step."""

    coefficients: Coefficients
    basis: Float[Tensor, "basis state state"]
    noise: Float[Tensor, " state"]

    def matrix(self, belief: Belief, delta: Float[Tensor, " batch"]) -> Float[Tensor, "batch state state"]:
        """Compute A at this belief."""
        eye = torch.eye(self.basis.shape[-1], dtype=self.basis.dtype, device=self.basis.device)
        return eye + torch.einsum("bk,kij->bij", self.coefficients.alpha(belief.mean, delta), self.basis)

    def plan(self, delta: Float[Tensor, "*gaps"]) -> int:
        """Return 0: this predict step needs no number."""
        return 0

    def predict(self, belief: Belief, delta: Float[Tensor, " batch"], plan: int) -> Belief:
        """Call `predict_discrete`."""
        return predict_discrete(belief, self.matrix(belief, delta), self.noise)

    def predict_reference(self, belief: Belief, delta: Float[Tensor, " batch"]) -> Belief:
        """Call `predict_discrete_reference`."""
        return predict_discrete_reference(belief, self.matrix(belief, delta), self.noise)


def parameters_of(transition: Transition) -> list[Tensor]:
    """Return all tensors of a transition: weight and bias of the network, then the others in their order."""
    return [*transition.coefficients, *cast(Any, transition)[1:]]


def with_parameters(transition: Transition, parameters: Sequence[Tensor]) -> Transition:
    """Return the transition with other tensors, in the order of `parameters_of`."""
    weight, bias, *others = parameters
    return cast(Transition, cast(Any, type(transition))(Coefficients(weight, bias), *others))


def with_finite_gradients(transition: Transition) -> Transition:
    """Apply `finite_gradient` to all parameters, because a product can overflow in the backward pass of a long gap."""
    return with_parameters(transition, [finite_gradient(parameter) for parameter in parameters_of(transition)])
