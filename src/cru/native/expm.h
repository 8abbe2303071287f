// The predict step of the CRU: Φ = exp(AΔ) and the noise integral on M × M matrices; the maths is in
// cru/functional/expm.py. Here every series chooses its own Taylor order, quadrature and number of doublings, and when
// no doubling is needed only the three diagonals of the noise are formed.
//
// All matrices are kept transposed (row j, lane i = entry ij), so that sums over j run down the rows.
#pragma once
#include "matrix.h"

constexpr int MAX_ORDER = 24, MAX_POINTS = 16;
constexpr real LONGEST_STEP = SINGLE ? real(2.5) : real(1.5);  // ‖A h‖ that one Taylor series may cover
constexpr double TOLERANCE = SINGLE ? 2e-7 : 1e-15;

// Gauss-Lobatto rules on [0, 1], filled from Python: nodes[n], weights[n] for n points.
struct Rules {
  const double* table;  // [MAX_POINTS + 1][2][MAX_POINTS]
  double node(int n, int m) const { return table[(n * 2 + 0) * MAX_POINTS + m]; }
  double weight(int n, int m) const { return table[(n * 2 + 1) * MAX_POINTS + m]; }
};

struct ExpmPlan {
  int order, points, doublings;
  real shrink;  // 2^-doublings
};

inline real frobenius(int D, const Matrix& Z) {
  vec squares = {};
  each_row(D, [&](int j) {
    for (int v = 0; v < NV; ++v) squares += Z[j].v[v] * Z[j].v[v];
  });
  return std::sqrt(sum(squares));
}

inline real spectral_bound(int D, const Matrix& Z) {
  Row columns = {};
  real rows = 0;
  each_row(D, [&](int j) {
    vec along = {};
    for (int v = 0; v < NV; ++v) {
      const vec x = Z[j].v[v], size = x < 0 ? -x : x;
      columns.v[v] += size, along += size;
    }
    rows = std::max(rows, sum(along));
  });
  real most = 0;
  for (int i = 0; i < W; ++i) most = std::max(most, columns[i]);
  return std::min(std::sqrt(most) * std::sqrt(rows), frobenius(D, Z));
}

// `size` bounds ‖Z^k‖^(1/k) for the powers that matter.
inline ExpmPlan plan_step(real size) {
  ExpmPlan plan = {1, 3, 0, 1};
  double x = size;
  while (x > LONGEST_STEP && plan.doublings < MAX_DOUBLINGS) x /= 2, plan.shrink /= 2, ++plan.doublings;
  // Φ to TOLERANCE, and Φ - I, which alone couples the entries over a short gap, to five times that.
  double remainder = x * x / 2;  // x^(p+1) / (p+1)!
  const double limit = TOLERANCE * std::min(1.0, 5 * x);
  while (remainder > limit && plan.order < MAX_ORDER) remainder *= x / (++plan.order + 1);
  // The error of n Lobatto points on e^{2xs}, relative to e^{2x}: n (n-1)^3 4^(n-1) ((n-2)!)^4 x^(2n-2) / ((2n-1) ((2n-2)!)^3)
  double error = 3 * 8 * 16.0 / (5 * 24.0 * 24 * 24) * x * x * x * x;
  while (error > TOLERANCE && plan.points < MAX_POINTS) {
    const double n = ++plan.points, m = n - 1;
    error *= n / m * std::pow(m / (m - 1), 3) * 4 * std::pow(m - 1, 4) * x * x * (2 * m - 1) / (2 * n - 1) /
             std::pow((2 * n - 2) * (2 * n - 3), 3);
  }
  return plan;
}

struct ExpmScratch {
  Matrix term[MAX_ORDER + 1], grad_term[MAX_ORDER + 1], node[MAX_POINTS], phi[MAX_DOUBLINGS + 1], noise[MAX_DOUBLINGS + 1];
  Matrix work[6];
};

struct Expm {
  int D;
  Rules rules;
  ExpmScratch& s;

  // term[k] = Z^k / k!, k = 1 … order, of Z shrunk as the plan says. Norms overestimate the powers of a matrix by far:
  // unless Z is small anyway (or so large that its cube could overflow), ‖Z²‖^½ and ‖Z³‖^⅓ bound them better
  // (Al-Mohy & Higham 2009), and both products are needed in any case.
  ExpmPlan series(const Matrix& Z) {
    const real size = spectral_bound(D, Z);
    const bool look = size > real(0.5) && size < real(1e4);
    s.term[1] = Z;
    int ready = 1;
    ExpmPlan plan;
    if (look) {
      power(2), power(3), ready = 3;
      plan = plan_step(std::min(size, std::max(std::sqrt(2 * frobenius(D, s.term[2])), std::cbrt(6 * frobenius(D, s.term[3])))));
    } else {
      plan = plan_step(size);
    }
    // Beyond the last doubling the bounds hold in any case.
    const real shrink = plan.doublings < MAX_DOUBLINGS ? plan.shrink : std::min(plan.shrink, LONGEST_STEP / size);
    real factor = 1;
    for (int k = 1; k <= ready && plan.doublings > 0; ++k) {
      factor *= shrink;
      each_row(D, [&](int j) {
        for (int v = 0; v < NV; ++v) s.term[k][j].v[v] *= factor;
      });
    }
    for (int k = ready + 1; k <= plan.order; ++k) power(k);
    return plan;
  }
  void power(int k) { multiply<false, false>(D, s.term[k - 1], s.term[1], s.term[k], real(1) / k); }

  // Row j of Φ(σh)ᵀ = I + Σ_k σ^k term_k.
  Row row_at(int j, real sigma, int order) const {
    Row r = s.term[order][j];
    for (int k = order - 1; k >= 1; --k)
      for (int v = 0; v < NV; ++v) r.v[v] = r.v[v] * sigma + s.term[k][j].v[v];
    for (int v = 0; v < NV; ++v) r.v[v] *= sigma;
    r[j] += 1;
    return r;
  }

  // Φ(h)ᵀ and, for doubling, the inner nodes and the whole noise matrix over h.
  void short_step(const ExpmPlan& plan, const Row& noise) {
    each_row(D, [&](int j) { s.phi[0][j] = row_at(j, 1, plan.order); });
    if (plan.doublings == 0) return;
    const int n = plan.points;
    Matrix& Q = s.noise[0];
    Q.zero();
    each_row(D, [&](int j) { Q[j][j] = real(rules.weight(n, 0)) * noise[j]; });
    for (int m = 1; m < n; ++m) {
      Matrix& R = s.node[m];
      Matrix& weighted = s.work[0];
      const real w = rules.weight(n, m);
      each_row(D, [&](int j) {
        R[j] = m == n - 1 ? s.phi[0][j] : row_at(j, rules.node(n, m), plan.order);
        for (int v = 0; v < NV; ++v) weighted[j].v[v] = w * noise[j] * R[j].v[v];
      });
      multiply<true, true>(D, weighted, R, Q, 1);
    }
  }

  // Hold the entries of Φᵀ, and gather their largest size in each of its columns, which are the rows of Φ.
  Row hold_transition(Matrix& A) {
    const real limit = TRANSITION_BOUND;
    Row largest = {};
    each_row(D, [&](int j) {
      for (int v = 0; v < NV; ++v) {
        vec x = A[j].v[v];
        x = x > limit ? splat(limit) : x;
        x = A[j].v[v] = x < -limit ? splat(-limit) : x;
        largest.v[v] = most(largest.v[v], x < 0 ? -x : x);
      }
    });
    return largest;
  }

  // See `hold_noise` in cru/functional/belief.py: Q ← D Q D where a variance exceeds the bound, never below `least`.
  void hold_noise(Matrix& Q, const Row& least) {
    Row scale = {}, root = {};
    each_row(D, [&](int j) {
      const real variance = Q[j][j];
      scale[j] = variance > VARIANCE_BOUND ? std::sqrt(VARIANCE_BOUND / variance) : real(1);
      Q[j][j] = std::min(least[j] + std::fabs(variance - least[j]), VARIANCE_BOUND);
      root[j] = std::sqrt(Q[j][j]);
    });
    each_row(D, [&](int j) {
      const real kept = Q[j][j];
      for (int v = 0; v < NV; ++v) {
        const vec limit = root[j] * root.v[v], x = Q[j].v[v] * (scale[j] * scale.v[v]);
        Q[j].v[v] = x > limit ? limit : x < -limit ? -limit : x;
      }
      Q[j][j] = kept;
    });
  }

  // The diagonal of Q, but the bound where a row of the next Φ overflows.
  Row least_noise(const Matrix& Q, const Row& largest) {
    Row least = {};
    each_row(D, [&](int j) { least[j] = largest[j] < TRANSITION_BOUND ? Q[j][j] : VARIANCE_BOUND; });
    return least;
  }

  // phi[l], noise[l] for l = 0 … doublings-1, and phi[doublings]. The noise of the last level is never formed, but for
  // what its diagonal is at least, which is returned.
  Row double_up(const ExpmPlan& plan) {
    Matrix& U = s.work[0];
    Row least = {};
    for (int l = 0; l < plan.doublings; ++l) {
      multiply<false, false>(D, s.phi[l], s.phi[l], s.phi[l + 1], 1);
      least = least_noise(s.noise[l], hold_transition(s.phi[l + 1]));
      if (l + 1 < plan.doublings) {
        multiply<false, false>(D, s.noise[l], s.phi[l], U, 1);
        s.noise[l + 1] = s.noise[l];
        multiply<true, true>(D, s.phi[l], U, s.noise[l + 1], 1);
        hold_noise(s.noise[l + 1], least);
      }
    }
    return least;
  }

  // The prior from a belief: Z = (A Δ)ᵀ, noise = q Δ.
  void forward(const Matrix& Z, const Row& noise, const State& in, State& out) {
    const ExpmPlan plan = series(Z);
    Row scaled;
    for (int v = 0; v < NV; ++v) scaled.v[v] = plan.shrink * noise.v[v];
    short_step(plan, scaled);
    out = State{};
    Row extra = {};
    if (plan.doublings == 0) {
      const int n = plan.points;
      for (int v = 0; v < NV; ++v) {
        out.variance.v[v] = real(rules.weight(n, 0)) * scaled.v[v];
        extra.v[v] = real(rules.weight(n, n - 1)) * scaled.v[v];
      }
      each_row(D, [&](int j) {
        for (int m = 1; m < n - 1; ++m) {
          const Row r = row_at(j, rules.node(n, m), plan.order);
          const real w = real(rules.weight(n, m)) * scaled[j];
          for (int v = 0; v < NV; ++v) out.variance.v[v] += w * r.v[v] * r.v[v];
          for (int h = 0; h < HALF; ++h) out.side.v[h] += w * r.v[h] * r.v[h + HALF];
        }
      });
    } else {
      const Row least = double_up(plan);
      const Matrix &S = s.phi[plan.doublings - 1], &Q = s.noise[plan.doublings - 1];
      Matrix& U = s.work[0];
      multiply<false, false>(D, Q, S, U, 1);
      each_row(D, [&](int j) {
        out.variance[j] += Q[j][j];
        for (int v = 0; v < NV; ++v) out.variance.v[v] += S[j].v[v] * U[j].v[v];
        for (int h = 0; h < HALF; ++h) out.side.v[h] += S[j].v[h] * U[j].v[h + HALF];
      });
      for (int v = 0; v < NV; ++v) {  // as in `hold_noise`
        const vec more = out.variance.v[v] - least.v[v];
        out.variance.v[v] = least.v[v] + (more < 0 ? -more : more);
      }
      for (int i = 0; i < D; ++i) out.side[i] += Q[i][P + i];
    }
    for (int h = 0; h < HALF; ++h) out.side.v[h + HALF] = out.side.v[h];
    transport(D, s.phi[plan.doublings], in, extra, out);
  }

  // The gradient of `forward`: of Z into grad_Z, of q Δ into grad_noise (added), of the belief into grad_in (added).
  void backward(const Matrix& Z, const Row& noise, const State& in, const State& grad, Matrix& grad_Z, Row& grad_noise,
                State& grad_in) {
    const ExpmPlan plan = series(Z);
    const int n = plan.points;
    Row scaled, grad_scaled = {}, extra = {};
    for (int v = 0; v < NV; ++v) scaled.v[v] = plan.shrink * noise.v[v];
    short_step(plan, scaled);
    Matrix& grad_phi = s.work[1];
    if (plan.doublings == 0) {
      for (int v = 0; v < NV; ++v) extra.v[v] = real(rules.weight(n, n - 1)) * scaled.v[v];
      Row grad_extra = {};
      transport_backward(D, s.phi[0], in, extra, grad, grad_phi, grad_in, grad_extra);
      for (int v = 0; v < NV; ++v)
        grad_scaled.v[v] = real(rules.weight(n, n - 1)) * grad_extra.v[v] + real(rules.weight(n, 0)) * grad.variance.v[v];
      nodes_backward(plan, scaled, grad, grad_phi, grad_scaled);
    } else {
      double_up(plan);
      Row ignored = {};
      transport_backward(D, s.phi[plan.doublings], in, extra, grad, grad_phi, grad_in, ignored);
      Matrix& G = s.work[2];
      double_up_backward(plan, grad, grad_phi, G);
      short_step_backward(plan, scaled, G, grad_phi, grad_scaled);
    }
    series_backward(plan, grad_Z);
    for (int v = 0; v < NV; ++v) grad_noise.v[v] += plan.shrink * grad_scaled.v[v];
  }

 private:
  // grad_term[k] += σ^k · g, row by row.
  void spread(int j, const Row& g, real sigma, int order) {
    real power = 1;
    for (int k = 1; k <= order; ++k) {
      power *= sigma;
      for (int v = 0; v < NV; ++v) s.grad_term[k][j].v[v] += power * g.v[v];
    }
  }

  void start_terms(int j, const Row& grad_phi, int order) {
    for (int k = 1; k <= order; ++k) s.grad_term[k][j] = grad_phi;
  }

  void nodes_backward(const ExpmPlan& plan, const Row& scaled, const State& grad, const Matrix& grad_phi, Row& grad_scaled) {
    const int n = plan.points;
    each_row(D, [&](int j) {
      start_terms(j, grad_phi[j], plan.order);
      vec quadratic = {};
      for (int m = 1; m < n - 1; ++m) {
        const real sigma = rules.node(n, m), w = rules.weight(n, m);
        const Row r = row_at(j, sigma, plan.order), t = swapped(r);
        Row g;
        for (int v = 0; v < NV; ++v) {
          const vec half = grad.variance.v[v] * r.v[v] + real(0.5) * grad.side.v[v] * t.v[v];
          quadratic += w * r.v[v] * half;
          g.v[v] = 2 * w * scaled[j] * half;
        }
        spread(j, g, sigma, plan.order);
      }
      grad_scaled[j] += sum(quadratic);
    });
  }

  // From the gradient of Φ and of the three noise diagonals after the last doubling back to those of the short step:
  // Q' = Q + Φ Q Φᵀ gives grad Q = G + Φᵀ G Φ and grad Φ = 2 G Φ Q; Φ' = Φ Φ gives grad Φ = G' Φᵀ + Φᵀ G'.
  void double_up_backward(const ExpmPlan& plan, const State& grad, Matrix& grad_phi, Matrix& G) {
    Matrix &U = s.work[0], &turned = s.work[3], &SG = s.work[4], &next = s.work[5];
    for (int l = plan.doublings - 1; l >= 0; --l) {
      const Matrix &S = s.phi[l], &Q = s.noise[l], &above = s.phi[l + 1];
      const bool last = l == plan.doublings - 1;
      multiply<false, false>(D, Q, S, U, 1);
      transpose(D, S, turned);
      each_row(D, [&](int j) {
        each_row(D, [&](int i) {
          grad_phi[j][i] = std::fabs(above[j][i]) < TRANSITION_BOUND ? tame(grad_phi[j][i]) : real(0);
          if (!last) G[j][i] = s.noise[l + 1][j][j] < VARIANCE_BOUND && s.noise[l + 1][i][i] < VARIANCE_BOUND ? tame(G[j][i]) : real(0);
        });
      });
      multiply<false, false>(D, grad_phi, turned, next, 1);
      multiply<true, true>(D, S, grad_phi, next, 1);
      if (last) {  // G has only the three diagonals
        each_row(D, [&](int j) {
          const Row us = swapped(U[j]), ss = swapped(S[j]);
          for (int v = 0; v < NV; ++v) {
            next[j].v[v] += 2 * grad.variance.v[v] * U[j].v[v] + grad.side.v[v] * us.v[v];
            SG[j].v[v] = grad.variance.v[v] * S[j].v[v] + real(0.5) * grad.side.v[v] * ss.v[v];
          }
        });
        G.zero();
        for (int i = 0; i < D; ++i) {
          G[i][i] = grad.variance[i], G[P + i][P + i] = grad.variance[P + i];
          G[i][P + i] = G[P + i][i] = real(0.5) * grad.side[i];
        }
      } else {
        multiply<false, true>(D, U, G, next, 2);
        multiply<false, false>(D, S, G, SG, 1);
      }
      multiply<false, true>(D, SG, turned, G, 1);
      std::swap(grad_phi, next);
    }
  }

  void short_step_backward(const ExpmPlan& plan, const Row& scaled, const Matrix& G, const Matrix& grad_phi, Row& grad_scaled) {
    const int n = plan.points;
    each_row(D, [&](int j) {
      start_terms(j, grad_phi[j], plan.order);
      grad_scaled[j] += real(rules.weight(n, 0)) * G[j][j];
    });
    for (int m = 1; m < n; ++m) {
      Matrix& RG = s.work[0];
      multiply<false, false>(D, s.node[m], G, RG, 1);
      const real sigma = rules.node(n, m), w = rules.weight(n, m);
      each_row(D, [&](int j) {
        vec quadratic = {};
        Row g;
        for (int v = 0; v < NV; ++v) {
          quadratic += s.node[m][j].v[v] * RG[j].v[v];
          g.v[v] = 2 * w * scaled[j] * RG[j].v[v];
        }
        grad_scaled[j] += w * sum(quadratic);
        spread(j, g, sigma, plan.order);
      });
    }
  }

  // term_k = term_{k-1} Z / k, backwards.
  void series_backward(const ExpmPlan& plan, Matrix& grad_Z) {
    Matrix& turned = s.work[3];
    transpose(D, s.term[1], turned);
    grad_Z.zero();
    for (int k = plan.order; k >= 2; --k) {
      multiply<true, true>(D, s.term[k - 1], s.grad_term[k], grad_Z, real(1) / k);
      multiply<false, true>(D, s.grad_term[k], turned, s.grad_term[k - 1], real(1) / k);
    }
    each_row(D, [&](int j) {
      for (int v = 0; v < NV; ++v) grad_Z[j].v[v] = plan.shrink * (grad_Z[j].v[v] + s.grad_term[1][j].v[v]);
    });
  }
};
