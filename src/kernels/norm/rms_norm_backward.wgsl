// Gradient of RMSNorm's input: dx[t,c] = rstd * (dy[c] gain[c] - xhat[c] * mean over c of dy gain xhat), xhat = x * rstd.
// SKIP: + skip[t,c], the gradient that bypassed the norm on the residual path. All arrays (rows, channels). LANES invocations per row; lane l sums c
// = l, l + LANES, ..
// HELD, ROWS and TURN are as in rms_norm.wgsl; with TURN, dy is first rotated back.
// GAIN (with HELD): also the gradient of the gain: parts[group, c] = sum over the group's rows, in order, of dy[t,c] xhat[t,c].
#if TURN
struct Params { rows: u32, channels: u32, heads: u32 }
#else
struct Params { rows: u32, channels: u32 }
#endif
@group(0) @binding(0) var<storage, read> dy: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> gain: array<f32>;
@group(0) @binding(3) var<storage, read> rstd: array<f32>;
@group(0) @binding(4) var<storage, read_write> dx: array<f32>;
#if SKIP
@group(0) @binding(5) var<storage, read> skip: array<f32>;
#endif
#if TURN
@group(0) @binding(6) var<storage, read> info: array<vec4u>;
@group(0) @binding(7) var<storage, read> table: array<vec2f>;
#endif
#if GAIN
@group(0) @binding(8) var<storage, read_write> parts: array<f32>;
#endif
#include "lanes.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
#if HELD
  let first = (group.x + group.y * 65535u) * ROWS;
#for j in 0..HELD
  let gain$(j) = gain[lane + $(j*LANES)u];
#end
#if GAIN
#for j in 0..HELD
  var dgain$(j) = 0.0;
#end
#endif
  for (var row = first; row < min(first + ROWS, p.rows); row++) {
    let at = row * $(HELD*LANES)u + lane;
    let r = rstd[row];
#if TURN
    let turn_at = info[row / p.heads].w * $(HELD*LANES/2)u + lane;
#for j in 0..HELD/2
    let turn$(j) = table[turn_at + $(j*LANES)u];
    let lower$(j) = dy[at + $(j*LANES)u];
    let upper$(j) = dy[at + $((j+HELD/2)*LANES)u];
    let dy$(j) = fma(lower$(j), turn$(j).x, upper$(j) * turn$(j).y);
    let dy$(j+HELD/2) = fma(upper$(j), turn$(j).x, -(lower$(j) * turn$(j).y));
#end
#else
#for j in 0..HELD
    let dy$(j) = dy[at + $(j*LANES)u];
#end
#endif
#for j in 0..HELD
    let g$(j) = dy$(j) * gain$(j);
    let xhat$(j) = x[at + $(j*LANES)u] * r;
#if GAIN
    dgain$(j) = fma(dy$(j), xhat$(j), dgain$(j));
#endif
#end
    let sum0 = 0.0;
#for j in 0..HELD
    let sum$(j+1) = fma(g$(j), xhat$(j), sum$(j));
#end
    let mean = lanes_sum(lane, sum$(HELD)) / f32(p.channels);
#for j in 0..HELD
#if SKIP
    dx[at + $(j*LANES)u] = r * fma(-xhat$(j), mean, g$(j)) + skip[at + $(j*LANES)u];
#else
    dx[at + $(j*LANES)u] = r * fma(-xhat$(j), mean, g$(j));
#endif
#end
  }
#if GAIN
  if (first < p.rows) {
#for j in 0..HELD
    parts[first / ROWS * $(HELD*LANES)u + lane + $(j*LANES)u] = dgain$(j);
#end
  }
#endif
#else
  let row = group.x + group.y * 65535u;
  if (row >= p.rows) { return; }
  let at = row * p.channels;
  let r = rstd[row];
  var sum = 0.0;
  for (var c = lane; c < p.channels; c += LANES) { sum = fma(dy[at + c] * gain[c], x[at + c] * r, sum); }
  let mean = lanes_sum(lane, sum) / f32(p.channels);
  for (var c = lane; c < p.channels; c += LANES) {
    var value = r * fma(-(x[at + c] * r), mean, dy[at + c] * gain[c]);
#if SKIP
    value += skip[at + c];
#endif
    dx[at + c] = value;
  }
#endif
}
