// For CPU drivers (lavapipe): opens block number BLOCK of unrolled code, which has APART rows of a tile. The kernel's params have `rows`, never near the largest u32.
// GUARDED: the block stands behind a condition that always holds, which the compiler cannot know, so that its code stays together: newer compilers (LLVM 22) reorder independent products,
// all rows' with one value of W, then with the next, and each accumulator is then loaded from the stack and stored there for each (apartOf in lanes.ts).
#if GUARDED
    if (p.rows < 0xfffffff0u - $(BLOCK)u) {
#else
    {
#endif
