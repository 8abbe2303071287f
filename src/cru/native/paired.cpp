// The paired filter over whole sequences and its gradient; smooth.h has the smoother. Everything is elementwise over the
// pairs, so the inner loops run over them and the compiler vectorises; the maths to agree with is cru/functional/paired.py.
#include "smooth.h"

namespace {

// All (batch, time, obs), but for the start: (batch, 2 obs) and (batch, obs).
struct Inputs {
  const real *y, *y_var;
  const uint8_t* mask;
  const real *cos, *sin, *upper, *lower, *side;  // the hop that leads to each time
  const real *start_mean, *start_upper, *start_lower, *start_side;
};
struct Saved {
  Beliefs prior, posterior, grad_prior, grad_posterior;
};
struct Gradients {
  real *y, *y_var, *cos, *sin, *upper, *lower, *side;
  Beliefs start;
};

// The gradient stops where `p`, after `held`, lies on a bound.
inline Pair held_backward(const Pair& p, Pair g) {
  const real limit = side_limit(p);
  g.mu = std::fabs(p.mu) < MEAN_BOUND ? calm(g.mu) : 0, g.ml = std::fabs(p.ml) < MEAN_BOUND ? calm(g.ml) : 0;
  g.u = p.u < VARIANCE_BOUND ? calm(g.u) : 0, g.l = p.l < VARIANCE_BOUND ? calm(g.l) : 0;
  g.s = (std::fabs(p.s) < limit) | (p.s == 0) ? calm(g.s) : 0;
  return g;
}

inline Pair predict(const Pair& p, real c, real s, real qu, real ql, real qs) {
  const real cc = c * c, ss = s * s, cs = c * s;
  const real upper = most(cc * p.u + 2 * cs * p.s + ss * p.l, real(0)), lower = most(ss * p.u - 2 * cs * p.s + cc * p.l, real(0));
  return held(Pair{c * p.mu + s * p.ml, c * p.ml - s * p.mu, upper + qu, lower + ql, (cc - ss) * p.s + cs * (p.l - p.u) + qs});
}
// m is 1 where the pair is observed, else 0.
inline Pair update(const Pair& p, real y, real r, real m) {
  r = most(r, MIN_VARIANCE);
  const real inverse = m / (p.u + r), k = p.u * inverse, kl = p.s * inverse, kept = m * (r * inverse) + (1 - m);
  const real residual = y - p.mu;
  return held(Pair{p.mu + k * residual, p.ml + kl * residual, p.u * kept, most(p.l - p.s * kl, p.l * kept), p.s * kept});
}

struct Run {
  Rows n;
  Inputs in;

  void forward(int64_t b, const Beliefs& prior, const Beliefs& posterior) const {
    const int64_t D = n.obs;
    Beliefs before = start();
    int64_t at = b;  // where the belief before stands: in the start, then in the posterior
    for (int64_t row = b * n.time; row < (b + 1) * n.time; ++row) {
#pragma GCC ivdep
      for (int64_t d = 0; d < D; ++d) {
        const int64_t i = row * D + d;
        const Pair p = predict(n.get(before, at, d), in.cos[i], in.sin[i], in.upper[i], in.lower[i], in.side[i]);
        n.put(prior, row, d, p);
        n.put(posterior, row, d, update(p, in.y[i], in.y_var[i], in.mask[i]));
      }
      before = posterior, at = row;
    }
  }

  void backward(int64_t b, const Saved& saved, const Gradients& out) const {
    const int64_t D = n.obs;
    // The gradient of the belief before a time is kept where that of the start will stand in the end.
    for (int64_t d = 0; d < D; ++d) n.put(out.start, b, d, Pair{});
    for (int64_t row = (b + 1) * n.time - 1; row >= b * n.time; --row) {
      const bool first = row == b * n.time;
      const Beliefs before = first ? start() : saved.posterior;
      const int64_t at = first ? b : row - 1;
#pragma GCC ivdep
      for (int64_t d = 0; d < D; ++d) {
        const int64_t i = row * D + d;
        Pair g = sum(n.get(out.start, b, d), n.get(saved.grad_posterior, row, d));
        const Pair after = n.get(saved.posterior, row, d), p = n.get(saved.prior, row, d);
        g = held_backward(after, g);
        const real m = in.mask[i], raw = in.y_var[i], r = most(raw, MIN_VARIANCE);
        const real inverse = m / (p.u + r), k = p.u * inverse, kl = p.s * inverse, part = r * inverse;
        const real kept = m * part + (1 - m), residual = in.y[i] - p.mu;
        g.l = p.l - p.s * kl < p.l * kept ? 0 : g.l;  // held at its floor
        const real error = g.mu * k + g.ml * kl, gain = g.mu * residual * inverse, gain_low = g.ml * residual * inverse;
        out.y[i] = calm(error);
        const real gr = -gain * k - gain_low * kl + m * (g.u * k * k + g.s * kl * k + g.l * kl * kl);
        out.y_var[i] = raw >= MIN_VARIANCE ? calm(gr) : 0;
        // grad of the prior; `kept` is 1 where nothing is observed
        Pair h = {g.mu - error, g.ml, gain * part - gain_low * kl + g.u * kept * kept - g.s * kl * part + g.l * kl * kl, g.l,
                  gain_low + g.s * kept - 2 * g.l * kl};
        h = held_backward(p, sum(h, n.get(saved.grad_prior, row, d)));
        const Pair q = n.get(before, at, d);
        const real c = in.cos[i], s = in.sin[i], cc = c * c, ss = s * s, cs = c * s;
        out.upper[i] = h.u, out.lower[i] = h.l, out.side[i] = h.s;
        out.cos[i] = calm(h.mu * q.mu + h.ml * q.ml + 2 * h.u * (c * q.u + s * q.s) + 2 * h.l * (c * q.l - s * q.s) +
                          h.s * (2 * c * q.s + s * (q.l - q.u)));
        out.sin[i] = calm(h.mu * q.ml - h.ml * q.mu + 2 * h.u * (c * q.s + s * q.l) + 2 * h.l * (s * q.u - c * q.s) +
                          h.s * (c * (q.l - q.u) - 2 * s * q.s));
        n.put(out.start, b, d,
              {c * h.mu - s * h.ml, s * h.mu + c * h.ml, cc * h.u + ss * h.l - cs * h.s, ss * h.u + cc * h.l + cs * h.s,
               2 * cs * (h.u - h.l) + (cc - ss) * h.s});
      }
    }
  }

 private:
  Beliefs start() const {
    return {const_cast<real*>(in.start_mean), const_cast<real*>(in.start_upper), const_cast<real*>(in.start_lower),
            const_cast<real*>(in.start_side)};
  }
};

// A struct of numbers or pointers from the array of them that Python hands over.
template <class T>
T from(const void* array) {
  T filled;
  std::memcpy(&filled, array, sizeof filled);
  return filled;
}

}  // namespace

extern "C" {

void cru_filter(int, const int64_t* sizes, const void* const* inputs, void* const* outputs, int64_t begin, int64_t end) {
  const Run run{from<Rows>(sizes), from<Inputs>(inputs)};
  const Beliefs prior = from<Beliefs>(outputs), posterior = from<Beliefs>(outputs + 4);
  for (int64_t b = begin; b < end; ++b) run.forward(b, prior, posterior);
}

void cru_filter_backward(int, const int64_t* sizes, const void* const* inputs, const void* const* saved, void* const* outputs,
                         int64_t begin, int64_t end) {
  const Run run{from<Rows>(sizes), from<Inputs>(inputs)};
  const Saved kept = from<Saved>(saved);
  const Gradients grads = from<Gradients>(outputs);
  for (int64_t b = begin; b < end; ++b) run.backward(b, kept, grads);
}

void cru_smooth(int, const int64_t* sizes, const void* const* inputs, void* const* outputs, int64_t begin, int64_t end) {
  const Smoother run{from<Rows>(sizes), from<SmoothInputs>(inputs)};
  const Beliefs smoothed = from<Beliefs>(outputs);
  std::vector<double> room;
  for (int64_t b = begin; b < end; ++b) run.forward(b, smoothed, room);
}

void cru_smooth_backward(int, const int64_t* sizes, const void* const* inputs, const void* const* saved, void* const* outputs,
                         int64_t begin, int64_t end) {
  const Smoother run{from<Rows>(sizes), from<SmoothInputs>(inputs)};
  const Beliefs given = from<Beliefs>(saved);
  const SmoothGradients grads = from<SmoothGradients>(outputs);
  std::vector<double> room;
  for (int64_t b = begin; b < end; ++b) run.backward(b, given, grads, room);
}
}
