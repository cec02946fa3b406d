// Of a loop that goes KT steps of the depth a turn from `begin` on (tile_turns.wgsl, few_turns.wgsl): the step where LoRA's turns begin, and where all ends.
  let low_begin = begin + (end - begin + $(KT-1)u) / $(KT)u * $(KT)u;
#if LORA
  let last = low_begin + low_depth();
#else
  let last = low_begin;
#endif
