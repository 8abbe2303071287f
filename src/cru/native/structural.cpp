// The structural filter, smoother and likelihood. They agree with cru/functional/structural.py. A problem is one variable of
// one series. The inner loops run over PADDED_COEFFICIENTS, a number that the compiler knows: the number of coefficients
// rounded up. The regressors, variances and rates of the added coefficients are 0. All arithmetic is in double.
#include <vector>

#include "common.h"

namespace {

constexpr double HALF_LOG_TWO_PI = 0.91893853320467274178;

// Four partial sums, which the compiler puts in one vector.
template <int PADDED_COEFFICIENTS>
inline double dot(const double* x, const double* y) {
  double sum[4] = {0, 0, 0, 0};
  for (int i = 0; i < PADDED_COEFFICIENTS; i += 4)
    for (int k = 0; k < 4; ++k) sum[k] += x[i + k] * y[i + k];
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}
// out = matrix * x, for a symmetric matrix.
template <int PADDED_COEFFICIENTS>
inline void multiply(const double (*matrix)[PADDED_COEFFICIENTS], const double* x, double* out) {
  double sum[PADDED_COEFFICIENTS] = {};
  for (int i = 0; i < PADDED_COEFFICIENTS; ++i)
    for (int j = 0; j < PADDED_COEFFICIENTS; ++j) sum[j] += matrix[i][j] * x[i];
  std::copy(sum, sum + PADDED_COEFFICIENTS, out);
}
// matrix = a matrix a.
template <int PADDED_COEFFICIENTS>
inline void scale(double (*matrix)[PADDED_COEFFICIENTS], const double* a) {
  for (int i = 0; i < PADDED_COEFFICIENTS; ++i)
    for (int j = 0; j < PADDED_COEFFICIENTS; ++j) matrix[i][j] *= a[i] * a[j];
}

template <int PADDED_COEFFICIENTS>
struct alignas(64) StructuralMoments {
  double m[PADDED_COEFFICIENTS], G[PADDED_COEFFICIENTS][PADDED_COEFFICIENTS];
};

// Values of one row, observed or not, for the backward pass.
template <int PADDED_COEFFICIENTS>
struct alignas(64) StructuralRow {
  double a[PADDED_COEFFICIENTS], h[PADDED_COEFFICIENTS], Ph[PADDED_COEFFICIENTS];
  double mean, e, S, gap;  // e: innovation, 0 where nothing is observed; S: its variance
  bool observed;
};

template <int PADDED_COEFFICIENTS>
struct alignas(64) StructuralFilter {
  const StructuralSizes& n;
  const StructuralInputs& in;
  int64_t batch, variable;
  double rate[PADDED_COEFFICIENTS] = {}, var[PADDED_COEFFICIENTS] = {}, a[PADDED_COEFFICIENTS];  // a = exp(-gap rate)
  double noise, gap = -1;
  StructuralMoments<PADDED_COEFFICIENTS> state;

  StructuralFilter(const StructuralSizes& sizes, const StructuralInputs& inputs, int64_t problem)
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
    for (int d = 0; d < PADDED_COEFFICIENTS; ++d) a[d] = d && rate[d] == rate[d - 1] ? a[d - 1] : std::exp(-delta * rate[d]);
  }
  void predict(double delta) {
    set_gap(delta);
    if (delta == 0) return;
    for (int d = 0; d < PADDED_COEFFICIENTS; ++d) state.m[d] *= a[d];
    scale<PADDED_COEFFICIENTS>(state.G, a);
  }
  // Fill `out` for row t, after `predict`.
  void innovate(int64_t t, double delta, StructuralRow<PADDED_COEFFICIENTS>& out) const {
    std::copy_n(in.regressors + row(t) * n.coefficients, n.coefficients, out.h);
    std::fill(out.h + n.coefficients, out.h + PADDED_COEFFICIENTS, 0.0);
    std::copy_n(a, PADDED_COEFFICIENTS, out.a);
    multiply<PADDED_COEFFICIENTS>(state.G, out.h, out.Ph);
    for (int d = 0; d < PADDED_COEFFICIENTS; ++d) out.Ph[d] = var[d] * out.h[d] - out.Ph[d];
    out.mean = dot<PADDED_COEFFICIENTS>(out.h, state.m);
    out.S = std::max(dot<PADDED_COEFFICIENTS>(out.h, out.Ph), 0.0) + noise, out.gap = delta;
    out.observed = in.mask[cell(t)];
    out.e = out.observed ? in.values[cell(t)] - out.mean : 0;
  }
  void update(const StructuralRow<PADDED_COEFFICIENTS>& row) {
    if (!row.observed) return;
    const double weight = row.e / row.S;
    for (int i = 0; i < PADDED_COEFFICIENTS; ++i) {
      state.m[i] += row.Ph[i] * weight;
      const double gain = row.Ph[i] / row.S;
      for (int j = 0; j < PADDED_COEFFICIENTS; ++j) state.G[i][j] += gain * row.Ph[j];
    }
  }
};

template <int PADDED_COEFFICIENTS>
inline double nll_of(const StructuralRow<PADDED_COEFFICIENTS>& row) {
  return HALF_LOG_TWO_PI + 0.5 * (std::log(row.S) + row.e * row.e / row.S);
}

// r and N of the smoother. They are also the adjoints of the likelihood; docs/explanation/backward-passes.md shows why.
template <int PADDED_COEFFICIENTS>
struct alignas(64) Adjoint {
  double r[PADDED_COEFFICIENTS] = {}, N[PADDED_COEFFICIENTS][PADDED_COEFFICIENTS] = {};
  double u, d;  // of the last observed row

  void update(const StructuralRow<PADDED_COEFFICIENTS>& row) {
    double K[PADDED_COEFFICIENTS], NK[PADDED_COEFFICIENTS];
    for (int i = 0; i < PADDED_COEFFICIENTS; ++i) K[i] = row.Ph[i] / row.S;
    multiply<PADDED_COEFFICIENTS>(N, K, NK);
    u = row.e / row.S - dot<PADDED_COEFFICIENTS>(K, r), d = 1 / row.S + dot<PADDED_COEFFICIENTS>(K, NK);
    for (int i = 0; i < PADDED_COEFFICIENTS; ++i) {
      r[i] += row.h[i] * u;
      const double left = d * row.h[i] - NK[i];
      for (int j = 0; j < PADDED_COEFFICIENTS; ++j) N[i][j] += left * row.h[j] - row.h[i] * NK[j];
    }
  }
  void predict(const StructuralRow<PADDED_COEFFICIENTS>& row) {
    if (row.gap == 0) return;
    for (int i = 0; i < PADDED_COEFFICIENTS; ++i) r[i] *= row.a[i];
    scale<PADDED_COEFFICIENTS>(N, row.a);
  }
};

template <int PADDED_COEFFICIENTS>
void filter(const StructuralSizes& n, const StructuralInputs& in, const StructuralFilterOutputs& out, int64_t problem) {
  StructuralFilter<PADDED_COEFFICIENTS> run(n, in, problem);
  StructuralRow<PADDED_COEFFICIENTS> row;
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

template <int PADDED_COEFFICIENTS>
struct StructuralSmoother {
  std::vector<StructuralRow<PADDED_COEFFICIENTS>> filtered_rows;
  std::vector<double> cross, moments;  // of each row and group: P h; hᵀ m and hᵀ P h

  void operator()(const StructuralSizes& n, const StructuralInputs& in, const StructuralSmoothOutputs& out, int64_t problem) {
    const int64_t groups = n.groups;
    filtered_rows.resize(n.time);
    cross.resize(n.time * groups * PADDED_COEFFICIENTS), moments.resize(n.time * groups * 2);
    StructuralFilter<PADDED_COEFFICIENTS> run(n, in, problem);
    for (int64_t t = 0; t < n.time; ++t) {
      const double delta = in.delta[run.row(t)];
      run.predict(delta);
      run.innovate(t, delta, filtered_rows[t]);
      split(run, filtered_rows[t], t);
      run.update(filtered_rows[t]);
    }
    Adjoint<PADDED_COEFFICIENTS> adjoint;
    double NP[PADDED_COEFFICIENTS];
    for (int64_t t = n.time - 1; t >= 0; --t) {
      const StructuralRow<PADDED_COEFFICIENTS>& row = filtered_rows[t];
      const int64_t cell = run.cell(t);
      if (row.observed) adjoint.update(row);
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = t * groups + g;
        const double* Ph = &cross[at * PADDED_COEFFICIENTS];
        multiply<PADDED_COEFFICIENTS>(adjoint.N, Ph, NP);
        out.mean[cell * groups + g] = moments[2 * at] + dot<PADDED_COEFFICIENTS>(Ph, adjoint.r);
        out.var[cell * groups + g] = std::max(moments[2 * at + 1] - dot<PADDED_COEFFICIENTS>(Ph, NP), 0.0);
      }
      if (out.loo_mean) {
        // The same variance without cancellation, for noise far below the prior variance.
        const double ratio = row.observed ? run.noise * adjoint.d : 1;
        if (ratio < 0.5) out.var[cell] = run.noise * (1 - ratio);
        out.loo_mean[cell] = row.observed ? in.values[cell] - adjoint.u / adjoint.d : out.mean[cell];
        out.loo_var[cell] = row.observed ? std::max(1 / adjoint.d - run.noise, 0.0) : out.var[cell];
      }
      adjoint.predict(row);
    }
  }

 private:
  // With one group, the row already has the results.
  void split(const StructuralFilter<PADDED_COEFFICIENTS>& run, const StructuralRow<PADDED_COEFFICIENTS>& row, int64_t t) {
    const int64_t groups = run.n.groups;
    if (groups == 1) {
      std::copy_n(row.Ph, PADDED_COEFFICIENTS, &cross[t * PADDED_COEFFICIENTS]);
      moments[2 * t] = row.mean, moments[2 * t + 1] = row.S - run.noise;
      return;
    }
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = t * groups + g;
      double h[PADDED_COEFFICIENTS] = {}, *Ph = &cross[at * PADDED_COEFFICIENTS];
      for (int64_t d = 0; d < run.n.coefficients; ++d) h[d] = run.in.group[d] == g ? row.h[d] : 0;
      multiply<PADDED_COEFFICIENTS>(run.state.G, h, Ph);
      for (int d = 0; d < PADDED_COEFFICIENTS; ++d) Ph[d] = run.var[d] * h[d] - Ph[d];
      moments[2 * at] = dot<PADDED_COEFFICIENTS>(h, run.state.m), moments[2 * at + 1] = dot<PADDED_COEFFICIENTS>(h, Ph);
    }
  }
};

// The likelihood and its gradient in closed form, on the observed rows only. docs/explanation/backward-passes.md derives
// it. With M = (r rᵀ - N) / 2, the gradients of the log likelihood are
//   noise:  Σ (u² - d) / 2          var_d:  Σ (M after the backward update - M before it)_dd
//   value:  -u                      rate_d: -gap (r m - Σ_j 2 M_dj G_dj), with m and G as predicted for the row.
// The gradient needs G of every row. `filtered_rows` holds a part of the rows that fits the cache. The other parts are
// filtered again.
template <int PADDED_COEFFICIENTS>
struct Likelihood {
  struct alignas(64) FilteredRow {
    StructuralRow<PADDED_COEFFICIENTS> row;
    StructuralMoments<PADDED_COEFFICIENTS> predicted;
  };
  static constexpr int64_t PART = std::max<int64_t>(16, 400'000 / sizeof(FilteredRow));
  std::vector<FilteredRow> filtered_rows{size_t(PART)};
  std::vector<StructuralMoments<PADDED_COEFFICIENTS>> starts;  // before the first row of each part
  std::vector<int64_t> rows;
  std::vector<double> gaps;

  void operator()(const StructuralSizes& n, const StructuralInputs& in, const StructuralLikelihoodOutputs& out,
                  int64_t problem) {
    StructuralFilter<PADDED_COEFFICIENTS> run(n, in, problem);
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
    Adjoint<PADDED_COEFFICIENTS> adjoint;
    double grad_rate[PADDED_COEFFICIENTS] = {}, grad_var[PADDED_COEFFICIENTS] = {}, grad_noise = 0;
    for (int64_t part = parts - 1; part >= 0; --part) {
      if (part < parts - 1) run.state = starts[part], forward(run, part, count);
      for (int64_t k = std::min(count, (part + 1) * PART) - 1; k >= part * PART; --k) {
        const FilteredRow& step = filtered_rows[k - part * PART];
        for (int d = 0; d < PADDED_COEFFICIENTS; ++d) grad_var[d] += adjoint.r[d] * adjoint.r[d] - adjoint.N[d][d];
        adjoint.update(step.row);
        for (int d = 0; d < PADDED_COEFFICIENTS; ++d) grad_var[d] -= adjoint.r[d] * adjoint.r[d] - adjoint.N[d][d];
        grad_noise -= adjoint.u * adjoint.u - adjoint.d;
        out.values[run.cell(rows[k])] = adjoint.u;
        if (step.row.gap == 0) continue;
        double inner[PADDED_COEFFICIENTS] = {};
        for (int i = 0; i < PADDED_COEFFICIENTS; ++i)
          for (int j = 0; j < PADDED_COEFFICIENTS; ++j)
            inner[j] += step.predicted.G[i][j] * (adjoint.N[i][j] - adjoint.r[i] * adjoint.r[j]);
        for (int d = 0; d < PADDED_COEFFICIENTS; ++d)
          grad_rate[d] += step.row.gap * (adjoint.r[d] * step.predicted.m[d] + inner[d]);
        adjoint.predict(step.row);
      }
    }
    for (int64_t d = 0; d < n.coefficients; ++d) {
      out.rate[problem * n.coefficients + d] = grad_rate[d];
      out.var[problem * n.coefficients + d] = 0.5 * grad_var[d];
    }
    out.noise[problem] = in.noise[run.variable] >= double(CRU_MIN_VARIANCE) ? 0.5 * grad_noise : 0;
  }

 private:
  double forward(StructuralFilter<PADDED_COEFFICIENTS>& run, int64_t part, int64_t count) {
    double nll = 0;
    for (int64_t k = part * PART; k < std::min(count, (part + 1) * PART); ++k) {
      FilteredRow& step = filtered_rows[k - part * PART];
      run.predict(gaps[k]);
      run.innovate(rows[k], gaps[k], step.row);
      step.predicted = run.state;
      nll += nll_of(step.row);
      run.update(step.row);
    }
    return nll;
  }
};

// Run WORK(PADDED_COEFFICIENTS) with the smallest number that is not less than D.
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
#define RUN(PADDED_COEFFICIENTS) \
  for (int64_t p = first; p < last; ++p) filter<PADDED_COEFFICIENTS>(*sizes, *inputs, *outputs, p)
  FOR_EACH_SIZE(sizes->coefficients, RUN)
#undef RUN
}

CRU_EXPORT void cru_structural_smooth(const StructuralSizes* sizes, const StructuralInputs* inputs,
                                      const StructuralSmoothOutputs* outputs, int64_t first, int64_t last) {
#define RUN(PADDED_COEFFICIENTS) \
  StructuralSmoother<PADDED_COEFFICIENTS> smooth; \
  for (int64_t p = first; p < last; ++p) smooth(*sizes, *inputs, *outputs, p)
  FOR_EACH_SIZE(sizes->coefficients, RUN)
#undef RUN
}

CRU_EXPORT void cru_structural_likelihood(const StructuralSizes* sizes, const StructuralInputs* inputs,
                                          const StructuralLikelihoodOutputs* outputs, int64_t first, int64_t last) {
#define RUN(PADDED_COEFFICIENTS) \
  Likelihood<PADDED_COEFFICIENTS> likelihood; \
  for (int64_t p = first; p < last; ++p) likelihood(*sizes, *inputs, *outputs, p)
  FOR_EACH_SIZE(sizes->coefficients, RUN)
#undef RUN
}
