// The activation of an MLP's gate: v / (1 + exp(-steep(v))), where E is a value or a vector. SiLU: steep(v) = v. GELU in its tanh form: v (1 +
// tanh(z)) / 2 is v / (1 + exp(-2 z)) with z = sqrt(2 / pi) (v + 0.044715 v^3), so steep(v) = 2 z. This avoids tanh, which overflows on some drivers.
#if GELU
fn steep(v: E) -> E { return v * fma(E(0.07135481627260025), v * v, E(1.5957691216057308)); }
// The derivative of `steep`.
fn steepness(v: E) -> E { return fma(E(0.21406444881780076), v * v, E(1.5957691216057308)); }
#else
fn steep(v: E) -> E { return v; }
#endif
