// Folds one vocabulary slice of the output head into running statistics of each row; the logits of the slice are scratch.
// With z = logits * inv_temperature: stats[t] = (m, s, w, z_target) with m = max z, s = sum exp(z - m), w = sum exp(z - m) (z - m). A larger m
// rescales s and w (arXiv 1805.02867). FIRST starts the row. The slice that contains targets[t] also stores its z.
// logits (rows, stride): this slice is columns column .. column + n, tokens first .. first + n of the vocabulary. One workgroup per row; lanes take
// every LANES-th column, and slices come in order, so a row's bits depend on the vocabulary alone.
// BY_ROW: all n tokens of the vocabulary in one dispatch, `slice` at a time, so with the bits of one dispatch per slice; each row has its own inverse
// temperature, and 0 skips the row.
struct Params { rows: u32, n: u32, stride: u32, column: u32, first: u32, slice: u32, inv_temperature: f32 }
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> stats: array<vec4f>;
@group(0) @binding(2) var<storage, read> targets: array<u32>;
#if BY_ROW
@group(0) @binding(3) var<storage, read> inv_temperatures: array<f32>;
#endif
#include "lanes.wgsl"

// Folds columns at .. at + n of the row into its statistics.
fn fold(at: u32, n: u32, inv: f32, before: vec4f, lane: u32) -> vec4f {
  var high = -3.0e38;
  // Four values of a lane per iteration, then those that are left: an iteration costs a CPU driver as much as a value.
  let fours = n - n % $(4*LANES)u;
  for (var c = lane; c < fours; c += $(4*LANES)u) {
#for k in 0..4
    let z$(k) = logits[at + c + $(k*LANES)u] * inv;
#end
    high = max(high, max(max(z0, z1), max(z2, z3)));
  }
  for (var c = fours + lane; c < n; c += LANES) { high = max(high, logits[at + c] * inv); }
  let m = max(before.x, lanes_max(lane, high));
  var s = 0.0;
  var w = 0.0;
  for (var c = lane; c < fours; c += $(4*LANES)u) {
#for k in 0..4
    let d$(k) = logits[at + c + $(k*LANES)u] * inv - m;
    let e$(k) = exp(d$(k));
#end
    s = s + e0 + e1 + e2 + e3;
    w = fma(e3, d3, fma(e2, d2, fma(e1, d1, fma(e0, d0, w))));
  }
  for (var c = fours + lane; c < n; c += LANES) {
    let d = logits[at + c] * inv - m;
    let e = exp(d);
    s += e;
    w = fma(e, d, w);
  }
  let s_all = lanes_sum(lane, s);
  let w_all = lanes_sum(lane, w);
  // If the row was empty before, its sums are 0, and this adds nothing. Nor does a row of dropped tokens (-3e38, draw.wgsl), whose shift would be too
  // large to multiply by; from -1000 on, exp is 0.
  let shift = max(before.x - m, -1000.0);
  let shrink = exp(shift);
  return vec4f(m, fma(before.y, shrink, s_all), fma(fma(before.y, shift, before.z), shrink, w_all), before.w);
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
#include "softmax_row.wgsl"
  let at = row * p.stride + p.column;
#if BY_ROW
  var out = vec4f(-3.0e38, 0.0, 0.0, 0.0);
  for (var c = 0u; c < p.n; c += p.slice) { out = fold(at + c, min(p.slice, p.n - c), inv, out, lane); }
#else
#if FIRST
  var out = fold(at, p.n, inv, vec4f(-3.0e38, 0.0, 0.0, 0.0), lane);
#else
  var out = fold(at, p.n, inv, stats[row], lane);
#endif
#endif
  if (lane == 0u) {
    let token = targets[row];
    if (token >= p.first && token < p.first + p.n) { out.w = logits[at + token - p.first] * inv; }
    stats[row] = out;
  }
}
