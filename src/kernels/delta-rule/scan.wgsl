// The gated delta rule (arXiv 2412.06464, equation 10) over each sequence, token by token. For each head, with a state S (KEY, VALUE):
//   S~ = exp(decay[t]) S;  u[t] = v[t] - k[t] S~;  S = S~ + k[t] (beta[t] u[t])^T;  o[t] = q[t] S.
// q, k (rows, key heads, KEY), v, o, u (rows, heads, VALUE), decay, beta (rows, heads); `ratio` heads share one key head.
// The columns of S are independent: an invocation has one and a workgroup WIDTH of them. The workgroup goes through the sequences that begin in its
// ROWS rows, with q and k of TOKENS tokens at a time in workgroup memory. The order of the sums is the same however a sequence is divided into
// passes. CACHE: sequences continue from states (slots, heads, KEY, VALUE), and are left there; KEEP: u is stored.
struct Params { rows: u32, heads: u32, ratio: u32 }
@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(3) var<storage, read> decay: array<f32>;
@group(0) @binding(4) var<storage, read> beta: array<f32>;
@group(0) @binding(5) var<storage, read_write> o: array<f32>;
#if CACHE
@group(0) @binding(6) var<storage, read> runs: array<vec4u>;
@group(0) @binding(7) var<storage, read_write> states: array<f32>;
#else
@group(0) @binding(6) var<storage, read> key_end: array<u32>;
#endif
#if KEEP
@group(0) @binding(8) var<storage, read_write> u: array<f32>;
#endif
#include "run.wgsl"
#include "near_keys.wgsl"

@compute @workgroup_size(WIDTH)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let head = group.y / $(BLOCKS)u;
  let c = group.y % $(BLOCKS)u * WIDTH + lane;
  let begin = (group.x + group.z * 65535u) * ROWS;
  for (var row = begin; row < min(begin + ROWS, p.rows); row++) {
    let count = count_of(row);
    if (count == 0u) { continue; }
#for i in 0..KEY/4
    var s$(i) = vec4f();
#end
#if CACHE
    let at = (runs[row].x * p.heads + head) * $(KEY*VALUE)u + c;
    if (runs[row].w == 1u && c < VALUE) {
#for i in 0..KEY/4
      s$(i) = vec4f(states[at + $(4*i*VALUE)u], states[at + $((4*i+1)*VALUE)u], states[at + $((4*i+2)*VALUE)u], states[at + $((4*i+3)*VALUE)u]);
#end
    }
#endif
    for (var first = row; first < row + count; first += TOKENS) {
      let some = min(TOKENS, row + count - first);
      bring_keys(first, some, head, lane);
      let own = select(0u, some, c < VALUE);
      for (var t = 0u; t < own; t++) {
        let of_head = (first + t) * p.heads + head;
#include "near_key.wgsl"
        let keeps = exp(decay[of_head]);
        var found = vec4f();
#for i in 0..KEY/4
        s$(i) *= keeps;
        found = fma(s$(i), k_near[near + $(i)u], found);
#end
        let misses = v[of_head * VALUE + c] - ((found.x + found.y) + (found.z + found.w));
        let moved = beta[of_head] * misses;
        var read = vec4f();
#for i in 0..KEY/4
        s$(i) = fma(k_near[near + $(i)u], vec4f(moved), s$(i));
        read = fma(s$(i), q_near[near + $(i)u], read);
#end
        o[of_head * VALUE + c] = (read.x + read.y) + (read.z + read.w);
#if KEEP
        u[of_head * VALUE + c] = misses;
#endif
      }
    }
#if CACHE
    if (c < VALUE) {
#for i in 0..KEY/4
      states[at + $(4*i*VALUE)u] = s$(i).x;
      states[at + $((4*i+1)*VALUE)u] = s$(i).y;
      states[at + $((4*i+2)*VALUE)u] = s$(i).z;
      states[at + $((4*i+3)*VALUE)u] = s$(i).w;
#end
    }
#endif
  }
}
