// One query row against a cache of keys and values, a workgroup for each: {{ lanes }} invocations share a key's row for
// the scores, which stay in workgroup memory; then {{ columns }} invocations, of four words each, share a value's row.
// Subgroups are runs of consecutive invocations.
{% from "decode_operands.wgsl" import ld, rotated_rows with context %}
{% set quads = 4 // itemsize %}{# vec4<f32> in four words #}
const LANES = {{ lanes }}u;
const WORKGROUP = {{ workgroup }}u;
const COLUMNS = {{ columns }}u; // of four words, in a row
const KEYS = {{ workgroup // lanes }}u; // at a time
const PARTS = {{ parts }}u; // of the keys, in the sum of the values
var<workgroup> query: array<vec4<f32>, {{ D // 4 }}>;
{% if fresh %}
const WORDS = {{ D * itemsize // 4 }}u;
var<workgroup> fresh: array<u32, {{ 2 * (D * itemsize // 4) }}>; // the new rows, as the caches hold them
{% endif %}
var<workgroup> score: array<f32, {{ slots }}>;
var<workgroup> most: array<f32, {{ runs }}>; // of each subgroup
var<workgroup> sums: array<f32, {{ runs }}>;
{% if lanes > smallest_subgroup %}
var<workgroup> shares: array<f32, {{ runs }}>; // of a key's lanes that lie in one subgroup
{% endif %}
var<workgroup> fold: array<vec4<f32>, {{ parts * D // 4 }}>;
{% if position %}
var<workgroup> used: u32;
{% endif %}

{{ rotated_rows() }}
{% if fresh %}
fn word_of(z: u32, h: u32, i: u32) -> u32 {
  let d = i % WORDS * {{ 4 // itemsize }}u;
{% for key, row in ((true, "k_at(z, h, %s)"), (false, ld("v", "z", "h", "%s"))) %}
{% if key %}
  if (i < WORDS) {
{% endif %}
{% if itemsize == 4 %}
    return bitcast<u32>({{ row % "d" }});
{% else %}
    let low = {{ row % "d" }};
    let high = {{ row % "d + 1u" }};
    return {{ bits }}(low) | ({{ bits }}(high) << 16u);
{% endif %}
{% if key %}
  }
{% endif %}
{% endfor %}
}
{% endif %}
{% for i in range(quads) %}
fn quad{{ i }}(w: vec4<u32>) -> vec4<f32> {
  return {{ unpack[i] }};
}
{% endfor %}
{% if fresh %}
fn fresh_words(at: u32) -> vec4<u32> {
  return vec4<u32>(fresh[at], fresh[at + 1u], fresh[at + 2u], fresh[at + 3u]);
}
{% endif %}
{# Words of a cache row from {{ slot }} on that are one's own; the new row is not read from memory: another workgroup writes it. #}
{% macro cached(target, name, slot, c) %}
if ({{ slot }} < old) { {{ target }} = v4_{{ name }}((row_{{ name }} + ({{ slot }}) * {{ w.expr(name ~ "_l") }}) / {{ quads * 4 }}u + {{ c }}); }
{%- endmacro %}
{% macro dot_of(words, c) %}{% for i in range(quads) %}{{ " + " if i }}dot(quad{{ i }}({{ words }}), query[{{ quads }}u * ({{ c }}) + {{ i }}u]){% endfor %}{% endmacro %}

@compute @workgroup_size({{ workgroup }})
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) l: u32, @builtin(subgroup_size) width: u32) {
  let z = g.y;
  let h = g.x;
  let hk = h / {{ w.repeat }};
  // Everything is read before anything is stored, so that one latency is paid.
  {% if position %}
  let given = {{ position }};
  let valid = given.y == 0u && given.x < {{ w.L }};
  {% endif %}
  if (l < {{ D }}u) {
    query[l / 4u][l % 4u] = q_at(z, h, l) * {{ w.expr("scale", "f") }};
  }
  {% if fresh %}
  // By other invocations than the query's, as far as there are any.
  for (var i = (l + {{ (workgroup - D) % workgroup }}u) % WORKGROUP; i < 2u * WORDS; i += WORKGROUP) {
    fresh[i] = word_of(z, hk, i);
  }
  {% endif %}
  {% if position %}
  if (l == 0u) {
    used = select(0u, given.x + 1u, valid);
    if (!valid) { fail_e({{ w.error }}, given, {{ w.L }}); }
  }
  let slots = workgroupUniformLoad(&used);
  {% else %}
  let slots = {{ w.L }};
  workgroupBarrier();
  {% endif %}
  let row_kc = z * {{ w.kc_z }} + hk * {{ w.kc_h }};
  let row_vc = z * {{ w.vc_z }} + hk * {{ w.vc_h }};
  {% if fresh %}
  let old = max(slots, 1u) - 1u;
  if (valid && h % {{ w.repeat }} == 0u && l < COLUMNS) {
    sv4_kc((row_kc + old * {{ w.kc_l }}) / {{ quads * 4 }}u + l, fresh_words(4u * l));
    sv4_vc((row_vc + old * {{ w.vc_l }}) / {{ quads * 4 }}u + l, fresh_words(WORDS + 4u * l));
  }
  {% else %}
  let old = slots;
  {% endif %}

  let lane = l % LANES;
  let column = l % COLUMNS;
  let part = l / COLUMNS;
  // The first values are on their way while the scores are worked out.
  {% for u in range(ahead) %}
  var x{{ u }} = vec4<u32>();
  {% endfor %}
  if (part < PARTS) {
    {% for u in range(ahead) %}
    {{ cached("x%d" % u, "vc", "part + %du * PARTS" % u, "column") }}
    {% endfor %}
  }
  var top = -inf_();
  for (var first = 0u; first < slots; first += {{ unroll }}u * KEYS) {
    {% for u in range(unroll) %}
    let t{{ u }} = first + {{ u }}u * KEYS + l / LANES;
    {% for j in range(per_lane) %}
    var k{{ u }}_{{ j }} = vec4<u32>();
    {% endfor %}
    {% endfor %}
    {% for u in range(unroll) %}
    {% for j in range(per_lane) %}
    {% if (j + 1) * lanes > columns %}if (lane + {{ j * lanes }}u < COLUMNS) { {% endif %}{{ cached("k%d_%d" % (u, j), "kc", "t%d" % u, "lane + %du" % (j * lanes)) }}{% if (j + 1) * lanes > columns %} }{% endif %}

    {% endfor %}
    {% endfor %}
    {% for u in range(unroll) %}
    {
      {% if fresh %}
      if (t{{ u }} == old) {
        {% for j in range(per_lane) %}
        {% if (j + 1) * lanes > columns %}if (lane + {{ j * lanes }}u < COLUMNS) { {% endif %}k{{ u }}_{{ j }} = fresh_words(4u * (lane + {{ j * lanes }}u));{% if (j + 1) * lanes > columns %} }{% endif %}

        {% endfor %}
      }
      {% endif %}
      var s = 0.0;
      {% for j in range(per_lane) %}
      {% if (j + 1) * lanes > columns %}
      if (lane + {{ j * lanes }}u < COLUMNS) { s += {{ dot_of("k%d_%d" % (u, j), "lane + %du" % (j * lanes)) }}; }
      {% else %}
      s += {{ dot_of("k%d_%d" % (u, j), "lane + %du" % (j * lanes)) }};
      {% endif %}
      {% endfor %}
      {% for step in [1, 2, 4, 8, 16] if step < lanes %}
      s += select(0.0, subgroupShuffleXor(s, {{ step }}u), {{ step }}u < width);
      {% endfor %}
      {% if lanes > smallest_subgroup %}
      if (width < LANES) {
        if (l % width == 0u) { shares[l / width] = s; }
        workgroupBarrier();
        s = 0.0;
        for (var i = 0u; i < LANES / width; i++) { s += shares[l / LANES * (LANES / width) + i]; }
        workgroupBarrier();
      }
      {% endif %}
      if (t{{ u }} < slots) {
        top = max(top, s);
        if (lane == 0u) { score[t{{ u }}] = s; }
      }
    }
    {% endfor %}
  }
  let run = l / width;
  let runs = WORKGROUP / width;
  top = subgroupMax(top);
  if (l % width == 0u) { most[run] = top; }
  workgroupBarrier();
  top = -inf_();
  for (var i = l % width; i < runs; i += width) { top = max(top, most[i]); }
  top = subgroupMax(top);
  var total = 0.0;
  for (var t = l; t < slots; t += WORKGROUP) {
    let p = exp_(score[t] - top);
    score[t] = p;
    total += p;
  }
  total = subgroupAdd(total);
  if (l % width == 0u) { sums[run] = total; }
  workgroupBarrier();
  total = 0.0;
  for (var i = l % width; i < runs; i += width) { total += sums[i]; }
  total = subgroupAdd(total);

  {% for i in range(quads) %}
  var acc{{ i }} = vec4<f32>();
  {% endfor %}
  if (part < PARTS) {
    var t = part;
    loop {
      {% for u in range(ahead) %}
      {
        let at = t + {{ u }}u * PARTS;
        {% if fresh %}
        if (at == old) { x{{ u }} = fresh_words(WORDS + 4u * column); }
        {% endif %}
        if (at < slots) {
          let p = score[at];
          {% for i in range(quads) %}
          acc{{ i }} += p * quad{{ i }}(x{{ u }});
          {% endfor %}
        }
      }
      {% endfor %}
      t += {{ ahead }}u * PARTS;
      if (t >= slots) { break; }
      {% for u in range(ahead) %}
      {{ cached("x%d" % u, "vc", "t + %du * PARTS" % u, "column") }}
      {% endfor %}
    }
    {% for i in range(quads) %}
    fold[(part * COLUMNS + column) * {{ quads }}u + {{ i }}u] = acc{{ i }};
    {% endfor %}
  }
  workgroupBarrier();
  let inverse = 1.0 / total;
  let at = z * {{ w.o_z }} + h * {{ w.o_h }};
  {% if out == "element" %}
  if (l < {{ D }}u) {
    var sum = 0.0;
    for (var p = 0u; p < PARTS; p++) { sum += fold[p * {{ D // 4 }}u + l / 4u][l % 4u]; }
    st_o(at + l * {{ w.o_d }}, sum * inverse);
  }
  {% else %}
  if (l < {{ D // 2 }}u) {
    var sum = vec2<f32>();
    for (var p = 0u; p < PARTS; p++) {
      let x = fold[p * {{ D // 4 }}u + l / 2u];
      sum += select(x.xy, x.zw, l % 2u == 1u);
    }
    st_o(at / 2u + l, {{ out }}(sum.x * inverse) | ({{ out }}(sum.y * inverse) << 16u));
  }
  {% endif %}
}
