/** The numbers that the GPU computes with. */

/** The largest of them, and the smallest above 0 that a GPU need not take for 0. */
const [LARGEST, SMALLEST] = [3.4028235e38, 1.1754944e-38]

/** What to use instead of a number that float32 does not hold. */
export const FLOAT32_RANGE = '1.2e-38 to 3.4e38'

/** Whether a number is finite in float32, and 0 only if it is 0. */
export const isFloat32 = (value: number): boolean => value === 0 || (Math.abs(value) >= SMALLEST && Math.abs(value) <= LARGEST)
