{# The rows of q and k with their rotary embedding, for the kernels of decode attention. #}
{% macro ld(name, z, h, d) %}ld_{{ name }}({{ z }} * {{ w.expr(name ~ "_z") }} + ({{ h }}) * {{ w.expr(name ~ "_h") }} + ({{ d }}) * {{ w.expr(name ~ "_d") }}){% endmacro %}
{% macro rotated_rows() %}
{% for name in (["q", "k"] if fresh else ["q"]) %}
fn {{ name }}_at(z: u32, h: u32, d: u32) -> f32 {
  {% if rope %}
  const HALF = {{ D // 2 }}u;
  let low = d < HALF;
  let x = {{ ld(name, "z", "h", "d") }};
  let y = {{ ld(name, "z", "h", "select(d - HALF, d + HALF, low)") }};
  return x * ld_cos(z * {{ w.cos_z }} + d * {{ w.cos_d }}) + select(y, -y, low) * ld_sin(z * {{ w.sin_z }} + d * {{ w.sin_d }});
  {% else %}
  return {{ ld(name, "z", "h", "d") }};
  {% endif %}
}
{% endfor %}
{% endmacro %}
