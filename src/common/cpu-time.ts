/** Processor time of a software adapter's driver: figures that hold whatever else the machine does. */

export interface CpuTime {
  process: NodeJS.CpuUsage
  thread: NodeJS.CpuUsage
  seconds: number
}

/** Seconds of processor time that threads of this process other than the calling one took, since `since` or in all. */
export function driverSeconds(since?: CpuTime): CpuTime {
  const [all, own] = [process.cpuUsage(since?.process), process.threadCpuUsage(since?.thread)]
  return { process: all, thread: own, seconds: (all.user + all.system - own.user - own.system) / 1e6 }
}
