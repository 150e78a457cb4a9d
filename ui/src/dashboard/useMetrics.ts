/** The measurements of the runs on show, which grow line by line. */

import { useReducer, useRef } from 'preact/hooks'

import { Growing } from '../data/lines'
import type { MetricsLine, RunMetrics } from '../data/types'
import { useResource, type Resource } from '../state/resource'
import { useSource } from '../state/source'

export interface Metrics extends Resource<RunMetrics[]> {
  /** Takes a line that just came, also while the others are still asked for. */
  append: (run: string, line: MetricsLine) => void
}

/** Of no runs, nothing is asked. */
export function useMetrics(shown: string[]): Metrics {
  const source = useSource()
  const key = shown.length === 0 ? null : `metrics ${shown.join(' ')}`
  const answer = useResource(key, () => source.metrics(shown))
  const [, redraw] = useReducer((count: number) => count + 1, 0)
  const growing = useRef({ key, lines: new Growing() })
  if (growing.current.key !== key) growing.current = { key, lines: new Growing() }
  const { lines } = growing.current
  return {
    ...answer,
    data: lines.upon(answer.data),
    again: () => {
      lines.forget()
      answer.again()
    },
    append: (run, line) => {
      if (key === null) return
      lines.add(run, line)
      redraw(0)
    },
  }
}
