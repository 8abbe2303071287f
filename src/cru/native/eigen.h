// The predict step of the f-CRU in its eigenbasis. The maths is in cru/functional/eigen.py.
#pragma once
#include "matrix.h"

// φ₁(x) = (eˣ - 1) / x, given eˣ, and optionally its derivative. Near zero, a Taylor series gives both.
template <bool SLOPE>
inline void phi1(vec x, vec exponential, vec& value, vec& slope) {
  constexpr int ORDER = SINGLE ? 6 : 14;
  constexpr real NEAR = SINGLE ? real(0.25) : real(0.5);
  vec series = splat(1), derivative = {};
  for (int k = ORDER; k >= 2; --k) {  // series = Σ x^(k-1) / k!
    if (SLOPE) derivative = (series + x * derivative) * (real(1) / k);
    series = 1 + x * series * (real(1) / k);
  }
  const auto near = (x < NEAR) & (x > -NEAR);
  const vec inverse = 1 / x;
  value = near ? series : (exponential - 1) * inverse;
  if (SLOPE) slope = near ? derivative : (exponential - value) * inverse;
}

// The parameters that all steps share, or the gradients by them.
struct EigenBasis {
  Matrix E;             // row j, lane a = E_ja
  Matrix E_transposed;  // Eᵀ
  Matrix S;             // Eᵀ diag(q) E
};
struct EigenScratch {
  Matrix rotated;                   // Eᵀ Σ E
  Matrix covariance_after;          // F, the covariance in the eigenbasis after the gap
  Matrix covariance_after_Et;       // F Eᵀ
  Matrix weighted;                  // Σ E forward, G E backward
  Matrix grad_covariance_after;     // the gradient by F, later by `rotated`
  Matrix integral, integral_slope;  // Δ φ₁ and Δ φ₁' of the sums of exponents, for the gradient
};

struct Eigen {
  int D;
  real smallest_noise;  // min q
  const EigenBasis& basis;
  EigenScratch& scratch;
  const Matrix &E = basis.E, &E_transposed = basis.E_transposed, &S = basis.S;

  struct EigenStep {
    LaneRow exponent, growth, mode;  // d Δ (clamped), exp(d Δ), Eᵀ μ
  };

  EigenStep start(const LaneRow& eigenvalues, real delta, const LaneRow& mean) const {
    EigenStep step = {};
    const real limit = std::log(TRANSITION_BOUND);
    for (int v = 0; v < NV; ++v) step.growth.v[v] = splat(1);
    each_row(D, [&](int a) {
      step.exponent[a] = std::min(eigenvalues[a] * delta, limit);
      step.growth[a] = std::exp(step.exponent[a]);
    });
    each_row(D, [&](int j) {
      for (int v = 0; v < NV; ++v) step.mode.v[v] += mean[j] * E[j].v[v];
    });
    return step;
  }

  // Fill `rotated`, `covariance_after` and `covariance_after_Et`; for the gradient also the two integrals.
  template <bool GRADIENT>
  void covariance(const EigenStep& step, real delta, const State& in) const {
    Matrix &rotated = scratch.rotated, &covariance_after = scratch.covariance_after, &weighted = scratch.weighted;
    for (int j = 0; j < D; ++j) {
      const real u = in.variance[j], l = in.variance[P + j], s = in.side[j];
      for (int v = 0; v < NV; ++v) {
        weighted[j].v[v] = u * E[j].v[v] + s * E[P + j].v[v];
        weighted[P + j].v[v] = s * E[j].v[v] + l * E[P + j].v[v];
      }
    }
    multiply<true, false>(D, E, weighted, rotated, 1);
    each_row(D, [&](int a) {
      const real x = step.exponent[a], g = step.growth[a];
      for (int v = 0; v < NV; ++v) {
        vec value, slope;
        const vec both = g * step.growth.v[v];
        phi1<GRADIENT>(x + step.exponent.v[v], both, value, slope);
        covariance_after[a].v[v] = rotated[a].v[v] * both + S[a].v[v] * (delta * value);
        if (GRADIENT) scratch.integral[a].v[v] = delta * value, scratch.integral_slope[a].v[v] = delta * slope;
      }
    });
    multiply<false, false>(D, covariance_after, E_transposed, scratch.covariance_after_Et, 1);
  }

  void forward(const LaneRow& eigenvalues, real delta, const State& in, State& out) {
    const EigenStep step = start(eigenvalues, delta, in.mean);
    covariance<false>(step, delta, in);
    const Matrix& covariance_after_Et = scratch.covariance_after_Et;
    out = State{};
    each_row(D, [&](int a) {
      const real m = step.mode[a] * step.growth[a];
      for (int v = 0; v < NV; ++v) {
        out.mean.v[v] += m * E_transposed[a].v[v];
        out.variance.v[v] += E_transposed[a].v[v] * covariance_after_Et[a].v[v];
      }
      for (int h = 0; h < HALF; ++h) out.side.v[h] += E_transposed[a].v[h] * covariance_after_Et[a].v[h + HALF];
    });
    clamp_above_noise(step, eigenvalues, delta, out);
    for (int h = 0; h < HALF; ++h) out.side.v[h + HALF] = out.side.v[h];
  }

  // Raise each variance to what the noise alone gives, or to the bound where an exponent is clamped. The maths is
  // `_least_variance` in cru/functional/eigen.py.
  void clamp_above_noise(const EigenStep& step, const LaneRow& eigenvalues, real delta, State& out) const {
    const real limit = std::log(TRANSITION_BOUND), largest = std::log(std::numeric_limits<real>::max() / VARIANCE_BOUND) - 1;
    LaneRow weight, least = {};
    for (int v = 0; v < NV; ++v) {
      vec slope;
      phi1<false>(2 * step.exponent.v[v], step.growth.v[v] * step.growth.v[v], weight.v[v], slope);
      weight.v[v] *= delta * smallest_noise * real(1 - CRU_FLOOR_SLACK);
    }
    each_row(D, [&](int a) {
      const real exponent = eigenvalues[a] * delta;
      if (exponent > limit) weight[a] = VARIANCE_BOUND * std::exp(std::min(2 * exponent, largest));
      for (int v = 0; v < NV; ++v) least.v[v] += weight[a] * E_transposed[a].v[v] * E_transposed[a].v[v];
    });
    for (int v = 0; v < NV; ++v) out.variance.v[v] = maximum(out.variance.v[v], least.v[v]);
  }

  // Add to the gradients by the eigenvalues of this step, by the basis, and by the belief before.
  void backward(const LaneRow& eigenvalues, real delta, const State& in, const State& grad, LaneRow& grad_eigenvalues,
                EigenBasis& grad_basis, State& grad_in) {
    const EigenStep step = start(eigenvalues, delta, in.mean);
    covariance<true>(step, delta, in);
    const Matrix &rotated = scratch.rotated, &covariance_after_Et = scratch.covariance_after_Et;
    Matrix &weighted = scratch.weighted, &grad_covariance_after = scratch.grad_covariance_after;
    Matrix& grad_weighted = scratch.covariance_after;  // `covariance_after` is no longer needed
    LaneRow grad_mode = {}, grad_growth = {}, grad_exponent = {};
    // Σ⁻ = E F Eᵀ, and G holds the gradient by three diagonals of Σ⁻: grad F = Eᵀ G E, grad E = 2 G E F.
    for (int j = 0; j < D; ++j) {
      const real gu = grad.variance[j], gl = grad.variance[P + j], gs = real(0.5) * grad.side[j];
      for (int v = 0; v < NV; ++v) {
        weighted[j].v[v] = gu * E[j].v[v] + gs * E[P + j].v[v];
        weighted[P + j].v[v] = gs * E[j].v[v] + gl * E[P + j].v[v];
      }
    }
    multiply<true, false>(D, E, weighted, grad_covariance_after, 1);
    each_row(D, [&](int a) {
      const LaneRow t = swapped(covariance_after_Et[a]);
      const real m = step.mode[a] * step.growth[a];
      vec along = {};
      for (int v = 0; v < NV; ++v) {
        grad_basis.E_transposed[a].v[v] += clamp_gradient(2 * grad.variance.v[v] * covariance_after_Et[a].v[v] +
                                                          grad.side.v[v] * t.v[v] + m * grad.mean.v[v]);
        along += grad.mean.v[v] * E_transposed[a].v[v];
      }
      const real g = sum(along);
      grad_mode[a] = g * step.growth[a];
      grad_growth[a] = g * step.mode[a];
    });
    each_row(D, [&](int a) {
      vec growth = {}, exponent = {};
      for (int v = 0; v < NV; ++v) {
        const vec gb = step.growth.v[v], g = grad_covariance_after[a].v[v];
        grad_basis.S[a].v[v] += clamp_gradient(g * scratch.integral[a].v[v]);
        growth += g * rotated[a].v[v] * gb;
        exponent += g * S[a].v[v] * scratch.integral_slope[a].v[v];
        grad_covariance_after[a].v[v] = g * (step.growth[a] * gb);  // from here on the gradient by `rotated`
      }
      grad_growth[a] += 2 * sum(growth);
      grad_exponent[a] += 2 * sum(exponent);
    });
    each_row(D, [&](int a) {
      const bool inside = eigenvalues[a] * delta <= std::log(TRANSITION_BOUND);
      grad_eigenvalues[a] += inside ? clamp_gradient(delta * (grad_exponent[a] + grad_growth[a] * step.growth[a])) : real(0);
    });
    multiply<false, false>(D, E, grad_covariance_after, grad_weighted, 1);
    for (int j = 0; j < D; ++j) {
      const real u = in.variance[j], l = in.variance[P + j], s = in.side[j], ma = in.mean[j], mb = in.mean[P + j];
      vec qa = {}, qb = {}, qs = {}, da = {}, db = {};
      for (int v = 0; v < NV; ++v) {
        const vec a = E[j].v[v], b = E[P + j].v[v], fa = grad_weighted[j].v[v], fb = grad_weighted[P + j].v[v], gm = grad_mode.v[v];
        grad_basis.E[j].v[v] += clamp_gradient(2 * (u * fa + s * fb) + ma * gm);
        grad_basis.E[P + j].v[v] += clamp_gradient(2 * (s * fa + l * fb) + mb * gm);
        qa += a * fa, qb += b * fb, qs += a * fb + b * fa, da += a * gm, db += b * gm;
      }
      grad_in.mean[j] += sum(da), grad_in.mean[P + j] += sum(db);
      grad_in.variance[j] += sum(qa), grad_in.variance[P + j] += sum(qb);
      const real gs = sum(qs);
      grad_in.side[j] += gs, grad_in.side[P + j] += gs;
    }
  }
};
