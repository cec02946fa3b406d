// A tile of product S: MT rows of x_S (K values each) times NT rows of W_S at at_j, in nt_cpu.wgsl's order of the sum.
#for r in 0..MT
#for j in 0..NT
      var acc_$(r)_$(j) = 0.0;
#end
#end
#if HELD
#for i in 0..2*MT/LANES
      held[$(i)] = x_$(S)($(i)u, row$(i), lane % 2u);
#end
#endif
      for (var c = zero; c < $(K/8)u; c++) {
#if !HELD
#for i in 0..2*MT/LANES
        let x$(i) = x_$(S)($(i)u, row$(i), 2u * c + lane % 2u);
#end
#endif
#for j in 0..NT
        let t$(j) = textureLoad(w_$(S), vec2u(at$(j).x + 8u * c, at$(j).y));
        let w$(j) = W8(widen_lo(t$(j)), widen_hi(t$(j)));
#end
#include "../matmul/nt_cpu_step.wgsl"
#if HELD
#for i in 0..2*MT/LANES
        held[$(i)] = x_$(S)($(i)u, row$(i), 2u * min(c + 1u, $(K/8-1)u) + lane % 2u);
#end
#endif
      }
