// Adds what LoRA adds to a tile: xa_g B_gᵀ, g = G for columns j < SPAN, G + 1 for those behind them; rows col_j of B_g, which begins at vec4 b_g of the bank.
// B is loaded in a loop for the reason that matmul/lora_b.wgsl has: written out for all columns it took twice as long to compile.
#if LORA
#for R in 0..LORA
      {
#for j in 0..NT
        var b$(j)_0 = vec4f();
        var b$(j)_1 = vec4f();
#end
        for (var j = 0u; j != min($(NT)u, p.k); j++) {
          var at = b_$(G) + col0 * $(2*LORA)u + $(2*R)u + j * $(2*LORA)u;
#for j in SPAN..NT
          at = select(at, b_$(G+j/SPAN) + col$(j) * $(2*LORA)u + $(2*R)u, j == $(j)u);
#end
          let lo = bank[at];
          let hi = bank[at + 1u];
#for j in 0..NT
          b$(j)_0 = select(b$(j)_0, lo, j == $(j)u);
          b$(j)_1 = select(b$(j)_1, hi, j == $(j)u);
#end
        }
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
