// The predict step of the f-CRU in its eigenbasis; the maths is in cru/functional/eigen.py.
#pragma once
#include <limits>

#include "matrix.h"

// φ₁(x) = (eˣ - 1) / x, given eˣ, and if wanted its derivative. Near zero by their Taylor series.
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

struct Eigen {
  int D;
  real quietest;         // the smallest q
  const Matrix& E;       // row j, lane a = E_ja
  const Matrix& turned;  // Eᵀ
  const Matrix& S;       // Eᵀ diag(q) E
  Matrix* work;          // 7 matrices

  struct Step {
    Row exponent, growth, mode;  // d Δ (held), exp(d Δ), Eᵀ μ
  };

  Step start(const Row& eigenvalues, real delta, const Row& mean) const {
    Step step = {};
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

  // rotated = Eᵀ Σ E; full = covariance in the eigenbasis after the gap; back = full Eᵀ. For the gradient, Δ φ₁ and Δ φ₁'
  // are left in work[5] and work[6].
  template <bool GRADIENT>
  void covariance(const Step& step, real delta, const State& in, Matrix& rotated, Matrix& full, Matrix& back) const {
    Matrix& weighted = work[3];
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
        full[a].v[v] = rotated[a].v[v] * both + S[a].v[v] * (delta * value);
        if (GRADIENT) work[5][a].v[v] = delta * value, work[6][a].v[v] = delta * slope;
      }
    });
    multiply<false, false>(D, full, turned, back, 1);
  }

  void forward(const Row& eigenvalues, real delta, const State& in, State& out) {
    const Step step = start(eigenvalues, delta, in.mean);
    Matrix& back = work[2];
    covariance<false>(step, delta, in, work[0], work[1], back);
    out = State{};
    each_row(D, [&](int a) {
      const real m = step.mode[a] * step.growth[a];
      for (int v = 0; v < NV; ++v) {
        out.mean.v[v] += m * turned[a].v[v];
        out.variance.v[v] += turned[a].v[v] * back[a].v[v];
      }
      for (int h = 0; h < HALF; ++h) out.side.v[h] += turned[a].v[h] * back[a].v[h + HALF];
    });
    hold_above_noise(step, eigenvalues, delta, out);
    for (int h = 0; h < HALF; ++h) out.side.v[h + HALF] = out.side.v[h];
  }

  // No variance below what the noise alone gives, from above where a mode is held: see `_least_variance` in
  // cru/functional/eigen.py.
  void hold_above_noise(const Step& step, const Row& eigenvalues, real delta, State& out) const {
    const real limit = std::log(TRANSITION_BOUND), most_growth = std::log(std::numeric_limits<real>::max() / VARIANCE_BOUND) - 1;
    Row weight, least = {};
    for (int v = 0; v < NV; ++v) {
      vec slope;
      phi1<false>(2 * step.exponent.v[v], step.growth.v[v] * step.growth.v[v], weight.v[v], slope);
      weight.v[v] *= delta * quietest * real(1 - CRU_FLOOR_SLACK);
    }
    each_row(D, [&](int a) {
      const real exponent = eigenvalues[a] * delta;
      if (exponent > limit) weight[a] = VARIANCE_BOUND * std::exp(std::min(2 * exponent, most_growth));
      for (int v = 0; v < NV; ++v) least.v[v] += weight[a] * turned[a].v[v] * turned[a].v[v];
    });
    for (int v = 0; v < NV; ++v) out.variance.v[v] = most(out.variance.v[v], least.v[v]);
  }

  // Adds to the gradients of the eigenvalues (of this step), of E (as E and as Eᵀ), of S, and of the belief before.
  void backward(const Row& eigenvalues, real delta, const State& in, const State& grad, Row& grad_eigenvalues, Matrix& grad_E,
                Matrix& grad_turned, Matrix& grad_S, State& grad_in) {
    const Step step = start(eigenvalues, delta, in.mean);
    Matrix &rotated = work[0], &back = work[2], &weighted = work[3], &grad_full = work[4];
    covariance<true>(step, delta, in, rotated, work[1], back);
    Row grad_mode = {}, grad_growth = {}, grad_exponent = {};
    // Σ⁻ = E full Eᵀ, of which G has three diagonals: grad full = Eᵀ G E, grad E = 2 G E full.
    for (int j = 0; j < D; ++j) {
      const real gu = grad.variance[j], gl = grad.variance[P + j], gs = real(0.5) * grad.side[j];
      for (int v = 0; v < NV; ++v) {
        weighted[j].v[v] = gu * E[j].v[v] + gs * E[P + j].v[v];
        weighted[P + j].v[v] = gs * E[j].v[v] + gl * E[P + j].v[v];
      }
    }
    multiply<true, false>(D, E, weighted, grad_full, 1);
    each_row(D, [&](int a) {
      const Row t = swapped(back[a]);
      const real m = step.mode[a] * step.growth[a];
      vec along = {};
      for (int v = 0; v < NV; ++v) {
        grad_turned[a].v[v] += tame(2 * grad.variance.v[v] * back[a].v[v] + grad.side.v[v] * t.v[v] + m * grad.mean.v[v]);
        along += grad.mean.v[v] * turned[a].v[v];
      }
      const real g = sum(along);
      grad_mode[a] = g * step.growth[a];
      grad_growth[a] = g * step.mode[a];
    });
    each_row(D, [&](int a) {
      vec growth = {}, exponent = {};
      for (int v = 0; v < NV; ++v) {
        const vec gb = step.growth.v[v], g = grad_full[a].v[v];
        grad_S[a].v[v] += tame(g * work[5][a].v[v]);
        growth += g * rotated[a].v[v] * gb;
        exponent += g * S[a].v[v] * work[6][a].v[v];
        grad_full[a].v[v] = g * (step.growth[a] * gb);  // now the gradient of `rotated`
      }
      grad_growth[a] += 2 * sum(growth);
      grad_exponent[a] += 2 * sum(exponent);
    });
    each_row(D, [&](int a) {
      const bool inside = eigenvalues[a] * delta <= std::log(TRANSITION_BOUND);
      grad_eigenvalues[a] += inside ? tame(delta * (grad_exponent[a] + grad_growth[a] * step.growth[a])) : real(0);
    });
    Matrix& F = work[1];  // E · grad rotated
    multiply<false, false>(D, E, grad_full, F, 1);
    for (int j = 0; j < D; ++j) {
      const real u = in.variance[j], l = in.variance[P + j], s = in.side[j], ma = in.mean[j], mb = in.mean[P + j];
      vec qa = {}, qb = {}, qs = {}, da = {}, db = {};
      for (int v = 0; v < NV; ++v) {
        const vec a = E[j].v[v], b = E[P + j].v[v], fa = F[j].v[v], fb = F[P + j].v[v], gm = grad_mode.v[v];
        grad_E[j].v[v] += tame(2 * (u * fa + s * fb) + ma * gm);
        grad_E[P + j].v[v] += tame(2 * (s * fa + l * fb) + mb * gm);
        qa += a * fa, qb += b * fb, qs += a * fb + b * fa, da += a * gm, db += b * gm;
      }
      grad_in.mean[j] += sum(da), grad_in.mean[P + j] += sum(db);
      grad_in.variance[j] += sum(qa), grad_in.variance[P + j] += sum(qb);
      const real gs = sum(qs);
      grad_in.side[j] += gs, grad_in.side[P + j] += gs;
    }
  }
};
