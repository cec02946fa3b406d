// The scores of a tile's rows and KT keys, score_i of key kx + KX i, a component for each of the thread's four rows: sums over a head's elements in order, as in forward.wgsl's loop.
// Both operands pass through `room`, 8 vectors of each row at a time, the rows 9 apart so that threads side by side meet in no memory bank; what a head has not is 0.
// Of a file that includes this: left(x, e) of the tile's row x, right(j, e) of key j; SCORES_TWO, of two products one after the other, `second` says which. The last
// scores are in score_i, the first of two in first_i. Ends with a barrier: `room` is free.
#for i in 0..KT/KX
    var score_$(i) = vec4f();
#end
#if SCORES_TWO
#for i in 0..KT/KX
    var first_$(i) = vec4f();
#end
    for (var second = 0u; second < p.products; second++) {
#else
    {
      let second = 0u;
#endif
      for (var c = 0u; c < p.elements; c += 8u) {
        for (var s = id; s < $(8*RT)u; s += $(THREADS)u) {
          var vector = vec4f();
          if (c + s % 8u < DE) { vector = left(at, row0, head0, s / 8u, c + s % 8u, second); }
          room[s / 8u * 9u + s % 8u] = vector;
        }
        for (var s = id; s < $(8*KT)u; s += $(THREADS)u) {
          var vector = vec4f();
          if (c + s % 8u < DE) { vector = right(at, min(j0 + s / 8u, keys - 1u), head, c + s % 8u, second); }
          room[$(B)u + s / 8u * 9u + s % 8u] = vector;
        }
        workgroupBarrier();
        for (var d = 0u; d < min(8u, p.elements - c); d += 2u) {
#for u in 0..2
          {
#for r in 0..4
            let left_$(r) = room[(4u * rows4 + $(r)u) * 9u + d + $(u)u];
#end
#for i in 0..KT/KX
            let right_$(i) = room[$(B)u + (kx + $(KX*i)u) * 9u + d + $(u)u];
#for r in 0..4
            score_$(i)[$(r)] = dot_add(left_$(r), right_$(i), score_$(i)[$(r)]);
#end
#end
          }
#end
        }
        workgroupBarrier();
      }
#if SCORES_TWO
      if (second == 0u) {
#for i in 0..KT/KX
        first_$(i) = score_$(i);
        score_$(i) = vec4f();
#end
      }
#endif
    }
