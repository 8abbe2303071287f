// The paired smoother over whole sequences and its gradient. It agrees with `smooth_paired` in
// cru/functional/paired_scan.py. It computes in double, because the inverse of a small prior covariance needs it.
#pragma once
#include <vector>

#include "pair.h"

template <class T>
inline PairOf<T> clamp_gradient(const PairOf<T>& g) {
  return {clamp_gradient(g.mu), clamp_gradient(g.ml), clamp_gradient(g.u), clamp_gradient(g.l), clamp_gradient(g.s)};
}
// The gradient is zero where `clamp_belief` changed `before` to `after`.
template <class T>
inline PairOf<T> clamp_belief_backward(const PairOf<T>& before, const PairOf<T>& after, PairOf<T> g) {
  g.mu = before.mu == after.mu ? g.mu : 0, g.ml = before.ml == after.ml ? g.ml : 0;
  g.u = before.u == after.u ? g.u : 0, g.l = before.l == after.l ? g.l : 0, g.s = before.s == after.s ? g.s : 0;
  return clamp_gradient(g);
}

// [[a, b], [c, d]]
struct Square {
  double a, b, c, d;
};
// G = P Φᵀ X with X = S⁻¹, P the posterior covariance of a time and S the prior covariance of the next.
struct SmootherGain {
  Square G;
  double xu, xl, xs;  // X
};

struct PairedSmoother {
  PairedSizes n;
  SmoothInputs in;
  Rows rows{n.obs};

  void forward(int64_t series, const Beliefs& out, std::vector<double>& scratch) const {
    scratch.resize(5 * n.obs);
    double* smoothed = scratch.data();
    for (int64_t row = (series + 1) * n.time - 1; row >= series * n.time; --row) {
      step(series, row, smoothed, smoothed);
#pragma GCC ivdep
      for (int64_t d = 0; d < n.obs; ++d) rows.put(out, row, d, clamp_belief(as<real>(load(smoothed, d))));
    }
  }

  // Run the recursion again, because its numbers in double were not kept. Then go from the first time to the last.
  void backward(int64_t series, const Beliefs& grad, const SmoothGradients& out, std::vector<double>& scratch) const {
    const int64_t D = n.obs, first = series * n.time, last = first + n.time - 1, width = 5 * D;
    if (n.time == 0) return;
    scratch.resize((n.time + 1) * width);
    double *smoothed = scratch.data(), *adjoint = smoothed + n.time * width;
    for (int64_t row = last; row >= first; --row) {
      double* here = smoothed + (row - first) * width;
      step(series, row, row == last ? here : here + width, here);
    }
    std::fill(adjoint, adjoint + width, 0.0);
    for (int64_t d = 0; d < D; ++d) {
      rows.put(out.prior, first, d, Pair{});
      out.cos[first * D + d] = out.sin[first * D + d] = 0;
    }
    for (int64_t row = first; row <= last; ++row) {
      const double* here = smoothed + (row - first) * width;
#pragma GCC ivdep
      for (int64_t d = 0; d < D; ++d) store(adjoint, d, belief_gradient(load(here, d), load(adjoint, d), rows.get(grad, row, d)));
      if (row < last) step_backward(row, here + width, adjoint, out);
    }
#pragma GCC ivdep
    for (int64_t d = 0; d < D; ++d) rows.put(out.posterior, last, d, as<real>(load(adjoint, d)));
  }

 private:
  // The smoothed belief of a row, not clamped yet, from that of the next row. Both may be in the same place.
  void step(int64_t series, int64_t row, const double* next, double* here) const {
    if (row == (series + 1) * n.time - 1) {
#pragma GCC ivdep
      for (int64_t d = 0; d < n.obs; ++d) store(here, d, as<double>(rows.get(in.posterior, row, d)));
      return;
    }
#pragma GCC ivdep
    for (int64_t d = 0; d < n.obs; ++d) {
      const Wide p = as<double>(rows.get(in.posterior, row, d)), q = as<double>(rows.get(in.prior, row + 1, d));
      const Square G = gain(p, q, (row + 1) * n.obs + d).G;
      const Wide v = difference(clamp_belief(load(next, d)), q);
      const Square GV = {G.a * v.u + G.b * v.s, G.a * v.s + G.b * v.l, G.c * v.u + G.d * v.s, G.c * v.s + G.d * v.l};
      store(here, d, {p.mu + G.a * v.mu + G.b * v.ml, p.ml + G.c * v.mu + G.d * v.ml, p.u + GV.a * G.a + GV.b * G.b,
                      p.l + GV.c * G.c + GV.d * G.d, p.s + GV.a * G.c + GV.b * G.d});
    }
  }

  // G = I over no gap, and G = 0 where the prior is certain, because later observations cannot change it. The code has no
  // branches, so the compiler vectorises it.
  SmootherGain gain(const Wide& p, const Wide& q, int64_t i) const {
    const double c = in.cos[i], s = in.sin[i], determinant = q.u * q.l - q.s * q.s;
    const double change = std::fabs(c - 1) + std::fabs(s) + std::fabs(in.upper[i]) + std::fabs(in.lower[i]);
    const double regular = determinant >= std::numeric_limits<double>::min() ? determinant : HUGE_VAL;
    const double scale = 1 / (change == 0 ? HUGE_VAL : regular), unit = change == 0 ? 1.0 : 0.0;
    const double xu = q.l * scale, xl = q.u * scale, xs = -q.s * scale;
    const Square N = {p.u * c + p.s * s, p.s * c - p.u * s, p.s * c + p.l * s, p.l * c - p.s * s};  // P Φᵀ
    return {{N.a * xu + N.b * xs + unit, N.a * xs + N.b * xl, N.c * xu + N.d * xs, N.c * xs + N.d * xl + unit}, xu, xl, xs};
  }

  // The gradient by a belief that is not clamped yet: `carried` from earlier times plus that of the output.
  static Wide belief_gradient(const Wide& before, const Wide& carried, const Pair& grad_output) {
    const Wide after = clamp_belief(before);
    const Pair output = as<real>(after);
    const Pair g = clamp_belief_backward(output, clamp_belief(output), grad_output);
    return clamp_belief_backward(before, after, sum(carried, as<double>(g)));
  }

  // On entry, `adjoint` is the gradient by the belief of `row`. On return, it is that of the next row.
  void step_backward(int64_t row, const double* next, double* adjoint, const SmoothGradients& out) const {
#pragma GCC ivdep
    for (int64_t d = 0; d < n.obs; ++d) {
      const int64_t i = (row + 1) * n.obs + d;
      const Wide p = as<double>(rows.get(in.posterior, row, d)), q = as<double>(rows.get(in.prior, row + 1, d));
      const auto [G, xu, xl, xs] = gain(p, q, i);
      const Wide v = difference(clamp_belief(load(next, d)), q), g = load(adjoint, d);
      const double c = in.cos[i], s = in.sin[i], half = g.s / 2;
      // T = Γ G, with Γ = [[g.u, g.s/2], [g.s/2, g.l]]
      const Square T = {g.u * G.a + half * G.c, g.u * G.b + half * G.d, half * G.a + g.l * G.c, half * G.b + g.l * G.d};
      // by the smoothed belief of the next time: Gᵀ g and Gᵀ Γ G
      const Wide grad_next = {G.a * g.mu + G.c * g.ml, G.b * g.mu + G.d * g.ml, G.a * T.a + G.c * T.c, G.b * T.b + G.d * T.d,
                              2 * (G.a * T.b + G.c * T.d)};
      // by G: g vᵀ + 2 T V
      const Square grad_G = {g.mu * v.mu + 2 * (T.a * v.u + T.b * v.s), g.mu * v.ml + 2 * (T.a * v.s + T.b * v.l),
                             g.ml * v.mu + 2 * (T.c * v.u + T.d * v.s), g.ml * v.ml + 2 * (T.c * v.s + T.d * v.l)};
      // N, by P Φᵀ: grad_G X. It is zero where G is constant, because X is.
      const Square N = {grad_G.a * xu + grad_G.b * xs, grad_G.a * xs + grad_G.b * xl, grad_G.c * xu + grad_G.d * xs,
                        grad_G.c * xs + grad_G.d * xl};
      const Wide grad_prior = {-grad_next.mu, -grad_next.ml, -grad_next.u - G.a * N.a - G.c * N.c,
                               -grad_next.l - G.b * N.b - G.d * N.d,
                               -grad_next.s - G.a * N.b - G.c * N.d - G.b * N.a - G.d * N.c};
      const Wide grad_posterior = {g.mu, g.ml, g.u + N.a * c - N.b * s, g.l + N.c * s + N.d * c,
                                   g.s + (N.a - N.d) * s + (N.b + N.c) * c};
      rows.put(out.prior, row + 1, d, as<real>(clamp_gradient(grad_prior)));
      rows.put(out.posterior, row, d, as<real>(clamp_gradient(grad_posterior)));
      out.cos[i] = real(clamp_gradient(p.u * N.a + p.s * (N.c + N.b) + p.l * N.d));
      out.sin[i] = real(clamp_gradient(p.s * (N.a - N.d) + p.l * N.c - p.u * N.b));
      store(adjoint, d, grad_next);
    }
  }

  static Wide difference(const Wide& z, const Wide& q) {
    return {z.mu - q.mu, z.ml - q.ml, z.u - q.u, z.l - q.l, z.s - q.s};
  }
  Wide load(const double* z, int64_t d) const {
    const int64_t D = n.obs;
    return {z[d], z[D + d], z[2 * D + d], z[3 * D + d], z[4 * D + d]};
  }
  void store(double* z, int64_t d, const Wide& p) const {
    const int64_t D = n.obs;
    z[d] = p.mu, z[D + d] = p.ml, z[2 * D + d] = p.u, z[3 * D + d] = p.l, z[4 * D + d] = p.s;
  }
};
