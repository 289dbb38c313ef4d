// Adds up the parts of a matrix product whose sum was split, and finishes each element.
{{ finish }}

@compute @workgroup_size({{ workgroup }})
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) l: u32) {
  let i = ((g.y * groups.x + g.x) * {{ workgroup }}u + l) * {{ pack }}u;
  let count = {{ w.Z }} * {{ w.M }} * {{ w.N }};
  if (i >= count) { return; }
  {% for e in range(pack) %}
  var sum{{ e }} = 0.0;
  {% endfor %}
  for (var s = 0u; s < {{ w.splits }}; s++) {
    {% for e in range(pack) %}
    sum{{ e }} += ld_s(s * count + i + {{ e }}u);
    {% endfor %}
  }
  let n = i % {{ w.N }};
  let m = i / {{ w.N }} % {{ w.M }};
  let z = i / {{ w.N }} / {{ w.M }};
  {% if pack == 2 %}
  put2(z, m, n, sum0, sum1);
  {% else %}
  put(z, m, n, sum0);
  {% endif %}
}
