// One pair of a belief in single or double precision, the bounds that hold it (cru/functional/belief.py), and beliefs over
// (batch, time) in memory.
#pragma once
#include <limits>

#include "matrix.h"

template <class T>
struct PairOf {
  T mu, ml, u, l, s;
};
using Pair = PairOf<real>;
using Wide = PairOf<double>;

template <class T>
inline T least(T a, T b) { return a < b ? a : b; }
template <class T>
inline T most(T a, T b) { return a > b ? a : b; }
template <class T>
inline T within(T x, T limit) { return least(most(x, -limit), limit); }
template <class T>
inline T calm(T g) { return g == g ? within(g, T(GRADIENT_BOUND)) : T(0); }

template <class T>
inline T side_limit(const PairOf<T>& p) {
  return std::sqrt(p.u) * std::sqrt(p.l) * (1 - 8 * std::numeric_limits<T>::epsilon());
}
template <class T>
inline PairOf<T> held(PairOf<T> p) {
  p.mu = within(p.mu, T(MEAN_BOUND)), p.ml = within(p.ml, T(MEAN_BOUND));
  p.u = least(most(p.u, T(0)), T(VARIANCE_BOUND)), p.l = least(most(p.l, T(0)), T(VARIANCE_BOUND));
  p.s = within(p.s, side_limit(p));
  return p;
}

template <class T, class S>
inline PairOf<T> as(const PairOf<S>& p) {
  return {T(p.mu), T(p.ml), T(p.u), T(p.l), T(p.s)};
}
template <class T>
inline PairOf<T> sum(const PairOf<T>& a, const PairOf<T>& b) {
  return {a.mu + b.mu, a.ml + b.ml, a.u + b.u, a.l + b.l, a.s + b.s};
}

struct Beliefs {
  real *mean, *upper, *lower, *side;
};
// A row is a time of a series, of `obs` pairs.
struct Rows {
  int64_t batch, time, obs;

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
