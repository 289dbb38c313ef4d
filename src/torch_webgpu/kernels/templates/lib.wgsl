// Helper functions; a kernel gets only those it uses. 64-bit integers are (low, high) words in two's complement.

fn isnan_(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn isinf_(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u;
}

// Non-zero by bits: some drivers flush subnormals before comparing.
fn truth(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7fffffffu) != 0u;
}

var<private> bits_inf: u32 = 0x7f800000u;
var<private> bits_nan: u32 = 0x7fc00000u;

fn inf_() -> f32 {
  return bitcast<f32>(bits_inf);
}

fn nan_() -> f32 {
  return bitcast<f32>(bits_nan);
}

// Comparisons that hold for infinities and NaN whatever the driver assumes.
fn fmaximum(a: f32, b: f32) -> f32 {
  if (isnan_(a) || isnan_(b)) { return nan_(); }
  return select(b, a, a > b);
}

fn fminimum(a: f32, b: f32) -> f32 {
  if (isnan_(a) || isnan_(b)) { return nan_(); }
  return select(b, a, a < b);
}

fn fmax_(a: f32, b: f32) -> f32 {
  if (isnan_(a)) { return b; }
  if (isnan_(b)) { return a; }
  return select(b, a, a > b);
}

fn fmin_(a: f32, b: f32) -> f32 {
  if (isnan_(a)) { return b; }
  if (isnan_(b)) { return a; }
  return select(b, a, a < b);
}

fn clamp_f(x: f32, low: f32, high: f32) -> f32 {
  return fminimum(fmaximum(x, low), high);
}

// WGSL lets a division be 2.5 units in the last place off and a root more, and GPUs use that: 6 / 3 is 1.9999999 on some.
// The rest a - b * c, exact where a is within some units of b * c: Dekker's (1971) products of halves of 12 bits; a fused
// multiply-add would do, but WGSL does not promise that fma fuses.
fn rest_(a: f32, b: f32, c: f32) -> f32 {
  let b1 = bitcast<f32>(bitcast<u32>(b) & 0xfffff000u);
  let c1 = bitcast<f32>(bitcast<u32>(c) & 0xfffff000u);
  let b2 = b - b1;
  let c2 = c - c1;
  return (((a - b1 * c1) - b1 * c2) - b2 * c1) - b2 * c2;
}

// Where the halves' products neither overflow nor lose bits to subnormals.
fn moderate_(x: f32) -> bool {
  let a = abs(x);
  return a > 1e-18 && a < 1e18;
}

// a / b, rounded to nearest for moderate numbers (but for one in a million); whole quotients are always exact.
fn quotient_(a: f32, b: f32) -> f32 {
  let q = a / b;
  if (moderate_(a) && moderate_(b) && moderate_(q)) { return q + rest_(a, q, b) / b; }
  return q;
}

// The root of x, rounded to nearest for moderate numbers; NaN below zero.
fn root_(x: f32) -> f32 {
  if (x < 0.0) { return nan_(); }
  let y = sqrt(x);
  if (moderate_(x)) { return y + rest_(x, y, y) / (2.0 * y); }
  return y;
}

// Round to nearest even, as PyTorch's conversions do; pack2x16float leaves rounding and overflow to the driver.
// Conversions do not branch: what is loaded for the next one is then on its way during the one before.
fn f16bits(x: f32) -> u32 {
  let b = bitcast<u32>(x);
  let a = b & 0x7fffffffu;
  let payload = (a >> 13u) & 0x3ffu;
  let nan = 0x7c00u | select(payload, 0x200u, payload == 0u);
  let m = (a & 0x7fffffu) | 0x800000u;
  let s = min(126u - (a >> 23u), 25u); // by 25 all is gone
  let rest = m & ((1u << s) - 1u);
  let half = 1u << (s - 1u);
  let q = m >> s;
  let small = q + select(0u, 1u, rest > half || (rest == half && (q & 1u) == 1u));
  var h = (a - 0x38000000u + 0xfffu + ((a >> 13u) & 1u)) >> 13u;
  h = select(h, small, a < 0x38800000u);
  h = select(h, 0x7c00u, a >= 0x477ff000u);
  h = select(h, nan, a > 0x7f800000u);
  return ((b >> 16u) & 0x8000u) | h;
}

fn f16value(h: u32) -> f32 {
  let sign = (h & 0x8000u) << 16u;
  let e = (h >> 10u) & 31u;
  let m = h & 0x3ffu;
  let small = bitcast<u32>(f32(m) * 5.9604644775390625e-8);
  let normal = select((e + 112u) << 23u, 0x7f800000u, e == 31u) | (m << 13u);
  return bitcast<f32>(sign | select(normal, small, e == 0u));
}

fn bf16bits(x: f32) -> u32 {
  let b = bitcast<u32>(x);
  let nan = (b >> 16u) | select(0u, 0x40u, ((b >> 16u) & 0x7fu) == 0u);
  return select((b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u, nan, (b & 0x7fffffffu) > 0x7f800000u);
}

fn i2l(x: i32) -> vec2<u32> {
  return vec2<u32>(u32(x), u32(x >> 31u));
}

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn neg64(a: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(~a.x + 1u, ~a.y + select(0u, 1u, a.x == 0u));
}

fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn mulwide(a: u32, b: u32) -> vec2<u32> {
  let al = a & 0xffffu;
  let ah = a >> 16u;
  let bl = b & 0xffffu;
  let bh = b >> 16u;
  let ll = al * bl;
  let lh = al * bh;
  let mid = ah * bl + (ll >> 16u);
  let mid2 = lh + (mid & 0xffffu);
  return vec2<u32>((mid2 << 16u) | (ll & 0xffffu), ah * bh + (mid >> 16u) + (mid2 >> 16u));
}

fn mul64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let p = mulwide(a.x, b.x);
  return vec2<u32>(p.x, p.y + a.x * b.y + a.y * b.x);
}

fn eq64(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.x == b.x && a.y == b.y;
}

fn lt64(a: vec2<u32>, b: vec2<u32>) -> bool {
  if (a.y != b.y) { return bitcast<i32>(a.y) < bitcast<i32>(b.y); }
  return a.x < b.x;
}

fn ult64(a: vec2<u32>, b: vec2<u32>) -> bool {
  if (a.y != b.y) { return a.y < b.y; }
  return a.x < b.x;
}

fn max64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(b, a, lt64(b, a));
}

fn min64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(b, a, lt64(a, b));
}

fn neg_(a: vec2<u32>) -> bool {
  return (a.y >> 31u) == 1u;
}

fn abs64(a: vec2<u32>) -> vec2<u32> {
  return select(a, neg64(a), neg_(a));
}

fn udivrem64(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  if (a.y == 0u && b.y == 0u) { return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u); }
  var q = vec2<u32>(0u);
  var r = vec2<u32>(0u);
  for (var i = 0; i < 64; i++) {
    let bit = 63u - u32(i);
    r = vec2<u32>(r.x << 1u, (r.y << 1u) | (r.x >> 31u));
    r.x = r.x | ((select(a.x, a.y, bit >= 32u) >> (bit & 31u)) & 1u);
    q = vec2<u32>(q.x << 1u, (q.y << 1u) | (q.x >> 31u));
    if (!ult64(r, b)) {
      r = sub64(r, b);
      q.x = q.x | 1u;
    }
  }
  return vec4<u32>(q, r);
}

fn divt64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (eq64(b, vec2<u32>(0u))) { return vec2<u32>(0u); }
  let q = udivrem64(abs64(a), abs64(b)).xy;
  return select(q, neg64(q), neg_(a) != neg_(b));
}

fn remt64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return sub64(a, mul64(divt64(a, b), b));
}

fn remf64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let r = remt64(a, b);
  return select(r, add64(r, b), any(r != vec2<u32>(0u)) && neg_(r) != neg_(b));
}

fn divf64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let q = divt64(a, b);
  let r = remt64(a, b);
  return select(q, sub64(q, vec2<u32>(1u, 0u)), any(r != vec2<u32>(0u)) && neg_(r) != neg_(b));
}

fn divt32(a: i32, b: i32) -> i32 {
  if (b == 0) { return 0; }
  if (b == -1) { return bitcast<i32>(~bitcast<u32>(a) + 1u); }
  return a / b;
}

fn remt32(a: i32, b: i32) -> i32 {
  return bitcast<i32>(bitcast<u32>(a) - bitcast<u32>(divt32(a, b)) * bitcast<u32>(b));
}

fn remf32(a: i32, b: i32) -> i32 {
  let r = remt32(a, b);
  return select(r, r + b, r != 0 && (r < 0) != (b < 0));
}

fn divf32(a: i32, b: i32) -> i32 {
  let r = remt32(a, b);
  return divt32(a, b) - select(0, 1, r != 0 && (r < 0) != (b < 0));
}

fn shl64(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n >= 64u) { return vec2<u32>(0u); }
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }
  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}

fn shr64(a: vec2<u32>, n: u32) -> vec2<u32> {
  let fill = bitcast<u32>(bitcast<i32>(a.y) >> 31u);
  if (n >= 64u) { return vec2<u32>(fill); }
  if (n == 0u) { return a; }
  let high = bitcast<i32>(a.y);
  if (n >= 32u) { return vec2<u32>(bitcast<u32>(high >> (n - 32u)), fill); }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), bitcast<u32>(high >> n));
}

// Shifts by a 64-bit number: all bits leave where it is negative or too large.
fn shift64(n: vec2<u32>) -> u32 {
  return select(64u, n.x, n.y == 0u);
}

fn shl32(a: i32, n: i32) -> i32 {
  return select(a << (u32(n) & 31u), 0, n < 0 || n > 31);
}

fn shr32(a: i32, n: i32) -> i32 {
  return select(a >> (u32(n) & 31u), a >> 31u, n < 0 || n > 31);
}

fn f2l(x: f32) -> vec2<u32> {
  let a = abs(x);
  if (!(a < 9223372036854775808.0) || isnan_(x)) { return vec2<u32>(0u, 0x80000000u); }
  let high = floor(a / 4294967296.0);
  let v = vec2<u32>(u32(a - high * 4294967296.0), u32(high));
  return select(v, neg64(v), x < 0.0);
}

fn f2i(x: f32) -> i32 {
  if (isnan_(x) || x >= 2147483648.0 || x < -2147483648.0) { return i32(-2147483648); }
  return i32(x);
}

fn l2f(a: vec2<u32>) -> f32 {
  let v = abs64(a);
  let sign = select(1.0, -1.0, neg_(a));
  if (v.y == 0u) { return sign * f32(v.x); }
  let s = 32u - countLeadingZeros(v.y);
  let kept = select((v.x >> s) | (v.y << (32u - s)), v.y, s == 32u);
  let lost = select(v.x & ((1u << (s & 31u)) - 1u), v.x, s == 32u);
  return sign * ldexp(f32(kept | select(0u, 1u, lost != 0u)), i32(s));
}

fn remf(a: f32, b: f32) -> f32 {
  let r = fmod_(a, b);
  return select(r, r + b, r != 0.0 && (r < 0.0) != (b < 0.0));
}

// Exact as C's fmod where the quotient fits: reduced in steps that keep every intermediate product exact.
fn fmod_(a: f32, b: f32) -> f32 {
  if (isnan_(a) || isnan_(b) || isinf_(a) || b == 0.0) { return nan_(); }
  if (isinf_(b)) { return a; }
  var r = abs(a);
  let d = abs(b);
  for (var i = 0; i < 300 && r >= d; i++) {
    let e = max(exponent_(r) - exponent_(d), 0);
    var t = ldexp(d, e);
    if (t > r) { t = ldexp(d, e - 1); }
    r = r - t;
  }
  return bitcast<f32>(bitcast<u32>(r) | (bitcast<u32>(a) & 0x80000000u));
}

fn exponent_(x: f32) -> i32 {
  return i32((bitcast<u32>(x) >> 23u) & 255u) - 127;
}

fn floordiv_f(a: f32, b: f32) -> f32 {
  if (b == 0.0) { return a / b; }
  let m = fmod_(a, b);
  if (isnan_(m)) { return m; }
  var q = quotient_(a - m, b);
  if (m != 0.0 && (b < 0.0) != (m < 0.0)) { q = q - 1.0; }
  if (q != 0.0) {
    let f = floor(q);
    return select(f, f + 1.0, q - f > 0.5);
  }
  return select(0.0, -0.0, (a < 0.0) != (b < 0.0));
}

fn pow_f(a: f32, b: f32) -> f32 {
  if (b == 0.0 || a == 1.0) { return 1.0; }
  if (isnan_(a) || isnan_(b)) { return nan_(); }
  let whole = b == trunc(b);
  let odd = whole && abs(b) < 16777216.0 && (i32(b) & 1) == 1;
  if (a == 0.0) {
    let z = select(0.0, inf_(), b < 0.0);
    return select(z, bitcast<f32>(bitcast<u32>(z) | (bitcast<u32>(a) & 0x80000000u)), odd);
  }
  if (isinf_(b)) {
    if (abs(a) == 1.0) { return 1.0; }
    return select(0.0, inf_(), (abs(a) > 1.0) == (b > 0.0));
  }
  if (a < 0.0 && !whole && !isinf_(a)) { return nan_(); }
  var p = pow(abs(a), b);
  if (whole && abs(b) <= 64.0) {
    p = 1.0;
    var base = abs(a);
    var e = u32(abs(b));
    loop {
      if (e == 0u) { break; }
      if ((e & 1u) == 1u) { p = p * base; }
      base = base * base;
      e = e >> 1u;
    }
    if (b < 0.0) { p = quotient_(1.0, p); }
  } else if (isinf_(a)) {
    p = select(0.0, inf_(), b > 0.0);
  }
  return select(p, -p, a < 0.0 && odd);
}

fn powi(a: i32, b: i32) -> i32 {
  if (b < 0) {
    if (a == 1) { return 1; }
    if (a == -1) { return select(-1, 1, (b & 1) == 0); }
    return 0;
  }
  var p = 1;
  var base = a;
  var e = u32(b);
  loop {
    if (e == 0u) { break; }
    if ((e & 1u) == 1u) { p = p * base; }
    base = base * base;
    e = e >> 1u;
  }
  return p;
}

fn pow64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let one = vec2<u32>(1u, 0u);
  if (neg_(b)) {
    if (eq64(a, one)) { return one; }
    if (eq64(a, vec2<u32>(0xffffffffu))) { return select(a, one, (b.x & 1u) == 0u); }
    return vec2<u32>(0u);
  }
  var p = one;
  var base = a;
  var e = b.x;
  loop {
    if (e == 0u) { break; }
    if ((e & 1u) == 1u) { p = mul64(p, base); }
    base = mul64(base, base);
    e = e >> 1u;
  }
  return p;
}

// Some drivers' tanh is exp(2x) based and overflows.
fn tanh_(x: f32) -> f32 {
  if (isnan_(x)) { return x; }
  let a = abs(x);
  if (a < 0.02) { return x - x * x * x * 0.3333333333; }
  let t = exp(-2.0 * min(a, 20.0));
  let y = (1.0 - t) / (1.0 + t);
  return select(y, -y, x < 0.0);
}

fn exp_(x: f32) -> f32 {
  if (isnan_(x)) { return x; }
  if (x > 88.8) { return inf_(); }
  if (x < -104.0) { return 0.0; }
  return exp(x);
}

fn expm1_(x: f32) -> f32 {
  if (isnan_(x)) { return x; }
  if (abs(x) < 0.3) {
    return x * (1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666668 + x * (0.008333334 + x * (0.0013888889 + x * 0.0001984127))))));
  }
  return exp_(x) - 1.0;
}

fn log_(x: f32) -> f32 {
  if (isnan_(x) || x < 0.0) { return nan_(); }
  if (!truth(x)) { return -inf_(); }
  if (isinf_(x)) { return x; }
  if (bitcast<u32>(x) < 0x00800000u) { return log(f32(bitcast<u32>(x))) - 103.27892990343185; } // subnormal: bits * 2^-149
  return log(x);
}

fn log1p_(x: f32) -> f32 {
  if (abs(x) < 0.0001) { return x - 0.5 * x * x; }
  let u = 1.0 + x;
  if (isinf_(u) || !(u > 0.0)) { return log_(u); }
  return log(u) * (x / (u - 1.0));
}

fn sigmoid_(x: f32) -> f32 {
  if (isnan_(x)) { return x; }
  let t = exp(-min(abs(x), 100.0));
  return select(t / (1.0 + t), 1.0 / (1.0 + t), x >= 0.0);
}

fn softplus_(x: f32) -> f32 {
  return max(x, 0.0) + log1p_(exp_(-abs(x)));
}

// erf: Abramowitz and Stegun 7.1.5 series near 0, continued-fraction form 7.1.14 in the tail; both below 2e-7.
fn erf_(x: f32) -> f32 {
  if (isnan_(x)) { return x; }
  let a = abs(x);
  if (a > 4.0) { return sign(x); }
  if (a < 2.0) {
    let s = x * x;
    var term = x;
    var sum = x;
    for (var n = 1; n < 26; n++) {
      let k = f32(n);
      term = -term * s / k;
      sum = sum + term / (2.0 * k + 1.0);
    }
    return clamp(sum * 1.1283791670955126, -1.0, 1.0);
  }
  var f = a;
  for (var n = 24; n > 0; n--) { f = a + f32(n) * 0.5 / f; }
  let tail = exp(-a * a) * 0.5641895835477563 / f;
  return select(1.0 - tail, tail - 1.0, x < 0.0);
}

fn erfc_(x: f32) -> f32 {
  if (isnan_(x)) { return x; }
  if (x < 1.0) { return 1.0 - erf_(x); }
  var f = x;
  for (var n = 40; n > 0; n--) { f = x + f32(n) * 0.5 / f; }
  return exp_(-x * x) * 0.5641895835477563 / f;
}

// erfinv: start from Winitzki's closed form, then two Newton steps on erf.
fn erfinv_(x: f32) -> f32 {
  let a = abs(x);
  if (isnan_(x) || a > 1.0) { return nan_(); }
  if (a == 1.0) { return select(-inf_(), inf_(), x > 0.0); }
  let l = log((1.0 - a) * (1.0 + a));
  let t = 4.3307467508 + l * 0.5;
  var y = sqrt(max(sqrt(max(t * t - l * 6.8027210884, 0.0)) - t, 0.0));
  for (var i = 0; i < 2; i++) {
    let e = select(erf_(y) - a, (1.0 - a) - erfc_(y), y > 1.0);
    y = y - e / (1.1283791670955126 * exp(-y * y));
  }
  return select(y, -y, x < 0.0);
}

fn gelu_(x: f32) -> f32 {
  if (isnan_(x)) { return x; }
  if (x < -14.0) { return select(-0.0, nan_(), isinf_(x)); } // -inf * 0
  return 0.5 * x * select(1.0 + erf_(x * 0.7071067811865476), erfc_(-x * 0.7071067811865476), x < -1.5);
}

fn gelu_tanh_(x: f32) -> f32 {
  if (isnan_(x)) { return x; }
  if (abs(x) > 1e4) { return select(max(x, 0.0), nan_(), isinf_(x) && x < 0.0); } // -inf * 0
  return 0.5 * x * (1.0 + tanh_(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

// sin and cos lose accuracy for large arguments on some drivers: reduce by pi/2 in three parts (Cody and Waite 1980), exact
// while the multiple has 16 bits; beyond, multiply by the bits of 2/pi that matter (Payne and Hanek 1983).
fn trig_reduce(x: f32) -> vec2<f32> {
  if (abs(x) > 2e4) { return trig_reduce_large(x); }
  let k = round(x * 0.6366197723675814);
  var r = x - k * 1.5703125;
  r = r - k * 4.837512969970703125e-4;
  r = r - k * 7.54978995489188216e-8;
  return vec2<f32>(r, k);
}

fn trig_reduce_large(x: f32) -> vec2<f32> {
  var bits = array<u32, 7>(0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u);
  let b = bitcast<u32>(x);
  let m = ((b & 0x7fffffu) | 0x800000u) << 8u;
  let p = ((b >> 23u) & 255u) - 128u; // the first bit of 2/pi whose product is not a multiple of 4
  let at = p >> 5u;
  let s = p & 31u;
  let high = select((bits[at] << s) | (bits[at + 1u] >> ((32u - s) & 31u)), bits[at], s == 0u);
  let middle = select((bits[at + 1u] << s) | (bits[at + 2u] >> ((32u - s) & 31u)), bits[at + 1u], s == 0u);
  let low = select((bits[at + 2u] << s) | (bits[at + 3u] >> ((32u - s) & 31u)), bits[at + 2u], s == 0u);
  let sum = add64(mulwide(m, middle), vec2<u32>(mulwide(m, low).y, 0u));
  let top = m * high + sum.y; // multiples of pi/2, two bits before the point
  let fraction = vec2<u32>(sum.x << 2u, (top << 2u) | (sum.x >> 30u));
  let r = l2f(fraction) * 8.515303950216386e-20; // pi/2 * 2^-64; more than a half is taken as negative
  let k = f32(((top >> 30u) + (fraction.y >> 31u)) & 3u);
  return select(vec2<f32>(r, k), vec2<f32>(-r, -k), x < 0.0);
}

fn sin_poly(r: f32) -> f32 {
  let s = r * r;
  return r * (1.0 + s * (-0.16666667 + s * (0.008333329 + s * (-0.00019840874 + s * 2.7525562e-6))));
}

fn cos_poly(r: f32) -> f32 {
  let s = r * r;
  return 1.0 + s * (-0.5 + s * (0.041666664 + s * (-0.0013888397 + s * 2.4760495e-5)));
}

fn quadrant(t: vec2<f32>, shift: i32) -> f32 {
  let q = (i32(t.y) + shift) & 3;
  let v = select(sin_poly(t.x), cos_poly(t.x), (q & 1) == 1);
  return select(v, -v, q >= 2);
}

fn sin_(x: f32) -> f32 {
  if (isnan_(x) || isinf_(x)) { return nan_(); }
  return quadrant(trig_reduce(x), 0);
}

fn cos_(x: f32) -> f32 {
  if (isnan_(x) || isinf_(x)) { return nan_(); }
  return quadrant(trig_reduce(x), 1);
}

// Philox 4x32-10 (Salmon et al., SC 2011): counter (block, stream), key = seed.
fn philox(counter: vec4<u32>, seed: vec2<u32>) -> vec4<u32> {
  var c = counter;
  var k = seed;
  for (var i = 0; i < 10; i++) {
    let a = mulwide(c.x, 0xD2511F53u);
    let b = mulwide(c.z, 0xCD9E8D57u);
    c = vec4<u32>(b.y ^ c.y ^ k.x, b.x, a.y ^ c.w ^ k.y, a.x);
    k = vec2<u32>(k.x + 0x9E3779B9u, k.y + 0xBB67AE85u);
  }
  return c;
}

// 24 random bits: [0, 1) exactly, never 1 after rounding.
fn unit(bits: u32) -> f32 {
  return f32(bits >> 8u) * 5.9604644775390625e-8;
}

// The high half of the 128-bit product of unsigned 64-bit integers.
fn mulhigh64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = mulwide(a.x, b.x);
  let m1 = add64(mulwide(a.x, b.y), vec2<u32>(low.y, 0u));
  let m2 = add64(mulwide(a.y, b.x), vec2<u32>(m1.x, 0u));
  return add64(mulwide(a.y, b.y), add64(vec2<u32>(m1.y, 0u), vec2<u32>(m2.y, 0u)));
}

// Exponential variate of rate 1 by its quantile function: finer than 1e-9 near 0, never 0, at most 16.7.
fn exponential(bits: u32) -> f32 {
  let u = min((f32(bits) + 0.5) * 2.3283064365386963e-10, 0.99999994);
  return -log1p_(-u);
}

// Four standard normal variates (Box and Muller 1958); the radius stays finite as its uniform is never 0.
fn normal4(r: vec4<u32>) -> vec4<f32> {
  let a = sqrt(max(-2.0 * log((f32(r.x) + 0.5) * 2.3283064365386963e-10), 0.0));
  let b = sqrt(max(-2.0 * log((f32(r.z) + 0.5) * 2.3283064365386963e-10), 0.0));
  let s = 6.283185307179586 * unit(r.y);
  let t = 6.283185307179586 * unit(r.w);
  return vec4<f32>(a * cos_(s), a * sin_(s), b * cos_(t), b * sin_(t));
}

fn logaddexp(a: f32, b: f32) -> f32 {
  if (isnan_(a) || isnan_(b)) { return nan_(); }
  let m = max(a, b);
  if (isinf_(m)) { return m; }
  return m + log1p_(exp_(-abs(a - b)));
}

// Inverse trigonometric functions: the drivers' own are good to three or four digits only (polynomials of Cephes).
fn atan_(x: f32) -> f32 {
  if (isnan_(x)) { return x; }
  var a = abs(x);
  var y = 0.0;
  if (a > 2.414213562373095) {
    y = 1.5707963267948966;
    a = select(-1.0 / a, 0.0, isinf_(a));
  } else if (a > 0.4142135623730950) {
    y = 0.7853981633974483;
    a = (a - 1.0) / (a + 1.0);
  }
  let z = a * a;
  y += (((8.05374449538e-2 * z - 1.38776856032e-1) * z + 1.99777106478e-1) * z - 3.33329491539e-1) * z * a + a;
  return bitcast<f32>(bitcast<u32>(y) | (bitcast<u32>(x) & 0x80000000u));
}

fn atan2_(y: f32, x: f32) -> f32 {
  if (isnan_(x) || isnan_(y)) { return nan_(); }
  let sign_y = bitcast<u32>(y) & 0x80000000u;
  let left = (bitcast<u32>(x) >> 31u) == 1u;
  var a = 0.0;
  if (isinf_(x) && isinf_(y)) {
    a = 0.7853981633974483;
  } else if (!truth(y)) {
    a = 0.0;
  } else if (!truth(x) || isinf_(y)) {
    a = 1.5707963267948966;
  } else if (!isinf_(x)) {
    let big = max(abs(x), abs(y)) > 1e18;
    a = atan_(select(abs(y), abs(y) * 1e-20, big) / select(abs(x), abs(x) * 1e-20, big));
  }
  return bitcast<f32>(bitcast<u32>(select(a, 3.141592653589793 - a, left)) | sign_y);
}

fn asin_core(a: f32) -> f32 {
  let z = a * a;
  return ((((4.2163199048e-2 * z + 2.4181311049e-2) * z + 4.5470025998e-2) * z + 7.4953002686e-2) * z + 1.6666752422e-1) * z * a + a;
}

fn asin_(x: f32) -> f32 {
  let a = abs(x);
  if (isnan_(x) || a > 1.0) { return nan_(); }
  let y = select(asin_core(a), 1.5707963267948966 - 2.0 * asin_core(sqrt(max(0.5 * (1.0 - a), 0.0))), a > 0.5);
  return bitcast<f32>(bitcast<u32>(y) | (bitcast<u32>(x) & 0x80000000u));
}

fn acos_(x: f32) -> f32 {
  let a = abs(x);
  if (isnan_(x) || a > 1.0) { return nan_(); }
  if (a <= 0.5) { return 1.5707963267948966 - asin_(x); }
  let half = 2.0 * asin_core(sqrt(max(0.5 * (1.0 - a), 0.0)));
  return select(half, 3.141592653589793 - half, x < 0.0);
}

fn sinh_(x: f32) -> f32 {
  let e = expm1_(abs(x));
  let y = select(0.5 * (e + e / (e + 1.0)), exp_(abs(x) * 0.5) * (0.5 * exp_(abs(x) * 0.5)), abs(x) > 80.0);
  return select(bitcast<f32>(bitcast<u32>(y) | (bitcast<u32>(x) & 0x80000000u)), x, isnan_(x));
}

fn cosh_(x: f32) -> f32 {
  let h = exp_(abs(x) * 0.5);
  return h * (0.5 * h) + select(0.5 * exp_(-abs(x)), 0.0, isinf_(h));
}

fn asinh_(x: f32) -> f32 {
  let a = abs(x);
  if (isnan_(x) || isinf_(x)) { return x; }
  let y = select(log1p_(a + a * a / (1.0 + sqrt(a * a + 1.0))), log_(a) + 0.6931471805599453, a > 1e8);
  return bitcast<f32>(bitcast<u32>(y) | (bitcast<u32>(x) & 0x80000000u));
}

fn acosh_(x: f32) -> f32 {
  if (isnan_(x) || x < 1.0) { return nan_(); }
  let t = x - 1.0;
  return select(log1p_(t + sqrt(t * (t + 2.0))), log_(x) + 0.6931471805599453, x > 1e8);
}

fn atanh_(x: f32) -> f32 {
  let a = abs(x);
  if (isnan_(x) || a > 1.0) { return nan_(); }
  let y = select(0.5 * log1p_(2.0 * a / (1.0 - a)), inf_(), a == 1.0);
  return bitcast<f32>(bitcast<u32>(y) | (bitcast<u32>(x) & 0x80000000u));
}

fn hypot_(a: f32, b: f32) -> f32 {
  if (isinf_(a) || isinf_(b)) { return inf_(); }
  if (isnan_(a) || isnan_(b)) { return nan_(); }
  let high = max(abs(a), abs(b));
  if (!truth(high)) { return 0.0; }
  let ratio = quotient_(min(abs(a), abs(b)), high);
  return high * root_(1.0 + ratio * ratio);
}

fn gcd32(a: i32, b: i32) -> i32 {
  var x = a;
  var y = b;
  loop {
    if (y == 0) { break; }
    let r = remt32(x, y);
    x = y;
    y = r;
  }
  return abs(x);
}

fn gcd64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  var x = a;
  var y = b;
  loop {
    if (eq64(y, vec2<u32>(0u))) { break; }
    let r = remt64(x, y);
    x = y;
    y = r;
  }
  return abs64(x);
}

// Stirling's series after moving the argument beyond 8.
fn lgamma_positive(x: f32) -> f32 {
  if (isinf_(x)) { return x; }
  var z = x;
  var p = 1.0;
  for (var i = 0; i < 8 && z < 8.0; i++) {
    p = p * z;
    z = z + 1.0;
  }
  let r = 1.0 / z;
  let series = r * (0.08333333333 - r * r * (0.002777777778 - r * r * 0.0007936507937));
  return (z - 0.5) * log_(z) - z + 0.9189385332046727 + series - log_(p);
}

fn lgamma_(x: f32) -> f32 {
  if (isnan_(x)) { return x; }
  if (isinf_(x)) { return inf_(); }
  if (x > 0.0) { return lgamma_positive(x); }
  if (x == floor(x)) { return inf_(); }
  return 1.1447298858494002 - log_(abs(sin_(3.141592653589793 * (x - round(x))))) - lgamma_positive(1.0 - x);
}

fn digamma_(x: f32) -> f32 {
  if (isnan_(x)) { return x; }
  if (!truth(x)) { return bitcast<f32>(0x7f800000u | (~bitcast<u32>(x) & 0x80000000u)); }
  if (isinf_(x)) { return select(nan_(), x, x > 0.0); }
  if (x < 0.0 && x == floor(x)) { return nan_(); }
  var z = select(x, 1.0 - x, x < 0.0);
  var y = 0.0;
  for (var i = 0; i < 10 && z < 10.0; i++) {
    y = y - 1.0 / z;
    z = z + 1.0;
  }
  let r = 1.0 / (z * z);
  y = y + log_(z) - 0.5 / z - r * (0.08333333333 - r * (0.008333333333 - r * 0.003968253968));
  if (x < 0.0) {
    let t = 3.141592653589793 * (x - round(x));
    y = y - 3.141592653589793 * cos_(t) / sin_(t);
  }
  return y;
}

// Four numbers of packed weights. unpack2x16float is exact for all halves that the hardware does not flush.
fn quad_f16(w: vec2<u32>) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));
}

fn quad_bf16(w: vec2<u32>) -> vec4<f32> {
  return bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u));
}

fn quad_i8(w: u32) -> vec4<f32> {
  let i = bitcast<i32>(w);
  return vec4<f32>(vec4<i32>(i << 24u, i << 16u, i << 8u, i) >> vec4<u32>(24u));
}

// Nibbles n as 1 + n / 16, put together from bits: no conversion. The caller takes the sum of the other factor off.
fn nibbles_low(w: u32) -> vec4<f32> {
  let bits = vec4<u32>(w << 19u, w << 15u, w << 11u, w << 7u);
  return bitcast<vec4<f32>>((bits & vec4<u32>(0x00780000u)) | vec4<u32>(0x3f800000u));
}

fn nibbles_high(w: u32) -> vec4<f32> {
  let bits = vec4<u32>(w << 3u, w >> 1u, w >> 5u, w >> 9u);
  return bitcast<vec4<f32>>((bits & vec4<u32>(0x00780000u)) | vec4<u32>(0x3f800000u));
}
