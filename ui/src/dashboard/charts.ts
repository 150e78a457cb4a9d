/** The dashboard's charts: which measurements each one shows, and the curves that runs have for it. */

import type { MetricsLine, Run, RunMetrics, Split } from '../data/types'
import type { Axis } from '../state/place'
import type { Word } from '../text/words'

export interface ChartKind {
  key: string
  title: Word
  unit?: Word
  /** Curves that every run has at most once: a measurement, of training or held-out steps. */
  metrics: { name: string; split: Split }[]
  /** Or curves of one run only, one for each part that it has. */
  parts?: (run: RunMetrics, setup: Run | null) => Part[]
  /** The scale of the axis begins at 0. */
  fromZero?: boolean
}

interface Part {
  name: string
  points: [at: Moment, value: number | null][]
}

/** Of a step; when it was is not known of one that ended before it was measured. */
type Moment = { step: number; elapsed_s: number | null }

export interface Curve {
  label: string
  /** Index of the run among those on show, and of the part: what colour and dashes follow from. */
  run: number
  part: number
  split: Split
  /** Ascending in x, one value for each x. */
  points: [x: number, y: number | null][]
}

const both = (name: string): ChartKind['metrics'] => [
  { name, split: 'train' },
  { name, split: 'validation' },
]
const training = (name: string): ChartKind['metrics'] => [{ name, split: 'train' }]

export const CHARTS: ChartKind[] = [
  { key: 'reward', title: 'chart_reward', metrics: both('reward/mean') },
  { key: 'success', title: 'chart_success', metrics: both('reward/success_rate'), fromZero: true },
  { key: 'length', title: 'chart_length', unit: 'unit_tokens', metrics: both('episodes/sampled_tokens_mean'), fromZero: true },
  { key: 'turns', title: 'chart_turns', metrics: both('episodes/turns_mean'), fromZero: true },
  { key: 'entropy', title: 'chart_entropy', unit: 'unit_nats', metrics: training('train/entropy'), fromZero: true },
  { key: 'loss', title: 'chart_loss', metrics: training('train/loss') },
  { key: 'gradient', title: 'chart_gradient', metrics: training('train/grad_norm'), fromZero: true },
  { key: 'lr', title: 'chart_lr', metrics: training('train/lr'), fromZero: true },
  { key: 'mismatch', title: 'chart_mismatch', unit: 'unit_nats', metrics: training('train/logprob_diff_mean'), fromZero: true },
  { key: 'speed', title: 'chart_speed', unit: 'unit_tokens', metrics: training('engine/tokens_per_s_out'), fromZero: true },
  { key: 'phases', title: 'chart_phases', unit: 'unit_seconds', metrics: [], parts: phases, fromZero: true },
  { key: 'balance', title: 'chart_balance', unit: 'unit_tokens', metrics: [], parts: balance, fromZero: true },
  { key: 'errors', title: 'chart_errors', unit: 'unit_episodes', metrics: [], parts: errors, fromZero: true },
]

/** The curves of a chart; for one of parts those of the first run. */
export function curves(kind: ChartKind, runs: RunMetrics[], setup: Run | null, axis: Axis): Curve[] {
  if (kind.parts) {
    const parts = runs[0] ? kind.parts(runs[0], setup) : []
    return parts
      .map(({ name, points }, part): Curve => ({ label: name, run: 0, part, split: 'train', points: placed(points, axis) }))
      .filter(({ points }) => points.length > 0)
  }
  return runs.flatMap((run, index) =>
    kind.metrics.flatMap(({ name, split }): Curve[] => {
      const lines = run.lines.filter((line) => line.kind === split && name in line.metrics)
      if (lines.length === 0) return []
      const points = lines.map((line): [Moment, number | null] => [line, line.metrics[name] ?? null])
      return [{ label: run.run, run: index, part: 0, split, points: ascending(placed(points, axis)) }]
    }),
  )
}

/** In steps, or in minutes without what has no time. */
function placed(points: Part['points'], axis: Axis): Curve['points'] {
  return points.flatMap(([{ step, elapsed_s }, value]): Curve['points'] => {
    if (axis === 'step') return [[step, value]]
    return elapsed_s === null ? [] : [[elapsed_s / 60, value]]
  })
}

/** A step that was run again after a resume counts as it was last. */
function ascending(points: [number, number | null][]): [number, number | null][] {
  return [...new Map(points)].sort(([a], [b]) => a - b)
}

/** A step's held-out measurement follows it, and has a line of its own; step 0 is nothing else. */
function phases(run: RunMetrics): Part[] {
  const timed = linesOf(run, 'validation').filter((line) => 'time/validation_s' in line.metrics)
  const lines = new Map(timed.map((line) => [line.step, line]))
  for (const line of linesOf(run, 'train')) {
    lines.set(line.step, { ...line, metrics: { ...lines.get(line.step)?.metrics, ...line.metrics } })
  }
  const inOrder = [...lines.values()].sort((a, b) => a.step - b.step)
  return namedParts(inOrder, (name) => /^time\/(.+)_s$/.exec(name)?.[1] ?? null, ['trained'])
}

function balance(run: RunMetrics): Part[] {
  return namedParts(linesOf(run, 'train'), (name) => /^balance\/(.+)$/.exec(name)?.[1] ?? null, [])
}

function errors(run: RunMetrics, setup: Run | null): Part[] {
  const lines = linesOf(run, 'train')
  const counted = setup?.errors.filter((error) => error.split === 'train') ?? []
  const types = [...new Set(counted.map((error) => error.error_type))]
  if (types.length === 0) {
    return namedParts(lines, (name) => (name === 'episodes/failed_attempts' ? 'failed attempts' : null), [])
  }
  return types.map((name) => ({
    name,
    points: [...lines, ...unfinished(lines, counted)].map((at) => [
      at,
      counted.filter((error) => error.error_type === name && error.step === at.step).reduce((sum, error) => sum + error.count, 0),
    ]),
  }))
}

/** Steps with errors that ended before they were measured. */
function unfinished(lines: MetricsLine[], counted: Run['errors']): Moment[] {
  const measured = new Set(lines.map((line) => line.step))
  const steps = new Set(counted.map((error) => error.step).filter((step) => !measured.has(step)))
  return [...steps].sort((a, b) => a - b).map((step) => ({ step, elapsed_s: null }))
}

/** One for each step, in order. */
function linesOf(run: RunMetrics, split: Split): MetricsLine[] {
  const last = new Map(run.lines.filter((line) => line.kind === split).map((line) => [line.step, line]))
  return [...last.values()].sort((a, b) => a.step - b.step)
}

function namedParts(lines: MetricsLine[], nameOf: (metric: string) => string | null, without: string[]): Part[] {
  const metrics = [...new Set(lines.flatMap((line) => Object.keys(line.metrics)))]
  return metrics.flatMap((metric) => {
    const name = nameOf(metric)
    if (name === null || without.includes(name)) return []
    return [{ name, points: lines.map((line): [MetricsLine, number | null] => [line, amount(line.metrics[metric])]) }]
  })
}

/** A step without a part had nothing of it; null is a value that is not known. */
function amount(value: number | null | undefined): number | null {
  return value === undefined ? 0 : value
}
