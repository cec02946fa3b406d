// Backward of a thin matrix to its input, for CPU drivers with subgroups of 8: dx[m,k] = alpha * sum_n dy[m,n] W[n,k] with few columns K (LoRA's rank).
// dy (rows, N) with N a multiple of 4, W (N, K) float32 in a buffer, dx (rows, K), K a multiple of 8. nn_cpu.wgsl would leave all lanes but K / 8 idle.
// A workgroup is one subgroup; it owns 16 rows x 8 columns, lane l column c0 + l. Order of the sum: n = 0 .. N-1.
struct Params { rows: u32, n: u32, k: u32, alpha: f32 }
@group(0) @binding(0) var<storage, read> dy: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> dx: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<f32>;

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let m0 = group.y * 16u;
  let column = group.x * 8u + lane;
#for i in 0..2
  let dy_at$(i) = min(m0 + $(8*i)u + lane, p.rows - 1u) * (p.n / 4u);
#end
#for r in 0..16
  var acc_$(r) = 0.0;
#end
  for (var n = 0u; n < p.n; n += 4u) {
#for i in 0..2
    let g$(i) = dy[dy_at$(i) + n / 4u];
#end
#for q in 0..4
    let w$(q) = w[(n + $(q)u) * p.k + column];
#end
#for r in 0..16
    {
      var t = acc_$(r);
#for q in 0..4
      t = fma(subgroupBroadcast(g$(r/8)[$(q)], $(r%8)u), w$(q), t);
#end
      acc_$(r) = t;
    }
#end
  }
#for r in 0..16
  if (m0 + $(r)u < p.rows) { dx[(m0 + $(r)u) * p.k + column] = acc_$(r) * p.alpha; }
#end
}
