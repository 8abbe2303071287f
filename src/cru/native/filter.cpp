// The filter over whole sequences and its gradient, one series after another: update, predict, update, …
// Compiled on first use by cru/native/build.py; the maths it must agree with is cru/functional/sequence.py.
#include <memory>
#include <vector>

#include "eigen.h"
#include "expm.h"
#ifdef __SSE__
#include <immintrin.h>
#endif

namespace {

// Numbers below 1e-38 count as zero while this lives: arithmetic on them would be a hundred times slower.
struct NoDenormals {
#ifdef __SSE__
  const unsigned before = _mm_getcsr();
  NoDenormals() { _mm_setcsr(before | 0x8040); }
  ~NoDenormals() { _mm_setcsr(before); }
#endif
};

enum Kind { EXPM = 0, EIGEN = 1, DISCRETE = 2 };

struct Sizes {
  int64_t batch, time, obs, basis, inputs;  // inputs: columns of the coefficient network, M or M + 1
};

// Names for the arrays that Python hands over, in order; all contiguous, batch first.
struct Inputs {
  const real *y, *y_var;
  const uint8_t* mask;
  const real* delta;
  const uint8_t* moves;
  const real *mean, *upper, *lower, *side;  // the start
  const real *weight, *bias, *basis, *eigenvectors, *noise;
  const double* rules;
};
struct Beliefs {
  real *mean, *upper, *lower, *side;
};
struct Saved {
  Beliefs prior, posterior, grad_prior, grad_posterior;
};
struct Gradients {
  real *y, *y_var;
  Beliefs start;
  real *weight, *bias, *basis, *eigenvectors, *noise;
};

Row load_mean(const real* from, int D) {
  Row r = {};
  for (int i = 0; i < D; ++i) r[i] = from[i], r[P + i] = from[D + i];
  return r;
}
void store_mean(const Row& r, real* to, int D) {
  for (int i = 0; i < D; ++i) to[i] = r[i], to[D + i] = r[P + i];
}
State load(const Beliefs& from, int64_t at, int D) {
  State s = {};
  s.mean = load_mean(from.mean + at * 2 * D, D);
  for (int i = 0; i < D; ++i) {
    s.variance[i] = from.upper[at * D + i], s.variance[P + i] = from.lower[at * D + i];
    s.side[i] = s.side[P + i] = from.side[at * D + i];
  }
  return s;
}
void store(const State& s, const Beliefs& to, int64_t at, int D) {
  store_mean(s.mean, to.mean + at * 2 * D, D);
  for (int i = 0; i < D; ++i) {
    to.upper[at * D + i] = s.variance[i], to.lower[at * D + i] = s.variance[P + i];
    to.side[at * D + i] = s.side[i];
  }
}
void add(State& s, const State& more) {
  for (int v = 0; v < NV; ++v)
    s.mean.v[v] += more.mean.v[v], s.variance.v[v] += more.variance.v[v], s.side.v[v] += more.side.v[v];
}

// σ_u⁺ = σ_u r/(σ_u + r), and so on: see `update` in cru/functional/update.py.
void update(int D, const State& prior, const real* y, const real* y_var, const uint8_t* mask, State& out) {
  out = prior;
  for (int i = 0; i < D; ++i) {
    if (!mask[i]) continue;
    const real u = prior.variance[i], s = prior.side[i], r = std::max(y_var[i], MIN_VARIANCE);
    const real inverse = 1 / (u + r), residual = y[i] - prior.mean[i];
    out.mean[i] += u * inverse * residual, out.mean[P + i] += s * inverse * residual;
    const real l = prior.variance[P + i], kept = r * inverse;
    out.variance[i] = u * kept, out.variance[P + i] = std::max(l - s * (s * inverse), l * kept);
    out.side[i] = out.side[P + i] = s * kept;
  }
}
// `grad` is of the posterior on the way in, of the prior on the way out.
void update_backward(int D, const State& prior, const real* y, const real* y_var, const uint8_t* mask, State& grad, real* grad_y,
                     real* grad_var) {
  for (int i = 0; i < D; ++i) {
    grad_y[i] = grad_var[i] = 0;
    if (!mask[i]) continue;
    const real u = prior.variance[i], s = prior.side[i], r = std::max(y_var[i], MIN_VARIANCE);
    const real inverse = 1 / (u + r), residual = y[i] - prior.mean[i];
    const real k = u * inverse, kl = s * inverse, kept = r * inverse;
    const real gm = grad.mean[i], gl = grad.mean[P + i];
    const real l = prior.variance[P + i];
    if (l - s * kl < l * kept) grad.variance[P + i] = 0;  // held at its floor
    const real gu = grad.variance[i], gv = grad.variance[P + i], gs = grad.side[i];
    const real ge = gm * k + gl * kl;
    grad_y[i] = tame(ge);
    grad.mean[i] = gm - ge;
    // through the gains, then through the covariance
    const real gain_u = gm * residual * inverse, gain_l = gl * residual * inverse;
    grad.variance[i] = gain_u * kept - gain_l * kl + gu * kept * kept - gs * kl * kept + gv * kl * kl;
    const real side = gain_l + gs * kept - 2 * gv * kl;
    grad.side[i] = grad.side[P + i] = side;
    const real gr = -gain_u * k - gain_l * kl + gu * k * k + gs * kl * k + gv * kl * kl;
    grad_var[i] = y_var[i] >= MIN_VARIANCE ? tame(gr) : real(0);
  }
}

// Everything of one thread: packed parameters, scratch, and the gradients of the parameters.
struct Worker {
  const Kind kind;
  const Sizes n;
  const Inputs in;
  const int D, K;
  std::vector<Row> basis, grad_basis;  // [row j][k]: entry ij of basis k in lane i; f-CRU: [k], eigenvalues
  std::vector<Row> weight, grad_weight;  // [k]: lane = state
  std::vector<real> alpha, logit_grad;
  Row noise = {}, grad_noise = {};
  real quietest;  // the smallest entry of `noise`
  std::unique_ptr<ExpmScratch> scratch;
  std::vector<Matrix> work, eigen;  // eigen: E, Eᵀ, S and their gradients

  Worker(int kind_, const Sizes& sizes, const Inputs& inputs, bool gradients)
      : kind(static_cast<Kind>(kind_)), n(sizes), in(inputs), D(int(sizes.obs)), K(int(sizes.basis)) {
    alpha.resize(K), logit_grad.resize(K);
    noise = load_mean(in.noise, D);
    quietest = *std::min_element(in.noise, in.noise + 2 * D);
    weight.resize(K), grad_weight.resize(gradients ? K : 0);
    for (int k = 0; k < K; ++k) weight[k] = load_mean(in.weight + k * n.inputs, D);
    work.resize(7);
    std::memset(static_cast<void*>(work.data()), 0, work.size() * sizeof(Matrix));
    if (kind == EIGEN) {
      basis.resize(K);
      for (int k = 0; k < K; ++k) basis[k] = load_mean(in.basis + k * 2 * D, D);
      eigen.resize(6);
      std::memset(static_cast<void*>(eigen.data()), 0, eigen.size() * sizeof(Matrix));
      for (int j = 0; j < 2 * D; ++j) eigen[0][lane(j)] = load_mean(in.eigenvectors + j * 2 * D, D);
      transpose(D, eigen[0], eigen[1]);
      each_row(D, [&](int j) {
        for (int v = 0; v < NV; ++v) work[0][j].v[v] = noise[j] * eigen[0][j].v[v];
      });
      multiply<true, false>(D, eigen[0], work[0], eigen[2], 1);
    } else {
      basis.resize(size_t(W) * K);
      std::memset(static_cast<void*>(basis.data()), 0, basis.size() * sizeof(Row));
      for (int k = 0; k < K; ++k)
        for (int i = 0; i < 2 * D; ++i)
          for (int j = 0; j < 2 * D; ++j) basis[lane(j) * K + k][lane(i)] = in.basis[(k * 2 * D + i) * 2 * D + j];
      if (kind == EXPM) {
        scratch = std::make_unique<ExpmScratch>();
        std::memset(static_cast<void*>(scratch.get()), 0, sizeof(ExpmScratch));
      }
    }
    if (gradients) {
      grad_basis.resize(basis.size());
      std::memset(static_cast<void*>(grad_basis.data()), 0, grad_basis.size() * sizeof(Row));
      std::memset(static_cast<void*>(grad_weight.data()), 0, grad_weight.size() * sizeof(Row));
    }
  }

  int lane(int i) const { return i < D ? i : P + i - D; }
  bool timed() const { return n.inputs > 2 * D; }

  // α = softmax(W μ + b [+ w Δ])
  void coefficients(const Row& mean, real delta) {
    real most = -INFINITY, total = 0;
    for (int k = 0; k < K; ++k) {
      vec along = weight[k].v[0] * mean.v[0];
      for (int v = 1; v < NV; ++v) along += weight[k].v[v] * mean.v[v];
      alpha[k] = in.bias[k] + sum(along) + (timed() ? in.weight[k * n.inputs + 2 * D] * delta : 0);
      most = std::max(most, alpha[k]);
    }
    for (int k = 0; k < K; ++k) total += alpha[k] = std::exp(alpha[k] - most);
    for (int k = 0; k < K; ++k) alpha[k] /= total;
  }
  // logit_grad holds d loss / d α on the way in.
  void coefficients_backward(const Row& mean, real delta, State& grad_in, const Gradients& grads) {
    real inner = 0;
    for (int k = 0; k < K; ++k) inner += alpha[k] * (logit_grad[k] = tame(logit_grad[k]));
    for (int k = 0; k < K; ++k) {
      const real g = alpha[k] * (logit_grad[k] - inner);
      grads.bias[k] += g;
      if (timed()) grads.weight[k * n.inputs + 2 * D] += g * delta;
      for (int v = 0; v < NV; ++v) {
        grad_weight[k].v[v] += g * mean.v[v];
        grad_in.mean.v[v] += g * weight[k].v[v];
      }
    }
  }

  // (scale · Σ_k α_k B_k)ᵀ, and its gradient
  void combine(real scale, Matrix& Z) {
    each_row(D, [&](int j) {
      Row total = {};
      const Row* b = &basis[size_t(j) * K];
      for (int k = 0; k < K; ++k)
        for (int v = 0; v < NV; ++v) total.v[v] += alpha[k] * b[k].v[v];
      for (int v = 0; v < NV; ++v) Z[j].v[v] = scale * total.v[v];
    });
  }
  void combine_backward(real scale, const Matrix& grad_Z) {
    std::vector<vec>& along = accumulators;
    along.assign(K, vec{});
    each_row(D, [&](int j) {
      Row g;
      for (int v = 0; v < NV; ++v) g.v[v] = tame(scale * grad_Z[j].v[v]);
      const Row* b = &basis[size_t(j) * K];
      Row* gb = &grad_basis[size_t(j) * K];
      for (int k = 0; k < K; ++k) {
        vec total = along[k];
        for (int v = 0; v < NV; ++v) total += g.v[v] * b[k].v[v], gb[k].v[v] += alpha[k] * g.v[v];
        along[k] = total;
      }
    });
    for (int k = 0; k < K; ++k) logit_grad[k] = sum(along[k]);
  }
  std::vector<vec> accumulators;

  // The discrete transition A = I + Σ_k α_k B_k, transposed and held.
  void discrete(Matrix& Z) {
    combine(1, Z);
    each_row(D, [&](int j) {
      Z[j][j] += 1;
      each_row(D, [&](int i) { Z[j][i] = bounded(Z[j][i], TRANSITION_BOUND); });
    });
  }

  // Before `hold`.
  void predict(const State& before, real delta, State& out) {
    coefficients(before.mean, delta);
    if (kind == EXPM) {
      Matrix& Z = work[0];
      combine(delta, Z);
      Row scaled;
      for (int v = 0; v < NV; ++v) scaled.v[v] = delta * noise.v[v];
      Expm{D, {in.rules}, *scratch}.forward(Z, scaled, before, out);
    } else if (kind == DISCRETE) {
      Matrix& Z = work[0];
      discrete(Z);
      out = State{};
      out.variance = noise;
      transport(D, Z, before, Row{}, out);
    } else {
      Eigen{D, quietest, eigen[0], eigen[1], eigen[2], work.data()}.forward(spectrum(), delta, before, out);
    }
  }
  Row spectrum() const {
    Row d = {};
    for (int k = 0; k < K; ++k)
      for (int v = 0; v < NV; ++v) d.v[v] += alpha[k] * basis[k].v[v];
    return d;
  }

  // Adds the gradient of the belief before to `grad_in`.
  void predict_backward(const State& before, real delta, const State& grad, State& grad_in, const Gradients& grads) {
    coefficients(before.mean, delta);
    if (kind == EXPM) {
      Matrix &Z = work[0], &grad_Z = work[1];
      combine(delta, Z);
      Row scaled, grad_scaled = {};
      for (int v = 0; v < NV; ++v) scaled.v[v] = delta * noise.v[v];
      Expm{D, {in.rules}, *scratch}.backward(Z, scaled, before, grad, grad_Z, grad_scaled, grad_in);
      for (int v = 0; v < NV; ++v) grad_noise.v[v] += tame(delta * grad_scaled.v[v]);
      combine_backward(delta, grad_Z);
    } else if (kind == DISCRETE) {
      Matrix &Z = work[0], &grad_Z = work[1];
      discrete(Z);
      Row ignored = {};
      transport_backward(D, Z, before, Row{}, grad, grad_Z, grad_in, ignored);
      for (int v = 0; v < NV; ++v) grad_noise.v[v] += grad.variance.v[v];
      combine_backward(1, grad_Z);
    } else {
      Row grad_spectrum = {};
      Eigen{D, quietest, eigen[0], eigen[1], eigen[2], work.data()}.backward(spectrum(), delta, before, grad, grad_spectrum, eigen[3],
                                                                 eigen[4], eigen[5], grad_in);
      for (int k = 0; k < K; ++k) {
        Row product;
        for (int v = 0; v < NV; ++v) {
          grad_basis[k].v[v] += alpha[k] * grad_spectrum.v[v];
          product.v[v] = grad_spectrum.v[v] * basis[k].v[v];
        }
        logit_grad[k] = sum(product);
      }
    }
    coefficients_backward(before.mean, delta, grad_in, grads);
  }

  void forward(int64_t b, const Beliefs& prior, const Beliefs& posterior) {
    const Beliefs start = {const_cast<real*>(in.mean), const_cast<real*>(in.upper), const_cast<real*>(in.lower),
                           const_cast<real*>(in.side)};
    State belief = load(start, b, D), next;
    for (int64_t at = b * n.time; at < (b + 1) * n.time; ++at) {
      if (in.moves[at]) {
        predict(belief, in.delta[at], next);
        hold(D, next);
        belief = next;
      }
      store(belief, prior, at, D);
      update(D, belief, in.y + at * D, in.y_var + at * D, in.mask + at * D, next);
      hold(D, next);
      belief = next;
      store(belief, posterior, at, D);
    }
  }

  void backward(int64_t b, const Saved& saved, const Gradients& grads) {
    const Beliefs start = {const_cast<real*>(in.mean), const_cast<real*>(in.upper), const_cast<real*>(in.lower),
                           const_cast<real*>(in.side)};
    State grad = {}, raw;
    for (int64_t at = (b + 1) * n.time - 1; at >= b * n.time; --at) {
      add(grad, load(saved.grad_posterior, at, D));
      const State prior = load(saved.prior, at, D);
      update(D, prior, in.y + at * D, in.y_var + at * D, in.mask + at * D, raw);
      hold_backward(D, raw, grad);
      update_backward(D, prior, in.y + at * D, in.y_var + at * D, in.mask + at * D, grad, grads.y + at * D, grads.y_var + at * D);
      add(grad, load(saved.grad_prior, at, D));
      if (!in.moves[at]) continue;
      const State before = at == b * n.time ? load(start, b, D) : load(saved.posterior, at - 1, D);
      hold_backward(D, prior, grad);
      State grad_before = {};
      predict_backward(before, in.delta[at], grad, grad_before, grads);
      grad = grad_before;
    }
    store(grad, grads.start, b, D);
  }

  // Unpack the gradients of the parameters. Only after all series of this worker.
  void finish(const Gradients& grads) {
    for (int k = 0; k < K; ++k)
      for (int i = 0; i < 2 * D; ++i) grads.weight[k * n.inputs + i] += grad_weight[k][lane(i)];
    if (kind == EIGEN) {
      // S = Eᵀ diag(q) E
      multiply<false, false>(D, eigen[0], eigen[5], work[0], 1);
      each_row(D, [&](int j) {
        vec along = {};
        for (int v = 0; v < NV; ++v) {
          along += eigen[0][j].v[v] * work[0][j].v[v];
          eigen[3][j].v[v] += 2 * noise[j] * work[0][j].v[v];
        }
        grad_noise[j] += sum(along);
      });
      for (int k = 0; k < K; ++k) store_mean(grad_basis[k], grads.basis + k * 2 * D, D);
      for (int i = 0; i < 2 * D; ++i)
        for (int j = 0; j < 2 * D; ++j)
          grads.eigenvectors[i * 2 * D + j] = eigen[3][lane(i)][lane(j)] + eigen[4][lane(j)][lane(i)];
    } else {
      for (int k = 0; k < K; ++k)
        for (int i = 0; i < 2 * D; ++i)
          for (int j = 0; j < 2 * D; ++j) grads.basis[(k * 2 * D + i) * 2 * D + j] = grad_basis[lane(j) * K + k][lane(i)];
    }
    store_mean(grad_noise, grads.noise, D);
  }
};

}  // namespace

extern "C" {

// Series begin … end-1. `outputs`: prior, posterior (4 arrays each).
void cru_filter(int kind, const int64_t* sizes, const void* const* inputs, void* const* outputs, int64_t begin, int64_t end) {
  [[maybe_unused]] NoDenormals guard;
  Inputs in;
  Beliefs beliefs[2];
  std::memcpy(&in, inputs, sizeof in);
  std::memcpy(beliefs, outputs, sizeof beliefs);
  Worker worker(kind, *reinterpret_cast<const Sizes*>(sizes), in, false);
  for (int64_t b = begin; b < end; ++b) worker.forward(b, beliefs[0], beliefs[1]);
}

// `saved`: prior, posterior and the gradients of both; `outputs`: as `Gradients`, the parameters' zero on entry.
void cru_filter_backward(int kind, const int64_t* sizes, const void* const* inputs, const void* const* saved, void* const* outputs,
                         int64_t begin, int64_t end) {
  [[maybe_unused]] NoDenormals guard;
  Inputs in;
  Saved kept;
  Gradients grads;
  std::memcpy(&in, inputs, sizeof in);
  std::memcpy(&kept, saved, sizeof kept);
  std::memcpy(&grads, outputs, sizeof grads);
  Worker worker(kind, *reinterpret_cast<const Sizes*>(sizes), in, true);
  for (int64_t b = begin; b < end; ++b) worker.backward(b, kept, grads);
  worker.finish(grads);
}
}
