// One turn of a register tile (tile_turns.wgsl): `steps` (KT, or what a rank has) of the depth from workgroup memory, in order.
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
