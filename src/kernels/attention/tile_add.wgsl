// The second product: weights times vectors of the keys (forward P v; backward dS k, P dO, dS q). For u = 0 .. SUMS - 1, one after the other:
// sum_u_r_c += weight of key j for the thread's row r, times vector kx + KX c of key j, over the tile's keys in order.
// The weights of sum 0 lie in `room` as (key, RT / 4 + 1) vec4f of four rows each, 0 where a row does not see a key; those of the next sum are in
// next_i and then take their place. The keys' vectors added_u(j) pass through `room` from B on, VK keys at a time, each part prefetched during the
// arithmetic of the one before it; the first is in value_s (tile_scores.wgsl). The barrier after the first store also makes the weights visible. Ends
// with a barrier, with all of `room` free.
    let many = min($(KT)u, keys - j0);
#for u in 0..SUMS
#let MORE = SUMS - 1 - u
#if u
#for i in 0..KT/KX
    room[(kx + $(KX*i)u) * $(RT/4+1)u + rows4] = next_$(i);
#end
#endif
    for (var v0 = 0u; v0 < many; v0 += $(VK)u) {
#for s in 0..VALUES
#if VALUES_REST
      if (id + $(s*THREADS)u < $(VK*DE)u) {
#else
      {
#endif
        room[$(B)u + id + $(s*THREADS)u] = value_$(s);
      }
#end
      workgroupBarrier();
      if (v0 + $(VK)u < many) {
#for s in 0..VALUES
        value_$(s) = added_$(u)(at, min(j0 + v0 + $(VK)u + (id + $(s*THREADS)u) / DE, keys - 1u), head, (id + $(s*THREADS)u) % DE);
#end
      }
#if MORE
      else {
#for s in 0..VALUES
        value_$(s) = added_$(u+1)(at, min(j0 + (id + $(s*THREADS)u) / DE, keys - 1u), head, (id + $(s*THREADS)u) % DE);
#end
      }
#endif
      for (var i = 0u; i < min($(VK)u, many - v0); i += $(UNROLL)u) {
#for n in 0..UNROLL
        {
          let weight = room[(v0 + i + $(n)u) * $(RT/4+1)u + rows4];
#for c in 0..VC
          {
            let vector = room[$(B)u + (i + $(n)u) * DE + min(kx + $(KX*c)u, $(DE-1)u)];
#for r in 0..4
            sum_$(u)_$(r)_$(c) = fma(vec4f(weight[$(r)]), vector, sum_$(u)_$(r)_$(c));
#end
          }
#end
        }
#end
      }
      workgroupBarrier();
    }
#end
