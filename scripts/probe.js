// Asks WebGPU for an adapter and opens a device on it: exit code 0 and its name, or 1 and why not, in one
// line; 3 where the webgpu package is not installed. For setup.sh.
import { stdout } from 'node:process'

let code = 1
try {
  const { create } = await import('webgpu')
  const words = ['enable-dawn-features=allow_unsafe_apis,vulkan_enable_f16_on_nvidia']
  if (process.env.DAWN_RL_ADAPTER) words.push(`adapter=${process.env.DAWN_RL_ADAPTER}`)
  const adapter = await create(words).requestAdapter({ powerPreference: 'high-performance' })
  if (adapter) {
    ;(await adapter.requestDevice()).destroy()
    stdout.write(`${adapter.info.description || adapter.info.device}\n`)
    code = 0
  } else stdout.write('there is no Vulkan driver that it can use\n')
} catch (error) {
  const missing = error.code === 'ERR_MODULE_NOT_FOUND'
  if (missing) code = 3
  stdout.write(missing ? 'the npm packages are not installed\n' : `${String(error.message).split('\n')[0]}\n`)
}
// Dawn's threads would keep the process alive
process.exit(code)
