import type { MetricColumns, MetricsLine, RunMetrics } from './types'

/** The lines that columns were made of. */
export function linesOf({ run, names, at, columns }: MetricColumns): RunMetrics {
  const lines = at.map(([step, kind, time, elapsed_s]): MetricsLine => ({ step, kind, time, elapsed_s, metrics: {} }))
  for (const [name, { of, values }] of Object.entries(columns)) {
    values.forEach((value, index) => {
      lines[of ? of[index]! : index]!.metrics[name] = value
    })
  }
  return { run, lines, names }
}

/** The measurements with one more line; a line of the same step and kind takes its predecessor's place. */
export function appended(all: RunMetrics[], run: string, line: MetricsLine): RunMetrics[] {
  return all.map((item) => {
    if (item.run !== run) return item
    const others = item.lines.filter(({ step, kind }) => step !== line.step || kind !== line.kind)
    return { ...item, lines: [...others, line] }
  })
}

/** Lines that came one by one, upon the answer that may have been given before or after them. */
export class Growing {
  private received: [run: string, line: MetricsLine][] = []
  private base: RunMetrics[] | null = null
  private grown: RunMetrics[] | null = null
  /** How many of the lines `grown` has. */
  private taken = 0

  add(run: string, line: MetricsLine): void {
    this.received.push([run, line])
  }

  /** Before all is asked for again: the answer will have them. What is shown until then keeps them. */
  forget(): void {
    this.received = []
    this.taken = 0
  }

  upon(answer: RunMetrics[] | null): RunMetrics[] | null {
    if (answer !== this.base) [this.base, this.grown, this.taken] = [answer, answer, 0]
    for (const [run, line] of this.received.slice(this.taken)) this.grown = this.grown && appended(this.grown, run, line)
    this.taken = this.received.length
    return this.grown
  }
}
