// Bounds of a K loop in K-blocks of KT steps that starts at `begin` (tile_turns.wgsl, few_turns.wgsl): low_begin, the step at which LoRA's K-blocks
// begin, and `last`, the end of the loop.
  let low_begin = begin + (end - begin + $(KT-1)u) / $(KT)u * $(KT)u;
#if LORA
  let last = low_begin + low_depth();
#else
  let last = low_begin;
#endif
