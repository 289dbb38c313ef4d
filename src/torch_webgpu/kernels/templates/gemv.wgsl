// out[m, n] = alpha * sum_k a[m, k] * b[k, n] (+ beta * c[m, n]) for few rows m and b read along k.
// A workgroup makes {{ columns }} columns; {{ lanes }} invocations share the sum of each.
var<workgroup> part: array<f32, {{ rows * columns * lanes }}>;

@compute @workgroup_size({{ columns * lanes }})
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) l: u32) {
  let lane = l % {{ lanes }}u;
  let n = (g.y * groups.x + g.x) * {{ columns }}u + l / {{ lanes }}u;
  let z = g.z;
  if (n < {{ w.N }}) {
    let at_b = z * {{ w.bz }} + n * {{ w.bn }};
    let at_a = z * {{ w.az }};
    {% for r in range(rows) %}
    var s{{ r }} = 0.0;
    {% endfor %}
    for (var k = lane; k < {{ w.K }}; k += {{ lanes }}u) {
      let v = ld_b(at_b + k * {{ w.bk }});
      {% for r in range(rows) %}
      s{{ r }} += v * ld_a(at_a + {{ r }}u * {{ w.am }} + k * {{ w.ak }});
      {% endfor %}
    }
    {% for r in range(rows) %}
    part[{{ r }}u * {{ columns * lanes }}u + l] = s{{ r }};
    {% endfor %}
  }
  workgroupBarrier();
  for (var s = {{ lanes // 2 }}u; s > 0u; s = s / 2u) {
    if (lane < s) {
      {% for r in range(rows) %}
      part[{{ r }}u * {{ columns * lanes }}u + l] += part[{{ r }}u * {{ columns * lanes }}u + l + s];
      {% endfor %}
    }
    workgroupBarrier();
  }
  if (n < {{ w.N }} && lane < {{ rows }}u) {
    let m = lane;
    var v = part[m * {{ columns * lanes }}u + l - lane] * {{ w.expr("alpha", "f") }};
    {% if bias %}
    v += {{ w.expr("beta", "f") }} * ld_c(z * {{ w.cz }} + m * {{ w.cm }} + n * {{ w.cn }});
    {% endif %}
    st_o(z * {{ w.oz }} + m * {{ w.om }} + n * {{ w.on }}, v);
  }
}
