// The first product, rows times keys (q k; in the backward pass also dO v): score_i belongs to key kx + KX i and has a component for each of the
// thread's four rows, summed over a head's elements in the order of forward.wgsl's loop.
// K-blocks of DEPTH vectors of both operands pass through `room`, with rows DEPTH + 1 apart so that neighbouring threads have no bank conflicts, and
// zeros past the head's end. Each is prefetched during the arithmetic of the one before it, and the first vectors of tile_add.wgsl (value_s) during
// that of the last.
// The including file defines left_s, where the thread's LEFTS vectors of the left operand begin (tile_lanes.wgsl), right_place(j) of key j, and
// left(place, second), right(place, second). SCORES_TWO: two products one after the other; `second` says which; the first's scores end up in first_i,
// the second's in score_i.
// Ends with a barrier, with `room` free. Loop bounds are params, unknown to the driver, so that only the preprocessor unrolls.
#for i in 0..KT/KX
    var score_$(i) = vec4f();
#if SCORES_TWO
    var first_$(i) = vec4f();
#endif
#end
#for s in 0..RIGHTS
    let right_$(s) = right_place(at, min(j0 + id / $(DEPTH)u + $(s*THREADS/DEPTH)u, keys - 1u), head) + id % $(DEPTH)u;
#end
#for s in 0..VALUES
    var value_$(s) = vec4f();
#end
    for (var n = 0u; ; n++) {
#for s in 0..LEFTS
      var a_$(s) = vec4f();
#end
#for s in 0..RIGHTS
      var b_$(s) = vec4f();
#end
      if (n < p.pieces) {
        let second = n / $(PIECES)u;
        let c = n % $(PIECES)u * $(DEPTH)u;
#if RAGGED
        if (c + id % $(DEPTH)u < DE) {
#else
        {
#endif
#for s in 0..LEFTS
          a_$(s) = left(left_$(s) + c, second);
#end
#for s in 0..RIGHTS
          b_$(s) = right(right_$(s) + c, second);
#end
        }
      } else {
#for s in 0..VALUES
        value_$(s) = added_0(at, min(j0 + (id + $(s*THREADS)u) / DE, keys - 1u), head, (id + $(s*THREADS)u) % DE);
#end
      }
      if (n > 0u) {
#if SCORES_TWO
        if (n == $(PIECES+1)u) {
#for i in 0..KT/KX
          first_$(i) = score_$(i);
          score_$(i) = vec4f();
#end
        }
#endif
        for (var d = 0u; d < min(p.depth, DE - (n - 1u) % $(PIECES)u * $(DEPTH)u); d += $(STEPS)u) {
#for u in 0..STEPS
          {
#for r in 0..4
            let x_$(r) = room[(4u * rows4 + $(r)u) * $(DEPTH+1)u + d + $(u)u];
#end
#for i in 0..KT/KX
            let y_$(i) = room[$(B)u + (kx + $(KX*i)u) * $(DEPTH+1)u + d + $(u)u];
#for r in 0..4
            score_$(i)[$(r)] = dot_add(x_$(r), y_$(i), score_$(i)[$(r)]);
#end
#end
          }
#end
        }
        workgroupBarrier();
      }
      if (n == p.pieces) { break; }
#for s in 0..LEFTS
      room[(id / $(DEPTH)u + $(s*THREADS/DEPTH)u) * $(DEPTH+1)u + id % $(DEPTH)u] = a_$(s);
#end
#for s in 0..RIGHTS
#if RIGHT_REST
      if (id + $(s*THREADS)u < $(KT*DEPTH)u) {
#else
      {
#endif
        room[$(B)u + (id / $(DEPTH)u + $(s*THREADS/DEPTH)u) * $(DEPTH+1)u + id % $(DEPTH)u] = b_$(s);
      }
#end
      workgroupBarrier();
    }
