// The first of LoRA's two products for GROUP projections of one input, for CPU drivers with subgroups of LANES (8 or 16): xa_g[m,r] = scale_g * sum_k
// x[m,k] A_g[r,k].
// x (rows, K), A_g (rank, K) from value a_g of the bank on, xa_g (rows, rank). K and rank are multiples of 8.
// A dispatch costs such a driver more than this product, so one dispatch does it for all projections that share x. A workgroup is one subgroup and
// owns MT rows and 8 of the rank, lane l rank r0 + l, in all groups; lanes share what they load of x. Order of the sum: as in matmul/nt_cpu.wgsl, so
// its bits.
// STACKED: A_g holds the adapters of several places one below the other (stack.wgsl says which rank is whose). Row m gets the product with the
// adapter of places[m] alone, times its scale; its other values are 0. A workgroup does no product if none of its rows has the place of its 8.
// NORM: x is normalised first, with the bits of norm/rms_norm.wgsl (gain (K)), and `normed` (rows, K) receives it for the projections. That saves a
// dispatch, which costs more than the norm of few rows.
struct Params { rows: u32, k: u32, rank: u32, a_0: u32, a_1: u32, a_2: u32, scale_0: f32, scale_1: f32, scale_2: f32, own: u32, width: u32, scales_0: u32, scales_1: u32, scales_2: u32, eps: f32 }
@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> bank: array<vec4f>;
#for g in 0..GROUP
@group(0) @binding($(g+2)) var<storage, read_write> xa_$(g): array<f32>;
#end
#if STACKED
@group(0) @binding(5) var<storage, read> places: array<u32>;
@group(0) @binding(6) var<storage, read> scales: array<f32>;
#include "stack.wgsl"
#endif

#if NORM
@group(0) @binding(7) var<storage, read> x_values: array<f32>;
@group(0) @binding(8) var<storage, read> gain: array<vec4f>;
@group(0) @binding(9) var<storage, read_write> normed: array<vec4f>;
#include "lanes.wgsl"
#endif

@compute @workgroup_size($(LANES))
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let m0 = group.x * $(MT)u;
  let r = group.y * 8u + lane % 8u;
  // WIDE: of 16 lanes, the lower 8 take 4 of 8 rows and the upper 8 the next 4, all for the same 8 of the rank.
  let half = lane / 8u;
  let upper = half == 1u;
#if STACKED
  let place = place_of(group.y * 8u);
  var here = false;
#for i in 0..(MT+LANES-1)/LANES
  here |= places[min(m0 + min($(i*LANES)u + lane, $(MT-1)u), p.rows - 1u)] == place;
#end
  let all = select(0u, p.k / 4u, subgroupAny(here));
#else
  let all = p.k / 4u;
#endif
#if WIDE
  // The driver loads only for the lanes that take part in the loop; the upper ones may have no row.
  let turns = select(0u, all, m0 + 4u * half < p.rows);
#else
  let turns = all;
#endif
#for i in 0..2*MT/LANES
  let x_at$(i) = min(m0 + $(i*LANES/2)u + lane / 2u, p.rows - 1u) * (p.k / 4u) + lane % 2u;
#end
#for g in 0..GROUP
  let a_at$(g) = p.a_$(g) / 4u + r * (p.k / 4u);
#for m in 0..8*MT/LANES
  var acc_$(m)_$(g) = 0.0;
#end
#end
#if NORM
#for i in 0..2*MT/LANES
  var rstd$(i) = 0.0;
#end
  let count = min($(MT)u, max(p.rows, m0) - m0);
  for (var m = 0u; m < count; m++) {
    let at = (m0 + m) * p.k;
    var sum = 0.0;
    for (var c = lane; c < p.k; c += LANES) { let v = x_values[at + c]; sum = fma(v, v, sum); }
    let one = 1.0 / sqrt(lanes_sum(lane, sum) / f32(p.k) + p.eps);
#for i in 0..2*MT/LANES
    rstd$(i) = select(rstd$(i), one, m == $(i*LANES/2)u + lane / 2u);
#end
  }
#endif
  for (var c = 0u; c < turns; c += 2u) {
#if NORM
    let gain_of = gain[lane % 2u + c];
#endif
#for i in 0..2*MT/LANES
#if NORM
    let x$(i) = x[x_at$(i) + c] * rstd$(i) * gain_of;
    if (group.y == 0u && m0 + $(i*LANES/2)u + lane / 2u < p.rows) { normed[x_at$(i) + c] = x$(i); }
#else
    let x$(i) = x[x_at$(i) + c];
#endif
#end
#for g in 0..GROUP
    let lo$(g) = bank[a_at$(g) + c];
    let hi$(g) = bank[a_at$(g) + c + 1u];
#end
#for m in 0..8*MT/LANES
    {
#for g in 0..GROUP
      var t$(g) = 0.0;
#end
#for q in 0..4
#if WIDE
      let xl$(q) = select(subgroupBroadcast(x$(m/4)[$(q)], $((m%4)*2)u), subgroupBroadcast(x$(m/4)[$(q)], $((m%4)*2+8)u), upper);
#else
      let xl$(q) = subgroupBroadcast(x$(m/4)[$(q)], $((m%4)*2)u);
#endif
#for g in 0..GROUP
      t$(g) = fma(xl$(q), lo$(g)[$(q)], t$(g));
#end
#end
#for q in 0..4
#if WIDE
      let xh$(q) = select(subgroupBroadcast(x$(m/4)[$(q)], $((m%4)*2+1)u), subgroupBroadcast(x$(m/4)[$(q)], $((m%4)*2+1+8)u), upper);
#else
      let xh$(q) = subgroupBroadcast(x$(m/4)[$(q)], $((m%4)*2+1)u);
#endif
#for g in 0..GROUP
      t$(g) = fma(xh$(q), hi$(g)[$(q)], t$(g));
#end
#end
#for g in 0..GROUP
      acc_$(m)_$(g) += t$(g);
#end
    }
#end
  }
  // One row per iteration: unrolled, loads and stores were up to nine tenths of what the driver compiles. m begins at a 0 that its compiler cannot
  // know, or it would unroll anyway (row-block/rows.wgsl).
  for (var m = p.rows >> 31u; m < $(8*MT/LANES)u; m++) {
    let row = m0 + (m - m % 4u) * $(LANES/8)u + m % 4u + 4u * half;
    if (row >= p.rows) { break; }
#for g in 0..GROUP
    var out_$(g) = acc_0_$(g);
#for i in 1..8*MT/LANES
    out_$(g) = select(out_$(g), acc_$(i)_$(g), m == $(i)u);
#end
#end
#if STACKED
    let has = places[row] == place;
#endif
#for g in 0..GROUP
#if STACKED
    xa_$(g)[row * p.rank + r] = select(0.0, out_$(g) * scales[p.scales_$(g) + place], has);
#else
    xa_$(g)[row * p.rank + r] = out_$(g) * p.scale_$(g);
#endif
#end
  }
}
