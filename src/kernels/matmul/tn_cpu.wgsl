// Gradient of a weight, for CPU drivers with subgroups of 8: dW[n,k] (+)= alpha * sum_m dy[m,n] x[m,k]
// dy (rows, N), x (rows, K), dW (N, K), all float32; N and K multiples of 4. ACCUMULATE adds to what dW holds (micro-batches).
// A workgroup is one subgroup; it owns 16 rows of dW x 32 columns, lane l the columns k0 + 4l .. +3. Outer products, row m by row m:
// order of the sum: m = 0 .. rows-1.
// dy's rows are dy_stride apart and start at dy_column; dW's first row is dw_row.
struct Params { rows: u32, n: u32, k: u32, dy_stride: u32, dy_column: u32, dw_row: u32, alpha: f32 }
@group(0) @binding(0) var<storage, read> dy: array<vec4f>;
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> dw: array<vec4f>;

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let n0 = group.y * 16u;
  let column = group.x * 8u + lane;
  let c = min(column, p.k / 4u - 1u);
  let n_at = min(n0 / 4u + lane % 4u, p.n / 4u - 1u) + p.dy_column / 4u;
#for r in 0..16
  var acc_$(r) = vec4f();
#end
  for (var m = 0u; m < p.rows; m++) {
    let xv = x[m * (p.k / 4u) + c];
    let g = dy[m * (p.dy_stride / 4u) + n_at];
#for r in 0..16
    acc_$(r) = fma(vec4f(subgroupBroadcast(g[$(r%4)], $(r/4)u)), xv, acc_$(r));
#end
  }
  if (column < p.k / 4u) {
#for r in 0..16
    if (n0 + $(r)u < p.n) {
      let at = (p.dw_row + n0 + $(r)u) * (p.k / 4u) + c;
#if ACCUMULATE
      dw[at] += acc_$(r) * p.alpha;
#else
      dw[at] = acc_$(r) * p.alpha;
#endif
    }
#end
  }
}
