// Orthogonal polynomials of degree n, as PyTorch defines them beside their domains, and the incomplete gamma functions.

// The degree; negative where C's conversion of n to a 64-bit integer would be.
fn degree_(n: f32) -> i32 {
  if (isnan_(n) || n < 0.0 || n >= 9223372036854775808.0) { return select(-1, 0, n > -1.0 && n < 0.0); }
  return i32(min(n, 2147483520.0));
}

fn alternating_(n: i32) -> f32 {
  return select(-1.0, 1.0, (n & 1) == 0);
}

// p, q: degrees 0 and 1.
fn chebyshev_(x: f32, n: i32, first: f32) -> f32 {
  var p = 1.0;
  var q = first;
  if (n == 0) { return p; }
  for (var k = 2; k <= n && !isnan_(q); k++) {
    let r = (x + x) * q - p;
    p = q;
    q = r;
  }
  return q;
}

fn chebyshev_t_(x: f32, degree: f32) -> f32 {
  let n = degree_(degree);
  if (n < 0) { return 0.0; }
  if (abs(x) == 1.0) { return select(alternating_(n), 1.0, x > 0.0); }
  if (n > 6 && abs(x) < 1.0) { return cos_(trunc(degree) * acos_(x)); }
  return chebyshev_(x, n, x);
}

fn chebyshev_u_(x: f32, degree: f32) -> f32 {
  let n = degree_(degree);
  let m = trunc(degree) + 1.0;
  if (n < 0) { return 0.0; }
  if (abs(x) == 1.0) { return m * select(alternating_(n), 1.0, x > 0.0); }
  if (n > 8 && abs(x) < 1.0) { return sin_(m * acos_(x)) / sin_(acos_(x)); }
  return chebyshev_(x, n, x + x);
}

fn chebyshev_v_(x: f32, degree: f32) -> f32 {
  let n = degree_(degree);
  if (n < 0) { return 0.0; }
  if (abs(x) == 1.0) { return select((2.0 * trunc(degree) + 1.0) * alternating_(n), 1.0, x > 0.0); }
  if (n > 8 && abs(x) < 1.0) { return cos_((trunc(degree) + 0.5) * acos_(x)) / cos_(acos_(x) * 0.5); }
  return chebyshev_(x, n, x + x - 1.0);
}

fn chebyshev_w_(x: f32, degree: f32) -> f32 {
  let n = degree_(degree);
  if (n < 0) { return 0.0; }
  if (abs(x) == 1.0) { return select(alternating_(n), 2.0 * trunc(degree) + 1.0, x > 0.0); }
  if (n > 8 && abs(x) < 1.0) { return sin_((trunc(degree) + 0.5) * acos_(x)) / sin_(acos_(x) * 0.5); }
  return chebyshev_(x, n, x + x + 1.0);
}

fn hermite_h_(x: f32, degree: f32) -> f32 {
  let n = degree_(degree);
  if (n < 0) { return 0.0; }
  if (n > 128) { return nan_(); }
  var p = 1.0;
  var q = x + x;
  if (n == 0) { return p; }
  for (var k = 1; k < n; k++) {
    let r = (x + x) * q - 2.0 * f32(k) * p;
    p = q;
    q = r;
  }
  return q;
}

fn hermite_he_(x: f32, degree: f32) -> f32 {
  let n = degree_(degree);
  if (n < 0) { return 0.0; }
  if (n > 128) { return nan_(); }
  var p = 1.0;
  var q = x;
  if (n == 0) { return p; }
  for (var k = 1; k < n; k++) {
    let r = x * q - f32(k) * p;
    p = q;
    q = r;
  }
  return q;
}

const most_steps: i32 = 8388608; // of a recurrence

fn laguerre_(x: f32, degree: f32) -> f32 {
  let n = degree_(degree);
  if (n < 0) { return 0.0; }
  if (x == 0.0 || n == 0) { return 1.0; }
  var p = 1.0;
  var q = 1.0 - x;
  for (var k = 1; k < min(n, most_steps) && !isnan_(q); k++) {
    let r = ((2.0 * f32(k) + (1.0 - x)) * q - f32(k) * p) / (f32(k) + 1.0);
    p = q;
    q = r;
  }
  return q;
}

fn legendre_(x: f32, degree: f32) -> f32 {
  let n = degree_(degree);
  if (n < 0) { return 0.0; }
  if (abs(x) == 1.0) { return select(alternating_(n), 1.0, x > 0.0); }
  if (n == 0) { return 1.0; }
  var p = 1.0;
  var q = x;
  for (var k = 1; k < min(n, most_steps) && !isnan_(q); k++) {
    let r = ((2.0 * f32(k) + 1.0) * x * q - f32(k) * p) / (f32(k) + 1.0);
    p = q;
    q = r;
  }
  return q;
}

// m - log(1 + m), without cancellation near 0.
fn away_from_one(m: f32) -> f32 {
  if (abs(m) > 0.25) { return m - log1p_(m); }
  var term = m * m;
  var sum = 0.5 * term;
  for (var k = 3; k < 16; k++) {
    term = -term * m;
    sum = sum + term / f32(k);
  }
  return sum;
}

// x^a exp(-x) / Gamma(a + 1)
fn gamma_density(a: f32, x: f32) -> f32 {
  if (a < 8.0) { return exp_(a * log_(x) - x - lgamma_(a + 1.0)); }
  let r = 1.0 / a;
  let stirling = 1.0 + r * (0.083333333 + r * (0.0034722222 - r * 0.0026813272));
  return exp_(-a * away_from_one((x - a) * r)) * 0.3989422804014327 * inverseSqrt(a) / stirling;
}

// (P, Q): the regularised incomplete gamma functions: series below a + 1, Lentz's continued fraction above (DLMF 8.11, 8.9),
// the error function with its first correction for large a (DLMF 8.12).
fn incomplete_gamma(a: f32, x: f32) -> vec2<f32> {
  if (a < 0.0 || x < 0.0) { return vec2<f32>(nan_()); }
  if (a == 0.0) { return select(vec2<f32>(nan_()), vec2<f32>(1.0, 0.0), x > 0.0); }
  if (x == 0.0) { return vec2<f32>(0.0, 1.0); }
  if (isinf_(a)) { return select(vec2<f32>(0.0, 1.0), vec2<f32>(nan_()), isinf_(x)); }
  if (isinf_(x)) { return vec2<f32>(1.0, 0.0); }
  if (isnan_(a) || isnan_(x)) { return vec2<f32>(nan_()); }
  if (a > 10000.0) {
    let m = (x - a) / a;
    let h = away_from_one(m);
    let eta = select(sqrt(2.0 * h), -sqrt(2.0 * h), m < 0.0);
    let c = select(1.0 / m - 1.0 / eta, -0.33333333 + m * 0.08333333, abs(m) < 0.01);
    let shift = exp_(-a * h) * 0.3989422804014327 * inverseSqrt(a) * c;
    let half = 0.5 * erfc_(abs(eta) * sqrt(0.5 * a));
    let q = select(half, 1.0 - half, m < 0.0) + shift;
    let p = select(1.0 - half, half, m < 0.0) - shift;
    return vec2<f32>(p, q);
  }
  let density = gamma_density(a, x);
  if (x < a + 1.0) {
    var term = 1.0;
    var sum = 1.0;
    for (var k = 1; k < 2000 && term > 3e-8 * sum; k++) {
      term = term * x / (a + f32(k));
      sum = sum + term;
    }
    let p = min(density * sum, 1.0);
    return vec2<f32>(p, 1.0 - p);
  }
  var b = x + 1.0 - a;
  var c = 1e30;
  var d = 1.0 / b;
  var h = d;
  for (var k = 1; k < 2000; k++) {
    let n = f32(k) * (a - f32(k));
    b = b + 2.0;
    d = n * d + b;
    d = 1.0 / select(d, 1e-30, abs(d) < 1e-30);
    c = b + n / c;
    c = select(c, 1e-30, abs(c) < 1e-30);
    let step = c * d;
    h = h * step;
    if (abs(step - 1.0) < 1e-7) { break; }
  }
  let q = clamp(density * a * h, 0.0, 1.0);
  return vec2<f32>(1.0 - q, q);
}
