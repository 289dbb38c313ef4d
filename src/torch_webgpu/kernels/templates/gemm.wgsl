// sum_k a[z, m, k] * b[z, k, n] in tiles of {{ tm }} x {{ tn }}; each invocation holds {{ rm }} x {{ rn }} sums in registers.
// Both operands are staged in workgroup memory as four terms of the sum a vector; the next tile is read from memory while
// the present one is multiplied. In a tile, invocation (tx, ty) has columns 4 tx + j and rows 4 ty + i of each block of
// {{ 4 * tx }} columns and {{ 4 * ty }} rows.
const TX = {{ tx }}u;
const TY = {{ ty }}u;
{% set threads = tx * ty %}
var<workgroup> tile_a: array<array<vec4<f32>, {{ 4 * ty }}>, {{ rm }}>;
var<workgroup> tile_b: array<array<vec4<f32>, {{ 4 * tx }}>, {{ rn }}>;

{% macro bounded(units, uid) %}{% if units % threads %}{{ uid }} < {{ units }}u && {% endif %}{% endmacro %}

{# Where row r of a tile, quad k of the sum lies; the exclusive or spreads quads over the banks of workgroup memory. #}
{% macro put(x, t, r, k, value) %}
{ let r_ = {{ r }}; let i_ = r_ / {{ 4 * t }}u * 4u + r_ % 4u; let k_ = {{ k }};
  tile_{{ x }}[i_][k_ * {{ t }}u + (((r_ / 4u) % {{ t }}u) ^ ((k_ << 1u) & {{ t - 1 }}u))] = {{ value }}; }
{% endmacro %}

{# Rows and quads of the sum that unit u of this invocation covers, and its first element. #}
{% macro place(x, how, tile, size, first, stride_r, e) %}
{% set units = {"kv": tile * 4 // e, "rv": tile // e, "ks": tile * 4, "rs": tile * 4}[how] %}
{% for u in range((units + threads - 1) // threads) %}
let id_{{ x }}{{ u }} = l + {{ u * threads }}u;
{% if how == "kv" %}
let r_{{ x }}{{ u }} = id_{{ x }}{{ u }} / {{ 4 // e }}u;
let k_{{ x }}{{ u }} = id_{{ x }}{{ u }} % {{ 4 // e }}u * {{ e }}u;
{% elif how == "rv" %}
let r_{{ x }}{{ u }} = id_{{ x }}{{ u }} % {{ tile // (4 * e) }}u * {{ 4 * e }}u;
let k_{{ x }}{{ u }} = id_{{ x }}{{ u }} / {{ tile // (4 * e) }}u;
{% elif how == "ks" %}
let r_{{ x }}{{ u }} = id_{{ x }}{{ u }} / 4u;
let k_{{ x }}{{ u }} = id_{{ x }}{{ u }} % 4u;
{% else %}
let r_{{ x }}{{ u }} = id_{{ x }}{{ u }} % {{ tile }}u;
let k_{{ x }}{{ u }} = id_{{ x }}{{ u }} / {{ tile }}u;
{% endif %}
let in_{{ x }}{{ u }} = {{ bounded(units, "id_" ~ x ~ u) }}{{ first }} + r_{{ x }}{{ u }} < {{ size }};
let at_{{ x }}{{ u }} = z * {{ w.expr(x ~ "z") }} + ({{ first }} + r_{{ x }}{{ u }}) * {{ stride_r }};
{% if how == "rv" %}
{% for i in range(4) %}
var raw_{{ x }}{{ u }}{{ i }} = vec4<u32>();
{% endfor %}
{% elif how == "kv" %}
var raw_{{ x }}{{ u }} = vec4<u32>();
{% else %}
var raw_{{ x }}{{ u }} = vec4<f32>();
{% endif %}
{% endfor %}
{% endmacro %}

{% macro fetch(x, how, tile, k0, e) %}
{% set units = {"kv": tile * 4 // e, "rv": tile // e, "ks": tile * 4, "rs": tile * 4}[how] %}
{% for u in range((units + threads - 1) // threads) %}
{% if how == "kv" %}
{ let k = {{ k0 }} + 4u * k_{{ x }}{{ u }};
  raw_{{ x }}{{ u }} = vec4<u32>();
  if (in_{{ x }}{{ u }} && k < k_end) { raw_{{ x }}{{ u }} = v4_{{ x }}((at_{{ x }}{{ u }} + k) / {{ 4 * e }}u); } }
{% elif how == "rv" %}
{% for i in range(4) %}
{ let k = {{ k0 }} + 4u * k_{{ x }}{{ u }} + {{ i }}u;
  raw_{{ x }}{{ u }}{{ i }} = vec4<u32>();
  if (in_{{ x }}{{ u }} && k < k_end) { raw_{{ x }}{{ u }}{{ i }} = v4_{{ x }}((at_{{ x }}{{ u }} + k * {{ w.expr(x ~ "k") }}) / {{ 4 * e }}u); } }
{% endfor %}
{% else %}
{ let k = {{ k0 }} + 4u * k_{{ x }}{{ u }};
  var quad = vec4<f32>();
  if (in_{{ x }}{{ u }}) {
    let at = at_{{ x }}{{ u }} + k * {{ w.expr(x ~ "k") }};
    {% for i in range(4) %}
    if (k + {{ i }}u < k_end) { quad.{{ "xyzw"[i] }} = ld_{{ x }}(at + {{ i }}u * {{ w.expr(x ~ "k") }}); }
    {% endfor %}
  }
  raw_{{ x }}{{ u }} = quad; }
{% endif %}
{% endfor %}
{% endmacro %}

{% macro stage(x, how, tile, t, e, unpack) %}
{% set units = {"kv": tile * 4 // e, "rv": tile // e, "ks": tile * 4, "rs": tile * 4}[how] %}
{% for u in range((units + threads - 1) // threads) %}
{% set r = "r_" ~ x ~ u %}
{% set k = "k_" ~ x ~ u %}
{% set raw = "raw_" ~ x ~ u %}
{% if units % threads %}if (id_{{ x }}{{ u }} < {{ units }}u) {% endif %}{
{% if how == "kv" and e == 1 %}
{{ put(x, t, r, k, "bitcast<vec4<f32>>(" ~ raw ~ ")") }}
{% elif how == "kv" %}
{{ put(x, t, r, k, "vec4<f32>(" ~ unpack.format(raw ~ ".x") ~ ", " ~ unpack.format(raw ~ ".y") ~ ")") }}
{{ put(x, t, r, k ~ " + 1u", "vec4<f32>(" ~ unpack.format(raw ~ ".z") ~ ", " ~ unpack.format(raw ~ ".w") ~ ")") }}
{% elif how == "rv" and e == 1 %}
{% for i in range(4) %}
{{ put(x, t, r ~ " + " ~ i ~ "u", k, "bitcast<vec4<f32>>(vec4<u32>(" ~ raw ~ "0." ~ "xyzw"[i] ~ ", " ~ raw ~ "1." ~ "xyzw"[i] ~ ", " ~ raw ~ "2." ~ "xyzw"[i] ~ ", " ~ raw ~ "3." ~ "xyzw"[i] ~ "))") }}
{% endfor %}
{% elif how == "rv" %}
{% for i in range(4) %}
{% for c in range(4) %}
let p{{ i }}{{ c }} = {{ unpack.format(raw ~ c ~ "." ~ "xyzw"[i]) }};
{% endfor %}
{{ put(x, t, r ~ " + " ~ 2 * i ~ "u", k, "vec4<f32>(p" ~ i ~ "0.x, p" ~ i ~ "1.x, p" ~ i ~ "2.x, p" ~ i ~ "3.x)") }}
{{ put(x, t, r ~ " + " ~ (2 * i + 1) ~ "u", k, "vec4<f32>(p" ~ i ~ "0.y, p" ~ i ~ "1.y, p" ~ i ~ "2.y, p" ~ i ~ "3.y)") }}
{% endfor %}
{% else %}
{{ put(x, t, r, k, raw) }}
{% endif %}
}
{% endfor %}
{% endmacro %}

{% if not split %}
{{ finish }}
{% endif %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) l: u32) {
  let tile = g.y * n.x + g.x;
  if (tile >= {{ w.tiles }}) { return; }
  // Neighbouring workgroups share columns of b, which is read from memory once.
  let m0 = tile % {{ w.tiles_m }} * {{ tm }}u;
  let n0 = tile / {{ w.tiles_m }} * {{ tn }}u;
  {% if split %}
  let z = g.z / {{ w.splits }};
  let k_begin = g.z % {{ w.splits }} * {{ w.chunk }};
  let k_end = min(k_begin + {{ w.chunk }}, {{ w.K }});
  {% else %}
  let z = g.z;
  let k_begin = 0u;
  let k_end = {{ w.K }};
  {% endif %}
  let tx = l % TX;
  let ty = l / TX;
  {% for r in range(rm) %}
  {% for c in range(rn) %}
  var c{{ r }}{{ c }} = 0.0;
  {% endfor %}
  {% endfor %}
  {{ place("a", load_a, tm, w.M, "m0", w.am, each_a) }}
  {{ place("b", load_b, tn, w.N, "n0", w.bn, each_b) }}
  {{ fetch("a", load_a, tm, "k_begin", each_a) }}
  {{ fetch("b", load_b, tn, "k_begin", each_b) }}
  for (var k0 = k_begin; k0 < k_end; k0 += 16u) {
    {{ stage("a", load_a, tm, ty, each_a, unpack_a) }}
    {{ stage("b", load_b, tn, tx, each_b, unpack_b) }}
    workgroupBarrier();
    let k1 = k0 + 16u;
    if (k1 < k_end) {
      {{ fetch("a", load_a, tm, "k1", each_a) }}
      {{ fetch("b", load_b, tn, "k1", each_b) }}
    }
    for (var q = 0u; q < {{ quads }}; q++) {
      let ia = q * TY + (ty ^ ((q << 1u) & {{ ty - 1 }}u));
      let ib = q * TX + (tx ^ ((q << 1u) & {{ tx - 1 }}u));
      {% for c in range(rn) %}
      let b{{ c }} = tile_b[{{ c }}][ib];
      {% endfor %}
      {% for r in range(rm) %}
      let a{{ r }} = tile_a[{{ r }}][ia];
      {% for e in "xyzw" %}
      {% for c in range(rn) %}
      c{{ r }}{{ c }} += a{{ r }}.{{ e }} * b{{ c }}.{{ e }};
      {% endfor %}
      {% endfor %}
      {% endfor %}
    }
    workgroupBarrier();
  }
  let m = m0 + 4u * ty;
  let column = n0 + 4u * tx;
  {% for r in range(rm) %}
  {% set row = "m + " ~ (r // 4 * 4 * ty + r % 4) ~ "u" %}
  if ({{ row }} < {{ w.M }}) {
  {% if split %}
    let at = (g.z % {{ w.splits }} * {{ w.Z }} + z) * {{ w.M }} * {{ w.N }} + ({{ row }}) * {{ w.N }} + column;
    {% for c in range(rn) %}
    {% set o = c // 4 * 4 * tx + c % 4 %}
    if (column + {{ o }}u < {{ w.N }}) { st_s(at + {{ o }}u, c{{ r }}{{ c }}); }
    {% endfor %}
  {% else %}
    {% for c in range(0, rn, pack) %}
    {% set o = c // 4 * 4 * tx + c % 4 %}
    {% if pack == 2 %}
    if (column + {{ o }}u < {{ w.N }}) { put2(z, {{ row }}, column + {{ o }}u, c{{ r }}{{ c }}, c{{ r }}{{ c + 1 }}); }
    {% else %}
    if (column + {{ o }}u < {{ w.N }}) { put(z, {{ row }}, column + {{ o }}u, c{{ r }}{{ c }}); }
    {% endif %}
    {% endfor %}
  {% endif %}
  }
  {% endfor %}
}
