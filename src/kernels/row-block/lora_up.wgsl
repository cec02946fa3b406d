// Adds LoRA's second product, with B, to a tile: adapter g = G for columns j < SPAN, G + 1 for those after them; rows col_j of B_g, which begins at
// vec4 b_g of the bank.
#if LORA
#for R in 0..LORA
      {
#for j in 0..NT
        let b_at$(j) = b_$(G+j/SPAN) + col$(j) * $(2*LORA)u + $(2*R)u;
#end
#include "../matmul/lora_b.wgsl"
#for r in 0..MT
        {
#for j in 0..NT
          var t$(j) = 0.0;
#end
#for q in 0..8
#for g in 0..NT/SPAN
          let v$(q)_$(g) = subgroupBroadcast(xa_$(G+g)_$(R)_$(r), $(q)u);
#end
#for j in 0..NT
          t$(j) = fma(v$(q)_$(j/SPAN), b$(j)_$(q/4)[$(q%4)], t$(j));
#end
#end
#for j in 0..NT
          acc_$(r)_$(j) += t$(j);
#end
        }
#end
      }
#end
#endif
