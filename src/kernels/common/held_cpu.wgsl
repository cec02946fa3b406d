// For CPU drivers (lavapipe) on CPUs with AVX-512 (HELD): an array on the stack for LOADS vectors of the operand that is broadcast. To broadcast a lane of a register is an instruction or two;
// a multiplication by a value in memory broadcasts it by itself. Products can then go column by column, with all that a column takes of W in registers, and three of ten
// instructions of an iteration are gone (bench/LOG.md, "Operands on the stack").
// The driver's compiler keeps the array in registers where it knows what it holds. So one element is written at an index that it does not know (with one element it would know: hence one
// more than is used), and an iteration stores what the next one reads.
#if HELD
  var held: array<vec4f, $(LOADS+1)>;
  held[lane % $(LOADS+1)u] = vec4f();
#endif
