// Gradient of a weight from operands staged in panels (stage.ts), for CPU drivers with subgroups of LANES (8 or 16): dW[n,k] (+)= alpha * sum_m
// dy[m,n] x[m,k]
// dy (rows, n) and x (rows, k) float32: column c of row m is in texel (c % 64 / 4, c / 64 * height + m). k is a multiple of 4. ACCUMULATE adds to
// what dW holds.
// A workgroup is one subgroup and owns 64 rows of dW x 4 * LANES columns. Of row m, a lane loads texels lane, lane + LANES .. of those 64 values of
// dy, and texel j0 / 4 + lane of x; broadcasts of the former times the latter give an outer product. An iteration takes TURN rows m, as an
// accumulator is written once per iteration, and each write is a blend.
// In panels, what a workgroup reads is contiguous, row after row, and the processor prefetches it; in whole rows it would be 128 or 256 bytes of
// each.
// Order of the sum: the rows of an iteration separately, then added to the total (see nt_cpu.wgsl); those left over one by one. So its bits depend on
// TURN.
// columns_first 1: neighbouring workgroups share rows of dW, else columns. What they share should be the larger operand's part, so that the other
// stays in the cache. dW has `stride` columns; out_row and out_column are where n and k begin in it.
struct Params { rows: u32, columns_first: u32, n: u32, k: u32, dy_height: u32, x_height: u32, stride: u32, out_row: u32, out_column: u32, alpha: f32 }
@group(0) @binding(0) var dy: texture_storage_2d<rgba32float, read>;
@group(0) @binding(1) var x: texture_storage_2d<rgba32float, read>;
@group(0) @binding(2) var<storage, read_write> dw: array<vec4f>;

#include "layout_cpu.wgsl"

#let PARTS = 16/LANES
@compute @workgroup_size($(LANES))
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let tile = select(group.yx, group.xy, p.columns_first == 1u);
  let i0 = tile.y * 64u;
  let column = tile.x * $(LANES)u + lane;
  let c = min(column, p.k / 4u - 1u);
  let x_at = vec2u(c % 16u, c / 16u * p.x_height);
#for h in 0..PARTS
  let dy_at$(h) = vec2u(min(lane + $(h*LANES)u, (p.n - i0 + 3u) / 4u - 1u), i0 / 64u * p.dy_height);
#end
#for r in 0..64
  var acc_$(r) = vec4f();
#end
  // If the compiler knew this to be a multiple of TURN, it would know which half of the array is read, and keep none.
  let rows = well_laid(p.rows, lane);
  let whole = rows - rows % $(TURN)u;
#let LOADS = TURN*PARTS
#include "held_cpu.wgsl"
#if HELD
#for z in 0..TURN
#for h in 0..PARTS
  held[$(PARTS*z+h)] = textureLoad(dy, vec2u(dy_at$(h).x, dy_at$(h).y + $(z)u));
#end
#end
#endif
  for (var m = 0u; m < whole; m += $(TURN)u) {
#for z in 0..TURN
    let x$(z) = textureLoad(x, vec2u(x_at.x, x_at.y + m + $(z)u));
#end
#if HELD
#for k in 0..4
#for g in 0..64/APART
#let BLOCK = k*64/APART+g
#include "apart_cpu.wgsl"
#for i in 0..APART
      var t$(i) = 0.0;
#end
#for z in 0..TURN
#for i in 0..APART
#let r = APART*g+i
#let PART = r/4/LANES
      t$(i) = fma(subgroupBroadcast(held[$(PARTS*z+PART)][$(r%4)], $(r/4%LANES)u), x$(z)[$(k)], t$(i));
#end
#end
#for i in 0..APART
      acc_$(APART*g+i)[$(k)] += t$(i);
#end
    }
#end
#end
    let next = min(m + $(TURN)u, whole - $(TURN)u);
#for z in 0..TURN
#for h in 0..PARTS
    held[$(PARTS*z+h)] = textureLoad(dy, vec2u(dy_at$(h).x, dy_at$(h).y + next + $(z)u));
#end
#end
#else
#for z in 0..TURN
#for h in 0..PARTS
    let g$(z)_$(h) = textureLoad(dy, vec2u(dy_at$(h).x, dy_at$(h).y + m + $(z)u));
#end
#end
#for g in 0..64/APART
#let BLOCK = g
#include "apart_cpu.wgsl"
#for i in 0..APART
      var t$(i) = vec4f();
#end
#for z in 0..TURN
#for i in 0..APART
#let r = APART*g+i
      t$(i) = fma(vec4f(subgroupBroadcast(g$(z)_$(r/4/LANES)[$(r%4)], $(r/4%LANES)u)), x$(z), t$(i));
#end
#end
#for i in 0..APART
      acc_$(APART*g+i) += t$(i);
#end
    }
#end
#endif
  }
  for (var m = whole; m < p.rows; m++) {
#for h in 0..PARTS
    let g$(h) = textureLoad(dy, vec2u(dy_at$(h).x, dy_at$(h).y + m));
#end
    let xv = textureLoad(x, vec2u(x_at.x, x_at.y + m));
#for r in 0..64
    acc_$(r) = fma(vec4f(subgroupBroadcast(g$(r/4/LANES)[$(r%4)], $(r/4%LANES)u)), xv, acc_$(r));
#end
  }
  // Four rows per iteration, see nt_cpu.wgsl.
  let end = min(i0 + 64u, p.n);
  for (var i = i0; i < end; i += 4u) {
#for q in 0..4
    var out_$(q) = acc_$(q);
#for s in 1..16
    out_$(q) = select(out_$(q), acc_$(4*s+q), i == i0 + $(4*s)u);
#end
    if (column < p.k / 4u && i + $(q)u < p.n) {
      let at = ((p.out_row + i + $(q)u) * p.stride + p.out_column) / 4u + c;
#if ACCUMULATE
      dw[at] += out_$(q) * p.alpha;
#else
      dw[at] = out_$(q) * p.alpha;
#endif
    }
#end
  }
}
