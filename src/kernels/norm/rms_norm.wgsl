// RMSNorm (arXiv 1910.07467): y[t,c] = x[t,c] * rstd[t] * gain[c]; rstd[t] = 1 / sqrt(mean over c of x^2 + eps), kept for the backward pass.
// x, y (rows, channels), gain (channels), rstd (rows). LANES invocations per row: lane l sums c = l, l + LANES, .., then the lanes are summed, so the
// order depends on the channels alone and a row's bits are the same in every batch.
// HELD: channels / LANES, if a lane's part of a row is small enough to stay in registers; a workgroup then takes ROWS rows and loads the gain once.
// ADD: + residual[t,c]. VEC4, without HELD: the second pass over the row takes four channels at a time (a multiple of 4), and reads x as x_again.
// F16, without ADD and TURN: y is f16, rounded as in matmul/units_stage.wgsl, for products on matrix units.
// TURN: rows are heads, `heads` per token, and y is also rotated by the token's position, with the bits of rope.wgsl (info and table as there). HELD
// is then even, so a lane has both values of a pair.
#if TURN
struct Params { rows: u32, channels: u32, heads: u32, eps: f32 }
#else
struct Params { rows: u32, channels: u32, eps: f32 }
#endif
@group(0) @binding(0) var<storage, read> x: array<f32>;
#if VEC4
@group(0) @binding(1) var<storage, read> gain: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4f>;
@group(0) @binding(7) var<storage, read> x_again: array<vec4f>;
#else
@group(0) @binding(1) var<storage, read> gain: array<f32>;
#if F16
@group(0) @binding(2) var<storage, read_write> y: array<f16>;
#include "narrow.wgsl"
fn out_of(v: f32) -> f16 { return narrow_one(v); }
#else
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
fn out_of(v: f32) -> f32 { return v; }
#endif
#endif
@group(0) @binding(3) var<storage, read_write> rstd: array<f32>;
#if TURN
@group(0) @binding(4) var<storage, read> info: array<vec4u>;
@group(0) @binding(5) var<storage, read> table: array<vec2f>;
#endif
#if ADD
#if VEC4
@group(0) @binding(6) var<storage, read> residual: array<vec4f>;
#else
@group(0) @binding(6) var<storage, read> residual: array<f32>;
#endif
#endif
#include "lanes.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
#if HELD
  let first = (group.x + group.y * 65535u) * ROWS;
#for j in 0..HELD
  let gain$(j) = gain[lane + $(j*LANES)u];
#end
  for (var row = first; row < min(first + ROWS, p.rows); row++) {
    let at = row * $(HELD*LANES)u + lane;
#for j in 0..HELD
    let x$(j) = x[at + $(j*LANES)u];
#end
    let sum0 = 0.0;
#for j in 0..HELD
    let sum$(j+1) = fma(x$(j), x$(j), sum$(j));
#end
    let r = 1.0 / sqrt(lanes_sum(lane, sum$(HELD)) / f32(p.channels) + p.eps);
#if TURN
    let turn_at = info[row / p.heads].w * $(HELD*LANES/2)u + lane;
#for j in 0..HELD
    let y$(j) = x$(j) * r * gain$(j);
#end
#for j in 0..HELD/2
    let turn$(j) = table[turn_at + $(j*LANES)u];
    y[at + $(j*LANES)u] = fma(y$(j), turn$(j).x, -(y$(j+HELD/2) * turn$(j).y));
    y[at + $((j+HELD/2)*LANES)u] = fma(y$(j+HELD/2), turn$(j).x, y$(j) * turn$(j).y);
#end
#else
#for j in 0..HELD
#if ADD
    y[at + $(j*LANES)u] = fma(x$(j) * r, gain$(j), residual[at + $(j*LANES)u]);
#else
    y[at + $(j*LANES)u] = out_of(x$(j) * r * gain$(j));
#endif
#end
#endif
    if (lane == 0u) { rstd[row] = r; }
  }
#else
  let row = group.x + group.y * 65535u;
  if (row >= p.rows) { return; }
  let at = row * p.channels;
  var sum = 0.0;
  for (var c = lane; c < p.channels; c += LANES) { let v = x[at + c]; sum = fma(v, v, sum); }
  let r = 1.0 / sqrt(lanes_sum(lane, sum) / f32(p.channels) + p.eps);
#if VEC4
  for (var c = lane; c < p.channels / 4u; c += LANES) {
    let there = at / 4u + c;
#if ADD
    y[there] = fma(x_again[there] * r, gain[c], residual[there]);
#else
    y[there] = x_again[there] * r * gain[c];
#endif
  }
#else
  for (var c = lane; c < p.channels; c += LANES) {
#if ADD
    y[at + c] = fma(x[at + c] * r, gain[c], residual[at + c]);
#else
    y[at + c] = out_of(x[at + c] * r * gain[c]);
#endif
  }
#endif
  if (lane == 0u) { rstd[row] = r; }
#endif
}
