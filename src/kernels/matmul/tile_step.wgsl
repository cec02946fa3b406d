// One turn of a register tile (tile_turns.wgsl): `steps` (KT, or what a rank has: a multiple of 8) of the depth from workgroup memory, in order.
#if FEW
    for (var y = 0u; y < steps / 4u; y += 2u) {
#for u in 0..2
      let a_from_$(u) = a_at(vec2u(ty, y + $(u)u));
      let b_from_$(u) = b_at(vec2u(tx / 4u, y + $(u)u));
#for t in 0..4
      let a_$(u)_$(t) = a_tile[a_from_$(u) + $(t*TM/4)u];
      let b_$(u)_$(t) = b_tile[b_from_$(u) + $(t*TN/4)u][tx % 4u];
#end
#end
#for u in 0..2
#for t in 0..4
      four = fma(a_$(u)_$(t), vec4f(b_$(u)_$(t)), four);
#end
#end
    }
#else
    for (var y = 0u; y < steps / 4u; y++) {
      let a_from = a_at(vec2u(ty, y));
      let b_from = b_at(vec2u(tx, y));
#for t in 0..4
      {
#for v in 0..RN/4
        let b_$(v) = b_tile[b_from + $(t*TN/4+v*TN/RN)u];
#end
#for g in 0..RM/4
        let a_$(g) = a_tile[a_from + $(t*TM/4+g*TM/RM)u];
#for r in 0..4
#for v in 0..RN/4
        acc$(4*g+r)_$(v) = fma(vec4f(a_$(g)[$(r)]), b_$(v), acc$(4*g+r)_$(v));
#end
#end
#end
      }
#end
    }
#endif
