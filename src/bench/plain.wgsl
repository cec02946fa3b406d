// y[m,n] = sum_k x[m,k] W[n,k] with one output per invocation: the plain kernel for comparison. W is packed bf16, two values per u32.
struct Params { rows: u32, n: u32, k: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.x >= p.n || id.y >= p.rows) { return; }
  var sum = 0.0;
  for (var k = 0u; k < p.k; k += 2u) {
    let pair = w[(id.x * p.k + k) / 2u];
    sum = fma(x[id.y * p.k + k], bitcast<f32>(pair << 16u), sum);
    sum = fma(x[id.y * p.k + k + 1u], bitcast<f32>(pair & 0xffff0000u), sum);
  }
  y[id.y * p.n + id.x] = sum;
}
