// dO, w and moved of token t, counted from `first` on, which bring_values has loaded: o_near[near + c], w_near[near + c] and d_near[near + c].
#if LANES
        const near = 0u;
        let of_value = ((first + t) * p.heads + head) * $(VALUE/4)u;
        var o_near: array<vec4f, $(VALUE/4)>;
        var w_near: array<vec4f, $(VALUE/4)>;
        var d_near: array<vec4f, $(VALUE/4)>;
#for b in 0..(VALUE/4+LANES-1)/LANES
        let part$(b) = of_value + min($(b*LANES)u + lane % LANES, $(VALUE/4-1)u);
        let o_part$(b) = d_o[part$(b)];
        let w_part$(b) = -dv[part$(b)];
        let d_part$(b) = moved[part$(b)];
#end
#for c in 0..VALUE/4
        o_near[$(c)] = subgroupBroadcast(o_part$(c/LANES), $(c%LANES)u);
        w_near[$(c)] = subgroupBroadcast(w_part$(c/LANES), $(c%LANES)u);
        d_near[$(c)] = subgroupBroadcast(d_part$(c/LANES), $(c%LANES)u);
#end
#else
        let near = t * $(VALUE/4)u;
#endif
