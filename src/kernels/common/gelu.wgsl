// The gate of an MLP: v / (1 + exp(-steep(v))), E a value or a vector of them. SiLU: steep(v) = v. GELU, in its form with tanh: v (1 + tanh(z)) / 2 is v / (1 + exp(-2 z)),
// z = sqrt(2 / pi) (v + 0.044715 v^3), and needs no tanh, which some drivers overflow in.
#if GELU
fn steep(v: E) -> E { return v * fma(E(0.07135481627260025), v * v, E(1.5957691216057308)); }
// Its derivative.
fn steepness(v: E) -> E { return fma(E(0.21406444881780076), v * v, E(1.5957691216057308)); }
#else
fn steep(v: E) -> E { return v; }
#endif
