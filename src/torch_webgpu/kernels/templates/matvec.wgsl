// out[m, n] = program(x[m] . w_0[n], x[m] . w_1[n], ..., extras) for the few rows of x in decoding.
// A team of {{ lanes }} invocations computes {{ rows }} rows of the weights: each takes every {{ lanes }}th block of
// {{ 4 * pieces if vector else 1 }} elements along k, {{ unroll }} blocks at a time so that their loads are in flight together.
// Subgroups are runs of consecutive invocations, of whatever size: sums within a team go over them as far as they reach,
// and over workgroup memory beyond.
const LANES = {{ lanes }}u;
const WORKGROUP = {{ workgroup }}u;
{% set teams = workgroup // lanes %}
{% set merged = lanes > 1 %}
{% if merged %}
var<workgroup> part: array<f32, {{ part_size }}>;
{% endif %}
{% if stage %}
var<workgroup> staged: array<{{ "vec4<u32>" if fixed else "vec4<f32>" if vector else "f32" }}, {{ stage }}>;
{% if fixed %}
// Of each block of x: the value of a unit of its fixed point, and the sum of its elements.
var<workgroup> ranges: array<vec2<f32>, {{ ranges }}>;
{% endif %}
{% if norm %}
var<workgroup> squares: array<f32, {{ x_rows * workgroup }}>;
{% endif %}
{% endif %}
{% for s in range(streams) if scaled %}
{% for name in ["f", "h"] if name == "f" or minimum %}
fn quick_{{ name }}{{ s }}(i: u32) -> f32 {
  {% if offsets[name ~ s] %}
  let j = {{ offsets[name ~ s] }} + i;
  let pair = unpack2x16float(w_{{ name }}{{ s }}(j >> 1u));
  return select(pair.x, pair.y, (j & 1u) == 1u);
  {% else %}
  return ld_{{ name }}{{ s }}(i);
  {% endif %}
}
{% endfor %}
{% endfor %}
{% if merged and subgroups %}
fn gathered(value: u32, team: u32, parts: u32) -> f32 {
  var sum = 0.0;
  for (var p = 0u; p < parts; p++) { sum += part[value * {{ slots }}u + team * parts + p]; }
  return sum;
}
{% endif %}

fn finish({% for s in range(streams) %}y{{ s }}: f32, {% endfor %}{% for name, type in extras %}{{ name }}: {{ type }}, {% endfor %}) -> f32 {
{{ finish }}}

{# The pieces of block c of a vector, as lets name_0, name_1, ...; base is its first element. #}
{% macro fetch(name, source, mode, base, c) %}
{% if not vector %}
      let {{ name }}_0 = ld_{{ source }}({{ base }} + {{ c }});
{% elif mode == "v4" %}
{% for j in range(pieces) %}
      let {{ name }}_{{ j }} = bitcast<vec4<f32>>(v4_{{ source }}({{ base }} / 4u + {{ c }} * {{ pieces }}u + {{ j }}u));
{% endfor %}
{% elif mode %}
{% for j in range(0, pieces, 2) %}
      let {{ name }}q{{ j }} = v4_{{ source }}({{ base }} / 8u + {{ c }} * {{ pieces // 2 }}u + {{ j // 2 }}u);
      let {{ name }}_{{ j }} = {{ mode }}({{ name }}q{{ j }}.xy);
      let {{ name }}_{{ j + 1 }} = {{ mode }}({{ name }}q{{ j }}.zw);
{% endfor %}
{% else %}
{% for j in range(pieces) %}
      let {{ name }}i{{ j }} = {{ base }} + {{ c }} * {{ 4 * pieces }}u + {{ 4 * j }}u;
      let {{ name }}_{{ j }} = vec4<f32>(ld_{{ source }}({{ name }}i{{ j }}), ld_{{ source }}({{ name }}i{{ j }} + 1u), ld_{{ source }}({{ name }}i{{ j }} + 2u), ld_{{ source }}({{ name }}i{{ j }} + 3u));
{% endfor %}
{% endif %}
{% endmacro %}
{% macro piece(q, j) %}
{% if not vector %}{{ q }}{% elif kind == "float32" %}bitcast<vec4<f32>>({{ q }}){% elif kind == "float16" %}quad_f16({{ q }}.{{ ["xy", "zw"][j] }}){% elif kind == "bfloat16" %}quad_bf16({{ q }}.{{ ["xy", "zw"][j] }}){% elif kind == "int8" %}quad_i8({{ q }}.{{ "xyzw"[j] }}){% else %}{{ ["nibbles_low", "nibbles_high"][j % 2] }}({{ q }}.{{ "xyzw"[j // 2] }}){% endif %}
{% endmacro %}
{% macro block(it, u) %}
{% if exact %}({{ it }} * {{ unroll }}u + {{ u }}u) * LANES + lane{% else %}min(({{ it }} * {{ unroll }}u + {{ u }}u) * LANES + lane, {{ w.blocks }} - 1u){% endif %}
{% endmacro %}
{# The weights of one step of every row and stream, into q_<stream>_<row>_<block>. #}
{% macro load(it) %}
{% for u in range(unroll) %}
    {
      let c = {{ block(it, u) }};
{% for s in range(streams) %}
{% for r in range(rows) %}
{% if vector %}
      q_{{ s }}_{{ r }}_{{ u }} = v4_w{{ s }}(w_{{ s }}_{{ r }} + c);
{% elif kind == "int4" %}
      q_{{ s }}_{{ r }}_{{ u }} = f32((bitcast<u32>(ld_w{{ s }}(w_{{ s }}_{{ r }} + c / 8u)) >> (4u * (c % 8u))) & 15u);
{% elif kind == "int8" %}
      q_{{ s }}_{{ r }}_{{ u }} = f32(ld_w{{ s }}(w_{{ s }}_{{ r }} + c));
{% else %}
      q_{{ s }}_{{ r }}_{{ u }} = ld_w{{ s }}(w_{{ s }}_{{ r }} + c);
{% endif %}
{% if scaled == "group" %}
      f_{{ s }}_{{ r }}_{{ u }} = quick_f{{ s }}(n_{{ r }} * {{ w.expr("f%d" % s) }} + c / {{ w.per }});
{% if minimum %}
      h_{{ s }}_{{ r }}_{{ u }} = quick_h{{ s }}(n_{{ r }} * {{ w.expr("h%d" % s) }} + c / {{ w.per }});
{% endif %}
{% endif %}
{% endfor %}
{% endfor %}
    }
{% endfor %}
{% endmacro %}
{# What block u adds to the sum of row r and stream s for row m of x. #}
{% macro term(s, r, u, m) %}
{% set f = "f_%d_%d_%d" % (s, r, u) %}
{% set h = "h_%d_%d_%d" % (s, r, u) %}
{% if kind == "int4" and vector and minimum %}(16.0 * {{ f }}) * p + ({{ h }} - 16.0 * {{ f }}) * sx_{{ m }}{% elif kind == "int4" and vector %}{{ f }} * (16.0 * p - 24.0 * sx_{{ m }}){% elif kind == "int4" and minimum %}p * {{ f }} + {{ h }} * x{{ m }}_0{% elif kind == "int4" %}(p - 8.0 * x{{ m }}_0) * {{ f }}{% elif scaled == "group" %}p * {{ f }}{% else %}p{% endif %}
{% endmacro %}
{# What else the results at row m of x and n to n + {{ pack - 1 }} need from memory, into variables declared before. #}
{% macro fetch_extras() %}
{% for e in range(pack) %}
{% for name, type in extras %}
      {{ name }}_{{ e }} = ld_{{ name }}(m * {{ w.expr(name ~ "m") }} + (n + {{ e }}u) * {{ w.expr(name ~ "n") }});
{% endfor %}
{% for s in range(streams) if scaled == "row" %}
      scale{{ s }}_{{ e }} = quick_f{{ s }}((n + {{ e }}u) * {{ w.expr("f%d" % s) }});
{% endfor %}
{% endfor %}
{% endmacro %}
{% macro declare_extras() %}
{% for e in range(pack) %}
{% for name, type in extras %}
  var {{ name }}_{{ e }}: {{ type }};
{% endfor %}
{% for s in range(streams) if scaled == "row" %}
  var scale{{ s }}_{{ e }}: f32;
{% endfor %}
{% endfor %}
{% endmacro %}
{% macro place(i) %}
  let i = {{ i }};
  let row = (i % {{ rows // pack }}u) * {{ pack }}u;
  let n = first + row;
  let m = i / {{ rows // pack }}u;
{% endmacro %}
{# A value of the team's lane i out of registers: the candidates' own indices are known here. #}
{% macro choose(name, batch, values) %}
      var {{ name }} = {{ values[0][1] }};
{% for index, value in values[1:] %}
      {{ name }} = select({{ name }}, {{ value }}, i == {{ index }}u);
{% endfor %}
{% endmacro %}
{# Block c of row m of x as pairs of signed bytes, 256 * high + low units. A unit is a power of two, at most a 2^13th of the
   block's largest value: what is near that is exact. Not finite values make the unit NaN. In a word of int4 weights even
   elements are the low nibbles. #}
{% macro fix(m) %}
{% for j in range(pieces) %}
      let y_{{ j }} = v_{{ j }}{{ " * t_%d" % j if norm == "gain" }};
{% endfor %}
      var most = bitcast<vec4<u32>>(y_0) & vec4<u32>(0x7fffffffu);
{% for j in range(1, pieces) %}
      most = max(most, bitcast<vec4<u32>>(y_{{ j }}) & vec4<u32>(0x7fffffffu));
{% endfor %}
      let exponent = max(max(max(most.x, most.y), max(most.z, most.w)) >> 23u, 14u);
      let unit = bitcast<f32>(select((exponent - 13u) << 23u, 0x7fc00000u, exponent == 255u));
      let units = bitcast<f32>((267u - exponent) << 23u);
{% for j in range(pieces) %}
      let i_{{ j }} = vec4<i32>(round(y_{{ j }} * units));
{% endfor %}
      let total = i_0{% for j in range(1, pieces) %} + i_{{ j }}{% endfor %};
      ranges[{{ m }}u * {{ w.blocks }} + c] = vec2<f32>(unit, unit * f32(total.x + total.y + total.z + total.w));
{% if kind == "int4" %}
{% for part, swizzle in [("even", ["x", "z"]), ("odd", ["y", "w"])] %}
{% for j in range(pieces // 2) %}
      let {{ part }}_{{ j }} = vec4<i32>(i_{{ 2 * j }}.{{ swizzle | join }}, i_{{ 2 * j + 1 }}.{{ swizzle | join }});
{% endfor %}
{% endfor %}
{% for part in ["even", "odd"] %}
{% set place = m * 4 + 2 * loop.index0 %}
      staged[{{ place }}u * {{ w.blocks }} + c] = vec4<u32>({% for j in range(4) %}{{ ", " if j }}pack4xI8(({{ part }}_{{ j }} + vec4<i32>(128)) >> vec4<u32>(8u)){% endfor %});
      staged[{{ place + 1 }}u * {{ w.blocks }} + c] = vec4<u32>({% for j in range(4) %}{{ ", " if j }}pack4xI8({{ part }}_{{ j }}){% endfor %});
{% endfor %}
{% else %}
      staged[{{ m * 2 }}u * {{ w.blocks }} + c] = vec4<u32>({% for j in range(4) %}{{ ", " if j }}pack4xI8((i_{{ j }} + vec4<i32>(128)) >> vec4<u32>(8u)){% endfor %});
      staged[{{ m * 2 + 1 }}u * {{ w.blocks }} + c] = vec4<u32>({% for j in range(4) %}{{ ", " if j }}pack4xI8(i_{{ j }}){% endfor %});
{% endif %}
{% endmacro %}
{# What block u adds to the sums, where x is in fixed point: integer products are exact. #}
{% macro fixed_block(u) %}
{% set planes = 4 if kind == "int4" else 2 %}
{% for m in range(x_rows) %}
{% for j in range(planes) %}
      let x{{ m }}_{{ j }} = staged[{{ m * planes + j }}u * {{ w.blocks }} + c];
{% endfor %}
      let range{{ m }} = ranges[{{ m }}u * {{ w.blocks }} + c];
{% endfor %}
{% for s in range(streams) %}
{% for r in range(rows) %}
      {
{% set q = "q_%d_%d_%d" % (s, r, u) %}
{% if kind == "int4" %}
        let k_0 = {{ q }} & vec4<u32>(0x0f0f0f0fu);
        let k_1 = ({{ q }} >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
{% else %}
        let k_0 = {{ q }};
{% endif %}
{% for m in range(x_rows) %}
        {
{% for part, plane in [("high", 0), ("low", 1)] %}
          let {{ part }} = {% for j in range(planes // 2) %}{% for e in "xyzw" %}{{ " + " if j or not loop.first }}dot4I8Packed(k_{{ j }}.{{ e }}, x{{ m }}_{{ 2 * j + plane }}.{{ e }}){% endfor %}{% endfor %};
{% endfor %}
          let p = f32(256 * high + low) * range{{ m }}.x;
{% set f = "f_%d_%d_%d" % (s, r, u) %}
{% set term %}{% if minimum %}{{ f }} * p + h_{{ s }}_{{ r }}_{{ u }} * range{{ m }}.y{% elif kind == "int4" %}{{ f }} * (p - 8.0 * range{{ m }}.y){% elif scaled == "group" %}{{ f }} * p{% else %}p{% endif %}{% endset %}
          a_{{ s }}_{{ r }}_{{ m }} += {{ term if exact else "select(0.0, " ~ term ~ ", inside)" }};
        }
{% endfor %}
      }
{% endfor %}
{% endfor %}
{% endmacro %}
@compute @workgroup_size({{ workgroup }})
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) l: u32{% if merged and subgroups %}, @builtin(subgroup_size) width: u32{% endif %}) {
  let lane = l % LANES;
  let team = l / LANES;
  let first = ((g.y * groups.x + g.x) * {{ teams }}u + team) * {{ rows }}u;
{% for r in range(rows) %}
  let n_{{ r }} = min(first + {{ r }}u, {{ w.N }} - 1u);
{% for s in range(streams) %}
  let w_{{ s }}_{{ r }} = n_{{ r }} * {{ w.expr("w%d" % s) }};
{% endfor %}
{% endfor %}
{% for s in range(streams) %}
{% for r in range(rows) %}
{% for m in range(x_rows) %}
  var a_{{ s }}_{{ r }}_{{ m }} = 0.0;
{% endfor %}
{% for u in range(unroll) %}
  var q_{{ s }}_{{ r }}_{{ u }}: {{ "vec4<u32>" if vector else "f32" }};
{% if scaled == "group" %}
  var f_{{ s }}_{{ r }}_{{ u }}: f32;
{% if minimum %}
  var h_{{ s }}_{{ r }}_{{ u }}: f32;
{% endif %}
{% endif %}
{% endfor %}
{% endfor %}
{% endfor %}
{% for m in range(x_rows) if norm %}
  var sq_{{ m }} = 0.0;
{% endfor %}
{% set items = x_rows * rows // pack %}
{% set early = lanes >= items %}
  var it = 0u;
{{ load("it") }}
{% if early %}
{{ place("lane") }}
  let mine = i < {{ items }}u && n < {{ w.N }};
{{ declare_extras() }}
{% if extras or scaled == "row" %}
  if (mine) {
{{ fetch_extras() }}
  }
{% endif %}
{% endif %}
{% if stage %}
{% for m in range(x_rows) %}
  {
    var sum = 0.0;
    for (var c = l; c < {{ w.blocks }}; c += WORKGROUP) {
{{ fetch("v", "x", x_mode, m ~ "u * " ~ w.xm, "c") }}
{% if norm %}
{% for j in range(pieces) %}
      sum += {{ "dot(v_%d, v_%d)" % (j, j) if vector else "v_0 * v_0" }};
{% endfor %}
{% endif %}
{% if norm == "gain" %}
{{ fetch("t", "gain", gain_mode, "0u", "c") }}
{% endif %}
{% if fixed %}
{{ fix(m) }}
{% else %}
{% for j in range(pieces) %}
      staged[{{ m * pieces + j }}u * {{ w.blocks }} + c] = v_{{ j }}{{ " * t_%d" % j if norm == "gain" }};
{% endfor %}
{% endif %}
    }
{% if norm %}
    squares[{{ m }}u * WORKGROUP + l] = sum;
{% endif %}
  }
{% endfor %}
  workgroupBarrier();
{% for m in range(x_rows) if norm %}
  for (var t = 0u; t < {{ teams }}u; t++) { sq_{{ m }} += squares[{{ m }}u * WORKGROUP + t * LANES + lane]; }
{% endfor %}
{% endif %}
  loop {
{% for u in range(unroll) %}
    {
      let c = {{ block("it", u) }};
{% if not exact %}
      let inside = (it * {{ unroll }}u + {{ u }}u) * LANES + lane < {{ w.blocks }};
{% endif %}
{% if fixed %}
{{ fixed_block(u) }}
{% else %}
{% if norm == "gain" and not stage %}
{{ fetch("t", "gain", gain_mode, "0u", "c") }}
{% endif %}
{% for m in range(x_rows) %}
{% if stage %}
{% for j in range(pieces) %}
      let x{{ m }}_{{ j }} = staged[{{ m * pieces + j }}u * {{ w.blocks }} + c];
{% endfor %}
{% else %}
{% set raw = "v" if norm else "x" %}
{{ fetch(raw ~ m, "x", x_mode, m ~ "u * " ~ w.xm, "c") }}
{% if norm %}
{% set sum %}{% for j in range(pieces) %}{{ " + " if j }}{{ "dot(v%d_%d, v%d_%d)" % (m, j, m, j) if vector else "v%d_0 * v%d_0" % (m, m) }}{% endfor %}{% endset %}
      sq_{{ m }} += {{ sum if exact else "select(0.0, " ~ sum ~ ", inside)" }};
{% for j in range(pieces) %}
      let x{{ m }}_{{ j }} = v{{ m }}_{{ j }}{{ " * t_%d" % j if norm == "gain" }};
{% endfor %}
{% endif %}
{% endif %}
{% if kind == "int4" and vector %}
      let sx_{{ m }} = dot(x{{ m }}_0{% for j in range(1, pieces) %} + x{{ m }}_{{ j }}{% endfor %}, vec4<f32>(1.0));
{% endif %}
{% endfor %}
{% for s in range(streams) %}
{% for r in range(rows) %}
      {
{% for j in range(pieces) %}
        let k_{{ j }} = {{ piece("q_%d_%d_%d" % (s, r, u), j) }};
{% endfor %}
{% for m in range(x_rows) %}
        {
          let p = {% for j in range(pieces) %}{{ " + " if j }}{{ "dot(k_%d, x%d_%d)" % (j, m, j) if vector else "k_0 * x%d_0" % m }}{% endfor %};
          a_{{ s }}_{{ r }}_{{ m }} += {{ term(s, r, u, m) if exact else "select(0.0, " ~ term(s, r, u, m) ~ ", inside)" }};
        }
{% endfor %}
      }
{% endfor %}
{% endfor %}
{% endif %}
    }
{% endfor %}
    it++;
    if (it >= {{ w.steps }}) { break; }
{{ load("it") }}
  }
{% if merged and subgroups %}
{% for step in [1, 2, 4, 8, 16, 32, 64] if step < lanes %}
{% for value in values %}
  {{ value }} += select(0.0, subgroupShuffleXor({{ value }}, {{ step }}u), {{ step }}u < width);
{% endfor %}
{% endfor %}
  let parts = LANES / min(LANES, width);
  if (width < LANES) {
    if (l % width == 0u) {
{% for value in values %}
      part[{{ loop.index0 * slots }}u + l / width] = {{ value }};
{% endfor %}
    }
    workgroupBarrier();
  }
{% elif merged %}
{% for value in values %}
  part[{{ loop.index0 }}u * WORKGROUP + l] = {{ value }};
{% endfor %}
  workgroupBarrier();
  for (var half = LANES / 2u; half > 0u; half = half / 2u) {
    if (lane < half) {
      for (var v = l; v < {{ values | length }}u * WORKGROUP; v += WORKGROUP) { part[v] += part[v + half]; }
    }
    workgroupBarrier();
  }
{% endif %}
{# Outputs of the team, a word of pack elements an item; lane i finishes item i. #}
{% for batch in range((items + lanes - 1) // lanes) %}
  {
{% if not early %}
{{ place("lane + %du" % (batch * lanes)) }}
    let mine = i < {{ items }}u && n < {{ w.N }};
{% endif %}
    if (mine) {
{% if not early %}
{{ declare_extras() }}
{{ fetch_extras() }}
{% endif %}
{% set candidates = range(batch * lanes, [items, (batch + 1) * lanes] | min) %}
{% for e in range(pack) %}
{% for s in range(streams) %}
{% if merged and not subgroups %}
      var y{{ s }}{{ e }} = part[(({{ s * rows }}u + row + {{ e }}u) * {{ x_rows }}u + m) * WORKGROUP + l - lane];
{% else %}
{% set found = namespace(list=[]) %}
{% for index in candidates %}
{% set found.list = found.list + [(index, "a_%d_%d_%d" % (s, index % (rows // pack) * pack + e, index // (rows // pack)))] %}
{% endfor %}
{{ choose("y%d%d" % (s, e), batch, found.list) }}
{% if merged %}
      if (width < LANES) { y{{ s }}{{ e }} = gathered(({{ s * rows }}u + row + {{ e }}u) * {{ x_rows }}u + m, team, parts); }
{% endif %}
{% endif %}
{% if scaled == "row" %}
      y{{ s }}{{ e }} *= scale{{ s }}_{{ e }};
{% endif %}
{% endfor %}
{% endfor %}
{% if norm %}
{% if merged and not subgroups %}
      let sq = part[({{ streams * rows * x_rows }}u + m) * WORKGROUP + l - lane];
{% else %}
{% set found = namespace(list=[]) %}
{% for index in candidates %}
{% set found.list = found.list + [(index, "sq_%d" % (index // (rows // pack)))] %}
{% endfor %}
{{ choose("sq", batch, found.list) }}
{% if merged %}
      if (width < LANES) { sq = gathered({{ streams * rows * x_rows }}u + m, team, parts); }
{% endif %}
{% endif %}
      let inverse = 1.0 / sqrt(sq / f32({{ w.K }}) + {{ w.expr("eps", "f") }});
{% for e in range(pack) %}
{% for s in range(streams) %}
      y{{ s }}{{ e }} *= inverse;
{% endfor %}
{% endfor %}
{% endif %}
{% for e in range(pack) %}
      let z{{ e }} = finish({% for s in range(streams) %}y{{ s }}{{ e }}, {% endfor %}{% for name, type in extras %}{{ name }}_{{ e }}, {% endfor %});
{% endfor %}
{% if pack == 1 %}
      st_o(m * {{ w.om }} + n * {{ w.on }}, z0);
{% else %}
      st_o((m * {{ w.om }} + n) / 2u, {{ bits[0] }} | ({{ bits[1] }} << 16u));
{% endif %}
    }
  }
{% endfor %}
}
