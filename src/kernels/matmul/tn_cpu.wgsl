// Gradient of a weight, for CPU drivers with subgroups of 8: dW[n,k] (+)= alpha * sum_m dy[m,n] x[m,k]
// dy (rows, N), x (rows, K), dW (N, K), all float32; N and K multiples of 4. ACCUMULATE adds to what dW holds (micro-batches).
// A workgroup is one subgroup and owns RT values of one operand (a) times 32 of the other (b), lane l the values j0 + 4l .. +3 of b:
// a is dy and b is x; TRANSPOSED: a is x and b is dy, for a K too small to fill the lanes (LoRA's rank). Outer products, row m by row m:
// order of the sum: m = 0 .. rows-1.
// A row of a is a_stride apart and starts at a_column, likewise b; dW's first row is out_row.
struct Params { rows: u32, a_count: u32, b_count: u32, a_stride: u32, a_column: u32, b_stride: u32, b_column: u32, out_row: u32, alpha: f32 }
@group(0) @binding(0) var<storage, read> a: array<vec4f>;
@group(0) @binding(1) var<storage, read> b: array<vec4f>;
#if TRANSPOSED
@group(0) @binding(2) var<storage, read_write> dw: array<f32>;
#else
@group(0) @binding(2) var<storage, read_write> dw: array<vec4f>;
#endif

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let i0 = group.y * $(RT)u;
  let column = group.x * 8u + lane;
  let c = min(column, p.b_count / 4u - 1u);
  let a_at = min(i0 / 4u + lane % $(RT/4)u, p.a_count / 4u - 1u) + p.a_column / 4u;
  let b_at = c + p.b_column / 4u;
#for r in 0..RT
  var acc_$(r) = vec4f();
#end
  for (var m = 0u; m < p.rows; m++) {
    let bv = b[m * (p.b_stride / 4u) + b_at];
    let av = a[m * (p.a_stride / 4u) + a_at];
#for r in 0..RT
    acc_$(r) = fma(vec4f(subgroupBroadcast(av[$(r%4)], $(r/4)u)), bv, acc_$(r));
#end
  }
  if (column < p.b_count / 4u) {
#for r in 0..RT
    if (i0 + $(r)u < p.a_count) {
#if TRANSPOSED
#for q in 0..4
      let at$(q) = (p.out_row + 4u * c + $(q)u) * p.a_count + i0 + $(r)u;
#if ACCUMULATE
      dw[at$(q)] += acc_$(r)[$(q)] * p.alpha;
#else
      dw[at$(q)] = acc_$(r)[$(q)] * p.alpha;
#endif
#end
#else
      let at = (p.out_row + i0 + $(r)u) * (p.b_count / 4u) + c;
#if ACCUMULATE
      dw[at] += acc_$(r) * p.alpha;
#else
      dw[at] = acc_$(r) * p.alpha;
#endif
#endif
    }
#end
  }
}
