// Gradient of the input for a thin matrix, on CPU drivers with subgroups of LANES (8 or 16): dx[m,k] = alpha * sum_n dy[m,n] W[n,k] with few columns
// K (LoRA's rank), for which nn_cpu.wgsl would leave all but K / 8 lanes idle.
// dy (rows, N) with N a multiple of 4, W (N, K) float32 in a buffer, dx (rows, K), K a multiple of 8.
// A workgroup is one subgroup and owns MT rows x 8 columns; lane l owns column c0 + l. An iteration takes 4 * TURN n, which divides N.
// Order of the sum: as in nn_cpu.wgsl.
// DY_TEX: dy is staged in a texture (stage.ts).
struct Params { rows: u32, n: u32, k: u32, alpha: f32 }
#if DY_TEX
@group(0) @binding(0) var dy: texture_storage_2d<rgba32float, read>;
#else
@group(0) @binding(0) var<storage, read> dy: array<vec4f>;
#endif
@group(0) @binding(1) var<storage, read_write> dx: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<f32>;

@compute @workgroup_size($(LANES))
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let m0 = group.y * $(MT)u;
  let column = group.x * 8u + lane % 8u;
  // With 16 lanes (WIDE), the first 8 take 8 rows and the others the next 8. The driver's compiler turns two broadcasts and a select into one
  // permutation, but a shuffle into a loop.
  let half = lane / 8u * 8u;
  let upper = lane >= 8u;
#for i in 0..MT/LANES
  let row$(i) = min(m0 + $(i*LANES)u + lane, p.rows - 1u);
#end
#for r in 0..8*MT/LANES
  var acc_$(r) = 0.0;
#end
  for (var n = 0u; n < p.n; n += $(4*TURN)u) {
#for z in 0..TURN
#for i in 0..MT/LANES
#if DY_TEX
    let g$(i)_$(z) = textureLoad(dy, vec2u(n / 4u + $(z)u, row$(i)));
#else
    let g$(i)_$(z) = dy[row$(i) * (p.n / 4u) + n / 4u + $(z)u];
#endif
#end
#for q in 0..4
    let w$(4*z+q) = w[(n + $(4*z+q)u) * p.k + column];
#end
#end
#for r in 0..8*MT/LANES
    {
      var sum = acc_$(r);
#for z in 0..TURN
      var t$(z) = 0.0;
#for q in 0..4
#if WIDE
      t$(z) = fma(select(subgroupBroadcast(g$(r/8)_$(z)[$(q)], $(r%8)u), subgroupBroadcast(g$(r/8)_$(z)[$(q)], $(r%8+8)u), upper), w$(4*z+q), t$(z));
#else
      t$(z) = fma(subgroupBroadcast(g$(r/8)_$(z)[$(q)], $(r%8)u), w$(4*z+q), t$(z));
#endif
#end
      sum += t$(z);
#end
      acc_$(r) = sum;
    }
#end
  }
  // Four rows per iteration, see nt_cpu.wgsl.
  let end = min($(8*MT/LANES)u, p.rows - m0);
  for (var r = 0u; r < end; r += 4u) {
    let r0 = m0 + r / 8u * LANES + half + r % 8u;
#for q in 0..4
    var out_$(q) = acc_$(q);
#for i in 1..2*MT/LANES
    out_$(q) = select(out_$(q), acc_$(4*i+q), r == $(4*i)u);
#end
    if (r0 + $(q)u < p.rows) { dx[(r0 + $(q)u) * p.k + column] = out_$(q) * p.alpha; }
#end
  }
}
