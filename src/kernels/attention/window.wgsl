// WINDOW: of the keys 0 .. w that a token at position w would see only the last WINDOW are seen, from this one on. The others are gone through with weights of 0
// where a neighbour sees them, and tiles of keys that nobody sees not at all: neither changes a bit, since tiles and splits begin where they do without a window.
#if WINDOW
fn lowest(w: u32) -> u32 { return w - min(w, WINDOW - 1u); }
#endif
