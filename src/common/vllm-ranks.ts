/** LoRA ranks that vLLM has kernels for (its LoRAConfig, 0.32). */
const RANKS = [1, 8, 16, 32, 64, 128, 256, 320, 512]

/** The smallest of vLLM's ranks that an adapter of this rank fits into. Undefined above 512. */
export const loraRankFlag = (rank: number): number | undefined => RANKS.find((r) => r >= rank)
