// The turns of units_turns.wgsl with subgroups for the loads alone, LOADERS of them behind those that multiply: they convert and store what the next turn needs into one half of
// workgroup memory while the others multiply what lies in the other. So products wait neither for loads nor for stores, wherever a compiler puts those, and a turn has one
// barrier. A loader has the vectors of two turns on their way, sets 0 and 1: all of them, but where subgroups are narrow (A_MORE, B_MORE).
  let loader = id - $(WORKERS)u;
#for V in 0..2
#for s in 0..A_AHEAD
  var a$(V)_$(s) = vec4u();
#end
#for s in 0..B_AHEAD
  var b$(V)_$(s) = vec4u();
#end
#end
  if (!multiplies) {
#for V in 0..3
#for s in 0..A_AHEAD
    a$(V%2)_$(s) = a_vector(i0, begin + $(V*KT)u, loader + $(s*LOAD_THREADS)u);
#end
#for s in 0..B_AHEAD
    b$(V%2)_$(s) = b_vector(j0, begin + $(V*KT)u, loader + $(s*LOAD_THREADS)u);
#end
#let LATER = (V+1)/2
#if !LATER
#for s in 0..A_AHEAD
    a_store(0u, loader + $(s*LOAD_THREADS)u, a0_$(s));
#end
#for s in 0..B_AHEAD
    b_store(0u, loader + $(s*LOAD_THREADS)u, b0_$(s));
#end
#if A_MORE
    for (var e = loader + $(A_AHEAD*LOAD_THREADS)u; e < $(TM*KT/8)u; e += $(LOAD_THREADS)u) { a_store(0u, e, a_vector(i0, begin, e)); }
#endif
#if B_MORE
    for (var e = loader + $(B_AHEAD*LOAD_THREADS)u; e < $(TN*KT/8)u; e += $(LOAD_THREADS)u) { b_store(0u, e, b_vector(j0, begin, e)); }
#endif
#endif
#end
  }
  workgroupBarrier();
  for (var t0 = begin; t0 < end; t0 += $(2*KT)u) {
#for H in 0..2
    if (multiplies) {
      if (t0 + $(H*KT)u < end) {
#include "units_step.wgsl"
      }
    } else {
#for s in 0..A_AHEAD
      a_store($((1-H)*A_HALF)u, loader + $(s*LOAD_THREADS)u, a$(1-H)_$(s));
      a$(1-H)_$(s) = a_vector(i0, t0 + $((H+3)*KT)u, loader + $(s*LOAD_THREADS)u);
#end
#for s in 0..B_AHEAD
      b_store($((1-H)*B_HALF)u, loader + $(s*LOAD_THREADS)u, b$(1-H)_$(s));
      b$(1-H)_$(s) = b_vector(j0, t0 + $((H+3)*KT)u, loader + $(s*LOAD_THREADS)u);
#end
#if A_MORE
      for (var e = loader + $(A_AHEAD*LOAD_THREADS)u; e < $(TM*KT/8)u; e += $(LOAD_THREADS)u) { a_store($((1-H)*A_HALF)u, e, a_vector(i0, t0 + $((H+1)*KT)u, e)); }
#endif
#if B_MORE
      for (var e = loader + $(B_AHEAD*LOAD_THREADS)u; e < $(TN*KT/8)u; e += $(LOAD_THREADS)u) { b_store($((1-H)*B_HALF)u, e, b_vector(j0, t0 + $((H+1)*KT)u, e)); }
#endif
    }
    workgroupBarrier();
#end
  }
