// For CPU drivers (lavapipe): begins a block of APART of a tile's rows, the BLOCK'th, of a kernel whose params have `rows`, never the largest u32s.
// GUARDED: behind a condition that always holds, which the compiler cannot know, so that a block's code stays together. Newer compilers (LLVM 22) put what has no order
// of its own in one that they like: all rows' products with one value of W, then with the next; which is a load and a store of the stack for each (apartOf in lanes.ts).
#if GUARDED
    if (p.rows < 0xfffffff0u - $(BLOCK)u) {
#else
    {
#endif
