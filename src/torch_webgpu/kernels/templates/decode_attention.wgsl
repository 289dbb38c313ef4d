// One query row a head against a cache of keys and values: {{ heads }} heads a workgroup, {{ tile }} keys a tile,
// {{ lanes }} invocations a key for the scores; then every invocation owns a word of the value rows and some of the keys.
{% set HT = heads * tile %}
{% set scratch = [HT * (lanes + 1), heads * workgroup] | max %}
{% set words_a_lane = (width + lanes - 1) // lanes %}
{% set value = "f32" if per == 1 else "vec2<f32>" %}
const LANES = {{ lanes }}u;
const TILE = {{ tile }}u;
const WIDTH = {{ width }}u; // words of a row
var<workgroup> query: array<{{ value }}, {{ heads * width }}>;
{% if fresh %}
var<workgroup> fresh_k: array<u32, {{ width }}>; // the new rows as the cache holds them
var<workgroup> fresh_v: array<u32, {{ width }}>;
{% endif %}
var<workgroup> scratch: array<f32, {{ scratch }}>;
var<workgroup> score: array<f32, {{ HT }}>;
var<workgroup> weight: array<f32, {{ HT }}>;
{% if mask %}
var<workgroup> bias: array<f32, {{ HT }}>;
{% endif %}
var<workgroup> keep: array<f32, {{ heads }}>;
var<workgroup> sums: array<f32, {{ heads }}>;
{% if position %}
var<workgroup> used: u32;
{% endif %}

fn dead(x: f32) -> bool {
  return bitcast<u32>(x) == 0xff800000u;
}

fn unpacked(w: u32) -> {{ value }} {
  return {{ unpack.format("w") }};
}

{% from "decode_operands.wgsl" import ld, rotated_rows with context %}
{{ rotated_rows() }}
{% macro cache_word(name, at, c) %}
{% if whole %}w_{{ name }}({{ at }} + {{ c }}){% else %}bitcast<u32>(ld_{{ name }}({{ at }} + ({{ c }}) * {{ w.expr(name ~ "_d") }})){% endif %}
{% endmacro %}
{% macro row(name, offset, slot) %}
{% if whole %}({{ offset }} + z * {{ w.expr(name ~ "_z") }} + hk * {{ w.expr(name ~ "_h") }} + ({{ slot }}) * {{ w.expr(name ~ "_l") }}) / {{ per }}u{% else %}z * {{ w.expr(name ~ "_z") }} + hk * {{ w.expr(name ~ "_h") }} + ({{ slot }}) * {{ w.expr(name ~ "_l") }}{% endif %}
{% endmacro %}

@compute @workgroup_size({{ workgroup }})
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) l: u32) {
  let chunk = g.x;
  let z = g.z;
  let h0 = g.y * {{ heads }}u;
  let hk = h0 / {{ w.repeat }};
  // Everything is read before anything is stored, so that one latency is paid.
  {% if position %}
  let given = {{ position }};
  {% endif %}
  {% set steps = (heads * width + workgroup - 1) // workgroup %}
  {% for u in range(steps) %}
  var q{{ u }} = {{ value }}();
  {% if (u + 1) * workgroup > heads * width %}
  if (l + {{ u * workgroup }}u < {{ heads * width }}u) {
  {% else %}
  {
  {% endif %}
    let h = h0 + (l + {{ u * workgroup }}u) / WIDTH;
    let c = (l + {{ u * workgroup }}u) % WIDTH;
    {% if per == 1 %}
    q{{ u }} = q_at(z, h, c);
    {% else %}
    q{{ u }} = vec2<f32>(q_at(z, h, 2u * c), q_at(z, h, 2u * c + 1u));
    {% endif %}
  }
  {% endfor %}
  {% if fresh %}
  var new_k = {{ value }}();
  var new_v = {{ value }}();
  if (l < WIDTH) {
    {% if per == 1 %}
    new_k = k_at(z, hk, l);
    new_v = {{ ld("v", "z", "hk", "l") }};
    {% else %}
    new_k = vec2<f32>(k_at(z, hk, 2u * l), k_at(z, hk, 2u * l + 1u));
    new_v = vec2<f32>({{ ld("v", "z", "hk", "2u * l") }}, {{ ld("v", "z", "hk", "2u * l + 1u") }});
    {% endif %}
  }
  {% endif %}
  {% for u in range(steps) %}
  {% if (u + 1) * workgroup > heads * width %}
  if (l + {{ u * workgroup }}u < {{ heads * width }}u) { query[l + {{ u * workgroup }}u] = q{{ u }} * {{ w.expr("scale", "f") }}; }
  {% else %}
  query[l + {{ u * workgroup }}u] = q{{ u }} * {{ w.expr("scale", "f") }};
  {% endif %}
  {% endfor %}
  {% if position %}
  let valid = given.y == 0u && given.x < {{ w.L }};
  let slot_new = select(0xffffffffu, given.x, valid);
  if (l == 0u) {
    used = select(0u, {% if mask %}{{ w.L }}{% else %}given.x + 1u{% endif %}, valid);
    if (!valid && chunk == 0u) { fail_e({{ w.error }}, given, {{ w.L }}); }
  }
  {% endif %}
  {% if fresh %}
  if (l < WIDTH) {
    {% if per == 1 %}
    let word_k = {{ pack.format("new_k") }};
    let word_v = {{ pack.format("new_v") }};
    {% else %}
    let word_k = {{ pack.format("new_k.x", "new_k.y") }};
    let word_v = {{ pack.format("new_v.x", "new_v.y") }};
    {% endif %}
    fresh_k[l] = word_k;
    fresh_v[l] = word_v;
    if (valid && chunk == 0u && h0 % {{ w.repeat }} == 0u) {
      let at_k = z * {{ w.kc_z }} + hk * {{ w.kc_h }} + slot_new * {{ w.kc_l }};
      let at_v = z * {{ w.vc_z }} + hk * {{ w.vc_h }} + slot_new * {{ w.vc_l }};
      {% if per == 1 %}
      st_kc(at_k + l * {{ w.kc_d }}, new_k);
      st_vc(at_v + l * {{ w.vc_d }}, new_v);
      {% else %}
      st_kc(at_k / 2u + l, word_k);
      st_vc(at_v / 2u + l, word_v);
      {% endif %}
    }
  }
  {% endif %}
  {% if position %}
  let slots = workgroupUniformLoad(&used);
  {% else %}
  let slots = {{ w.L }};
  workgroupBarrier();
  {% endif %}
  {% if mask == "f" %}
  {% if position %}
  var lowest = -inf_();
  if (l < {{ HT }}u && valid) {
    let newest = ld_mask(z * {{ w.m_z }} + (h0 + l / TILE) * {{ w.m_h }} + slot_new * {{ w.m_d }});
    lowest = select(lowest, {{ w.expr("never", "f") }}, newest > -1000.0);
  }
  {% else %}
  let lowest = -inf_();
  {% endif %}
  {% endif %}

  let key = l / LANES;
  let lane = l % LANES;
  let part = l / WIDTH; // of the tile's keys
  let column = l % WIDTH;
  var top = -inf_();
  var total = 0.0;
  {% for h in range(heads) %}
  var acc{{ h }} = {{ value }}();
  {% endfor %}
  let tiles = (slots + TILE - 1u) / TILE;
  for (var tile = chunk; tile < tiles; tile += {{ w.chunks }}) {
    let first = tile * TILE;
    {% if mask %}
    var offset = -inf_();
    if (l < {{ HT }}u && first + l % TILE < slots) {
      let at_mask = z * {{ w.m_z }} + (h0 + l / TILE) * {{ w.m_h }} + (first + l % TILE) * {{ w.m_d }};
      {% if mask == "b" %}
      offset = select(offset, 0.0, ld_mask(at_mask));
      {% else %}
      let given_mask = ld_mask(at_mask);
      offset = select(given_mask, offset, given_mask <= lowest);
      {% endif %}
    }
    if (l < {{ HT }}u) { bias[l] = offset; }
    workgroupBarrier();
    {% endif %}
    // Scores: loads first, of keys and values both, so that their latencies overlap.
    {% for j in range(words_a_lane) %}
    var kw{{ j }} = 0u;
    {% endfor %}
    {% if mask %}
    var on = !dead(bias[key]);
    {% for h in range(1, heads) %}
    on = on || !dead(bias[key + {{ h * tile }}u]);
    {% endfor %}
    {% else %}
    let on = first + key < slots;
    {% endif %}
    {% if fresh %}
    if (on && first + key == slot_new) {
      {% for j in range(words_a_lane) %}
      {% if (j + 1) * lanes > width %}
      if (lane + {{ j * lanes }}u < WIDTH) { kw{{ j }} = fresh_k[lane + {{ j * lanes }}u]; }
      {% else %}
      kw{{ j }} = fresh_k[lane + {{ j * lanes }}u];
      {% endif %}
      {% endfor %}
    } else if (on) {
    {% else %}
    if (on) {
    {% endif %}
      let at = {{ row("kc", offset_k, "first + key") }};
      {% for j in range(words_a_lane) %}
      {% set c = "lane + " ~ (j * lanes) ~ "u" %}
      {% if (j + 1) * lanes > width %}
      if ({{ c }} < WIDTH) { kw{{ j }} = {{ cache_word("kc", "at", c) }}; }
      {% else %}
      kw{{ j }} = {{ cache_word("kc", "at", c) }};
      {% endif %}
      {% endfor %}
    }
    {% for i in range(part_keys) %}
    var vw{{ i }} = 0u;
    {
      let t = part * {{ part_keys }}u + {{ i }}u;
      {% if mask %}
      var alive = false;
      if (part < {{ parts }}u && t < TILE) {
        alive = !dead(bias[t]);
        {% for h in range(1, heads) %}
        alive = alive || !dead(bias[t + {{ h * tile }}u]);
        {% endfor %}
      }
      {% else %}
      let alive = part < {{ parts }}u && t < TILE && first + t < slots;
      {% endif %}
      {% if fresh %}
      if (alive && first + t == slot_new) {
        vw{{ i }} = fresh_v[column];
      } else if (alive) {
      {% else %}
      if (alive) {
      {% endif %}
        let at = {{ row("vc", offset_v, "first + t") }};
        vw{{ i }} = {{ cache_word("vc", "at", "column") }};
      }
    }
    {% endfor %}
    {% for h in range(heads) %}
    var s{{ h }} = 0.0;
    {% endfor %}
    {% for j in range(words_a_lane) %}
    {% if (j + 1) * lanes > width %}
    if (lane + {{ j * lanes }}u < WIDTH) {
    {% else %}
    {
    {% endif %}
      let x = unpacked(kw{{ j }});
      {% for h in range(heads) %}
      {% if per == 1 %}
      s{{ h }} += query[{{ h * width + j * lanes }}u + lane] * x;
      {% else %}
      s{{ h }} += dot(query[{{ h * width + j * lanes }}u + lane], x);
      {% endif %}
      {% endfor %}
    }
    {% endfor %}
    {% for h in range(heads) %}
    scratch[({{ h * tile }}u + key) * (LANES + 1u) + lane] = s{{ h }};
    {% endfor %}
    workgroupBarrier();
    var s = -inf_();
    if (l < {{ HT }}u) {
      {% if mask %}
      let counts = !dead(offset);
      {% else %}
      let counts = first + l % TILE < slots;
      {% endif %}
      var sum = 0.0;
      for (var i = 0u; i < LANES; i++) { sum += scratch[l * (LANES + 1u) + i]; }
      {% if mask == "f" %}
      sum += offset;
      {% endif %}
      s = select(s, sum, counts);
      score[l] = s;
    }
    workgroupBarrier();
    if (l < {{ HT }}u) {
      let base = l - l % TILE;
      var now = top;
      for (var t = 0u; t < TILE; t++) { now = fmaximum(now, score[base + t]); }
      weight[l] = select(exp_(s - now), 0.0, dead(s));
      if (l == base) { keep[l / TILE] = select(exp_(top - now), 0.0, dead(top)); }
      top = now;
    }
    workgroupBarrier();
    if (l < {{ HT }}u && l % TILE == 0u) {
      total *= keep[l / TILE];
      for (var t = 0u; t < TILE; t++) { total += weight[l + t]; }
    }
    {% for h in range(heads) %}
    acc{{ h }} *= keep[{{ h }}];
    {% endfor %}
    if (part < {{ parts }}u) {
      {% for i in range(part_keys) %}
      {
        let t = part * {{ part_keys }}u + {{ i }}u;
        {% if parts * part_keys > tile %}
        if (t < TILE) {
        {% else %}
        {
        {% endif %}
          let x = unpacked(vw{{ i }});
          {% for h in range(heads) %}
          { let p = weight[{{ h * tile }}u + t]; acc{{ h }} += select({{ value }}(), p * x, p != 0.0); }
          {% endfor %}
        }
      }
      {% endfor %}
    }
  }

  // The parts of the keys are added up; the queries are no longer needed and make room for the results.
  if (l < {{ HT }}u && l % TILE == 0u) {
    {% if split %}
    let at = {{ w.stats }} + 2u * ((z * {{ w.H }} + h0 + l / TILE) * {{ w.chunks }} + chunk);
    st_o(at, top);
    st_o(at + 1u, total);
    {% else %}
    sums[l / TILE] = select(1.0 / total, 0.0, total == 0.0);
    {% endif %}
  }
  {% for e in range(per) %}
  workgroupBarrier();
  if (part < {{ parts }}u) {
    {% for h in range(heads) %}
    scratch[{{ h * parts * width }}u + l] = acc{{ h }}{{ ("." ~ "xy"[e]) if per == 2 else "" }};
    {% endfor %}
  }
  workgroupBarrier();
  for (var i = l; i < {{ heads * width }}u; i += {{ workgroup }}u) {
    let at = i / WIDTH * {{ parts * width }}u + i % WIDTH;
    var sum = 0.0;
    for (var p = 0u; p < {{ parts }}u; p++) { sum += scratch[at + p * WIDTH]; }
    query[i]{{ ("." ~ "xy"[e]) if per == 2 else "" }} = sum{{ "" if split else " * sums[i / WIDTH]" }};
  }
  {% endfor %}
  {% if out != "element" and per == 1 %}
  workgroupBarrier();
  for (var i = l; i < {{ heads * D // 2 }}u; i += {{ workgroup }}u) {
    let at = z * {{ w.o_z }} + (h0 + i / {{ D // 2 }}u) * {{ w.o_h }} + 2u * (i % {{ D // 2 }}u);
    st_o(at / 2u, {{ out }}(query[2u * i]) | ({{ out }}(query[2u * i + 1u]) << 16u));
  }
  {% else %}
  for (var i = l; i < {{ heads * width }}u; i += {{ workgroup }}u) {
    let h = h0 + i / WIDTH;
    let d = i % WIDTH * {{ per }}u;
    {% if split %}
    let at = ((z * {{ w.H }} + h) * {{ w.chunks }} + chunk) * {{ D }}u + d;
    {% else %}
    let at = z * {{ w.o_z }} + h * {{ w.o_h }} + d{{ "" if out != "element" else " * " ~ w.o_d }};
    {% endif %}
    {% set step = "1u" if split else w.o_d %}
    {% if out != "element" %}
    st_o(at / 2u, {{ out }}(query[i].x) | ({{ out }}(query[i].y) << 16u));
    {% elif per == 2 %}
    st_o(at, query[i].x);
    st_o(at + {{ step }}, query[i].y);
    {% else %}
    st_o(at, query[i]);
    {% endif %}
  }
  {% endif %}
}
