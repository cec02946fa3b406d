// dbeta[t] = dd[t] . u[t] for each token and head: dd (scan_back.wgsl), u (scan.wgsl) (rows, heads, VALUE), dbeta (rows, heads).
struct Params { count: u32 }
@group(0) @binding(0) var<storage, read> dd: array<vec4f>;
@group(0) @binding(1) var<storage, read> u: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> dbeta: array<f32>;
#include "flat.wgsl"

fn one(e: u32) {
  if (e >= p.count) { return; }
  var sum = vec4f();
  for (var c = e * $(VALUE/4)u; c < (e + 1u) * $(VALUE/4)u; c++) { sum = fma(dd[c], u[c], sum); }
  dbeta[e] = (sum.x + sum.y) + (sum.z + sum.w);
}
