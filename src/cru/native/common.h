// Shared by all libraries: numbers, clamps, and the memory layouts that Python fills.
//
// cru/native/build.py generates `generated.h` and includes it before this file. It defines
//   REAL                the floating type
//   CRU_PADDED_OBS      the lanes in half a row (matrix.h)
//   CRU_*               the constants of cru.functional
//   CRU_CHECK_LAYOUTS   a static_assert for every size and offset in cru/native/layout.py
// docs/explanation/backward-passes.md derives the backward passes in the symbols of this code.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#define CRU_EXPORT extern "C" __attribute__((visibility("default")))

using real = REAL;
constexpr bool SINGLE = sizeof(real) == 4;
constexpr real MEAN_BOUND = CRU_MEAN_BOUND, VARIANCE_BOUND = CRU_VARIANCE_BOUND, TRANSITION_BOUND = CRU_TRANSITION_BOUND,
               GRADIENT_BOUND = CRU_GRADIENT_BOUND, MIN_VARIANCE = CRU_MIN_VARIANCE;

// ---- Clamps: NaN passes through, except in a gradient. ----

template <class T>
inline T minimum(T a, T b) { return a < b ? a : b; }
template <class T>
inline T maximum(T a, T b) { return a > b ? a : b; }
// x in [-limit, limit].
template <class T>
inline T clamp(T x, T limit) { return minimum(limit, maximum(-limit, x)); }
template <class T>
inline T clamp_variance(T x) { return minimum(T(VARIANCE_BOUND), maximum(T(0), x)); }
// A finite gradient. NaN becomes 0.
template <class T>
inline T clamp_gradient(T g) { return g == g ? clamp(g, T(GRADIENT_BOUND)) : T(0); }
// The largest |side| for which the 2×2 covariance of a pair stays positive semi-definite after rounding.
template <class T>
inline T side_limit(T upper, T lower) {
  return std::sqrt(upper) * std::sqrt(lower) * (1 - 8 * std::numeric_limits<T>::epsilon());
}

// ---- Layouts: cru/native/layout.py defines the same structs. All arrays are contiguous, with the batch first. ----

struct Beliefs {
  real *mean, *upper, *lower, *side;
};
struct FilterOutputs {
  Beliefs prior, posterior;
};
// Inputs of the backward pass of a filter: the outputs, and the gradients of the loss by them.
struct FilterSaved {
  Beliefs prior, posterior, grad_prior, grad_posterior;
};

struct LocallyLinearSizes {
  int64_t kind, batch, time, obs, basis, inputs;  // inputs: columns of the coefficient network, M or M + 1
};
struct LocallyLinearInputs {
  const real *y, *y_var;
  const uint8_t* mask;
  const real* delta;
  const uint8_t* stepped;
  Beliefs start;
  const real *weight, *bias, *basis, *eigenvectors, *noise;
  const double* quadrature;
};
struct LocallyLinearGradients {
  real *y, *y_var;
  Beliefs start;
  real *weight, *bias, *basis, *eigenvectors, *noise;
};

struct PairedSizes {
  int64_t batch, time, obs;
};
// cos, sin, upper, lower, side: the transition before each time.
struct PairedInputs {
  const real *y, *y_var;
  const uint8_t* mask;
  const real *cos, *sin, *upper, *lower, *side;
  Beliefs start;
};
struct PairedGradients {
  real *y, *y_var, *cos, *sin, *upper, *lower, *side;
  Beliefs start;
};
struct SmoothInputs {
  Beliefs prior, posterior;
  const real *cos, *sin, *upper, *lower;
};
struct SmoothGradients {
  Beliefs prior, posterior;
  real *cos, *sin;
};

struct StructuralSizes {
  int64_t time, variables, coefficients, groups;
};
struct StructuralInputs {
  const double *delta, *values;      // (batch, time), (batch, time, variable)
  const uint8_t* mask;               // (batch, time, variable)
  const double* regressors;          // (batch, time, coefficient)
  const double *rate, *var, *noise;  // (variable, coefficient) twice, (variable)
  const double *mean, *explained;    // the start: (batch, variable, coefficient [, coefficient]), or null
  const int64_t* group;              // (coefficient), for the smoother
};
struct StructuralFilterOutputs {
  double *mean, *var, *nll, *state_mean, *state_explained;
};
struct StructuralSmoothOutputs {
  double *mean, *var, *loo_mean, *loo_var;  // the first two (batch, time, variable, group)
};
struct StructuralLikelihoodOutputs {
  double *nll, *rate, *var, *noise, *values;  // the nll and its gradients for each problem; all but the nll may be null
};

CRU_CHECK_LAYOUTS
