// Small dense matrices that fit in the first-level cache, as rows of SIMD vectors.
//
// A state of size M = 2 D has W = 2 P lanes: the upper part in lanes 0 … D-1, the lower part in lanes P … P+D-1.
// P is D rounded up to whole vectors. Padding lanes are zero and stay zero. Matrices are W × W with the same padding.
#pragma once
#include "pair.h"

#ifdef __AVX__
constexpr int VECTOR_BYTES = 32;
#else
constexpr int VECTOR_BYTES = 16;  // GCC keeps a vector that is wider than a register in memory: 10 times slower
#endif
typedef real vec __attribute__((vector_size(VECTOR_BYTES)));
constexpr int LANES = VECTOR_BYTES / sizeof(real);
constexpr int P = CRU_PADDED_OBS;
constexpr int W = 2 * P;
constexpr int HALF = P / LANES;
constexpr int NV = 2 * HALF;
static_assert(P % LANES == 0, "half a row must be whole vectors");

struct alignas(64) LaneRow {
  vec v[NV];
  real& operator[](int i) { return reinterpret_cast<real*>(v)[i]; }
  real operator[](int i) const { return reinterpret_cast<const real*>(v)[i]; }
};

struct Matrix {
  LaneRow row[W];
  LaneRow& operator[](int i) { return row[i]; }
  const LaneRow& operator[](int i) const { return row[i]; }
  void zero() { std::memset(static_cast<void*>(this), 0, sizeof(Matrix)); }
};

inline vec splat(real x) { return x - vec{}; }
inline real sum(vec a) {
  typedef real narrow __attribute__((vector_size(16)));
  const narrow* parts = reinterpret_cast<const narrow*>(&a);
  const narrow b = sizeof(vec) == 16 ? parts[0] : parts[0] + parts[sizeof(vec) / 16 - 1];
  return SINGLE ? (b[0] + b[2 % (16 / sizeof(real))]) + (b[1] + b[3 % (16 / sizeof(real))]) : b[0] + b[1];
}
inline real sum(const LaneRow& a) {
  vec total = a.v[0];
  for (int v = 1; v < NV; ++v) total += a.v[v];
  return sum(total);
}
inline vec clamp_gradient(vec g) {
  g = clamp(g, splat(GRADIENT_BOUND));
  return g == g ? g : vec{};
}
inline vec absolute(vec x) { return x < 0 ? -x : x; }

// Call f for every row in use: 0 … D-1 and P … P+D-1.
template <class F>
inline void each_row(int D, F&& f) {
  for (int j = 0; j < D; ++j) f(j);
  for (int j = P; j < P + D; ++j) f(j);
}

// Columns v … v+V-1 of C = [C +] scale · A B, or of Aᵀ B. Tiles of R rows × V vectors stay in registers.
template <int R, int V, bool TRANSPOSED, bool ACCUMULATE>
inline void multiply_columns(int D, const Matrix& A, const Matrix& B, Matrix& C, real scale, int v) {
  const real* a = reinterpret_cast<const real*>(&A);
  for (int half = 0; half < 2; ++half) {
    for (int i = half * P; i < half * P + D; i += R) {
      vec acc[R][V] = {};
      for (int side = 0; side < 2; ++side) {
        for (int k = side * P; k < side * P + D; ++k) {
          const vec* b = B[k].v + v;
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            const real factor = TRANSPOSED ? a[k * W + i + r] : a[(i + r) * W + k];
#pragma GCC unroll 8
            for (int u = 0; u < V; ++u) acc[r][u] += factor * b[u];
          }
        }
      }
      for (int r = 0; r < R; ++r)
        for (int u = 0; u < V; ++u) {
          vec& c = C[i + r].v[v + u];
          c = (ACCUMULATE ? c : vec{}) + scale * acc[r][u];
        }
    }
  }
}
template <int R, bool TRANSPOSED, bool ACCUMULATE>
inline void multiply_rows(int D, const Matrix& A, const Matrix& B, Matrix& C, real scale) {
  constexpr int WHOLE = NV / 4 * 4, REST = NV % 4;
  for (int v = 0; v < WHOLE; v += 4) multiply_columns<R, 4, TRANSPOSED, ACCUMULATE>(D, A, B, C, scale, v);
  if constexpr (REST > 0) multiply_columns<R, REST, TRANSPOSED, ACCUMULATE>(D, A, B, C, scale, WHOLE);
}
template <bool TRANSPOSED, bool ACCUMULATE>
inline void multiply(int D, const Matrix& A, const Matrix& B, Matrix& C, real scale) {
  if (D % 5 == 0) return multiply_rows<5, TRANSPOSED, ACCUMULATE>(D, A, B, C, scale);
  multiply_rows<4, TRANSPOSED, ACCUMULATE>(D, A, B, C, scale);
}

inline void transpose(int D, const Matrix& A, Matrix& B) {
  B.zero();
  each_row(D, [&](int i) { each_row(D, [&](int j) { B[j][i] = A[i][j]; }); });
}

// Exchange the halves of a row: lane i with lane i + P.
inline LaneRow swapped(const LaneRow& a) {
  LaneRow b;
  for (int h = 0; h < HALF; ++h) b.v[h] = a.v[h + HALF], b.v[h + HALF] = a.v[h];
  return b;
}

// The belief of one series, in lanes: variance = [upper | lower]. Both halves of `side` hold the same numbers.
struct State {
  LaneRow mean, variance, side;

  Pair pair(int i) const { return {mean[i], mean[P + i], variance[i], variance[P + i], side[i]}; }
  void set_pair(int i, const Pair& p) {
    mean[i] = p.mu, mean[P + i] = p.ml, variance[i] = p.u, variance[P + i] = p.l, side[i] = side[P + i] = p.s;
  }
};
inline void clamp_belief(int D, State& s) {
  for (int i = 0; i < D; ++i) s.set_pair(i, clamp_belief(s.pair(i)));
}
inline void clamp_belief_backward(int D, const State& s, State& grad) {
  for (int i = 0; i < D; ++i) grad.set_pair(i, clamp_belief_backward(s.pair(i), grad.pair(i)));
}

// Compute Φ μ. Add the three diagonals of Φ (Σ + diag(extra)) Φᵀ to `out`, which holds those of the noise.
// `phi` is Φᵀ: row j, lane i = Φ_ij. A negative sum is rounding and counts as 0.
inline void transport(int D, const Matrix& phi, const State& in, const LaneRow& extra, State& out) {
  LaneRow mean = {}, variance = {};
  vec cross[HALF] = {};
  for (int j = 0; j < D; ++j) {
    const LaneRow &a = phi[j], &b = phi[P + j];
    const real ua = in.variance[j] + extra[j], lb = in.variance[P + j] + extra[P + j], s = in.side[j];
    const real ma = in.mean[j], mb = in.mean[P + j];
    LaneRow ya, yb;
    for (int v = 0; v < NV; ++v) {
      ya.v[v] = ua * a.v[v] + s * b.v[v], yb.v[v] = s * a.v[v] + lb * b.v[v];
      variance.v[v] += a.v[v] * ya.v[v] + b.v[v] * yb.v[v];
      mean.v[v] += ma * a.v[v] + mb * b.v[v];
    }
    for (int h = 0; h < HALF; ++h) cross[h] += a.v[h] * ya.v[h + HALF] + b.v[h] * yb.v[h + HALF];
  }
  for (int v = 0; v < NV; ++v) out.mean.v[v] = mean.v[v], out.variance.v[v] += maximum(variance.v[v], vec{});
  for (int h = 0; h < HALF; ++h) out.side.v[h] += cross[h], out.side.v[h + HALF] += cross[h];
}

// Set `grad_phi`, the gradient by Φᵀ. Add to `grad_in` and `grad_extra`, the gradients by the state before and by `extra`.
inline void transport_backward(int D, const Matrix& phi, const State& in, const LaneRow& extra, const State& grad,
                               Matrix& grad_phi, State& grad_in, LaneRow& grad_extra) {
  for (int j = 0; j < D; ++j) {
    const LaneRow &a = phi[j], &b = phi[P + j];
    const real ua = in.variance[j] + extra[j], lb = in.variance[P + j] + extra[P + j], s = in.side[j];
    const real ma = in.mean[j], mb = in.mean[P + j];
    LaneRow ya, yb;
    for (int v = 0; v < NV; ++v) ya.v[v] = ua * a.v[v] + s * b.v[v], yb.v[v] = s * a.v[v] + lb * b.v[v];
    const LaneRow ta = swapped(ya), tb = swapped(yb), sa = swapped(a), sb = swapped(b);
    vec qa = {}, qb = {}, qs = {}, da = {}, db = {};
    for (int v = 0; v < NV; ++v) {
      const vec gm = grad.mean.v[v], gv = grad.variance.v[v], gs = grad.side.v[v];
      grad_phi[j].v[v] = 2 * gv * ya.v[v] + gs * ta.v[v] + ma * gm;
      grad_phi[P + j].v[v] = 2 * gv * yb.v[v] + gs * tb.v[v] + mb * gm;
      // A whole row has each swapped term twice, once in each half. So each counts half.
      const vec half = real(0.5) * gs;
      qa += a.v[v] * (gv * a.v[v] + half * sa.v[v]);
      qb += b.v[v] * (gv * b.v[v] + half * sb.v[v]);
      qs += b.v[v] * (2 * gv * a.v[v] + gs * sa.v[v]);
      da += gm * a.v[v], db += gm * b.v[v];
    }
    grad_in.mean[j] += sum(da), grad_in.mean[P + j] += sum(db);
    const real ga = sum(qa), gb = sum(qb), gs = sum(qs);
    grad_in.variance[j] += ga, grad_in.variance[P + j] += gb;
    grad_in.side[j] += gs, grad_in.side[P + j] += gs;
    grad_extra[j] += ga, grad_extra[P + j] += gb;
  }
}
