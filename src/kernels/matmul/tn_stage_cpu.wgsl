// Gradient of a weight from staged operands (stage.ts), for CPU drivers with subgroups of LANES, 8 or 16: dW[n,k] (+)= alpha * sum_m dy[m,n] x[m,k]
// dy (rows, N) and x (rows, K) float32 in textures, dW (N, K). ACCUMULATE adds to what dW holds. N and K are multiples of 4.
// A workgroup is one subgroup and owns RT rows of dW x 4 * LANES columns: lane l loads dy[m, i0 + 4l ..] and x[m, j0 + 4l ..], broadcasts of the former
// times the latter are an outer product a row m. TURN rows m a turn: an accumulator is written once a turn, and each write is a blend.
// Order of the sum: the rows of a turn by themselves, then added to the total (see nt_cpu.wgsl); those left over one by one. So its bits depend on TURN.
// columns_first 1: neighbouring workgroups share rows of dW, else columns: what they share should be the larger operand's part, so that the other
// stays in the cache. dW's first row is out_row.
struct Params { rows: u32, columns_first: u32, n: u32, k: u32, out_row: u32, alpha: f32 }
@group(0) @binding(0) var dy: texture_storage_2d<rgba32float, read>;
@group(0) @binding(1) var x: texture_storage_2d<rgba32float, read>;
@group(0) @binding(2) var<storage, read_write> dw: array<vec4f>;

#if WIDE
#include "layout_cpu.wgsl"
#endif

@compute @workgroup_size($(LANES))
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let tile = select(group.yx, group.xy, p.columns_first == 1u);
  let i0 = tile.y * $(RT)u;
  let column = tile.x * $(LANES)u + lane;
  // RT / 4 lanes have what the workgroup needs of a row of dy; lanes beyond load the next row's.
  let dy_at = min(i0 / 4u + lane % $(RT/4)u, p.n / 4u - 1u);
  let c = min(column, p.k / 4u - 1u);
#for r in 0..RT
  var acc_$(r) = vec4f();
#end
#if WIDE
  // As in nn_cpu.wgsl; of a value that is a multiple of TURN the compiler would know which half of the array is read, and have none.
  let rows = well_laid(p.rows, lane);
#else
  let rows = p.rows;
#endif
  let whole = rows - rows % $(TURN)u;
  for (var m = 0u; m < whole; m += $(TURN)u) {
#for y in 0..RT*TURN/4/LANES
    let g$(y) = textureLoad(dy, vec2u(dy_at, m + $(y*LANES*4/RT)u + lane / $(RT/4)u));
#end
#for z in 0..TURN
    let x$(z) = textureLoad(x, vec2u(c, m + $(z)u));
#end
#for r in 0..RT
    {
      var t = vec4f();
#for z in 0..TURN
      t = fma(vec4f(subgroupBroadcast(g$((RT*z/4+r/4)/LANES)[$(r%4)], $((RT*z/4+r/4)%LANES)u)), x$(z), t);
#end
      acc_$(r) += t;
    }
#end
  }
  for (var m = whole; m < p.rows; m++) {
    let g = textureLoad(dy, vec2u(dy_at, m));
    let xv = textureLoad(x, vec2u(c, m));
#for r in 0..RT
    acc_$(r) = fma(vec4f(subgroupBroadcast(g[$(r%4)], $(r/4)u)), xv, acc_$(r));
#end
  }
  // Four rows a turn, see nt_cpu.wgsl.
  let end = min(i0 + $(RT)u, p.n);
  for (var i = i0; i < end; i += 4u) {
#for q in 0..4
    var out_$(q) = acc_$(q);
#for s in 1..RT/4
    out_$(q) = select(out_$(q), acc_$(4*s+q), i == i0 + $(4*s)u);
#end
    if (column < p.k / 4u) {
      let at = (p.out_row + i + $(q)u) * (p.k / 4u) + c;
#if ACCUMULATE
      dw[at] += out_$(q) * p.alpha;
#else
      dw[at] = out_$(q) * p.alpha;
#endif
    }
#end
  }
}
