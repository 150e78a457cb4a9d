import type { MetricsLine, RunMetrics } from './types'

/** The measurements with one more line; a line of the same step and kind takes its predecessor's place. */
export function appended(all: RunMetrics[], run: string, line: MetricsLine): RunMetrics[] {
  return all.map((item) => {
    if (item.run !== run) return item
    const others = item.lines.filter(({ step, kind }) => step !== line.step || kind !== line.kind)
    return { run, lines: [...others, line] }
  })
}
