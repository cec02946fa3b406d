// norm = (norm, clip, finite): the global norm sqrt(sum of partial[0 .. count)); the factor of the gradients, min(1, most / (norm + 1e-6)); and 1 if
// the norm is finite, else 0. One workgroup of 256 on every adapter. Lane j adds up values j, j + 256, .. in runs of 16, then sums that are 128, 64,
// .. 1 apart are added. `finite` is determined from the bits, as a compiler may assume that no value is a NaN.
struct Params { count: u32, most: f32 }
@group(0) @binding(0) var<storage, read> partial: array<f32>;
@group(0) @binding(1) var<storage, read_write> norm: array<f32>;
var<workgroup> scratch: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lane: u32) {
  var sum = 0.0;
  for (var run = lane; run < p.count; run += 4096u) {
    var part = 0.0;
    let end = min(run + 4096u, p.count);
    for (var i = run; i < end; i += 256u) { part += partial[i]; }
    sum += part;
  }
  scratch[lane] = sum;
  for (var width = 128u; width > 0u; width /= 2u) {
    workgroupBarrier();
    if (lane < width) { scratch[lane] += scratch[lane + width]; }
  }
  if (lane == 0u) {
    let squares = scratch[0];
    let root = sqrt(squares);
    norm[0] = select(squares, root, squares > 0.0);
    norm[1] = min(1.0, p.most / (root + 1e-6));
    norm[2] = select(1.0, 0.0, (bitcast<u32>(squares) & 0x7f800000u) == 0x7f800000u);
  }
}
