// Of few_turns.wgsl: asks for what the first turn needs (FIRST), or the next.
#if FIRST
    let asked = begin / 4u + own_step;
#else
    let asked = (t0 + $(KT)u) / 4u + own_step;
#endif
    inside = asked <= last_step;
    step = min(asked, last_step);
    gain = gain_of(4u * step);
#for s in 0..A_ROUNDS
    a$(s) = a_take(a_from$(s) + step);
#end
#for s in 0..B_ROUNDS
#if W_BLOCKS
    b$(s) = b_quad(j0 + (id + $(s*THREADS)u) / $(KT/4)u, 4u * step);
#else
    b$(s) = b_take(b_from$(s) + step);
#endif
#end
