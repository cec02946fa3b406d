// Asks for the columns from `next` on, LOADS vectors of eight values a thread of both operands; those behind the last, and vectors behind the tile's, are any that are there.
#for s in 0..LOADS
      {
        let place = right_place(at, min(next + (id + $(s*THREADS)u) / $(D/8)u, end - 1u), head) + (id + $(s*THREADS)u) % $(D/8)u;
        one_$(s) = right_1[place];
        two_$(s) = right_2[place];
      }
#end
