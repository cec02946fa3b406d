// Scaled product x_S A_g^T of the block's rows for the adapters g of G .. G_END, with K values per row: lane l has rank 8 R + l of row m in xa_g_R_m.
// Order of the sum: as in lora/down_cpu.wgsl.
#if LORA
#for g in G..G_END
#for R in 0..LORA
    let a_at$(g)_$(R) = p.a_$(g) + ($(8*R)u + lane) * $(K/4)u;
#for m in 0..MT
    var xa_$(g)_$(R)_$(m) = 0.0;
#end
#end
#end
    for (var c = zero; c < $(K/4)u; c += 2u) {
#for i in 0..2*MT/LANES
      let x$(i) = x_$(S)($(i)u, row$(i), c + lane % 2u);
#end
#for g in G..G_END
#for R in 0..LORA
      let lo$(g)_$(R) = bank[a_at$(g)_$(R) + c];
      let hi$(g)_$(R) = bank[a_at$(g)_$(R) + c + 1u];
#end
#end
#for m in 0..MT
      {
#for g in G..G_END
#for R in 0..LORA
        var t$(g)_$(R) = 0.0;
#end
#end
#for q in 0..4
        let xl$(q) = subgroupBroadcast(x$(2*m/LANES)[$(q)], $(2*m%LANES)u);
#for g in G..G_END
#for R in 0..LORA
        t$(g)_$(R) = fma(xl$(q), lo$(g)_$(R)[$(q)], t$(g)_$(R));
#end
#end
#end
#for q in 0..4
        let xh$(q) = subgroupBroadcast(x$(2*m/LANES)[$(q)], $(2*m%LANES+1)u);
#for g in G..G_END
#for R in 0..LORA
        t$(g)_$(R) = fma(xh$(q), hi$(g)_$(R)[$(q)], t$(g)_$(R));
#end
#end
#end
#for g in G..G_END
#for R in 0..LORA
        xa_$(g)_$(R)_$(m) += t$(g)_$(R);
#end
#end
      }
#end
    }
#for g in G..G_END
#for R in 0..LORA
#for m in 0..MT
    xa_$(g)_$(R)_$(m) *= p.scale_$(g);
#end
#end
#end
#endif
