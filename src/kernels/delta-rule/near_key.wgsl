// q and k of token t, counted from `first` on, which bring_keys has loaded: q_near[near + i] and k_near[near + i].
#if LANES
        const near = 0u;
        let of_key = ((first + t) * (p.heads / p.ratio) + head / p.ratio) * $(KEY/4)u;
        var q_near: array<vec4f, $(KEY/4)>;
        var k_near: array<vec4f, $(KEY/4)>;
#for b in 0..(KEY/4+LANES-1)/LANES
        let part$(b) = of_key + min($(b*LANES)u + lane % LANES, $(KEY/4-1)u);
        let q_part$(b) = q[part$(b)];
        let k_part$(b) = k[part$(b)];
#end
#for i in 0..KEY/4
        q_near[$(i)] = subgroupBroadcast(q_part$(i/LANES), $(i%LANES)u);
        k_near[$(i)] = subgroupBroadcast(k_part$(i/LANES), $(i%LANES)u);
#end
#else
        let near = t * $(KEY/4)u;
#endif
