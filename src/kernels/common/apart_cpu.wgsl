// For CPU drivers (lavapipe): opens block number BLOCK of unrolled code, which has APART rows of a tile. The kernel's params have `rows`, which is
// never near the largest u32.
// GUARDED: a condition that always holds, but which the compiler cannot know to hold, guards the block, so that its code stays together. Newer
// compilers (LLVM 22) reorder independent products: those of all rows with one value of W, then with the next. Each accumulator is then loaded from
// the stack and stored there for each product (apartOf in lanes.ts).
#if GUARDED
    if (p.rows < 0xfffffff0u - $(BLOCK)u) {
#else
    {
#endif
