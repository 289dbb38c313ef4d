// softmax(scale * q k^T + mask) v for a block of {{ 16 * rows }} queries of one head a workgroup, over keys in tiles of 32
// with a running maximum (online softmax, Milakov and Gimelshein 2018). A query whose keys are all masked gives zeros.
// Invocation (tx, ty) has queries ty + 16 i, keys 4 tx + j of a tile, and value columns 4 tx + 32 j + 0..3.
const WG = 128u;
var<workgroup> q_part: array<array<vec4<f32>, 64>, {{ rows }}>; // 16 terms of the scores' sums, four a vector
var<workgroup> k_part: array<array<vec4<f32>, 32>, 4>;
var<workgroup> v_part: array<array<array<vec4<f32>, {{ keys * 2 }}>, 4>, {{ blocks }}>; // {{ keys }} keys, four a step
var<workgroup> weight: array<array<vec4<f32>, 128>, {{ rows }}>; // four keys a vector; maxima and sums pass through it too
{% if mask %}
var<workgroup> any_key: atomic<u32>;
var<workgroup> needed: u32;
{% endif %}

fn dead(x: f32) -> bool {
  return bitcast<u32>(x) == 0xff800000u;
}

// Where invocation ty finds vector t: the exclusive or spreads vectors over the banks of workgroup memory.
fn place(t: u32, ty: u32) -> u32 {
  return t * 16u + (ty ^ t);
}

{% for name, size, how in (("q", w.D, how_q), ("k", w.D, how_k), ("v", w.E, how_v)) %}
fn quad_{{ name }}(at: u32, d: u32) -> vec4<f32> {
  {% if how == "v" %}
  if (d >= {{ size }}) { return vec4<f32>(); }
  return bitcast<vec4<f32>>(v4_{{ name }}((at + d) / 4u));
  {% elif how == "p" %}
  let i = ({{ offset[name] }} + at + d) / 2u;
  if (d >= {{ size }}) { return vec4<f32>(); }
  return vec4<f32>({{ unpack[name].format("w_" ~ name ~ "(i)") }}, {{ unpack[name].format("w_" ~ name ~ "(i + 1u)") }});
  {% else %}
  var x = vec4<f32>();
  {% for e in range(4) %}
  if (d + {{ e }}u < {{ size }}) { x.{{ "xyzw"[e] }} = ld_{{ name }}(at + (d + {{ e }}u) * {{ w.expr(name ~ "d") }}); }
  {% endfor %}
  return x;
  {% endif %}
}
{% endfor %}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) l: u32) {
  let base = (n.x - 1u - g.x) * {{ 16 * rows }}u; // the longest causal rows first
  let h = g.y;
  let z = g.z;
  let at_q = z * {{ w.qz }} + h * {{ w.qh }};
  let at_k = z * {{ w.kz }} + h / {{ w.repeat }} * {{ w.kh }};
  let at_v = z * {{ w.vz }} + h / {{ w.repeat }} * {{ w.vh }};
  let tx = l % 8u;
  let ty = l / 8u;
  let quad = l % 4u;
  {% for i in range(rows) %}
  let m{{ i }} = base + ty + {{ 16 * i }}u;
  var top{{ i }} = -inf_();
  var total{{ i }} = 0.0;
  {% for j in range(blocks) %}
  var o{{ i }}{{ j }} = vec4<f32>();
  {% endfor %}
  {% endfor %}
  let keys = {% if causal %}min({{ w.K }}, {{ w.first }} + min(base + {{ 16 * rows }}u, {{ w.M }})){% else %}{{ w.K }}{% endif %};
  for (var k0 = 0u; k0 < keys; k0 += 32u) {
    let k_tx = k0 + 4u * tx;
    {% for i in range(rows) %}
    var on{{ i }} = vec4<bool>({% for j in range(4) %}k_tx + {{ j }}u < keys{% if causal %} && k_tx + {{ j }}u <= {{ w.first }} + m{{ i }}{% endif %}{{ ", " if j < 3 }}{% endfor %});
    {% endfor %}
    {% if mask %}
    var mine = false;
    {% for i in range(rows) %}
    var bias{{ i }} = vec4<f32>();
    if (m{{ i }} < {{ w.M }}) {
      let at = z * {{ w.mz }} + h * {{ w.mh }} + m{{ i }} * {{ w.mm }} + k_tx * {{ w.md }};
      {% for j in range(4) %}
      {% set c = "xyzw"[j] %}
      if (on{{ i }}.{{ c }}) {
        {% if mask == "b" %}
        on{{ i }}.{{ c }} = ld_mask(at + {{ j }}u * {{ w.md }});
        {% else %}
        let given = ld_mask(at + {{ j }}u * {{ w.md }});
        bias{{ i }}.{{ c }} = given;
        // The lowest numbers stand for "never" once the query has met a key.
        on{{ i }}.{{ c }} = !dead(given) && !(given < -1e37 && top{{ i }} > -1e30);
        {% endif %}
      }
      {% endfor %}
      mine = mine || any(on{{ i }});
    }
    {% endfor %}
    if (mine) { atomicOr(&any_key, 1u); }
    workgroupBarrier();
    if (l == 0u) { needed = atomicExchange(&any_key, 0u); }
    if (workgroupUniformLoad(&needed) == 0u) { continue; }
    {% endif %}
    {% for i in range(rows) %}
    var s{{ i }} = vec4<f32>();
    {% endfor %}
    for (var d0 = 0u; d0 < {{ w.D }}; d0 += 16u) {
      workgroupBarrier();
      {% for half in range((rows + 1) // 2) %}
      {
        let r = l / 4u + {{ 32 * half }}u;
        {% if rows % 2 %}
        if (r < {{ 16 * rows }}u) {
        {% else %}
        {
        {% endif %}
          var x = vec4<f32>();
          if (base + r < {{ w.M }}) { x = quad_q(at_q + (base + r) * {{ w.qm }}, d0 + 4u * quad) * {{ w.expr("scale", "f") }}; }
          q_part[r / 16u][quad * 16u + ((r % 16u) ^ (quad << 1u))] = x;
        }
      }
      {% endfor %}
      {
        let r = l / 4u;
        var x = vec4<f32>();
        if (k0 + r < keys) { x = quad_k(at_k + (k0 + r) * {{ w.km }}, d0 + 4u * quad); }
        k_part[r % 4u][quad * 8u + ((r / 4u) ^ (quad << 1u))] = x;
      }
      workgroupBarrier();
      for (var c = 0u; c < {{ count[4] }}; c++) {
        let iq = c * 16u + (ty ^ (c << 1u));
        let ik = c * 8u + (tx ^ (c << 1u));
        {% for j in range(4) %}
        let b{{ j }} = k_part[{{ j }}][ik];
        {% endfor %}
        {% for i in range(rows) %}
        let a{{ i }} = q_part[{{ i }}][iq];
        {% for e in "xyzw" %}
        s{{ i }} += a{{ i }}.{{ e }} * vec4<f32>(b0.{{ e }}, b1.{{ e }}, b2.{{ e }}, b3.{{ e }});
        {% endfor %}
        {% endfor %}
      }
    }
    {% for i in range(rows) %}
    {% if mask == "f" %}
    s{{ i }} += bias{{ i }};
    {% endif %}
    s{{ i }} = select(vec4<f32>(-inf_()), s{{ i }}, on{{ i }});
    weight[{{ i }}][place(tx, ty)] = vec4<f32>(fmaximum(fmaximum(s{{ i }}.x, s{{ i }}.y), fmaximum(s{{ i }}.z, s{{ i }}.w)));
    {% endfor %}
    workgroupBarrier();
    {% for i in range(rows) %}
    var now{{ i }} = top{{ i }};
    {% endfor %}
    for (var t = 0u; t < {{ count[8] }}; t++) {
      let at = place(t, ty);
      {% for i in range(rows) %}
      now{{ i }} = fmaximum(now{{ i }}, weight[{{ i }}][at].x);
      {% endfor %}
    }
    workgroupBarrier();
    {% for i in range(rows) %}
    {
      // Scores that are off have no weight, whatever the maximum.
      let p = select(vec4<f32>(), vec4<f32>({% for e in "xyzw" %}exp_(s{{ i }}.{{ e }} - now{{ i }}){{ ", " if e != "w" }}{% endfor %}), on{{ i }} & vec4<bool>(!dead(s{{ i }}.x), !dead(s{{ i }}.y), !dead(s{{ i }}.z), !dead(s{{ i }}.w)));
      let keep = select(exp_(top{{ i }} - now{{ i }}), 0.0, dead(top{{ i }}));
      total{{ i }} = total{{ i }} * keep + (p.x + p.y + p.z + p.w);
      {% for j in range(blocks) %}
      o{{ i }}{{ j }} *= keep;
      {% endfor %}
      top{{ i }} = now{{ i }};
      weight[{{ i }}][place(tx, ty)] = p;
    }
    {% endfor %}
    for (var v0 = 0u; v0 < 32u; v0 += {{ keys }}u) {
      workgroupBarrier();
      for (var i = l; i < {{ keys * 8 * blocks }}u; i += WG) {
        let t = i / {{ 8 * blocks }}u;
        let c = i % {{ 8 * blocks }}u; // quad of columns
        var x = vec4<f32>();
        if (k0 + v0 + t < keys) { x = quad_v(at_v + (k0 + v0 + t) * {{ w.vm }}, 4u * c); }
        v_part[c / 8u][t % 4u][t / 4u * 8u + c % 8u] = x;
      }
      workgroupBarrier();
      for (var t = 0u; t < {{ count[keys // 4] }}; t++) {
        let iv = t * 8u + tx;
        let ip = place(v0 / 4u + t, ty);
        {% for i in range(rows) %}
        let p{{ i }} = weight[{{ i }}][ip];
        {% endfor %}
        {% for j in range(blocks) %}
        {% for e in range(4) %}
        { let x = v_part[{{ j }}][{{ e }}][iv];
          {% for i in range(rows) %}
          o{{ i }}{{ j }} += p{{ i }}.{{ "xyzw"[e] }} * x;
          {% endfor %}
        }
        {% endfor %}
        {% endfor %}
      }
    }
    {% if mask %}
    workgroupBarrier();
    {% endif %}
  }
  workgroupBarrier();
  {% for i in range(rows) %}
  weight[{{ i }}][place(tx, ty)] = vec4<f32>(total{{ i }});
  {% endfor %}
  workgroupBarrier();
  {% for i in range(rows) %}
  if (m{{ i }} < {{ w.M }}) {
    var sum = 0.0;
    for (var t = 0u; t < {{ count[8] }}; t++) { sum += weight[{{ i }}][place(t, ty)].x; }
    let inverse = select(1.0 / sum, 0.0, sum == 0.0);
    let at = z * {{ w.oz }} + h * {{ w.oh }} + m{{ i }} * {{ w.om }};
    {% for j in range(blocks) %}
    {
      let x = o{{ i }}{{ j }} * inverse;
      let d = 4u * tx + {{ 32 * j }}u;
      {% for e in range(0, 4, pack) %}
      {% if pack == 2 %}
      if (d + {{ e }}u < {{ w.E }}) { st_o((at + d) / 2u + {{ e // 2 }}u, {{ bits }}(x.{{ "xyzw"[e] }}) | ({{ bits }}(x.{{ "xyzw"[e + 1] }}) << 16u)); }
      {% else %}
      if (d + {{ e }}u < {{ w.E }}) { st_o(at + (d + {{ e }}u) * {{ w.od }}, x.{{ "xyzw"[e] }}); }
      {% endif %}
      {% endfor %}
    }
    {% endfor %}
  }
  {% endfor %}
}
