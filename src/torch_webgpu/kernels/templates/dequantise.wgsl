// o[r, :] = the float32 values of row r of quantised weights{{ ", r named by an index" if indexed }}; {{ per }} elements an invocation.
fn value_(row: u32, k: u32) -> f32 {
  {% if bits == 4 %}
  let nibble = f32(extractBits(bitcast<u32>(ld_q(row * {{ w.q_row }} + k / 8u)), 4u * (k % 8u), 4u));
  let s = ld_s(row * {{ w.s_row }} + k / 32u);
  {% if minimum %}
  return nibble * s + ld_m(row * {{ w.m_row }} + k / 32u);
  {% else %}
  return (nibble - 8.0) * s;
  {% endif %}
  {% else %}
  return f32(ld_q(row * {{ w.q_row }} + k)) * ld_s(row * {{ w.s_row }}{{ " + k / " + w.group if grouped }});
  {% endif %}
}

// The row of the weights bound here that makes row r of the result; one beyond them if another launch makes it.
fn row_of(r: u32) -> u32 {
  {% if indexed %}
  let given = {{ index }};
  if (given.y != 0u || given.x >= {{ w.size }}) {
    fail_e({{ w.error }}, given, {{ w.size }});
    return 0xffffffffu;
  }
  return given.x - {{ w.low }};
  {% else %}
  return r;
  {% endif %}
}

@compute @workgroup_size({{ workgroup }})
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) l: u32) {
  let first = ((g.y * groups.x + g.x) * {{ workgroup }}u + l) * {{ per }}u;
  if (first >= {{ w.n }}) { return; }
  var r = first / {{ w.K }};
  var k = first % {{ w.K }};
  var row = row_of(r);
  for (var i = first; i < min(first + {{ per }}u, {{ w.n }}); i += {{ per_word }}u) {
    {% if per_word > 1 %}
    let here = row;
    var bits = 0u;
    for (var e = 0u; e < {{ per_word }}u && i + e < {{ w.n }}; e++) {
    {% endif %}
      if (k == {{ w.K }}) {
        k = 0u;
        r++;
        row = row_of(r);
      }
      if (row < {{ w.length }}) {
        let v = value_(row, k);
        {% if per_word > 1 %}
        bits = bits | ({{ bits_of_v }} << (e * {{ 32 // per_word }}u));
        {% else %}
        st_o(i, v);
        {% endif %}
      }
      k++;
    {% if per_word > 1 %}
    }
    if (here < {{ w.length }} || row < {{ w.length }}) { st_o(i / {{ per_word }}u, bits); }
    {% endif %}
  }
}
