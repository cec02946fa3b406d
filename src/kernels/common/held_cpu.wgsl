// For CPU drivers (lavapipe) on CPUs with AVX-512 (HELD): room on the stack for LOADS vectors of what is broadcast. A broadcast from a register is an instruction or two of its own, with
// a value of memory as its operand a multiplication makes it by itself; then products can go column by column, with all that a column takes of W in registers, and three of ten
// instructions of a turn are gone (bench/LOG.md, "Operands on the stack").
// The driver leaves values in registers where it knows what an array holds. So one place is written by an index that it does not know (of one place it would: hence one more than
// is used), and a turn of the loop puts down what the next one takes.
#if HELD
  var held: array<vec4f, $(LOADS+1)>;
  held[lane % $(LOADS+1)u] = vec4f();
#endif
