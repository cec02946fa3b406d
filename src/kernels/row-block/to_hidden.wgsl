// y = before_S + product S (K terms, H columns) with adapter G.
#let G_END = G+1
#let SPAN = 8
#include "lora_down.wgsl"
    for (var n0 = zero; n0 < $(H)u; n0 += $(8*LANES)u) {
#for j in 0..NT
      let col$(j) = n0 + 8u * lane + $(j)u;
      let at$(j) = w_at(col$(j));
#end
#include "product.wgsl"
#include "lora_up.wgsl"
      for (var row = m0; row < end; row++) {
#include "one_row.wgsl"
#for j in 0..NT
        y[row * $(H)u + col$(j)] = out_$(j) + before_$(S)(row * $(H)u + col$(j));
#end
      }
    }
