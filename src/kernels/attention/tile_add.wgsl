// sum_u_r_c += weight of key j for the thread's row r, times vector kx + KX c of that key, over the tile's keys in order, for u = 0 .. SUMS - 1. The weights of sum u are
// in `room` from vector u WS on, (key, RT / 4 + 1) of them, four rows each, 0 where a row does not see a key; the keys' vectors pass through it VK at a time: added_u(j) of key j.
// Begins with a barrier behind the first load, so what was written to `room` before this is there; ends with one, so all of `room` is free.
    for (var v0 = 0u; v0 < min($(KT)u, keys - j0); v0 += $(VK)u) {
#for u in 0..SUMS
      for (var s = id; s < $(VK*DE)u; s += $(THREADS)u) {
        room[$(B)u + s] = added_$(u)(at, min(j0 + v0 + s / DE, keys - 1u), head, s % DE);
      }
      workgroupBarrier();
      for (var i = 0u; i < min($(VK)u, keys - j0 - v0); i += $(UNROLL)u) {
#for n in 0..UNROLL
        {
          let weight = room[$(u*WS)u + (v0 + i + $(n)u) * $(RT/4+1)u + rows4];
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
#end
    }
