// WINDOW: a token at position w sees only the last WINDOW of the keys 0 .. w, from key lowest(w) on. Earlier keys that a neighbour sees are masked
// (weights of 0), and tiles that no row sees are skipped. Neither changes a bit, since tiles and splits begin where they would without a window.
#if WINDOW
fn lowest(w: u32) -> u32 { return w - min(w, WINDOW - 1u); }
#endif
