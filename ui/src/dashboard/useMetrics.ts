/** The measurements of the runs on show, which grow line by line. */

import { useReducer, useRef } from 'preact/hooks'

import { Growing } from '../data/lines'
import type { MetricsLine, RunMetrics } from '../data/types'
import { useResource, type Resource } from '../state/resource'
import { useSource } from '../state/source'
import { FIRST_METRICS } from './charts'

export interface Metrics extends Resource<RunMetrics[]> {
  /** Takes a line that just came, also while the others are still asked for. */
  append: (run: string, line: MetricsLine) => void
}

/** Of no runs, nothing is asked; of several, at first only what the first charts show. What is on show stays while more is asked for. */
export function useMetrics(shown: string[], isWhole: boolean): Metrics {
  const source = useSource()
  const runs = shown.join(' ')
  const key = shown.length === 0 ? null : `metrics ${isWhole} ${runs}`
  const answer = useResource(key, () => source.metrics(shown, isWhole ? [] : FIRST_METRICS))
  const before = useRef<{ runs: string; data: RunMetrics[] | null }>({ runs, data: null })
  const [, redraw] = useReducer((count: number) => count + 1, 0)
  const growing = useRef({ key, lines: new Growing() })
  if (growing.current.key !== key) growing.current = { key, lines: new Growing() }
  const { lines } = growing.current
  const data = lines.upon(answer.data) ?? (before.current.runs === runs ? before.current.data : null)
  before.current = { runs, data }
  return {
    ...answer,
    data,
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
