// The paired filter over whole sequences and its gradient. It agrees with cru/functional/paired.py. The smoother is in
// smooth.h. All steps are elementwise over the pairs, so the inner loops run over the pairs and the compiler vectorises them.
#include "smooth.h"

namespace {

struct PairTransition {
  real cos, sin, upper, lower, side;
};

inline Pair predict(const Pair& p, const PairTransition& transition) {
  const real c = transition.cos, s = transition.sin, cc = c * c, ss = s * s, cs = c * s;
  return {c * p.mu + s * p.ml, c * p.ml - s * p.mu, maximum(cc * p.u + 2 * cs * p.s + ss * p.l, real(0)) + transition.upper,
          maximum(ss * p.u - 2 * cs * p.s + cc * p.l, real(0)) + transition.lower,
          (cc - ss) * p.s + cs * (p.l - p.u) + transition.side};
}
// The gradients by cos and sin of the transition. Those by upper, lower and side are g.u, g.l and g.s.
inline real predict_backward_cos(const Pair& p, const PairTransition& transition, const Pair& g) {
  const real c = transition.cos, s = transition.sin;
  return clamp_gradient(g.mu * p.mu + g.ml * p.ml + 2 * g.u * (c * p.u + s * p.s) + 2 * g.l * (c * p.l - s * p.s) +
                        g.s * (2 * c * p.s + s * (p.l - p.u)));
}
inline real predict_backward_sin(const Pair& p, const PairTransition& transition, const Pair& g) {
  const real c = transition.cos, s = transition.sin;
  return clamp_gradient(g.mu * p.ml - g.ml * p.mu + 2 * g.u * (c * p.s + s * p.l) + 2 * g.l * (s * p.u - c * p.s) +
                        g.s * (c * (p.l - p.u) - 2 * s * p.s));
}
// The gradient by the belief before the transition.
inline Pair predict_backward(const PairTransition& transition, const Pair& g) {
  const real c = transition.cos, s = transition.sin, cc = c * c, ss = s * s, cs = c * s;
  return {c * g.mu - s * g.ml, s * g.mu + c * g.ml, cc * g.u + ss * g.l - cs * g.s, ss * g.u + cc * g.l + cs * g.s,
          2 * cs * (g.u - g.l) + (cc - ss) * g.s};
}

struct PairedFilter {
  PairedSizes n;
  PairedInputs in;
  Rows rows{n.obs};

  PairTransition transition(int64_t i) const { return {in.cos[i], in.sin[i], in.upper[i], in.lower[i], in.side[i]}; }

  void forward(int64_t series, const FilterOutputs& out) const {
    const int64_t D = n.obs;
    Beliefs before = in.start;
    int64_t before_row = series;  // in `start` for the first time, then in the posterior
    for (int64_t row = series * n.time; row < (series + 1) * n.time; ++row) {
#pragma GCC ivdep
      for (int64_t d = 0; d < D; ++d) {
        const int64_t i = row * D + d;
        const Pair prior = clamp_belief(predict(rows.get(before, before_row, d), transition(i)));
        rows.put(out.prior, row, d, prior);
        rows.put(out.posterior, row, d, clamp_belief(update(prior, in.y[i], in.y_var[i], in.mask[i])));
      }
      before = out.posterior, before_row = row;
    }
  }

  void backward(int64_t series, const FilterSaved& saved, const PairedGradients& out) const {
    const int64_t D = n.obs, first = series * n.time;
    // `out.start` holds the gradient by the belief before the current time, and at the end that by the start.
    for (int64_t d = 0; d < D; ++d) rows.put(out.start, series, d, Pair{});
    for (int64_t row = first + n.time - 1; row >= first; --row) {
      const Beliefs before = row == first ? in.start : saved.posterior;
      const int64_t before_row = row == first ? series : row - 1;
#pragma GCC ivdep
      for (int64_t d = 0; d < D; ++d) {
        const int64_t i = row * D + d;
        const Pair prior = rows.get(saved.prior, row, d);
        Pair g = sum(rows.get(out.start, series, d), rows.get(saved.grad_posterior, row, d));
        g = clamp_belief_backward(rows.get(saved.posterior, row, d), g);
        g = update_backward(prior, in.y[i], in.y_var[i], in.mask[i], g, out.y[i], out.y_var[i]);
        g = clamp_belief_backward(prior, sum(g, rows.get(saved.grad_prior, row, d)));
        const Pair p = rows.get(before, before_row, d);
        out.upper[i] = g.u, out.lower[i] = g.l, out.side[i] = g.s;
        out.cos[i] = predict_backward_cos(p, transition(i), g);
        out.sin[i] = predict_backward_sin(p, transition(i), g);
        rows.put(out.start, series, d, predict_backward(transition(i), g));
      }
    }
  }
};

}  // namespace

// Each function takes the series first … last-1.
CRU_EXPORT void cru_paired_filter(const PairedSizes* sizes, const PairedInputs* inputs, const FilterOutputs* outputs,
                                  int64_t first, int64_t last) {
  const PairedFilter filter{*sizes, *inputs};
  for (int64_t series = first; series < last; ++series) filter.forward(series, *outputs);
}

CRU_EXPORT void cru_paired_filter_backward(const PairedSizes* sizes, const PairedInputs* inputs, const FilterSaved* saved,
                                           const PairedGradients* grads, int64_t first, int64_t last) {
  const PairedFilter filter{*sizes, *inputs};
  for (int64_t series = first; series < last; ++series) filter.backward(series, *saved, *grads);
}

CRU_EXPORT void cru_paired_smooth(const PairedSizes* sizes, const SmoothInputs* inputs, const Beliefs* outputs, int64_t first,
                                  int64_t last) {
  const PairedSmoother smoother{*sizes, *inputs};
  std::vector<double> scratch;
  for (int64_t series = first; series < last; ++series) smoother.forward(series, *outputs, scratch);
}

CRU_EXPORT void cru_paired_smooth_backward(const PairedSizes* sizes, const SmoothInputs* inputs, const Beliefs* grad_outputs,
                                           const SmoothGradients* grads, int64_t first, int64_t last) {
  const PairedSmoother smoother{*sizes, *inputs};
  std::vector<double> scratch;
  for (int64_t series = first; series < last; ++series) smoother.backward(series, *grad_outputs, *grads, scratch);
}
