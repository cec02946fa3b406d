// Prefetches both right operands of the KT columns from `next` on into one_s and two_s, LOADS vectors of eight values per thread. Past the last
// column, the last one is read; what is read past the tile's KT * D / 8 vectors is not stored.
#for s in 0..LOADS
      {
        let place = right_place(at, min(next + (id + $(s*THREADS)u) / $(D/8)u, end - 1u), head) + (id + $(s*THREADS)u) % $(D/8)u;
        one_$(s) = right_1[place];
        two_$(s) = right_2[place];
      }
#end
