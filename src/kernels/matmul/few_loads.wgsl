// Part of few_turns.wgsl: prefetches into registers the K-block that begins with step `next`.
    let asked = min(next / 4u + own_step, last_step);
    gain = gain_of(4u * asked);
#for s in 0..A_ROUNDS
    a$(s) = a_take(a_from$(s) + asked);
#end
#for s in 0..B_ROUNDS
#if W_BLOCKS
    b$(s) = b_quad(j0 + (id + $(s*THREADS)u) / $(KT/4)u, 4u * asked);
#else
    b$(s) = b_take(b_from$(s) + asked);
#endif
#end
