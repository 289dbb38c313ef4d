// Special functions beyond those of lib.wgsl; cheb_… are the series of kernels/special.py.

// Modified Bessel functions of the first kind, times exp(-|x|).
fn i0e_(x: f32) -> f32 {
  if (isnan_(x)) { return x; }
  let a = abs(x);
  if (a <= 8.0) { return cheb_i0e_small(a * 0.25 - 1.0); }
  return cheb_i0e_large(16.0 / a - 1.0) * inverseSqrt(a);
}

fn i0_(x: f32) -> f32 {
  if (isinf_(x)) { return nan_(); } // as PyTorch's inf / inf
  let h = exp_(abs(x) * 0.5);
  return h * i0e_(x) * h;
}

fn i1e_(x: f32) -> f32 {
  if (isnan_(x)) { return x; }
  let a = abs(x);
  if (a <= 8.0) { return x * cheb_i1e_small(a * 0.25 - 1.0); }
  let y = cheb_i1e_large(16.0 / a - 1.0) * inverseSqrt(a);
  return select(y, -y, x < 0.0);
}

fn i1_(x: f32) -> f32 {
  if (isinf_(x)) { return nan_(); }
  let h = exp_(abs(x) * 0.5);
  return h * i1e_(x) * h;
}

// Modified Bessel functions of the second kind; with ``scaled``, times exp(x).
fn k0_(x: f32, scaled: bool) -> f32 {
  if (!truth(x)) { return inf_(); }
  if (isnan_(x) || x < 0.0) { return nan_(); }
  if (isinf_(x)) { return 0.0; }
  if (x <= 2.0) {
    let y = cheb_k0_small(x * x * 0.5 - 1.0) - log_(x * 0.5) * i0_(x);
    return select(y, y * exp_(x), scaled);
  }
  let y = cheb_k0_large(4.0 / x - 1.0) * inverseSqrt(x);
  return select(y * exp_(-x), y, scaled);
}

fn k1_(x: f32, scaled: bool) -> f32 {
  if (!truth(x)) { return inf_(); }
  if (isnan_(x) || x < 0.0) { return nan_(); }
  if (isinf_(x)) { return 0.0; }
  if (x <= 2.0) {
    let y = cheb_k1_small(x * x * 0.5 - 1.0) / x + log_(x * 0.5) * i1_(x);
    return select(y, y * exp_(x), scaled);
  }
  let y = cheb_k1_large(4.0 / x - 1.0) * inverseSqrt(x);
  return select(y * exp_(-x), y, scaled);
}

// Bessel functions: series in x*x up to 8, modulus and phase beyond (DLMF 10.17).
fn j0_(x: f32) -> f32 {
  if (isnan_(x) || isinf_(x)) { return nan_(); }
  let a = abs(x);
  if (a <= 8.0) { return cheb_j0_small(a * a * 0.03125 - 1.0); }
  let t = 2.0 * (8.0 / a) * (8.0 / a) - 1.0;
  return bessel_phase(a, cheb_j0_p(t), cheb_j0_q(t) / a, 0.7071067811865476, -0.7071067811865476).x;
}

fn y0_(x: f32) -> f32 {
  if (!truth(x)) { return -inf_(); }
  if (isnan_(x) || isinf_(x) || x < 0.0) { return nan_(); }
  if (x <= 8.0) {
    let t = x * x * 0.03125 - 1.0;
    return cheb_y0_small(t) + 0.6366197723675814 * log_(x) * cheb_j0_small(t);
  }
  let t = 2.0 * (8.0 / x) * (8.0 / x) - 1.0;
  return bessel_phase(x, cheb_j0_p(t), cheb_j0_q(t) / x, 0.7071067811865476, -0.7071067811865476).y;
}

fn j1_(x: f32) -> f32 {
  if (isnan_(x) || isinf_(x)) { return nan_(); }
  let a = abs(x);
  if (a <= 8.0) { return x * cheb_j1_small(a * a * 0.03125 - 1.0); }
  let t = 2.0 * (8.0 / a) * (8.0 / a) - 1.0;
  let y = bessel_phase(a, cheb_j1_p(t), cheb_j1_q(t) / a, -0.7071067811865476, -0.7071067811865476).x;
  return select(y, -y, x < 0.0);
}

fn y1_(x: f32) -> f32 {
  if (!truth(x)) { return -inf_(); }
  if (isnan_(x) || isinf_(x) || x < 0.0) { return nan_(); }
  if (x <= 8.0) {
    let t = x * x * 0.03125 - 1.0;
    return x * cheb_y1_small(t) + 0.6366197723675814 * (log_(x) * x * cheb_j1_small(t) - 1.0 / x);
  }
  let t = 2.0 * (8.0 / x) * (8.0 / x) - 1.0;
  return bessel_phase(x, cheb_j1_p(t), cheb_j1_q(t) / x, -0.7071067811865476, -0.7071067811865476).y;
}

// (J, Y) of a large argument: sqrt(2/(pi x)) * (p cos - q sin, p sin + q cos) of x + phase, whose cosine and sine are given.
fn bessel_phase(x: f32, p: f32, q: f32, phase_cos: f32, phase_sin: f32) -> vec2<f32> {
  let s = sin_(x);
  let c = cos_(x);
  let cs = c * phase_cos - s * phase_sin;
  let sn = s * phase_cos + c * phase_sin;
  return vec2<f32>(p * cs - q * sn, p * sn + q * cs) * (0.7978845608028654 * inverseSqrt(x));
}

fn spherical_j0_(x: f32) -> f32 {
  if (isinf_(x)) { return 0.0; }
  let s = x * x;
  if (s < 0.25) { return 1.0 - s / 6.0 * (1.0 - s / 20.0 * (1.0 - s / 42.0 * (1.0 - s / 72.0))); }
  return sin_(x) / x;
}

// Airy's function: a series in the middle, exponential on the right, modulus and phase on the left (DLMF 9.7).
fn airy_ai_(x: f32) -> f32 {
  if (isnan_(x) || isinf_(x)) { return nan_(); }
  let a = abs(x);
  if (a <= 2.0) { return cheb_airy_middle(x * 0.5); }
  let zeta = 0.6666666666666666 * a * sqrt(a);
  let u = 1.885618083164127 / zeta;
  let root = sqrt(sqrt(a));
  if (x > 0.0) { return select(0.28209479177387814 * cheb_airy_right(2.0 * u - 1.0) * exp_(-zeta) / root, 0.0, x > 103.892); }
  let t = 2.0 * u * u - 1.0;
  let s = sin_(zeta);
  let c = cos_(zeta);
  return 0.3989422804014327 * (cheb_airy_p(t) * (s + c) - cheb_airy_q(t) / zeta * (c - s)) / root;
}

// exp(x*x) * erfc(x)
fn erfcx_(x: f32) -> f32 {
  if (isnan_(x)) { return x; }
  if (x < 0.0) {
    if (x < -9.5) { return inf_(); }
    return 2.0 * exp_square(x) - erfcx_positive(-x);
  }
  return erfcx_positive(x);
}

fn erfcx_positive(x: f32) -> f32 {
  if (x < 1.0) { return exp_(x * x) * (1.0 - erf_(x)); }
  if (x > 1e10) { return 0.5641895835477563 / x; }
  var f = x;
  for (var n = 40; n > 0; n--) { f = x + f32(n) * 0.5 / f; }
  return 0.5641895835477563 / f;
}

// exp(x*x) without the loss of x*x: the leading 12 bits of x square exactly.
fn exp_square(x: f32) -> f32 {
  let high = bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
  return exp_(high * high) * exp_((x - high) * (x + high));
}

// The inverse of the normal distribution function: Abramowitz and Stegun 26.2.23, then Newton's steps on the logarithm.
fn ndtri_(p: f32) -> f32 {
  if (isnan_(p) || p < 0.0 || p > 1.0) { return nan_(); }
  if (!truth(p)) { return -inf_(); }
  if (p == 1.0) { return inf_(); }
  let upper = p > 0.5;
  let q = select(p, 1.0 - p, upper);
  if (q == 0.5) { return 0.0; }
  if (q > 0.4) { return 1.4142135623730951 * erfinv_(2.0 * (p - 0.5)); }
  let l = log_(q);
  let t = sqrt(-2.0 * l);
  var y = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
  for (var i = 0; i < 3; i++) {
    let e = erfcx_positive(y * 0.7071067811865476); // log Q(y) = log(e / 2) - y*y / 2, with derivative -sqrt(2/pi) / e
    y = y + (log_(0.5 * e) - 0.5 * y * y - l) * e * 1.2533141373155003;
  }
  return select(-y, y, upper);
}

// Hurwitz zeta by Euler and Maclaurin (DLMF 25.11): a sum up to q + 9, an integral, corrections with Bernoulli's numbers.
fn zeta_(x: f32, q: f32) -> f32 {
  if (isnan_(x) || isnan_(q) || (isinf_(q) && q > 0.0)) { return nan_(); }
  if (x == 1.0) { return inf_(); }
  if (x < 1.0) { return nan_(); }
  if (q <= 0.0) {
    if (q == floor(q)) { return inf_(); }
    if (x != floor(x)) { return nan_(); }
    let f = q - floor(q); // the terms below zero are those of 1 - f, …, 1 - q - 1
    let size = zeta_positive(x, 1.0 - f) - zeta_positive(x, 1.0 - q);
    let below = select(size, -size, x < 1e9 && (i32(x) & 1) == 1);
    let above = zeta_positive(x, f);
    if (isinf_(below) && isinf_(above)) { return select(above, below, f > 0.5); }
    return above + below;
  }
  return zeta_positive(x, q);
}

fn zeta_positive(x: f32, q: f32) -> f32 {
  var sum = pow_f(q, -x);
  var a = q;
  var b = 0.0;
  for (var i = 0; i < 9 || a <= 9.0; i++) {
    a = a + 1.0;
    b = pow_f(a, -x);
    sum = sum + b;
    if (abs(b) <= 5.96e-8 * abs(sum)) { return sum; }
  }
  sum = sum + b * a / (x - 1.0) - 0.5 * b;
  var bernoulli = array<f32, 7>(0.083333333333, -0.0013888888889, 3.3068783069e-5, -8.2671957672e-7, 2.0876756988e-8, -5.2841901387e-10, 1.3382536531e-11);
  var factor = x;
  var k = 0.0;
  b = b / a;
  for (var i = 0; i < 7; i++) {
    let t = factor * b * bernoulli[i];
    sum = sum + t;
    if (abs(t) < 5.96e-8 * abs(sum)) { return sum; }
    factor = factor * (x + k + 1.0) * (x + k + 2.0);
    k = k + 2.0;
    b = b / (a * a);
  }
  return sum;
}

fn trigamma_(x: f32) -> f32 {
  if (x < 0.5) {
    let r = select(x - round(x), x, x == floor(x)); // at a pole, what PyTorch has: the sine of a rounded multiple of pi
    let s = sin_(3.141592653589793 * r);
    return 9.869604401089358 / (s * s) - trigamma_positive(1.0 - x);
  }
  return trigamma_positive(x);
}

fn trigamma_positive(x: f32) -> f32 {
  var z = x;
  var y = 0.0;
  for (var i = 0; i < 6; i++) {
    y = y + 1.0 / (z * z);
    z = z + 1.0;
  }
  let r = 1.0 / (z * z);
  return y + (1.0 + 0.5 / z + r * (0.16666666667 - r * (0.033333333333 - r * 0.023809523810))) / z;
}

fn polygamma_(n: f32, x: f32) -> f32 {
  if (n == 0.0) { return digamma_(x); }
  if (n == 1.0) { return trigamma_(x); }
  let y = exp_(lgamma_(n + 1.0)) * zeta_(n + 1.0, x);
  return select(-y, y, (i32(n) & 1) == 1);
}

// The neighbour of a towards b, in steps of a dtype's bits: 1 for float32, 65536 for bfloat16 (its bits are the upper half).
fn nextafter_(a: f32, b: f32, step: u32) -> f32 {
  if (isnan_(a) || isnan_(b)) { return nan_(); }
  let x = bitcast<u32>(a);
  let y = bitcast<u32>(b);
  if (x == y || (!truth(a) && !truth(b))) { return b; }
  if (!truth(a)) { return bitcast<f32>((y & 0x80000000u) | step); }
  let larger = lessbits(x, y);
  let away = larger == (x < 0x80000000u);
  return bitcast<f32>(select(x - step, x + step, away));
}

fn nextafter16_(a: f32, b: f32) -> f32 {
  if (isnan_(a) || isnan_(b)) { return nan_(); }
  let x = f16bits(a);
  let y = f16bits(b);
  if (x == y || ((x | y) & 0x7fffu) == 0u) { return b; }
  if ((x & 0x7fffu) == 0u) { return f16value((y & 0x8000u) | 1u); }
  let larger = lessbits(x << 16u, y << 16u);
  return f16value(select(x - 1u, x + 1u, larger == (x < 0x8000u)));
}

// Whether float bits x stand for less than y; neither is NaN.
fn lessbits(x: u32, y: u32) -> bool {
  let a = select(bitcast<i32>(x), -bitcast<i32>(x & 0x7fffffffu), x >= 0x80000000u);
  let b = select(bitcast<i32>(y), -bitcast<i32>(y & 0x7fffffffu), y >= 0x80000000u);
  return a < b;
}

// frexp: mantissa in [0.5, 1) and exponent.
fn mantissa_(x: f32) -> f32 {
  let b = bitcast<u32>(x);
  let a = b & 0x7fffffffu;
  if (a == 0u || a >= 0x7f800000u) { return x; }
  let n = select(a, a << (countLeadingZeros(a) - 8u), a < 0x00800000u);
  return bitcast<f32>((b & 0x80000000u) | (n & 0x7fffffu) | 0x3f000000u);
}

fn exponent2_(x: f32) -> i32 {
  let a = bitcast<u32>(x) & 0x7fffffffu;
  if (a == 0u || a >= 0x7f800000u) { return 0; }
  if (a < 0x00800000u) { return -117 - i32(countLeadingZeros(a)); }
  return i32(a >> 23u) - 126;
}
