// The gradient of LoRA's first product on GPUs: dxa[m,r] = alpha * sum_n dy[m,n] B[n,r]; dy (rows, n), B (n, rank), dxa (rows, rank). rank is a
// multiple of 8.
// Like down.wgsl, but a thread takes one value of dy at a time: rows of B are short, so neighbouring threads read neighbouring rows of it, which are
// contiguous.
// Order of the sum: thread l sums steps l, l + THREADS, .. one after the other, then the threads are summed in a tree. It depends on n alone.
struct Params { rows: u32, n: u32, rank: u32, alpha: f32 }
@group(0) @binding(0) var<storage, read> dy: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> dxa: array<f32>;
fn finish(at: vec3u, e: u32, value: f32) {
  let i = at.y + e / COLUMNS;
  if (i < p.rows) { dxa[i * p.rank + at.z + e % COLUMNS] = value * p.alpha; }
}
#include "thin_memory.wgsl"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
  let at = vec3u(0u, group.y * ROWS, group.x * COLUMNS);
#for r in 0..ROWS
  let y_at$(r) = min(at.y + $(r)u, p.rows - 1u) * p.n;
#for q in 0..COLUMNS/4
  var acc$(r)_$(q) = vec4f();
#end
#end
  for (var t0 = id; t0 < p.n; t0 += $(AHEAD*THREADS)u) {
#for u in 0..AHEAD
    let t$(u) = t0 + $(u*THREADS)u;
#for r in 0..ROWS
    var y$(u)_$(r) = 0.0;
#end
#if !EXACT
    if (t$(u) < p.n) {
#endif
#for r in 0..ROWS
    y$(u)_$(r) = dy[y_at$(r) + t$(u)];
#end
#if !EXACT
    }
#endif
#end
#for u in 0..AHEAD
#if !EXACT
    if (t$(u) < p.n) {
#else
    {
#endif
#for q in 0..COLUMNS/4
      let b$(q) = b[(t$(u) * p.rank + at.z) / 4u + $(q)u];
#for r in 0..ROWS
      acc$(r)_$(q) = fma(vec4f(y$(u)_$(r)), b$(q), acc$(r)_$(q));
#end
#end
    }
#end
  }
#for r in 0..ROWS
#for c in 0..COLUMNS
  let v0_$(r*COLUMNS+c) = acc$(r)_$(c/4)[$(c%4)];
#end
#end
#include "thin_sum.wgsl"
}
