// The paired smoother over whole sequences and its gradient; the maths it must agree with is `smooth_paired` in
// cru/functional/paired_scan.py. In double whatever the tensors are: the inverse of a nearly known prior needs it.
#pragma once
#include <vector>

#include "pair.h"

// All (batch, time, obs), means (batch, time, 2 obs).
struct SmoothInputs {
  Beliefs prior, posterior;
  const real *cos, *sin, *upper, *lower;  // the hop that leads to each time
};
struct SmoothGradients {
  Beliefs prior, posterior;
  real *cos, *sin;
};

template <class T>
inline PairOf<T> calm(const PairOf<T>& g) { return {calm(g.mu), calm(g.ml), calm(g.u), calm(g.l), calm(g.s)}; }
// The gradient stops where a bound moved the belief.
template <class T>
inline PairOf<T> held_backward(const PairOf<T>& before, const PairOf<T>& after, PairOf<T> g) {
  g.mu = before.mu == after.mu ? g.mu : 0, g.ml = before.ml == after.ml ? g.ml : 0;
  g.u = before.u == after.u ? g.u : 0, g.l = before.l == after.l ? g.l : 0, g.s = before.s == after.s ? g.s : 0;
  return calm(g);
}

// [[a, b], [c, d]]
struct Square {
  double a, b, c, d;
};
// G = P Φᵀ S⁻¹, with P the posterior of a time and S the prior of the next.
struct Gain {
  Square G;
  double xu, xl, xs;  // S⁻¹
};

struct Smoother {
  Rows n;
  SmoothInputs in;

  void forward(int64_t b, const Beliefs& out, std::vector<double>& room) const {
    room.resize(5 * n.obs);
    double* z = room.data();
    for (int64_t row = (b + 1) * n.time - 1; row >= b * n.time; --row) {
      step(b, row, z, z);
#pragma GCC ivdep
      for (int64_t d = 0; d < n.obs; ++d) n.put(out, row, d, held(as<real>(load(z, d))));
    }
  }

  // From the first time to the last, after a second run of the recursion, whose numbers in double were not kept.
  void backward(int64_t b, const Beliefs& grad, const SmoothGradients& out, std::vector<double>& room) const {
    const int64_t D = n.obs, first = b * n.time, last = first + n.time - 1, width = 5 * D;
    if (n.time == 0) return;
    room.resize((n.time + 1) * width);
    double *z = room.data(), *carry = z + n.time * width;
    for (int64_t row = last; row >= first; --row) {
      double* here = z + (row - first) * width;
      step(b, row, row == last ? here : here + width, here);
    }
    std::fill(carry, carry + width, 0.0);
    for (int64_t d = 0; d < D; ++d) {
      n.put(out.prior, first, d, Pair{});
      out.cos[first * D + d] = out.sin[first * D + d] = 0;
    }
    for (int64_t row = first; row <= last; ++row) {
      const double* here = z + (row - first) * width;
#pragma GCC ivdep
      for (int64_t d = 0; d < D; ++d) store(carry, d, settled(load(here, d), load(carry, d), n.get(grad, row, d)));
      if (row < last) step_backward(row, here + width, carry, out);
    }
#pragma GCC ivdep
    for (int64_t d = 0; d < D; ++d) n.put(out.posterior, last, d, as<real>(load(carry, d)));
  }

 private:
  // The smoothed belief of a row, not held yet, from that of the next; the two may stand in the same place.
  void step(int64_t b, int64_t row, const double* next, double* here) const {
    if (row == (b + 1) * n.time - 1) {
#pragma GCC ivdep
      for (int64_t d = 0; d < n.obs; ++d) store(here, d, as<double>(n.get(in.posterior, row, d)));
      return;
    }
#pragma GCC ivdep
    for (int64_t d = 0; d < n.obs; ++d) {
      const Wide p = as<double>(n.get(in.posterior, row, d)), q = as<double>(n.get(in.prior, row + 1, d));
      const Square G = gain(p, q, (row + 1) * n.obs + d).G;
      const Wide v = change(held(load(next, d)), q);
      const double up = G.a * v.u + G.b * v.s, across = G.a * v.s + G.b * v.l;  // G (Σˢ - S)
      const double back = G.c * v.u + G.d * v.s, low = G.c * v.s + G.d * v.l;
      store(here, d, {p.mu + G.a * v.mu + G.b * v.ml, p.ml + G.c * v.mu + G.d * v.ml, p.u + up * G.a + across * G.b,
                      p.l + back * G.c + low * G.d, p.s + up * G.c + across * G.d});
    }
  }

  Gain gain(const Wide& p, const Wide& q, int64_t i) const {
    const double c = in.cos[i], s = in.sin[i], size = q.u * q.l - q.s * q.s;
    // Over no gap G = I. Where the prior is known for certain, later readings say nothing: G = 0. Without branches, which
    // would keep the compiler from vectorising.
    const double moved = std::fabs(c - 1) + std::fabs(s) + std::fabs(in.upper[i]) + std::fabs(in.lower[i]);
    const double regular = size >= std::numeric_limits<double>::min() ? size : HUGE_VAL;
    const double scale = 1 / (moved == 0 ? HUGE_VAL : regular), unit = moved == 0 ? 1.0 : 0.0;
    const double xu = q.l * scale, xl = q.u * scale, xs = -q.s * scale;
    const Square N = {p.u * c + p.s * s, p.s * c - p.u * s, p.s * c + p.l * s, p.l * c - p.s * s};  // P Φᵀ
    return {{N.a * xu + N.b * xs + unit, N.a * xs + N.b * xl, N.c * xu + N.d * xs, N.c * xs + N.d * xl + unit}, xu, xl, xs};
  }

  // The gradient of a belief before it was held: from what went on to earlier times, and from the output.
  static Wide settled(const Wide& before, const Wide& carried, const Pair& output) {
    const Wide z = held(before);
    const Pair said = as<real>(z);
    return held_backward(before, z, sum(carried, as<double>(held_backward(said, held(said), output))));
  }

  // `carry` comes as the gradient of the belief of `row` and leaves as that of the `next` one.
  void step_backward(int64_t row, const double* next, double* carry, const SmoothGradients& out) const {
#pragma GCC ivdep
    for (int64_t d = 0; d < n.obs; ++d) {
      const int64_t i = (row + 1) * n.obs + d;
      const Wide p = as<double>(n.get(in.posterior, row, d)), q = as<double>(n.get(in.prior, row + 1, d));
      const auto [G, xu, xl, xs] = gain(p, q, i);
      const Wide v = change(held(load(next, d)), q), g = load(carry, d);
      const double c = in.cos[i], s = in.sin[i], half = g.s / 2;
      const Square T = {g.u * G.a + half * G.c, g.u * G.b + half * G.d, half * G.a + g.l * G.c, half * G.b + g.l * G.d};
      // of μˢ and Σˢ of the next time, Gᵀ g and Gᵀ Γ G
      const Wide on = {G.a * g.mu + G.c * g.ml, G.b * g.mu + G.d * g.ml, G.a * T.a + G.c * T.c, G.b * T.b + G.d * T.d,
                       2 * (G.a * T.b + G.c * T.d)};
      const Square H = {g.mu * v.mu + 2 * (T.a * v.u + T.b * v.s), g.mu * v.ml + 2 * (T.a * v.s + T.b * v.l),
                        g.ml * v.mu + 2 * (T.c * v.u + T.d * v.s), g.ml * v.ml + 2 * (T.c * v.s + T.d * v.l)};  // of G
      // of P Φᵀ; zero where G is constant
      const Square N = {H.a * xu + H.b * xs, H.a * xs + H.b * xl, H.c * xu + H.d * xs, H.c * xs + H.d * xl};
      const Wide of_prior = {-on.mu, -on.ml, -on.u - G.a * N.a - G.c * N.c, -on.l - G.b * N.b - G.d * N.d,
                             -on.s - G.a * N.b - G.c * N.d - G.b * N.a - G.d * N.c};
      const Wide of_posterior = {g.mu, g.ml, g.u + N.a * c - N.b * s, g.l + N.c * s + N.d * c,
                                 g.s + (N.a - N.d) * s + (N.b + N.c) * c};
      n.put(out.prior, row + 1, d, as<real>(calm(of_prior)));
      n.put(out.posterior, row, d, as<real>(calm(of_posterior)));
      out.cos[i] = real(calm(p.u * N.a + p.s * (N.c + N.b) + p.l * N.d));
      out.sin[i] = real(calm(p.s * (N.a - N.d) + p.l * N.c - p.u * N.b));
      store(carry, d, on);
    }
  }

  static Wide change(const Wide& z, const Wide& q) { return {z.mu - q.mu, z.ml - q.ml, z.u - q.u, z.l - q.l, z.s - q.s}; }
  Wide load(const double* z, int64_t d) const {
    const int64_t D = n.obs;
    return {z[d], z[D + d], z[2 * D + d], z[3 * D + d], z[4 * D + d]};
  }
  void store(double* z, int64_t d, const Wide& p) const {
    const int64_t D = n.obs;
    z[d] = p.mu, z[D + d] = p.ml, z[2 * D + d] = p.u, z[3 * D + d] = p.l, z[4 * D + d] = p.s;
  }
};
