/** Kernels that do nothing, for tests of what is allocated: that follows from sizes, and compiling what computes takes most of such a test's time. */

const nothing = '@compute @workgroup_size(1) fn main() {}'

/** Every kernel that this device makes from now on has its bindings and parameters, and an empty body. @returns what ends that */
export function idleKernels(device: GPUDevice): () => void {
  const make = device.createShaderModule.bind(device)
  device.createShaderModule = (descriptor) => make({ ...descriptor, code: nothing })
  return () => {
    device.createShaderModule = make
  }
}
