// The predict step of the CRU: Φ = exp(AΔ) and the noise integral on M × M matrices. The maths is in
// cru/functional/expm.py. Every series chooses its own Taylor order, quadrature and number of doublings. Without doublings
// only the three diagonals of the noise are computed.
//
// All matrices are stored transposed (row j, lane i = entry ij), so that sums over j run down the rows.
#pragma once
#include "matrix.h"

constexpr int MAX_ORDER = 24, MAX_POINTS = CRU_MAX_POINTS, MAX_DOUBLINGS = CRU_MAX_DOUBLINGS;
constexpr real LONGEST_STEP = SINGLE ? real(2.5) : real(1.5);  // ‖A h‖ that one Taylor series may cover
constexpr double TOLERANCE = SINGLE ? 2e-7 : 1e-15;

// Gauss-Lobatto rules on [0, 1] from Python: node m and weight m of the rule with n points.
struct Quadrature {
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

// An upper bound of the spectral norm: min(‖Z‖_F, sqrt(‖Z‖_1 ‖Z‖_∞)).
inline real spectral_bound(int D, const Matrix& Z) {
  LaneRow columns = {};
  real rows = 0;
  each_row(D, [&](int j) {
    vec along = {};
    for (int v = 0; v < NV; ++v) {
      const vec size = absolute(Z[j].v[v]);
      columns.v[v] += size, along += size;
    }
    rows = std::max(rows, sum(along));
  });
  real largest = 0;
  for (int i = 0; i < W; ++i) largest = std::max(largest, columns[i]);
  return std::min(std::sqrt(largest) * std::sqrt(rows), frobenius(D, Z));
}

// `size` bounds ‖Z^k‖^(1/k) for the powers that matter.
inline ExpmPlan plan_step(real size) {
  ExpmPlan plan = {1, 3, 0, 1};
  double x = size;
  while (x > LONGEST_STEP && plan.doublings < MAX_DOUBLINGS) x /= 2, plan.shrink /= 2, ++plan.doublings;
  // Φ is exact to TOLERANCE, and Φ - I to five times that. Over a short gap, Φ - I alone couples the entries.
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
  Matrix term[MAX_ORDER + 1], grad_term[MAX_ORDER + 1];       // Z^k / k!
  Matrix node[MAX_POINTS];                                    // Φ at each quadrature node of the short step
  Matrix phi[MAX_DOUBLINGS + 1], noise[MAX_DOUBLINGS + 1];    // Φ and Q after each doubling
  Matrix product;                                             // of two matrices, used at once
  Matrix grad_phi, next_grad_phi, grad_noise, phi_transposed, phi_grad_noise;  // grad_noise: G, phi_grad_noise: Φ G
};

struct Expm {
  int D;
  Quadrature quadrature;
  ExpmScratch& s;

  // term[k] = Z^k / k! for k = 1 … order, of Z times 2^-doublings. The norm of Z overestimates the norms of its powers.
  // ‖Z²‖^½ and ‖Z³‖^⅓ are better bounds (Al-Mohy & Higham 2009), and the series needs both products. The norm of Z is
  // enough where Z is small. It is the only safe bound where Z³ could overflow.
  ExpmPlan series(const Matrix& Z) {
    const real size = spectral_bound(D, Z);
    const bool use_powers = size > real(0.5) && size < real(1e4);
    s.term[1] = Z;
    int ready = 1;
    ExpmPlan plan;
    if (use_powers) {
      power(2), power(3), ready = 3;
      plan = plan_step(std::min(size, std::max(std::sqrt(2 * frobenius(D, s.term[2])), std::cbrt(6 * frobenius(D, s.term[3])))));
    } else {
      plan = plan_step(size);
    }
    // Beyond the last doubling, every result is at a bound anyway.
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

  // Row j of Φ(σh)ᵀ = I + Σ_k σ^k term_k, by Horner's rule.
  LaneRow row_at(int j, real sigma, int order) const {
    LaneRow r = s.term[order][j];
    for (int k = order - 1; k >= 1; --k)
      for (int v = 0; v < NV; ++v) r.v[v] = r.v[v] * sigma + s.term[k][j].v[v];
    for (int v = 0; v < NV; ++v) r.v[v] *= sigma;
    r[j] += 1;
    return r;
  }

  // Φ(h)ᵀ and, before doublings, the quadrature nodes and the whole noise matrix over h.
  void short_step(const ExpmPlan& plan, const LaneRow& noise) {
    each_row(D, [&](int j) { s.phi[0][j] = row_at(j, 1, plan.order); });
    if (plan.doublings == 0) return;
    const int n = plan.points;
    Matrix& Q = s.noise[0];
    Q.zero();
    each_row(D, [&](int j) { Q[j][j] = real(quadrature.weight(n, 0)) * noise[j]; });
    for (int m = 1; m < n; ++m) {
      Matrix& R = s.node[m];
      Matrix& weighted = s.product;
      const real w = quadrature.weight(n, m);
      each_row(D, [&](int j) {
        R[j] = m == n - 1 ? s.phi[0][j] : row_at(j, quadrature.node(n, m), plan.order);
        for (int v = 0; v < NV; ++v) weighted[j].v[v] = w * noise[j] * R[j].v[v];
      });
      multiply<true, true>(D, weighted, R, Q, 1);
    }
  }

  // Clamp the entries of Φᵀ. Return the largest |entry| of each of its columns, which are the rows of Φ.
  LaneRow clamp_transition(Matrix& A) {
    LaneRow largest = {};
    each_row(D, [&](int j) {
      for (int v = 0; v < NV; ++v) {
        A[j].v[v] = clamp(A[j].v[v], splat(TRANSITION_BOUND));
        largest.v[v] = maximum(largest.v[v], absolute(A[j].v[v]));
      }
    });
    return largest;
  }

  // Q ← C Q C with C diagonal where a variance exceeds its bound, and no variance below `least`. The maths is
  // `clamp_noise` in cru/functional/belief.py.
  void clamp_noise(Matrix& Q, const LaneRow& least) {
    LaneRow scale = {}, root = {};
    each_row(D, [&](int j) {
      const real variance = Q[j][j];
      scale[j] = variance > VARIANCE_BOUND ? std::sqrt(VARIANCE_BOUND / variance) : real(1);
      Q[j][j] = std::min(least[j] + std::fabs(variance - least[j]), VARIANCE_BOUND);
      root[j] = std::sqrt(Q[j][j]);
    });
    each_row(D, [&](int j) {
      const real variance = Q[j][j];
      for (int v = 0; v < NV; ++v) Q[j].v[v] = clamp(Q[j].v[v] * (scale[j] * scale.v[v]), root[j] * root.v[v]);
      Q[j][j] = variance;
    });
  }

  // The least diagonal of the next Q: that of Q, or the bound where a row of the next Φ overflows.
  LaneRow least_noise(const Matrix& Q, const LaneRow& largest) {
    LaneRow least = {};
    each_row(D, [&](int j) { least[j] = largest[j] < TRANSITION_BOUND ? Q[j][j] : VARIANCE_BOUND; });
    return least;
  }

  // Fill phi[l] and noise[l] for l = 0 … doublings-1, and phi[doublings]. The caller needs only three diagonals of the
  // last noise. Return the least values of its diagonal.
  LaneRow double_step(const ExpmPlan& plan) {
    Matrix& noise_times_phi = s.product;
    LaneRow least = {};
    for (int l = 0; l < plan.doublings; ++l) {
      multiply<false, false>(D, s.phi[l], s.phi[l], s.phi[l + 1], 1);
      least = least_noise(s.noise[l], clamp_transition(s.phi[l + 1]));
      if (l + 1 < plan.doublings) {
        multiply<false, false>(D, s.noise[l], s.phi[l], noise_times_phi, 1);
        s.noise[l + 1] = s.noise[l];
        multiply<true, true>(D, s.phi[l], noise_times_phi, s.noise[l + 1], 1);
        clamp_noise(s.noise[l + 1], least);
      }
    }
    return least;
  }

  // The prior from a belief: Z = (A Δ)ᵀ, noise = q Δ.
  void forward(const Matrix& Z, const LaneRow& noise, const State& in, State& out) {
    const ExpmPlan plan = series(Z);
    LaneRow scaled;
    for (int v = 0; v < NV; ++v) scaled.v[v] = plan.shrink * noise.v[v];
    short_step(plan, scaled);
    out = State{};
    LaneRow extra = {};
    if (plan.doublings == 0) {
      const int n = plan.points;
      for (int v = 0; v < NV; ++v) {
        out.variance.v[v] = real(quadrature.weight(n, 0)) * scaled.v[v];
        extra.v[v] = real(quadrature.weight(n, n - 1)) * scaled.v[v];
      }
      each_row(D, [&](int j) {
        for (int m = 1; m < n - 1; ++m) {
          const LaneRow r = row_at(j, quadrature.node(n, m), plan.order);
          const real w = real(quadrature.weight(n, m)) * scaled[j];
          for (int v = 0; v < NV; ++v) out.variance.v[v] += w * r.v[v] * r.v[v];
          for (int h = 0; h < HALF; ++h) out.side.v[h] += w * r.v[h] * r.v[h + HALF];
        }
      });
    } else {
      const LaneRow least = double_step(plan);
      const Matrix &phi = s.phi[plan.doublings - 1], &Q = s.noise[plan.doublings - 1];
      Matrix& noise_times_phi = s.product;
      multiply<false, false>(D, Q, phi, noise_times_phi, 1);
      each_row(D, [&](int j) {
        out.variance[j] += Q[j][j];
        for (int v = 0; v < NV; ++v) out.variance.v[v] += phi[j].v[v] * noise_times_phi[j].v[v];
        for (int h = 0; h < HALF; ++h) out.side.v[h] += phi[j].v[h] * noise_times_phi[j].v[h + HALF];
      });
      for (int v = 0; v < NV; ++v)  // as in `clamp_noise`
        out.variance.v[v] = least.v[v] + absolute(out.variance.v[v] - least.v[v]);
      for (int i = 0; i < D; ++i) out.side[i] += Q[i][P + i];
    }
    for (int h = 0; h < HALF; ++h) out.side.v[h + HALF] = out.side.v[h];
    transport(D, s.phi[plan.doublings], in, extra, out);
  }

  // Set `grad_Z`. Add to `grad_noise`, the gradient by q Δ, and to `grad_in`, the gradient by the belief before.
  void backward(const Matrix& Z, const LaneRow& noise, const State& in, const State& grad, Matrix& grad_Z,
                LaneRow& grad_noise, State& grad_in) {
    const ExpmPlan plan = series(Z);
    const int n = plan.points;
    LaneRow scaled, grad_scaled = {}, extra = {};
    for (int v = 0; v < NV; ++v) scaled.v[v] = plan.shrink * noise.v[v];
    short_step(plan, scaled);
    Matrix& grad_phi = s.grad_phi;
    if (plan.doublings == 0) {
      for (int v = 0; v < NV; ++v) extra.v[v] = real(quadrature.weight(n, n - 1)) * scaled.v[v];
      LaneRow grad_extra = {};
      transport_backward(D, s.phi[0], in, extra, grad, grad_phi, grad_in, grad_extra);
      for (int v = 0; v < NV; ++v)
        grad_scaled.v[v] = real(quadrature.weight(n, n - 1)) * grad_extra.v[v] + real(quadrature.weight(n, 0)) * grad.variance.v[v];
      nodes_backward(plan, scaled, grad, grad_scaled);
    } else {
      double_step(plan);
      LaneRow ignored = {};
      transport_backward(D, s.phi[plan.doublings], in, extra, grad, grad_phi, grad_in, ignored);
      double_step_backward(plan, grad);
      short_step_backward(plan, scaled, grad_scaled);
    }
    series_backward(plan, grad_Z);
    for (int v = 0; v < NV; ++v) grad_noise.v[v] += plan.shrink * grad_scaled.v[v];
  }

 private:
  // The gradient g by row j of Φ(σh)ᵀ adds σ^k g to row j of each grad_term[k].
  void add_to_terms(int j, const LaneRow& g, real sigma, int order) {
    real power = 1;
    for (int k = 1; k <= order; ++k) {
      power *= sigma;
      for (int v = 0; v < NV; ++v) s.grad_term[k][j].v[v] += power * g.v[v];
    }
  }

  // The same for σ = 1, as the first gradient.
  void set_terms(int j, int order) {
    for (int k = 1; k <= order; ++k) s.grad_term[k][j] = s.grad_phi[j];
  }

  // The short step without doublings, where only the three diagonals of the noise are computed.
  void nodes_backward(const ExpmPlan& plan, const LaneRow& scaled, const State& grad, LaneRow& grad_scaled) {
    const int n = plan.points;
    each_row(D, [&](int j) {
      set_terms(j, plan.order);
      vec quadratic = {};
      for (int m = 1; m < n - 1; ++m) {
        const real sigma = quadrature.node(n, m), w = quadrature.weight(n, m);
        const LaneRow r = row_at(j, sigma, plan.order), t = swapped(r);
        LaneRow g;
        for (int v = 0; v < NV; ++v) {
          const vec half = grad.variance.v[v] * r.v[v] + real(0.5) * grad.side.v[v] * t.v[v];
          quadratic += w * r.v[v] * half;
          g.v[v] = 2 * w * scaled[j] * half;
        }
        add_to_terms(j, g, sigma, plan.order);
      }
      grad_scaled[j] += sum(quadratic);
    });
  }

  // From the gradients by Φ and by the three noise diagonals after the last doubling to those of the short step.
  // Q' = Q + Φ Q Φᵀ gives grad Q = G + Φᵀ G Φ and grad Φ = 2 G Φ Q. Φ' = Φ Φ gives grad Φ = F Φᵀ + Φᵀ F with F = grad Φ'.
  void double_step_backward(const ExpmPlan& plan, const State& grad) {
    Matrix &grad_phi = s.grad_phi, &next = s.next_grad_phi, &G = s.grad_noise, &phi_grad_noise = s.phi_grad_noise;
    Matrix &noise_times_phi = s.product, &transposed = s.phi_transposed;
    for (int l = plan.doublings - 1; l >= 0; --l) {
      const Matrix &phi = s.phi[l], &Q = s.noise[l], &above = s.phi[l + 1];
      const bool last = l == plan.doublings - 1;
      multiply<false, false>(D, Q, phi, noise_times_phi, 1);
      transpose(D, phi, transposed);
      each_row(D, [&](int j) {
        each_row(D, [&](int i) {
          grad_phi[j][i] = std::fabs(above[j][i]) < TRANSITION_BOUND ? clamp_gradient(grad_phi[j][i]) : real(0);
          if (last) return;
          const bool free = s.noise[l + 1][j][j] < VARIANCE_BOUND && s.noise[l + 1][i][i] < VARIANCE_BOUND;
          G[j][i] = free ? clamp_gradient(G[j][i]) : real(0);
        });
      });
      multiply<false, false>(D, grad_phi, transposed, next, 1);
      multiply<true, true>(D, phi, grad_phi, next, 1);
      if (last) {  // only three diagonals of G are not zero
        each_row(D, [&](int j) {
          const LaneRow swapped_product = swapped(noise_times_phi[j]), swapped_phi = swapped(phi[j]);
          for (int v = 0; v < NV; ++v) {
            next[j].v[v] += 2 * grad.variance.v[v] * noise_times_phi[j].v[v] + grad.side.v[v] * swapped_product.v[v];
            phi_grad_noise[j].v[v] = grad.variance.v[v] * phi[j].v[v] + real(0.5) * grad.side.v[v] * swapped_phi.v[v];
          }
        });
        G.zero();
        for (int i = 0; i < D; ++i) {
          G[i][i] = grad.variance[i], G[P + i][P + i] = grad.variance[P + i];
          G[i][P + i] = G[P + i][i] = real(0.5) * grad.side[i];
        }
      } else {
        multiply<false, true>(D, noise_times_phi, G, next, 2);
        multiply<false, false>(D, phi, G, phi_grad_noise, 1);
      }
      multiply<false, true>(D, phi_grad_noise, transposed, G, 1);
      std::swap(grad_phi, next);
    }
  }

  void short_step_backward(const ExpmPlan& plan, const LaneRow& scaled, LaneRow& grad_scaled) {
    const Matrix& G = s.grad_noise;
    const int n = plan.points;
    each_row(D, [&](int j) {
      set_terms(j, plan.order);
      grad_scaled[j] += real(quadrature.weight(n, 0)) * G[j][j];
    });
    for (int m = 1; m < n; ++m) {
      Matrix& RG = s.product;
      multiply<false, false>(D, s.node[m], G, RG, 1);
      const real sigma = quadrature.node(n, m), w = quadrature.weight(n, m);
      each_row(D, [&](int j) {
        vec quadratic = {};
        LaneRow g;
        for (int v = 0; v < NV; ++v) {
          quadratic += s.node[m][j].v[v] * RG[j].v[v];
          g.v[v] = 2 * w * scaled[j] * RG[j].v[v];
        }
        grad_scaled[j] += w * sum(quadratic);
        add_to_terms(j, g, sigma, plan.order);
      });
    }
  }

  // The backward pass of term_k = term_{k-1} Z / k.
  void series_backward(const ExpmPlan& plan, Matrix& grad_Z) {
    Matrix& transposed = s.phi_transposed;  // of Z here
    transpose(D, s.term[1], transposed);
    grad_Z.zero();
    for (int k = plan.order; k >= 2; --k) {
      multiply<true, true>(D, s.term[k - 1], s.grad_term[k], grad_Z, real(1) / k);
      multiply<false, true>(D, s.grad_term[k], transposed, s.grad_term[k - 1], real(1) / k);
    }
    each_row(D, [&](int j) {
      for (int v = 0; v < NV; ++v) grad_Z[j].v[v] = plan.shrink * (grad_Z[j].v[v] + s.grad_term[1][j].v[v]);
    });
  }
};
