// The structural filter, smoother and likelihood. They agree with cru/functional/structural.py. A problem is one variable of
// one series. The inner loops run over W coefficients, a number that the compiler knows: the true number rounded up. The
// regressors, variances and rates of the added coefficients are 0. All arithmetic is in double.
#include <vector>

#include "common.h"

namespace {

constexpr double HALF_LOG_TWO_PI = 0.91893853320467274178;

// Four partial sums, which the compiler puts in one vector.
template <int W>
inline double dot(const double* x, const double* y) {
  double sum[4] = {0, 0, 0, 0};
  for (int i = 0; i < W; i += 4)
    for (int k = 0; k < 4; ++k) sum[k] += x[i + k] * y[i + k];
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}
// out = matrix * x, for a symmetric matrix.
template <int W>
inline void multiply(const double (*matrix)[W], const double* x, double* out) {
  double sum[W] = {};
  for (int i = 0; i < W; ++i)
    for (int j = 0; j < W; ++j) sum[j] += matrix[i][j] * x[i];
  std::copy(sum, sum + W, out);
}
// matrix = a matrix a.
template <int W>
inline void scale(double (*matrix)[W], const double* a) {
  for (int i = 0; i < W; ++i)
    for (int j = 0; j < W; ++j) matrix[i][j] *= a[i] * a[j];
}

template <int W>
struct alignas(64) Moments {
  double m[W], G[W][W];
};

// Values of one row, observed or not, for the backward pass.
template <int W>
struct alignas(64) Row {
  double a[W], h[W], Ph[W], mean, e, S, gap;  // e: innovation, 0 where nothing is observed; S: its variance
  bool observed;
};

template <int W>
struct alignas(64) Filter {
  const StructuralSizes& n;
  const StructuralInputs& in;
  int64_t batch, variable;
  double rate[W] = {}, var[W] = {}, a[W], noise, gap = -1;  // a = exp(-gap rate)
  Moments<W> state;

  Filter(const StructuralSizes& sizes, const StructuralInputs& inputs, int64_t problem)
      : n(sizes), in(inputs), batch(problem / sizes.variables), variable(problem % sizes.variables) {
    const int64_t D = n.coefficients;
    std::copy_n(in.rate + variable * D, D, rate), std::copy_n(in.var + variable * D, D, var);
    noise = std::max(in.noise[variable], double(CRU_MIN_VARIANCE));
    std::memset(&state, 0, sizeof state);
    if (!in.mean) return;
    std::copy_n(in.mean + problem * D, D, state.m);
    for (int64_t d = 0; d < D; ++d) std::copy_n(in.explained + (problem * D + d) * D, D, state.G[d]);
  }

  int64_t row(int64_t t) const { return batch * n.time + t; }
  int64_t cell(int64_t t) const { return row(t) * n.variables + variable; }

  // Compute each factor once: rows on a grid have equal gaps, and cos and sin have equal rates.
  void set_gap(double delta) {
    if (delta == gap) return;
    gap = delta;
    for (int d = 0; d < W; ++d) a[d] = d && rate[d] == rate[d - 1] ? a[d - 1] : std::exp(-delta * rate[d]);
  }
  void predict(double delta) {
    set_gap(delta);
    if (delta == 0) return;
    for (int d = 0; d < W; ++d) state.m[d] *= a[d];
    scale<W>(state.G, a);
  }
  // Fill `out` for row t, after `predict`.
  void innovate(int64_t t, double delta, Row<W>& out) const {
    std::copy_n(in.regressors + row(t) * n.coefficients, n.coefficients, out.h);
    std::fill(out.h + n.coefficients, out.h + W, 0.0);
    std::copy_n(a, W, out.a);
    multiply<W>(state.G, out.h, out.Ph);
    for (int d = 0; d < W; ++d) out.Ph[d] = var[d] * out.h[d] - out.Ph[d];
    out.mean = dot<W>(out.h, state.m), out.S = std::max(dot<W>(out.h, out.Ph), 0.0) + noise, out.gap = delta;
    out.observed = in.mask[cell(t)];
    out.e = out.observed ? in.values[cell(t)] - out.mean : 0;
  }
  void update(const Row<W>& row) {
    if (!row.observed) return;
    const double weight = row.e / row.S;
    for (int i = 0; i < W; ++i) {
      state.m[i] += row.Ph[i] * weight;
      const double gain = row.Ph[i] / row.S;
      for (int j = 0; j < W; ++j) state.G[i][j] += gain * row.Ph[j];
    }
  }
};

template <int W>
inline double nll_of(const Row<W>& row) {
  return HALF_LOG_TWO_PI + 0.5 * (std::log(row.S) + row.e * row.e / row.S);
}

// r and N of the smoother. They are also the adjoints of the likelihood; docs/explanation/backward-passes.md shows why.
template <int W>
struct alignas(64) Adjoint {
  double r[W] = {}, N[W][W] = {}, u, d;  // u, d: of the last observed row

  void update(const Row<W>& row) {
    double K[W], NK[W];
    for (int i = 0; i < W; ++i) K[i] = row.Ph[i] / row.S;
    multiply<W>(N, K, NK);
    u = row.e / row.S - dot<W>(K, r), d = 1 / row.S + dot<W>(K, NK);
    for (int i = 0; i < W; ++i) {
      r[i] += row.h[i] * u;
      const double left = d * row.h[i] - NK[i];
      for (int j = 0; j < W; ++j) N[i][j] += left * row.h[j] - row.h[i] * NK[j];
    }
  }
  void predict(const Row<W>& row) {
    if (row.gap == 0) return;
    for (int i = 0; i < W; ++i) r[i] *= row.a[i];
    scale<W>(N, row.a);
  }
};

template <int W>
void filter(const StructuralSizes& n, const StructuralInputs& in, const StructuralFilterOutputs& out, int64_t problem) {
  Filter<W> run(n, in, problem);
  Row<W> row;
  double nll = 0;
  for (int64_t t = 0; t < n.time; ++t) {
    const double delta = in.delta[run.row(t)];
    run.predict(delta);
    run.innovate(t, delta, row);
    out.mean[run.cell(t)] = row.mean, out.var[run.cell(t)] = row.S - run.noise;
    if (row.observed) nll += nll_of(row);
    run.update(row);
  }
  out.nll[problem] = nll;
  const int64_t D = n.coefficients;
  std::copy_n(run.state.m, D, out.state_mean + problem * D);
  for (int64_t d = 0; d < D; ++d) std::copy_n(run.state.G[d], D, out.state_explained + (problem * D + d) * D);
}

template <int W>
struct Smoother {
  std::vector<Row<W>> tape;
  std::vector<double> cross, moments;  // of each row and group: P h; hᵀ m and hᵀ P h

  void operator()(const StructuralSizes& n, const StructuralInputs& in, const StructuralSmoothOutputs& out, int64_t problem) {
    const int64_t groups = n.groups;
    tape.resize(n.time), cross.resize(n.time * groups * W), moments.resize(n.time * groups * 2);
    Filter<W> run(n, in, problem);
    for (int64_t t = 0; t < n.time; ++t) {
      const double delta = in.delta[run.row(t)];
      run.predict(delta);
      run.innovate(t, delta, tape[t]);
      split(run, tape[t], t);
      run.update(tape[t]);
    }
    Adjoint<W> back;
    double NP[W];
    for (int64_t t = n.time - 1; t >= 0; --t) {
      const Row<W>& row = tape[t];
      const int64_t cell = run.cell(t);
      if (row.observed) back.update(row);
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = t * groups + g;
        const double* Ph = &cross[at * W];
        multiply<W>(back.N, Ph, NP);
        out.mean[cell * groups + g] = moments[2 * at] + dot<W>(Ph, back.r);
        out.var[cell * groups + g] = std::max(moments[2 * at + 1] - dot<W>(Ph, NP), 0.0);
      }
      if (out.loo_mean) {
        // The same variance without cancellation, for noise far below the prior variance.
        const double ratio = row.observed ? run.noise * back.d : 1;
        if (ratio < 0.5) out.var[cell] = run.noise * (1 - ratio);
        out.loo_mean[cell] = row.observed ? in.values[cell] - back.u / back.d : out.mean[cell];
        out.loo_var[cell] = row.observed ? std::max(1 / back.d - run.noise, 0.0) : out.var[cell];
      }
      back.predict(row);
    }
  }

 private:
  // With one group, the row already has the results.
  void split(const Filter<W>& run, const Row<W>& row, int64_t t) {
    const int64_t groups = run.n.groups;
    if (groups == 1) {
      std::copy_n(row.Ph, W, &cross[t * W]);
      moments[2 * t] = row.mean, moments[2 * t + 1] = row.S - run.noise;
      return;
    }
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = t * groups + g;
      double h[W] = {}, *Ph = &cross[at * W];
      for (int64_t d = 0; d < run.n.coefficients; ++d) h[d] = run.in.group[d] == g ? row.h[d] : 0;
      multiply<W>(run.state.G, h, Ph);
      for (int d = 0; d < W; ++d) Ph[d] = run.var[d] * h[d] - Ph[d];
      moments[2 * at] = dot<W>(h, run.state.m), moments[2 * at + 1] = dot<W>(h, Ph);
    }
  }
};

// The likelihood and its gradient in closed form, on the observed rows only. docs/explanation/backward-passes.md derives
// it. With M = (r rᵀ - N) / 2, the gradients of the log likelihood are
//   noise:  Σ (u² - d) / 2          var_d:  Σ (M after the backward update - M before it)_dd
//   value:  -u                      rate_d: -gap (r m - Σ_j 2 M_dj G_dj), with m and G as predicted for the row.
// The gradient needs G of every row. The tape holds a part of the rows that fits the cache. The other parts are filtered again.
template <int W>
struct Likelihood {
  struct alignas(64) Step {
    Row<W> row;
    Moments<W> predicted;
  };
  static constexpr int64_t PART = std::max<int64_t>(16, 400'000 / sizeof(Step));
  std::vector<Step> tape{size_t(PART)};
  std::vector<Moments<W>> starts;  // before the first row of each part
  std::vector<int64_t> rows;
  std::vector<double> gaps;

  void operator()(const StructuralSizes& n, const StructuralInputs& in, const StructuralLikelihoodOutputs& out, int64_t problem) {
    Filter<W> run(n, in, problem);
    rows.clear(), gaps.clear(), starts.clear();
    double gap = 0;
    for (int64_t t = 0; t < n.time; ++t) {
      gap += in.delta[run.row(t)];
      if (!in.mask[run.cell(t)]) continue;
      rows.push_back(t), gaps.push_back(gap), gap = 0;
    }
    const int64_t count = rows.size(), parts = (count + PART - 1) / PART;
    double nll = 0;
    for (int64_t part = 0; part < parts; ++part) {
      starts.push_back(run.state);
      nll += forward(run, part, count);
    }
    out.nll[problem] = nll;
    if (!out.rate) return;
    Adjoint<W> back;
    double grad_rate[W] = {}, grad_var[W] = {}, grad_noise = 0;
    for (int64_t part = parts - 1; part >= 0; --part) {
      if (part < parts - 1) run.state = starts[part], forward(run, part, count);
      for (int64_t k = std::min(count, (part + 1) * PART) - 1; k >= part * PART; --k) {
        const Step& step = tape[k - part * PART];
        for (int d = 0; d < W; ++d) grad_var[d] += back.r[d] * back.r[d] - back.N[d][d];
        back.update(step.row);
        for (int d = 0; d < W; ++d) grad_var[d] -= back.r[d] * back.r[d] - back.N[d][d];
        grad_noise -= back.u * back.u - back.d;
        out.values[run.cell(rows[k])] = back.u;
        if (step.row.gap == 0) continue;
        double inner[W] = {};
        for (int i = 0; i < W; ++i)
          for (int j = 0; j < W; ++j) inner[j] += step.predicted.G[i][j] * (back.N[i][j] - back.r[i] * back.r[j]);
        for (int d = 0; d < W; ++d) grad_rate[d] += step.row.gap * (back.r[d] * step.predicted.m[d] + inner[d]);
        back.predict(step.row);
      }
    }
    for (int64_t d = 0; d < n.coefficients; ++d) {
      out.rate[problem * n.coefficients + d] = grad_rate[d];
      out.var[problem * n.coefficients + d] = 0.5 * grad_var[d];
    }
    out.noise[problem] = in.noise[run.variable] >= double(CRU_MIN_VARIANCE) ? 0.5 * grad_noise : 0;
  }

 private:
  double forward(Filter<W>& run, int64_t part, int64_t count) {
    double nll = 0;
    for (int64_t k = part * PART; k < std::min(count, (part + 1) * PART); ++k) {
      Step& step = tape[k - part * PART];
      run.predict(gaps[k]);
      run.innovate(rows[k], gaps[k], step.row);
      step.predicted = run.state;
      nll += nll_of(step.row);
      run.update(step.row);
    }
    return nll;
  }
};

// Run WORK(W) with the smallest W that is not less than D.
static_assert(CRU_MAX_COEFFICIENTS == 64, "Python and C++ disagree on the number of coefficients");
#define FOR_EACH_SIZE(D, WORK) \
  if (D <= 4) { WORK(4); } \
  else if (D <= 8) { WORK(8); } \
  else if (D <= 12) { WORK(12); } \
  else if (D <= 16) { WORK(16); } \
  else if (D <= 20) { WORK(20); } \
  else if (D <= 24) { WORK(24); } \
  else if (D <= 32) { WORK(32); } \
  else if (D <= 48) { WORK(48); } \
  else { WORK(64); }

}  // namespace

// Each function takes the problems first … last-1.
CRU_EXPORT void cru_structural_filter(const StructuralSizes* sizes, const StructuralInputs* inputs,
                                      const StructuralFilterOutputs* outputs, int64_t first, int64_t last) {
#define RUN(W) \
  for (int64_t p = first; p < last; ++p) filter<W>(*sizes, *inputs, *outputs, p)
  FOR_EACH_SIZE(sizes->coefficients, RUN)
#undef RUN
}

CRU_EXPORT void cru_structural_smooth(const StructuralSizes* sizes, const StructuralInputs* inputs,
                                      const StructuralSmoothOutputs* outputs, int64_t first, int64_t last) {
#define RUN(W) \
  Smoother<W> smooth; \
  for (int64_t p = first; p < last; ++p) smooth(*sizes, *inputs, *outputs, p)
  FOR_EACH_SIZE(sizes->coefficients, RUN)
#undef RUN
}

CRU_EXPORT void cru_structural_likelihood(const StructuralSizes* sizes, const StructuralInputs* inputs,
                                          const StructuralLikelihoodOutputs* outputs, int64_t first, int64_t last) {
#define RUN(W) \
  Likelihood<W> likelihood; \
  for (int64_t p = first; p < last; ++p) likelihood(*sizes, *inputs, *outputs, p)
  FOR_EACH_SIZE(sizes->coefficients, RUN)
#undef RUN
}
