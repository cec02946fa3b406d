// Gradient of a linear layer's input, for CPU drivers with subgroups of LANES (8 or 16): dx[m,k] = alpha * sum_n dy[m,n] W[n,k]
//   LORA: + sum_r dxa[m,r] A[r,k]      ACCUMULATE: added to what dx holds
// dy (rows, N) float32, W (N, K) with K a multiple of 8, dx (rows, K).
// A workgroup is one subgroup and owns MT rows x 8 * LANES columns; lane l owns the 8 columns of texel c0 + l, so W is read as it lies. COLS 4
// instead of 8: half as many columns, two lanes per texel.
// Order of the sum: four n at a time, summed separately and then added to the total (see nt_cpu.wgsl), then r likewise.
// A slice of W: rows w_row .. w_row + n of its storage belong to columns from dy_column on of dy, whose rows are dy_stride apart.
// BY4: n, dy_stride and dy_column are multiples of 4; else dy is read value by value, with zeros past n.
// DY_TEX: columns dy_column .. + n of dy are staged in a texture (stage.ts), whose first row is row0 of dy; n is a multiple of 4 * TURN. PANELS: they
// are staged in panels of height dy_height.
// rows_first 1: neighbouring workgroups share columns of dx, else rows. Rows row0 .. rows, and columns from texel first_texel on, are computed. TURN:
// groups of 4 n per iteration, 1 without DY_TEX.
struct Params { row0: u32, rows: u32, first_texel: u32, rows_first: u32, n: u32, k: u32, rank: u32, w_fold: u32, w_texels: u32, w_row: u32, dy_stride: u32, dy_column: u32, dy_height: u32, alpha: f32 }
#if DY_TEX
@group(0) @binding(0) var dy: texture_storage_2d<rgba32float, read>;
#else
#if BY4
@group(0) @binding(0) var<storage, read> dy: array<vec4f>;
#else
@group(0) @binding(0) var<storage, read> dy: array<f32>;
#endif
#endif
@group(0) @binding(1) var<storage, read_write> dx: array<vec4f>;
#include "weight.wgsl"
#if LORA
@group(0) @binding(3) var<storage, read> dxa: array<vec4f>;
@group(0) @binding(4) var<storage, read> lora_a: array<vec4f>;
#endif

#let HALF = 8-COLS
#let LAID = WIDE+HELD
#if LAID
#include "layout_cpu.wgsl"
#endif

@compute @workgroup_size($(LANES))
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let tile = select(group.xy, group.yx, p.rows_first == 1u);
  let m0 = p.row0 + tile.y * $(MT)u;
#if HALF
  let column = p.first_texel + tile.x * $(LANES/2)u + lane / 2u;
  let c = min(column, p.k / 8u - 1u);
  let at_k = 2u * c + lane % 2u;
#else
  let column = p.first_texel + tile.x * $(LANES)u + lane;
  let c = min(column, p.k / 8u - 1u);
  let at_k = 2u * c;
#endif
#for i in 0..(MT+LANES-1)/LANES
  let row$(i) = min(m0 + $(i*LANES)u + lane, p.rows - 1u);
#if DY_TEX
  let y$(i) = row$(i) - p.row0;
#else
#if BY4
  let dy_at$(i) = (row$(i) * p.dy_stride + p.dy_column) / 4u;
#else
  let dy_at$(i) = row$(i) * p.dy_stride + p.dy_column;
#endif
#endif
#end
#for r in 0..MT
#for v in 0..COLS/4
  var acc_$(r)_$(v) = vec4f();
#end
#end
#if LAID
  // Otherwise half of the stack's loads and stores would cross two cache lines of 64 bytes: well_laid raised 101 to 131 GFLOP/s. With 8 lanes and
  // nothing HELD, the stack is aligned anyway.
  let end = well_laid(min(m0 + $(MT)u, p.rows), lane);
#else
  let end = min(m0 + $(MT)u, p.rows);
#endif
#if PANELS
  let height = p.dy_height;
#endif
#let LOADS = TURN*((MT+LANES-1)/LANES)
#include "held_cpu.wgsl"
#if HELD
#for i in 0..(MT+LANES-1)/LANES
#for z in 0..TURN
  held[$(TURN*i+z)] = textureLoad(dy, vec2u($(z)u, y$(i)));
#end
#end
#endif
  for (var n = 0u; n < p.n; n += $(4*TURN)u) {
#if HELD
    let asked = min(n + $(4*TURN)u, p.n - $(4*TURN)u);
#else
    let asked = n;
#endif
#if PANELS
    let at = vec2u(asked / 4u % 16u, asked / 64u * height);
#else
    let at = vec2u(asked / 4u, 0u);
#endif
#if !HELD
#for i in 0..(MT+LANES-1)/LANES
#if DY_TEX
#for z in 0..TURN
    let g$(i)_$(z) = textureLoad(dy, vec2u(at.x + $(z)u, at.y + y$(i)));
#end
#else
#if BY4
    let g$(i)_0 = dy[dy_at$(i) + n / 4u];
#else
    var g$(i)_0 = vec4f();
#for q in 0..4
    if (n + $(q)u < p.n) { g$(i)_0[$(q)] = dy[dy_at$(i) + n + $(q)u]; }
#end
#endif
#endif
#end
#endif
#for q in 0..4*TURN
#if BY4
    let w$(q) = w_load8(w_origin(p.w_row + n + $(q)u), c);
#else
    let w$(q) = w_load8(w_origin(p.w_row + min(n + $(q)u, p.n - 1u)), c);
#endif
#if HALF
    let w$(q)_0 = select(w$(q).lo, w$(q).hi, lane % 2u == 1u);
#else
    let w$(q)_0 = w$(q).lo;
    let w$(q)_1 = w$(q).hi;
#endif
#end
#let FOURS = TURN
#include "nn_cpu_step.wgsl"
#if HELD
#for i in 0..(MT+LANES-1)/LANES
#for z in 0..TURN
    held[$(TURN*i+z)] = textureLoad(dy, vec2u(at.x + $(z)u, at.y + y$(i)));
#end
#end
#endif
  }
#if LORA
  for (var n = 0u; n < p.rank; n += 4u) {
#for i in 0..(MT+LANES-1)/LANES
    let g$(i)_0 = dxa[row$(i) * (p.rank / 4u) + n / 4u];
#end
#for q in 0..4
#for v in 0..COLS/4
    let w$(q)_$(v) = lora_a[(n + $(q)u) * (p.k / 4u) + at_k + $(v)u];
#end
#end
#let FOURS = 1
// As in nt_cpu.wgsl.
#if HELD
#let HELD = 0
#let GUARDED = 0
#let APART = 1
#endif
#include "nn_cpu_step.wgsl"
  }
#endif
  // Four rows per iteration, see nt_cpu.wgsl.
  for (var r0 = m0; r0 < end; r0 += 4u) {
#for q in 0..4
#for v in 0..COLS/4
    var out_$(q)_$(v) = acc_$(q)_$(v);
#for i in 1..MT/4
    out_$(q)_$(v) = select(out_$(q)_$(v), acc_$(4*i+q)_$(v), r0 == m0 + $(4*i)u);
#end
#end
    if (r0 + $(q)u < p.rows && column < p.k / 8u) {
      let at = (r0 + $(q)u) * (p.k / 4u) + at_k;
#for v in 0..COLS/4
#if ACCUMULATE
      dx[at + $(v)u] += out_$(q)_$(v) * p.alpha;
#else
      dx[at + $(v)u] = out_$(q)_$(v) * p.alpha;
#endif
#end
    }
#end
  }
}
