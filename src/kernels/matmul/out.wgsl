// The type of what the forward products for CPU drivers store at once: 4 (VEC4), 2 (VEC2) or 1 neighbouring columns of y.
#if VEC4
alias Out = vec4f;
#else
#if VEC2
alias Out = vec2f;
#else
alias Out = f32;
#endif
#endif
