// A register-only multiply-add loop: y[i] = sum over chains of t, where each chain starts at i % 64 + its number and is updated by t = a t + b,
// rounds * UNROLL times. CHAINS values per lane, so that no multiply-add waits for the one before it; WIDTH lanes per workgroup.
struct Params { rounds: u32, a: f32, b: f32 }
@group(0) @binding(0) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WIDTH)
fn main(@builtin(global_invocation_id) id: vec3u) {
#for i in 0..CHAINS
  var t$(i) = f32(id.x % 64u) + $(i).0;
#end
  for (var r = 0u; r < p.rounds; r++) {
    // One assignment per iteration: a CPU driver blends at each (see nt_cpu.wgsl).
#for i in 0..CHAINS
    var s$(i) = t$(i);
#end
#for u in 0..UNROLL
#for i in 0..CHAINS
    s$(i) = fma(s$(i), p.a, p.b);
#end
#end
#for i in 0..CHAINS
    t$(i) = s$(i);
#end
  }
  var sum = 0.0;
#for i in 0..CHAINS
  sum += t$(i);
#end
  y[id.x] = sum;
}
