// For CPU drivers (lavapipe) on CPUs with AVX-512 (HELD): an array on the stack for LOADS vectors of the operand that is broadcast. Broadcasting a
// lane of a register takes one or two instructions, but a multiplication by a value in memory broadcasts it itself. Products can then go column by
// column, with all that a column needs of W in registers, and three of an iteration's ten instructions are saved (bench/LOG.md, "Operands on the
// stack").
// The driver's compiler would keep the array in registers if it knew its contents. So one element is written at an index that the compiler does not
// know (with a single element it would know; hence one more than is used), and an iteration stores what the next one reads.
#if HELD
  var held: array<vec4f, $(LOADS+1)>;
  held[lane % $(LOADS+1)u] = vec4f();
#endif
