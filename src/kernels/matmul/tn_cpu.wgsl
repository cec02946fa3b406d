// Gradient of a weight, for CPU drivers with subgroups of LANES (8 or 16): dW[n,k] (+)= alpha * sum_m dy[m,n] x[m,k]
// dy (rows, N), x (rows, K), dW (N, K), all float32; N and K multiples of 4. ACCUMULATE adds to what dW holds (micro-batches).
// A workgroup is one subgroup and owns RT values of one operand (a) times 4 * LANES of the other (b); lane l has values j0 + 4l .. +3 of b. a is dy
// and b is x; with TRANSPOSED a is x and b is dy, for a K too small to fill the lanes (LoRA's rank). It sums outer products, row m by row m.
// An iteration takes 4 rows, so that lanes share what they load of a (one load has up to 4 rows of it) and each accumulator is written, which is a
// blend, only once for 4 rows.
// Order of the sum: the rows of an iteration separately, then added to the total (see nt_cpu.wgsl); those left over one by one.
// B_TEX: columns b_column .. + b_count of b are staged in a texture (stage.ts), whose first row is row 0.
// Rows of a are a_stride apart and start at a_column, likewise b; out_row is the first row of dW.
struct Params { rows: u32, a_count: u32, b_count: u32, a_stride: u32, a_column: u32, b_stride: u32, b_column: u32, out_row: u32, alpha: f32 }
@group(0) @binding(0) var<storage, read> a: array<vec4f>;
#if B_TEX
@group(0) @binding(1) var b: texture_storage_2d<rgba32float, read>;
fn b_load(m: u32, c: u32) -> vec4f { return textureLoad(b, vec2u(c, m)); }
#else
@group(0) @binding(1) var<storage, read> b: array<vec4f>;
fn b_load(m: u32, c: u32) -> vec4f { return b[m * (p.b_stride / 4u) + p.b_column / 4u + c]; }
#endif
#if TRANSPOSED
@group(0) @binding(2) var<storage, read_write> dw: array<f32>;
#else
@group(0) @binding(2) var<storage, read_write> dw: array<vec4f>;
#endif

@compute @workgroup_size($(LANES))
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let i0 = group.y * $(RT)u;
  let column = group.x * $(LANES)u + lane;
  let c = min(column, p.b_count / 4u - 1u);
  let a_at = min(i0 / 4u + lane % $(RT/4)u, p.a_count / 4u - 1u) + p.a_column / 4u;
#for r in 0..RT
  var acc_$(r) = vec4f();
#end
  let whole = p.rows - p.rows % 4u;
  for (var m = 0u; m < whole; m += 4u) {
#for i in 0..(RT+LANES-1)/LANES
    let a$(i) = a[(m + min($(i*4*LANES/RT)u + lane / $(RT/4)u, 3u)) * (p.a_stride / 4u) + a_at];
#end
#for z in 0..4
    let b$(z) = b_load(m + $(z)u, c);
#end
#for r in 0..RT
    {
      var t = vec4f();
#for z in 0..4
      t = fma(vec4f(subgroupBroadcast(a$((z*RT/4+r/4)/LANES)[$(r%4)], $((z*RT/4+r/4)%LANES)u)), b$(z), t);
#end
      acc_$(r) += t;
    }
#end
  }
  for (var m = whole; m < p.rows; m++) {
    let av = a[m * (p.a_stride / 4u) + a_at];
    let bv = b_load(m, c);
#for r in 0..RT
    acc_$(r) = fma(vec4f(subgroupBroadcast(av[$(r%4)], $(r/4)u)), bv, acc_$(r));
#end
  }
  // One row of a per iteration: unrolled for all rows, loads and stores would be most of what the driver compiles (see attention/across.wgsl).
  let end = min(i0 + $(RT)u, p.a_count);
  for (var i = i0; i < end; i++) {
    var out = acc_0;
#for r in 1..RT
    out = select(out, acc_$(r), i == i0 + $(r)u);
#end
    out *= p.alpha;
    if (column < p.b_count / 4u) {
#if TRANSPOSED
#for q in 0..4
      let at$(q) = (p.out_row + 4u * c + $(q)u) * p.a_count + i;
#if ACCUMULATE
      dw[at$(q)] += out[$(q)];
#else
      dw[at$(q)] = out[$(q)];
#endif
#end
#else
      let at = (p.out_row + i) * (p.b_count / 4u) + c;
#if ACCUMULATE
      dw[at] += out;
#else
      dw[at] = out;
#endif
#endif
    }
  }
}
