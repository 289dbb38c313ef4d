// Adds up what the workgroups along a cache found for one query row: their unnormalised results, scaled to the common
// maximum. {{ parts }} x {{ D }} invocations share the sum.
const SIDE = 16u;
var<workgroup> scale: array<f32, {{ workgroup }}>; // of each workgroup's result
var<workgroup> fold: array<f32, {{ workgroup }}>;
var<workgroup> row: array<f32, {{ workgroup }}>;

@compute @workgroup_size({{ workgroup }})
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) l: u32) {
  let line = (g.y * {{ w.H }} + g.x) * {{ w.chunks }};
  let d = l % {{ D }}u;
  let part = l / {{ D }}u;
  let last = {{ w.chunks }} - 1u;
  // The first results are read together with the statistics.
  {% for i in range(batch) %}
  let at{{ i }} = part + {{ i * parts }}u;
  let x{{ i }} = ld_p((line + min(at{{ i }}, last)) * {{ D }}u + d);
  {% endfor %}
  var top = -inf_();
  var total = 0.0;
  if (l < {{ w.chunks }}) {
    top = ld_p({{ w.stats }} + 2u * (line + l));
    total = ld_p({{ w.stats }} + 2u * (line + l) + 1u);
  }
  scale[l] = top;
  workgroupBarrier();
  var most = -inf_();
  for (var i = 0u; i < SIDE; i++) { most = fmaximum(most, scale[(l % SIDE) * SIDE + i]); }
  fold[l] = most;
  workgroupBarrier();
  most = -inf_();
  for (var i = 0u; i < SIDE; i++) { most = fmaximum(most, fold[i]); }
  let share = select(exp_(top - most), 0.0, bitcast<u32>(top) == 0xff800000u);
  scale[l] = share;
  row[l] = total * share;
  workgroupBarrier();
  var sum = 0.0;
  for (var i = 0u; i < SIDE; i++) { sum += row[(l % SIDE) * SIDE + i]; }
  fold[l] = sum;
  workgroupBarrier();
  sum = 0.0;
  for (var i = 0u; i < SIDE; i++) { sum += fold[i]; }
  let inverse = select(1.0 / sum, 0.0, sum == 0.0);

  var acc = 0.0;
  if (part < {{ parts }}u) {
    {% for i in range(batch) %}
    if (at{{ i }} <= last) { let f = scale[at{{ i }}]; acc += select(0.0, x{{ i }} * f, f != 0.0); }
    {% endfor %}
    for (var c = part + {{ batch * parts }}u; c <= last; c += {{ 4 * parts }}u) {
      {% for i in range(4) %}
      let c{{ i }} = min(c + {{ i * parts }}u, last);
      let y{{ i }} = ld_p((line + c{{ i }}) * {{ D }}u + d);
      {% endfor %}
      {% for i in range(4) %}
      let f{{ i }} = scale[c{{ i }}];
      acc += select(0.0, y{{ i }} * f{{ i }}, c + {{ i * parts }}u <= last && f{{ i }} != 0.0);
      {% endfor %}
    }
  }
  workgroupBarrier();
  row[l] = acc;
  workgroupBarrier();
  let at = g.y * {{ w.o_z }} + g.x * {{ w.o_h }};
  {% if out == "element" %}
  if (l < {{ D }}u) {
    var result = 0.0;
    for (var p = 0u; p < {{ parts }}u; p++) { result += row[p * {{ D }}u + l]; }
    st_o(at + l * {{ w.o_d }}, result * inverse);
  }
  {% else %}
  if (2u * l < {{ D }}u) {
    var low = 0.0;
    var high = 0.0;
    for (var p = 0u; p < {{ parts }}u; p++) {
      low += row[p * {{ D }}u + 2u * l];
      high += row[p * {{ D }}u + 2u * l + 1u];
    }
    st_o(at / 2u + l, {{ out }}(low * inverse) | ({{ out }}(high * inverse) << 16u));
  }
  {% endif %}
}
