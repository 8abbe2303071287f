// One pair of a belief: the mean and covariance of one upper and one lower entry of the state. The clamp and the update
// are elementwise in the pairs, so all filters share them. The maths is in cru/functional/belief.py and update.py.
#pragma once
#include "common.h"

template <class T>
struct PairOf {
  T mu, ml, u, l, s;  // mean of upper and lower, variance of upper and lower, side
};
using Pair = PairOf<real>;
using Wide = PairOf<double>;

template <class T, class S>
inline PairOf<T> as(const PairOf<S>& p) {
  return {T(p.mu), T(p.ml), T(p.u), T(p.l), T(p.s)};
}
template <class T>
inline PairOf<T> sum(const PairOf<T>& a, const PairOf<T>& b) {
  return {a.mu + b.mu, a.ml + b.ml, a.u + b.u, a.l + b.l, a.s + b.s};
}

// The nearest finite belief with a positive semi-definite covariance.
template <class T>
inline PairOf<T> clamp_belief(PairOf<T> p) {
  p.mu = clamp(p.mu, T(MEAN_BOUND)), p.ml = clamp(p.ml, T(MEAN_BOUND));
  p.u = clamp_variance(p.u), p.l = clamp_variance(p.l);
  p.s = clamp(p.s, side_limit(p.u, p.l));
  return p;
}
// The gradient is zero where `clamp_belief` is active. `p` may be its input or its output.
inline Pair clamp_belief_backward(const Pair& p, Pair g) {
  const real limit = side_limit(clamp_variance(p.u), clamp_variance(p.l));
  g.mu = std::fabs(p.mu) < MEAN_BOUND ? clamp_gradient(g.mu) : 0;
  g.ml = std::fabs(p.ml) < MEAN_BOUND ? clamp_gradient(g.ml) : 0;
  g.u = (p.u >= 0) & (p.u < VARIANCE_BOUND) ? clamp_gradient(g.u) : 0;
  g.l = (p.l >= 0) & (p.l < VARIANCE_BOUND) ? clamp_gradient(g.l) : 0;
  g.s = (std::fabs(p.s) < limit) | (p.s == 0) ? clamp_gradient(g.s) : 0;
  return g;
}

// The factors of an update. `m` is 1 where the pair is observed, else 0. There are no branches, so loops vectorise.
struct UpdateFactors {
  real inverse, upper, lower, ratio, kept, residual;  // 1 / (u + r), k_u, k_l, r / (u + r), 1 - k_u, y - μ_u

  UpdateFactors(const Pair& p, real y, real y_var, real m) {
    const real r = maximum(y_var, MIN_VARIANCE);
    inverse = m / (p.u + r), upper = p.u * inverse, lower = p.s * inverse, ratio = r * inverse;
    kept = m * ratio + (1 - m), residual = y - p.mu;
  }
};
// The posterior, not clamped yet.
inline Pair update(const Pair& p, real y, real y_var, real m) {
  const UpdateFactors k(p, y, y_var, m);
  return {p.mu + k.upper * k.residual, p.ml + k.lower * k.residual, p.u * k.kept, maximum(p.l - p.s * k.lower, p.l * k.kept),
          p.s * k.kept};
}
// Return the gradient by the prior `p`, given the gradient `g` by the posterior.
inline Pair update_backward(const Pair& p, real y, real y_var, real m, Pair g, real& grad_y, real& grad_y_var) {
  const UpdateFactors k(p, y, y_var, m);
  g.l = p.l - p.s * k.lower < p.l * k.kept ? 0 : g.l;  // the floor of the lower variance is active
  const real grad_residual = g.mu * k.upper + g.ml * k.lower;
  const real by_upper = g.mu * k.residual * k.inverse, by_lower = g.ml * k.residual * k.inverse;  // through the two gains
  const real grad_r = -by_upper * k.upper - by_lower * k.lower +
                      m * (g.u * k.upper * k.upper + g.s * k.lower * k.upper + g.l * k.lower * k.lower);
  grad_y = clamp_gradient(grad_residual);
  grad_y_var = y_var >= MIN_VARIANCE ? clamp_gradient(grad_r) : 0;
  return {g.mu - grad_residual, g.ml,
          by_upper * k.ratio - by_lower * k.lower + g.u * k.kept * k.kept - g.s * k.lower * k.ratio + g.l * k.lower * k.lower, g.l,
          by_lower + g.s * k.kept - 2 * g.l * k.lower};
}

// Pairs in memory. A row is one time of one series and has `obs` pairs.
struct Rows {
  int64_t obs;

  Pair get(const Beliefs& from, int64_t row, int64_t d) const {
    const int64_t i = row * obs + d;
    return {from.mean[i + row * obs], from.mean[i + (row + 1) * obs], from.upper[i], from.lower[i], from.side[i]};
  }
  void put(const Beliefs& to, int64_t row, int64_t d, const Pair& p) const {
    const int64_t i = row * obs + d;
    to.mean[i + row * obs] = p.mu, to.mean[i + (row + 1) * obs] = p.ml;
    to.upper[i] = p.u, to.lower[i] = p.l, to.side[i] = p.s;
  }
};
