// One invocation an output: integers, and b read along n with few rows.
@compute @workgroup_size({{ workgroup }})
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) l: u32) {
  let i = (g.y * groups.x + g.x) * {{ workgroup }}u + l;
  if (i >= {{ w.count }}) { return; }
  let n = i % {{ w.N }};
  let m = (i / {{ w.N }}) % {{ w.M }};
  let z = i / {{ w.N }} / {{ w.M }};
  var s = {{ zero }};
  let at_a = z * {{ w.az }} + m * {{ w.am }};
  let at_b = z * {{ w.bz }} + n * {{ w.bn }};
  for (var k = 0u; k < {{ w.K }}; k++) {
    {% if cls == "l" %}
    s = add64(s, mul64({{ load_a }}, {{ load_b }}));
    {% elif cls == "b" %}
    s = s || ({{ load_a }} && {{ load_b }});
    {% else %}
    s = s + {{ load_a }} * {{ load_b }};
    {% endif %}
  }
  {% if cls == "f" %}
  s = s * {{ w.expr("alpha", "f") }};
  {% if bias %}
  s += {{ w.expr("beta", "f") }} * ld_c(z * {{ w.cz }} + m * {{ w.cm }} + n * {{ w.cn }});
  {% endif %}
  {% endif %}
  st_o(z * {{ w.oz }} + m * {{ w.om }} + n * {{ w.on }}, s);
}
