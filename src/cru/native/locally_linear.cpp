// The filter of CRU, f-CRU and RKN over whole sequences, and its gradient, one series after another.
// cru/native/build.py compiles it on first use. It agrees with cru/functional/sequence.py.
#include <memory>
#include <vector>

#include "eigen.h"
#include "expm.h"
#ifdef __SSE__
#include <immintrin.h>
#endif

namespace {

// While this object lives, numbers below 1e-38 count as zero. Arithmetic on them is a hundred times slower.
struct NoDenormals {
#ifdef __SSE__
  const unsigned before = _mm_getcsr();
  NoDenormals() { _mm_setcsr(before | 0x8040); }
  ~NoDenormals() { _mm_setcsr(before); }
#endif
};

enum Kind { EXPM = CRU_KIND_EXPM, EIGEN = CRU_KIND_EIGEN, DISCRETE = CRU_KIND_DISCRETE };

// Packed arrays as rows of lanes.
LaneRow load_row(const real* from, int D) {
  LaneRow r = {};
  for (int i = 0; i < D; ++i) r[i] = from[i], r[P + i] = from[D + i];
  return r;
}
void store_row(const LaneRow& r, real* to, int D) {
  for (int i = 0; i < D; ++i) to[i] = r[i], to[D + i] = r[P + i];
}
State load(const Beliefs& from, int64_t row, int D) {
  State s = {};
  for (int i = 0; i < D; ++i) s.set_pair(i, Rows{D}.get(from, row, i));
  return s;
}
void store(const State& s, const Beliefs& to, int64_t row, int D) {
  for (int i = 0; i < D; ++i) Rows{D}.put(to, row, i, s.pair(i));
}
void add(State& s, const State& more) {
  for (int v = 0; v < NV; ++v)
    s.mean.v[v] += more.mean.v[v], s.variance.v[v] += more.variance.v[v], s.side.v[v] += more.side.v[v];
}

// A struct of matrices and numbers, all zero.
template <class T>
std::unique_ptr<T> make_zero() {
  auto made = std::make_unique<T>();
  std::memset(static_cast<void*>(made.get()), 0, sizeof(T));
  return made;
}
std::vector<LaneRow> zero_rows(size_t count) {
  std::vector<LaneRow> rows(count);
  if (count) std::memset(static_cast<void*>(rows.data()), 0, count * sizeof(LaneRow));
  return rows;
}

// The transition of CRU and RKN at one step, and the gradient by it; both transposed.
struct TransitionScratch {
  Matrix transition, grad_transition;
};

// The state of one thread: packed parameters, scratch, and the gradients by the parameters.
struct Worker {
  const LocallyLinearSizes n;
  const LocallyLinearInputs in;
  const Kind kind;
  const int D, K;
  std::vector<LaneRow> basis, grad_basis;    // [row j][k]: entry ij of basis k in lane i; f-CRU: [k], eigenvalues
  std::vector<LaneRow> weight, grad_weight;  // [k]: lane = state
  std::vector<real> alpha, grad_alpha;
  std::vector<vec> alpha_sums;  // partial sums of grad_alpha
  LaneRow noise = {}, grad_noise = {};
  real smallest_noise;
  std::unique_ptr<TransitionScratch> dense;  // CRU and RKN
  std::unique_ptr<ExpmScratch> expm;         // CRU
  std::unique_ptr<EigenScratch> eigen;       // f-CRU, and the next two
  std::unique_ptr<EigenBasis> eigen_basis, grad_eigen_basis;

  Worker(const LocallyLinearSizes& sizes, const LocallyLinearInputs& inputs, bool gradients)
      : n(sizes), in(inputs), kind(static_cast<Kind>(sizes.kind)), D(int(sizes.obs)), K(int(sizes.basis)) {
    alpha.resize(K), grad_alpha.resize(K);
    noise = load_row(in.noise, D);
    smallest_noise = *std::min_element(in.noise, in.noise + 2 * D);
    weight = zero_rows(K);
    for (int k = 0; k < K; ++k) weight[k] = load_row(in.weight + k * n.inputs, D);
    if (kind == EIGEN) {
      pack_eigen_basis();
    } else {
      dense = make_zero<TransitionScratch>();
      if (kind == EXPM) expm = make_zero<ExpmScratch>();
      pack_basis();
    }
    if (gradients) grad_basis = zero_rows(basis.size()), grad_weight = zero_rows(K);
  }

  void pack_basis() {
    basis = zero_rows(size_t(W) * K);
    for (int k = 0; k < K; ++k)
      for (int i = 0; i < 2 * D; ++i)
        for (int j = 0; j < 2 * D; ++j) basis[lane(j) * K + k][lane(i)] = in.basis[(k * 2 * D + i) * 2 * D + j];
  }
  void pack_eigen_basis() {
    basis = zero_rows(K);
    for (int k = 0; k < K; ++k) basis[k] = load_row(in.basis + k * 2 * D, D);
    eigen = make_zero<EigenScratch>();
    eigen_basis = make_zero<EigenBasis>(), grad_eigen_basis = make_zero<EigenBasis>();
    Matrix &E = eigen_basis->E, &weighted = eigen->weighted;
    for (int j = 0; j < 2 * D; ++j) E[lane(j)] = load_row(in.eigenvectors + j * 2 * D, D);
    transpose(D, E, eigen_basis->E_transposed);
    each_row(D, [&](int j) {
      for (int v = 0; v < NV; ++v) weighted[j].v[v] = noise[j] * E[j].v[v];
    });
    multiply<true, false>(D, E, weighted, eigen_basis->S, 1);
  }

  int lane(int i) const { return i < D ? i : P + i - D; }
  bool time_aware() const { return n.inputs > 2 * D; }

  // α = softmax(W μ + b [+ w Δ])
  void coefficients(const LaneRow& mean, real delta) {
    real largest = -INFINITY, total = 0;
    for (int k = 0; k < K; ++k) {
      vec along = weight[k].v[0] * mean.v[0];
      for (int v = 1; v < NV; ++v) along += weight[k].v[v] * mean.v[v];
      alpha[k] = in.bias[k] + sum(along) + (time_aware() ? in.weight[k * n.inputs + 2 * D] * delta : 0);
      largest = std::max(largest, alpha[k]);
    }
    for (int k = 0; k < K; ++k) total += alpha[k] = std::exp(alpha[k] - largest);
    for (int k = 0; k < K; ++k) alpha[k] /= total;
  }
  void coefficients_backward(const LaneRow& mean, real delta, State& grad_in, const LocallyLinearGradients& grads) {
    real inner = 0;
    for (int k = 0; k < K; ++k) inner += alpha[k] * (grad_alpha[k] = clamp_gradient(grad_alpha[k]));
    for (int k = 0; k < K; ++k) {
      const real grad_logit = alpha[k] * (grad_alpha[k] - inner);
      grads.bias[k] += grad_logit;
      if (time_aware()) grads.weight[k * n.inputs + 2 * D] += grad_logit * delta;
      for (int v = 0; v < NV; ++v) {
        grad_weight[k].v[v] += grad_logit * mean.v[v];
        grad_in.mean.v[v] += grad_logit * weight[k].v[v];
      }
    }
  }

  // (scale · Σ_k α_k B_k)ᵀ
  void combine(real scale, Matrix& Z) {
    each_row(D, [&](int j) {
      LaneRow total = {};
      const LaneRow* b = &basis[size_t(j) * K];
      for (int k = 0; k < K; ++k)
        for (int v = 0; v < NV; ++v) total.v[v] += alpha[k] * b[k].v[v];
      for (int v = 0; v < NV; ++v) Z[j].v[v] = scale * total.v[v];
    });
  }
  void combine_backward(real scale, const Matrix& grad_Z) {
    alpha_sums.assign(K, vec{});
    each_row(D, [&](int j) {
      LaneRow g;
      for (int v = 0; v < NV; ++v) g.v[v] = clamp_gradient(scale * grad_Z[j].v[v]);
      const LaneRow* b = &basis[size_t(j) * K];
      LaneRow* grad_b = &grad_basis[size_t(j) * K];
      for (int k = 0; k < K; ++k) {
        vec total = alpha_sums[k];
        for (int v = 0; v < NV; ++v) total += g.v[v] * b[k].v[v], grad_b[k].v[v] += alpha[k] * g.v[v];
        alpha_sums[k] = total;
      }
    });
    for (int k = 0; k < K; ++k) grad_alpha[k] = sum(alpha_sums[k]);
  }

  // The transition of the RKN, A = I + Σ_k α_k B_k, transposed and clamped.
  void discrete_transition(Matrix& Z) {
    combine(1, Z);
    each_row(D, [&](int j) {
      Z[j][j] += 1;
      each_row(D, [&](int i) { Z[j][i] = clamp(Z[j][i], TRANSITION_BOUND); });
    });
  }
  // The eigenvalues of the f-CRU, d = Σ_k α_k d_k.
  LaneRow eigenvalues() const {
    LaneRow d = {};
    for (int k = 0; k < K; ++k)
      for (int v = 0; v < NV; ++v) d.v[v] += alpha[k] * basis[k].v[v];
    return d;
  }

  // The prior, not clamped yet.
  void predict(const State& before, real delta, State& out) {
    coefficients(before.mean, delta);
    if (kind == EXPM) {
      combine(delta, dense->transition);
      LaneRow scaled;
      for (int v = 0; v < NV; ++v) scaled.v[v] = delta * noise.v[v];
      Expm{D, {in.quadrature}, *expm}.forward(dense->transition, scaled, before, out);
    } else if (kind == DISCRETE) {
      discrete_transition(dense->transition);
      out = State{};
      out.variance = noise;
      transport(D, dense->transition, before, LaneRow{}, out);
    } else {
      Eigen{D, smallest_noise, *eigen_basis, *eigen}.forward(eigenvalues(), delta, before, out);
    }
  }

  // Add the gradient by the belief before to `grad_in`.
  void predict_backward(const State& before, real delta, const State& grad, State& grad_in, const LocallyLinearGradients& grads) {
    coefficients(before.mean, delta);
    if (kind == EXPM) {
      combine(delta, dense->transition);
      LaneRow scaled, grad_scaled = {};
      for (int v = 0; v < NV; ++v) scaled.v[v] = delta * noise.v[v];
      Expm{D, {in.quadrature}, *expm}.backward(dense->transition, scaled, before, grad, dense->grad_transition, grad_scaled, grad_in);
      for (int v = 0; v < NV; ++v) grad_noise.v[v] += clamp_gradient(delta * grad_scaled.v[v]);
      combine_backward(delta, dense->grad_transition);
    } else if (kind == DISCRETE) {
      discrete_transition(dense->transition);
      LaneRow ignored = {};
      transport_backward(D, dense->transition, before, LaneRow{}, grad, dense->grad_transition, grad_in, ignored);
      for (int v = 0; v < NV; ++v) grad_noise.v[v] += grad.variance.v[v];
      combine_backward(1, dense->grad_transition);
    } else {
      LaneRow grad_d = {};
      Eigen{D, smallest_noise, *eigen_basis, *eigen}.backward(eigenvalues(), delta, before, grad, grad_d, *grad_eigen_basis, grad_in);
      for (int k = 0; k < K; ++k) {
        LaneRow product;
        for (int v = 0; v < NV; ++v) {
          grad_basis[k].v[v] += alpha[k] * grad_d.v[v];
          product.v[v] = grad_d.v[v] * basis[k].v[v];
        }
        grad_alpha[k] = sum(product);
      }
    }
    coefficients_backward(before.mean, delta, grad_in, grads);
  }

  // Where nothing is observed, the posterior is the prior.
  void update_row(const State& prior, int64_t row, State& out) const {
    out = prior;
    for (int i = 0; i < D; ++i) {
      const int64_t at = row * D + i;
      if (in.mask[at]) out.set_pair(i, update(prior.pair(i), in.y[at], in.y_var[at], 1));
    }
  }
  // On entry, `grad` is the gradient by the posterior. On return, it is the gradient by the prior.
  void update_row_backward(const State& prior, int64_t row, State& grad, const LocallyLinearGradients& grads) const {
    for (int i = 0; i < D; ++i) {
      const int64_t at = row * D + i;
      grads.y[at] = grads.y_var[at] = 0;
      if (!in.mask[at]) continue;
      grad.set_pair(i, update_backward(prior.pair(i), in.y[at], in.y_var[at], 1, grad.pair(i), grads.y[at], grads.y_var[at]));
    }
  }

  void forward(int64_t series, const FilterOutputs& out) {
    State belief = load(in.start, series, D), next;
    for (int64_t row = series * n.time; row < (series + 1) * n.time; ++row) {
      if (in.stepped[row]) {
        predict(belief, in.delta[row], next);
        clamp_belief(D, next);
        belief = next;
      }
      store(belief, out.prior, row, D);
      update_row(belief, row, next);
      clamp_belief(D, next);
      belief = next;
      store(belief, out.posterior, row, D);
    }
  }

  void backward(int64_t series, const FilterSaved& saved, const LocallyLinearGradients& grads) {
    const int64_t first = series * n.time;
    State grad = {}, unclamped;
    for (int64_t row = first + n.time - 1; row >= first; --row) {
      add(grad, load(saved.grad_posterior, row, D));
      const State prior = load(saved.prior, row, D);
      update_row(prior, row, unclamped);
      clamp_belief_backward(D, unclamped, grad);
      update_row_backward(prior, row, grad, grads);
      add(grad, load(saved.grad_prior, row, D));
      if (!in.stepped[row]) continue;
      const State before = row == first ? load(in.start, series, D) : load(saved.posterior, row - 1, D);
      clamp_belief_backward(D, prior, grad);
      State grad_before = {};
      predict_backward(before, in.delta[row], grad, grad_before, grads);
      grad = grad_before;
    }
    store(grad, grads.start, series, D);
  }

  // Store the gradients by the parameters, after all series of this worker.
  void finish(const LocallyLinearGradients& grads) {
    for (int k = 0; k < K; ++k)
      for (int i = 0; i < 2 * D; ++i) grads.weight[k * n.inputs + i] += grad_weight[k][lane(i)];
    if (kind == EIGEN) {
      finish_eigen(grads);
    } else {
      for (int k = 0; k < K; ++k)
        for (int i = 0; i < 2 * D; ++i)
          for (int j = 0; j < 2 * D; ++j) grads.basis[(k * 2 * D + i) * 2 * D + j] = grad_basis[lane(j) * K + k][lane(i)];
    }
    store_row(grad_noise, grads.noise, D);
  }
  // S = Eᵀ diag(q) E gives grad q = diag(E grad_S Eᵀ) and grad E = 2 diag(q) E grad_S.
  void finish_eigen(const LocallyLinearGradients& grads) {
    const Matrix& E = eigen_basis->E;
    Matrix &grad_E = grad_eigen_basis->E, &product = eigen->weighted;
    multiply<false, false>(D, E, grad_eigen_basis->S, product, 1);
    each_row(D, [&](int j) {
      vec along = {};
      for (int v = 0; v < NV; ++v) {
        along += E[j].v[v] * product[j].v[v];
        grad_E[j].v[v] += 2 * noise[j] * product[j].v[v];
      }
      grad_noise[j] += sum(along);
    });
    for (int k = 0; k < K; ++k) store_row(grad_basis[k], grads.basis + k * 2 * D, D);
    for (int i = 0; i < 2 * D; ++i)
      for (int j = 0; j < 2 * D; ++j)
        grads.eigenvectors[i * 2 * D + j] = grad_E[lane(i)][lane(j)] + grad_eigen_basis->E_transposed[lane(j)][lane(i)];
  }
};

}  // namespace

// Filter the series first … last-1.
CRU_EXPORT void cru_locally_linear_filter(const LocallyLinearSizes* sizes, const LocallyLinearInputs* inputs,
                                          const FilterOutputs* outputs, int64_t first, int64_t last) {
  [[maybe_unused]] NoDenormals flush_denormals;
  Worker worker(*sizes, *inputs, false);
  for (int64_t series = first; series < last; ++series) worker.forward(series, *outputs);
}

// The gradients by the parameters must be zero on entry.
CRU_EXPORT void cru_locally_linear_filter_backward(const LocallyLinearSizes* sizes, const LocallyLinearInputs* inputs,
                                                   const FilterSaved* saved, const LocallyLinearGradients* grads, int64_t first,
                                                   int64_t last) {
  [[maybe_unused]] NoDenormals flush_denormals;
  Worker worker(*sizes, *inputs, true);
  for (int64_t series = first; series < last; ++series) worker.backward(series, *saved, *grads);
  worker.finish(*grads);
}
