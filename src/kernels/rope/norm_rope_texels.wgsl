// Part of norm_rope_cache.wgsl: writes a head's values, of which lane l has put_j, value number l + j * LANES, to texels of the cache of keys (CACHE
// 0) or values (1). A lane gathers the four values of texel l, l + LANES, ...
#for j in PER_LANE..(PER_LANE+3)/4*4
      let put$(j) = 0.0;
#end
#for t in 0..(PER_LANE+3)/4
      {
        let texel = lane + $(t*LANES)u;
        let first = texel % $(LANES/4)u * 4u;
        var four = vec4f();
#for j in t*4..t*4+4
        let of$(j) = vec4f(subgroupShuffle(put$(j), first), subgroupShuffle(put$(j), first + 1u), subgroupShuffle(put$(j), first + 2u), subgroupShuffle(put$(j), first + 3u));
        four = select(four, of$(j), texel / $(LANES/4)u == $(j)u);
#end
        if (texel < $(PER_LANE*LANES/4)u) {
#if CACHE
          textureStore(v_cache, kv_place(place.x, kv_head * $(PER_LANE*LANES/4)u + texel), four);
#else
          textureStore(k_cache, kv_place(place.x, kv_head * $(PER_LANE*LANES/4)u + texel), four);
#endif
        }
      }
#end
