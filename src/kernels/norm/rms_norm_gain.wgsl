// Gradient of RMSNorm's gain, added to what is there: dgain[c] += sum over t of dy[t,c] x[t,c] rstd[t].
// One invocation per channel (VEC4: per four) and part of PART rows. A part's sum has the order t = 0, 1, .., TURN rows per iteration, which are
// summed separately first. A workgroup has WIDTH channels: few, if all threads of a CPU driver should get some.
// PARTIAL: out[part, c] is the part's sum, and column_sum.wgsl adds these up. Otherwise there is one part, and it is added to out[c].
struct Params { rows: u32, channels: u32 }
#if VEC4
alias E = vec4f;
#else
alias E = f32;
#endif
@group(0) @binding(0) var<storage, read> dy: array<E>;
@group(0) @binding(1) var<storage, read> x: array<E>;
@group(0) @binding(2) var<storage, read> rstd: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<E>;

@compute @workgroup_size(WIDTH)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let c = group.y * WIDTH + lane;
  let part = group.x + group.z * 65535u;
  let first = part * PART;
  let channels = p.channels / $(1+3*VEC4)u;
  if (c >= channels || first >= p.rows) { return; }
  let end = min(first + PART, p.rows);
  var sum = E();
  let whole = end - (end - first) % $(TURN)u;
  for (var t = first; t < whole; t += $(TURN)u) {
    let at = t * channels + c;
    // Summed separately first: a value added to a long sum is rounded to the precision of that sum.
    var next = E();
#for z in 0..TURN
    next = fma(dy[at + $(z)u * channels], x[at + $(z)u * channels] * rstd[t + $(z)u], next);
#end
    sum += next;
  }
  for (var t = whole; t < end; t++) { sum = fma(dy[t * channels + c], x[t * channels + c] * rstd[t], sum); }
#if PARTIAL
  out[part * channels + c] = sum;
#else
  out[c] += sum;
#endif
}
