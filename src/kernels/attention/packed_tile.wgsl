// The running maxima of all rows and heads after a tile, and the factors that rescale earlier sums, one exp for LANES of them (PACKED in
// forward.wgsl).
#for v in 0..PACKED
        var tops_$(v) = top_$(v*LANES);
#for i in 1..LANES
        tops_$(v) = select(tops_$(v), top_$((v*LANES+i)%(QR*HG)), is_$(i));
#end
        let news_$(v) = max(m_$(v), tops_$(v));
        let shrinks_$(v) = exp(m_$(v) - news_$(v));
        m_$(v) = news_$(v);
#end
#for x in 0..QR*HG
        let new_$(x) = subgroupBroadcast(news_$(x/LANES), $(x%LANES)u);
        let shrink_$(x) = subgroupBroadcast(shrinks_$(x/LANES), $(x%LANES)u);
#end
