// out[z, m, n] = alpha * sum_k a[z, m, k] * b[z, k, n] (+ beta * c[z, m, n]): {{ tm }} x {{ tn }} tiles, 4 x 4 an invocation.
const TM = {{ tm }}u;
const TN = {{ tn }}u;
const TK = 16u;
var<workgroup> tile_a: array<f32, {{ 16 * tm }}>;
var<workgroup> tile_b: array<f32, {{ 16 * tn }}>;

@compute @workgroup_size({{ tm * tn // 16 }})
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) l: u32) {
  let z = g.z;
  let m0 = g.y * TM;
  let n0 = g.x * TN;
  let tx = (l % (TN / 4u)) * 4u;
  let ty = (l / (TN / 4u)) * 4u;
  var acc: array<vec4<f32>, 4>;
  for (var k0 = 0u; k0 < {{ w.K }}; k0 += TK) {
    for (var i = l; i < TM * TK; i += {{ tm * tn // 16 }}u) {
      {% if a_along_k %}
      let k = i % TK;
      let m = i / TK;
      {% else %}
      let k = i / TM;
      let m = i % TM;
      {% endif %}
      var v = 0.0;
      if (m0 + m < {{ w.M }} && k0 + k < {{ w.K }}) { v = ld_a(z * {{ w.az }} + (m0 + m) * {{ w.am }} + (k0 + k) * {{ w.ak }}); }
      tile_a[k * TM + m] = v;
    }
    for (var i = l; i < TN * TK; i += {{ tm * tn // 16 }}u) {
      {% if b_along_k %}
      let k = i % TK;
      let n = i / TK;
      {% else %}
      let k = i / TN;
      let n = i % TN;
      {% endif %}
      var v = 0.0;
      if (n0 + n < {{ w.N }} && k0 + k < {{ w.K }}) { v = ld_b(z * {{ w.bz }} + (k0 + k) * {{ w.bk }} + (n0 + n) * {{ w.bn }}); }
      tile_b[k * TN + n] = v;
    }
    workgroupBarrier();
    for (var k = 0u; k < TK; k++) {
      let at = k * TN + tx;
      let b = vec4<f32>(tile_b[at], tile_b[at + 1u], tile_b[at + 2u], tile_b[at + 3u]);
      for (var r = 0u; r < 4u; r++) { acc[r] += tile_a[k * TM + ty + r] * b; }
    }
    workgroupBarrier();
  }
  for (var r = 0u; r < 4u; r++) {
    let m = m0 + ty + r;
    if (m >= {{ w.M }}) { continue; }
    for (var j = 0u; j < 4u; j++) {
      let n = n0 + tx + j;
      if (n >= {{ w.N }}) { continue; }
      var v = acc[r][j] * {{ w.expr("alpha", "f") }};
      {% if bias %}
      v += {{ w.expr("beta", "f") }} * ld_c(z * {{ w.cz }} + m * {{ w.cm }} + n * {{ w.cn }});
      {% endif %}
      st_o(z * {{ w.oz }} + m * {{ w.om }} + n * {{ w.on }}, v);
    }
  }
}
