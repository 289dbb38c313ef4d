// softmax(scale * q k^T + mask) v for one query of one head a workgroup, over keys in chunks with a running maximum
// (online softmax, Milakov and Gimelshein 2018). A query whose keys are all masked gives zeros.
const WG = {{ workgroup }}u;
var<workgroup> query: array<f32, {{ 2 * workgroup }}>;
var<workgroup> score: array<f32, {{ workgroup }}>;
var<workgroup> weight: array<f32, {{ workgroup }}>;

@compute @workgroup_size({{ workgroup }})
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) l: u32) {
  let m = g.x;
  let h = g.y;
  let z = g.z;
  let hk = h / {{ w.repeat }};
  let at_q = z * {{ w.qz }} + h * {{ w.qh }} + m * {{ w.qm }};
  let at_k = z * {{ w.kz }} + hk * {{ w.kh }};
  let at_v = z * {{ w.vz }} + hk * {{ w.vh }};
  for (var d = l; d < {{ w.D }}; d += WG) { query[d] = ld_q(at_q + d * {{ w.qd }}) * {{ w.expr("scale", "f") }}; }
  var top = -inf_();
  var total = 0.0;
  var acc0 = 0.0;
  var acc1 = 0.0;
  let keys = {% if causal %}min({{ w.K }}, m + 1u){% else %}{{ w.K }}{% endif %};
  workgroupBarrier();
  for (var k0 = 0u; k0 < keys; k0 += WG) {
    let count = min(WG, keys - k0);
    var s = -inf_();
    if (l < count) {
      s = 0.0;
      let at = at_k + (k0 + l) * {{ w.km }};
      for (var d = 0u; d < {{ w.D }}; d++) { s += query[d] * ld_k(at + d * {{ w.kd }}); }
      {% if mask %}
      let at_mask = z * {{ w.mz }} + h * {{ w.mh }} + m * {{ w.mm }} + (k0 + l) * {{ w.md }};
      {% if mask == "b" %}
      if (!ld_mask(at_mask)) { s = -inf_(); }
      {% else %}
      s += ld_mask(at_mask);
      {% endif %}
      {% endif %}
    }
    score[l] = s;
    workgroupBarrier();
    var now = top;
    for (var t = 0u; t < count; t++) { now = fmaximum(now, score[t]); }
    let alive = bitcast<u32>(now) != 0xff800000u;
    weight[l] = select(0.0, exp_(s - now), alive && l < count);
    let keep = select(0.0, exp_(top - now), alive && bitcast<u32>(top) != 0xff800000u);
    workgroupBarrier();
    total *= keep;
    acc0 *= keep;
    acc1 *= keep;
    for (var t = 0u; t < count; t++) {
      let p = weight[t];
      let at = at_v + (k0 + t) * {{ w.vm }};
      total += p;
      if (l < {{ w.E }}) { acc0 += p * ld_v(at + l * {{ w.vd }}); }
      if (l + WG < {{ w.E }}) { acc1 += p * ld_v(at + (l + WG) * {{ w.vd }}); }
    }
    top = now;
    workgroupBarrier();
  }
  let inverse = select(0.0, 1.0 / total, total != 0.0);
  let at_o = z * {{ w.oz }} + h * {{ w.oh }} + m * {{ w.om }};
  if (l < {{ w.E }}) { st_o(at_o + l * {{ w.od }}, acc0 * inverse); }
  if (l + WG < {{ w.E }}) { st_o(at_o + (l + WG) * {{ w.od }}, acc1 * inverse); }
}
