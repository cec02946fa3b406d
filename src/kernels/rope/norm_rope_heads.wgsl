// Part of norm_rope_cache.wgsl: heads first .. last, for each row those of q, then of k, then of v, `of_row` in all.
// PLAIN: heads have no norms.
#if !PLAIN
#for j in 0..PER_LANE
  let of_q$(j) = gain_q[lane + $(j*LANES)u];
  let of_k$(j) = gain_k[lane + $(j*LANES)u];
#end
#endif
  for (var e = first; e < last; e++) {
    let row = e / of_row;
    let head = e % of_row;
    let place = slots[row];
    let is_q = head < p.heads;
    let kv_head = select(head - p.heads, head - p.heads - p.kv_heads, head >= p.heads + p.kv_heads);
    let source = (row * p.kv_heads + kv_head) * $(PER_LANE*LANES)u + lane;
    if (head >= p.heads + p.kv_heads) {
#if KV_FOLD
#for j in 0..PER_LANE
      let put$(j) = v[source + $(j*LANES)u];
#end
#let CACHE = 1
#include "norm_rope_texels.wgsl"
#else
      let to = (place.x * p.kv_heads + kv_head) * $(PER_LANE*LANES)u + lane;
#for j in 0..PER_LANE
      v_cache[to + $(j*LANES)u] = v[source + $(j*LANES)u];
#end
#endif
      continue;
    }
    let at = (row * p.heads + head) * $(PER_LANE*LANES)u + lane;
#for j in 0..PER_LANE
    var x$(j) = 0.0;
#end
    if (is_q) {
#for j in 0..PER_LANE
      x$(j) = q[at + $(j*LANES)u];
#end
    } else {
#for j in 0..PER_LANE
      x$(j) = k[source + $(j*LANES)u];
#end
    }
#if PLAIN
#for j in 0..PER_LANE
    let y$(j) = x$(j);
#end
#else
    let sum0 = 0.0;
#for j in 0..PER_LANE
    let sum$(j+1) = fma(x$(j), x$(j), sum$(j));
#end
    let r = 1.0 / sqrt(lanes_sum(lane, sum$(PER_LANE)) / f32($(PER_LANE*LANES)u) + select(p.eps_k, p.eps_q, is_q));
#for j in 0..PER_LANE
    let y$(j) = x$(j) * r * select(of_k$(j), of_q$(j), is_q);
#end
#endif
#for j in 0..PER_LANE/2
    let turn$(j) = table[place.y * $(PER_LANE*LANES/2)u + lane + $(j*LANES)u];
    let lower$(j) = fma(y$(j), turn$(j).x, -(y$(j+PER_LANE/2) * turn$(j).y));
    let upper$(j) = fma(y$(j+PER_LANE/2), turn$(j).x, y$(j) * turn$(j).y);
#end
    if (is_q) {
#for j in 0..PER_LANE/2
      q[at + $(j*LANES)u] = lower$(j);
      q[at + $((j+PER_LANE/2)*LANES)u] = upper$(j);
#end
    } else {
#if KV_FOLD
#for j in 0..PER_LANE/2
      let put$(j) = lower$(j);
      let put$(j+PER_LANE/2) = upper$(j);
#end
#let CACHE = 0
#include "norm_rope_texels.wgsl"
#else
      let to = (place.x * p.kv_heads + kv_head) * $(PER_LANE*LANES)u + lane;
#for j in 0..PER_LANE/2
      k_cache[to + $(j*LANES)u] = lower$(j);
      k_cache[to + $((j+PER_LANE/2)*LANES)u] = upper$(j);
#end
#endif
    }
  }
