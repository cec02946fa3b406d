// Gradient of RMSNorm's gain, added to what is there: dgain[c] += sum over t of dy[t,c] x[t,c] rstd[t]. One invocation a channel; the
// order of the sum is t = 0, 1, .. TURN rows a turn; WIDTH channels a workgroup, few where a CPU driver's threads should all have some.
struct Params { rows: u32, channels: u32 }
@group(0) @binding(0) var<storage, read> dy: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> rstd: array<f32>;
@group(0) @binding(3) var<storage, read_write> dgain: array<f32>;

@compute @workgroup_size(WIDTH)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let c = group.x * WIDTH + lane;
  if (c >= p.channels) { return; }
  var sum = 0.0;
  let whole = p.rows - p.rows % $(TURN)u;
  for (var t = 0u; t < whole; t += $(TURN)u) {
    let at = t * p.channels + c;
    var next = sum;
#for z in 0..TURN
    next = fma(dy[at + $(z)u * p.channels], x[at + $(z)u * p.channels] * rstd[t + $(z)u], next);
#end
    sum = next;
  }
  for (var t = whole; t < p.rows; t++) { sum = fma(dy[t * p.channels + c], x[t * p.channels + c] * rstd[t], sum); }
  dgain[c] += sum;
}
